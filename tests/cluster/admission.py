"""Admission that refuses every job of one namespace, by a webhook on this host."""

import contextlib
import json
import ssl
from collections.abc import Iterator

from kubernetes import client
from kubernetes.client.exceptions import ApiException

from kfp_tfjob.jobs.job_identity import Identity
from kfp_tfjob.jobs.manifest import build_job
from tests.cluster.host import BRIDGE_ADDRESS
from tests.cluster.launches import Launch
from tests.cluster.processes import wait_until
from tests.http_server import Handler, serving

_SECONDS = 60
_RULE = {"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["tfjobs", "jobsets"]}
_RULES = [_RULE | {"operations": ["CREATE"]}]


@contextlib.contextmanager
def webhook(launch: Launch, message: str) -> Iterator[None]:
    """Have a webhook answer every creation of a job in a launch's namespace with no."""
    cluster, namespace = launch.cluster, launch.namespace
    certificate, key = cluster.authority.issue("refusing", "/CN=refusing", (BRIDGE_ADDRESS,))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    hook = {
        "name": "budget.team-a.test",
        "rules": _RULES,
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    api = client.AdmissionregistrationV1Api(cluster.api)
    name = f"refuse-{namespace}"

    def refused() -> bool:
        job = build_job(launch.spec(), Identity("probe", 1))
        try:
            cluster.custom.create_namespaced_custom_object(*launch.place, job, dry_run="All")
        except ApiException as error:
            return message in str(error.body)
        return False

    with serving(_Refusing, BRIDGE_ADDRESS, context, message=message) as server:
        hook["clientConfig"] = {"url": f"{server.url}/", "caBundle": cluster.authority.trusted}
        body = {"metadata": {"name": name}, "webhooks": [hook]}
        api.create_validating_webhook_configuration(body)
        try:
            # The API server hears of new admission rules by a watch of its own.
            assert wait_until(refused, _SECONDS)
            yield
        finally:
            api.delete_validating_webhook_configuration(name)


class _Refusing(Handler):
    def do_POST(self) -> None:
        body = json.loads(self.body())
        status = {"code": 403, "message": self.server.message}
        response = {"uid": body["request"]["uid"], "allowed": False, "status": status}
        kind = {key: body[key] for key in ("apiVersion", "kind")}
        self.answer(kind | {"response": response})
