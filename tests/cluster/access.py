"""What tests do with a cluster through its API, however it was started."""

import contextlib
import itertools
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from tests.cluster.pki import write_kubeconfig
from tests.cluster.processes import wait_until

TFJOBS = ("kubeflow.org", "v1")
_END_SECONDS = 60
_TOKEN_SECONDS = 3600


class Access:
    """A cluster as its administrator sees it.

    Attributes:
        api: A client with every right; each use makes its own typed API of it.
    """

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self.api: client.ApiClient = config.new_client_from_config(str(kubeconfig))
        self._names = itertools.count()

    @property
    def core(self) -> client.CoreV1Api:
        return client.CoreV1Api(self.api)

    @property
    def custom(self) -> client.CustomObjectsApi:
        return client.CustomObjectsApi(self.api)

    @contextlib.contextmanager
    def namespace(self) -> Iterator[str]:
        """Make a namespace for one test; afterwards its TFJobs and pods are gone."""
        name = f"t{next(self._names)}-{os.urandom(3).hex()}"
        self.core.create_namespace({"metadata": {"name": name}})

        def accounts() -> list[str]:
            found = self.core.list_namespaced_service_account(name).items
            return [account.metadata.name for account in found]

        # Pods are refused before the controller has made their account.
        if not wait_until(lambda: "default" in accounts(), _END_SECONDS):
            raise TimeoutError(f"no ServiceAccount default in {name}")
        try:
            yield name
        finally:
            self._empty(name)

    def kubeconfig_for(
        self, namespace: str, account: str, rules: Sequence[Mapping[str, Sequence[str]]]
    ) -> Path:
        """Make a ServiceAccount that has these rights and no others; return its kubeconfig."""
        metadata = {"name": account}
        rbac = client.RbacAuthorizationV1Api(self.api)
        self.core.create_namespaced_service_account(namespace, {"metadata": metadata})
        rbac.create_namespaced_role(namespace, {"metadata": metadata, "rules": list(rules)})
        binding = {
            "metadata": metadata,
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "Role",
                "name": account,
            },
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
        }
        rbac.create_namespaced_role_binding(namespace, binding)
        token = self.core.create_namespaced_service_account_token(
            account, namespace, {"spec": {"audiences": [], "expirationSeconds": _TOKEN_SECONDS}}
        ).status.token
        settings = self.api.configuration
        handle, path = tempfile.mkstemp(suffix=".kubeconfig")
        os.close(handle)
        return write_kubeconfig(
            Path(path), settings.host, Path(settings.ssl_ca_cert), {"token": token}
        )

    def node_is_ready(self, name: str) -> bool:
        try:
            node = self.core.read_node(name)
        except ApiException:
            return False
        return any(c.type == "Ready" and c.status == "True" for c in node.status.conditions or [])

    def log(self, namespace: str, pod: str, container: str = "") -> str:
        """Return the log of a container as it is: the client would parse one that is JSON."""
        named = {"container": container} if container else {}
        answer = self.core.read_namespaced_pod_log(pod, namespace, _preload_content=False, **named)
        return answer.data.decode()

    def _empty(self, namespace: str) -> None:
        """Delete the namespace; TFJobs first, or they would make their pods again."""
        self.custom.delete_collection_namespaced_custom_object(*TFJOBS, namespace, "tfjobs")

        def gone() -> bool:
            # No grace: what a test has shown is over, and the next one needs the CPU and the GPUs.
            self.core.delete_collection_namespaced_pod(namespace, grace_period_seconds=0)
            return not self.core.list_namespaced_pod(namespace).items

        wait_until(gone, _END_SECONDS)
        self.core.delete_namespace(namespace)
