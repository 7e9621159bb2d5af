"""Reads and writes raw objects of the Kubernetes API, with retries.

Typed clients drop unknown fields and refuse objects without an expected field. A plain dict is
exactly what the server sent.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import urllib3
from kubernetes import config
from kubernetes.client import ApiClient, ApiException, Configuration

from kfp_tfjob.cluster.errors import (
    UNREADABLE,
    ApiError,
    ClusterUnavailableError,
    NotFoundError,
    transient,
    translate,
)
from kfp_tfjob.jobs.kind import JobKind
from kfp_tfjob.jobs.kinds import DEFAULT
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.storage.errors import ConfigurationError, Problem
from kfp_tfjob.storage.retry import Patience

log = logging.getLogger(__name__)

PATIENCE = Patience(seconds=900, party="the cluster", error=ClusterUnavailableError)
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# The errors of one failed call: an error response, or no response.
CALL_FAILED = (ApiError, urllib3.exceptions.HTTPError, OSError, *UNREADABLE)
CALL_SECONDS = (5, 30)  # to connect, and between two bytes
_CONNECTIONS = 1000  # every log and every watch holds one
_LONGEST_LINE = 64 * 1024
_LONGEST_EVENT = 16 * 1024 * 1024  # etcd accepts objects of 1.5 MiB, which are longer as JSON
_CHUNK = 16 * 1024
_WATCH_SECONDS, _WATCH_SILENCE = 55, 70.0  # the API server ends a watch after the first


def user_agent() -> str:
    """Return the name under which the audit log of a cluster shows a call of this project."""
    ours = metadata.distributions(name="kfp-tfjob")
    return "/".join(("kfp-tfjob", *(found.version for found in list(ours)[:1])))


def connect(configuration: Configuration) -> ApiClient:
    """Return the Kubernetes client with connections of its own, for several threads."""
    # The client declares these None. Our own repetitions are enough, and they are logged.
    vars(configuration).update(retries=False)
    configuration.connection_pool_maxsize = _CONNECTIONS
    client = ApiClient(configuration)
    client.user_agent = user_agent()
    return client


class ClusterClient:
    """The API of one cluster, seen from one namespace.

    Every call raises ForbiddenError if RBAC forbids it, and ClusterUnavailableError if the API
    server does not respond in time.
    """

    def __init__(
        self,
        client: ApiClient,
        namespace: str,
        patience: Patience = PATIENCE,
        kind: JobKind = DEFAULT,
    ) -> None:
        self.client = client
        self.namespace = namespace
        self.kind = kind
        self._patience = patience
        self._allowed: set[str] = set()

    @classmethod
    def from_environment(
        cls, patience: Patience = PATIENCE, kind: JobKind = DEFAULT
    ) -> ClusterClient:
        """Return the client of the pod's own service account, else of the kubeconfig.

        Raises:
            ConfigurationError: Neither exists.
        """
        found = Configuration()
        try:
            config.load_incluster_config(found)
        except config.ConfigException:
            namespace = cls._load_kubeconfig(found)
        else:  # without the proxy of the environment, which is for addresses outside the cluster
            namespace = (_ACCOUNT / "namespace").read_text().strip()
        return cls(connect(found), namespace, patience, kind)

    @staticmethod
    def _load_kubeconfig(found: Configuration) -> str:
        """Read the kubeconfig, and return the namespace of its context."""
        try:
            config.load_kube_config(client_configuration=found)
            context = config.list_kube_config_contexts()[1]["context"]
        except config.ConfigException as error:
            raise ConfigurationError(
                Problem(
                    "there is no cluster to run on",
                    received=str(error),
                    expected="a pod with a service account, or a kubeconfig",
                    fix="set KUBECONFIG, or run with `kfp-tfjob run`",
                )
            ) from error
        server, proxies = urlsplit(found.host), getproxies()
        if server.hostname not in ("localhost", "127.0.0.1", "::1"):
            # kubectl reads them too, but this client does not.
            vars(found).update(proxy=proxies.get(server.scheme), no_proxy=proxies.get("no"))
        return context.get("namespace") or "default"

    @property
    def address(self) -> str:
        """The URL of the API server."""
        return self.client.configuration.host

    def within(self, seconds: float) -> ClusterClient:
        """Return the same client with a different patience."""
        return self._with(_patience=replace(self._patience, seconds=seconds))

    def of(self, kind: JobKind) -> ClusterClient:
        """Return the same client for jobs of a different kind."""
        return self._with(kind=kind)

    def apart(self) -> ClusterClient:
        """Return the same client with connections that nothing else uses."""
        return self._with(client=connect(self.client.configuration))

    def _with(self, **other: Any) -> ClusterClient:
        found = copy(self)
        vars(found).update(_allowed=set(), **other)
        return found

    def jobs(self, name: str = "") -> str:
        """Return the path of the namespace's jobs, or of one job."""
        return self._path(f"/apis/{self.kind.api_version}", self.kind.plural, name)

    def core(self, kind: str, name: str = "") -> str:
        """Return the path of a kind of the core group, for example `pods`, or of one object."""
        return self._path("/api/v1", kind, name)

    def workflow(self, name: str) -> str:
        """Return the path of a Workflow of Argo."""
        return self._path("/apis/argoproj.io/v1alpha1", "workflows", name)

    def pending_workloads(self, queue: str) -> str:
        """Return the path of what waits in a LocalQueue of Kueue 0.15 or later."""
        group = "/apis/visibility.kueue.x-k8s.io/v1beta2"
        return self._path(group, "localqueues", f"{queue}/pendingworkloads")

    @staticmethod
    def _resource(path: str) -> str:
        """Return the RBAC resource of the objects of a path."""
        parts = path.partition("/namespaces/")[2].split("/")
        return "/".join((*parts[1:2], *parts[3:])) or path

    def _path(self, group: str, plural: str, name: str) -> str:
        return f"{group}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    def get(self, path: str, **query: str) -> Object | None:
        """Return an object, or None if it does not exist."""
        try:
            return self.request("GET", path, query)
        except NotFoundError:
            return None

    def list(self, path: str, **query: str) -> list[Object]:
        """Return the objects of a list."""
        return self.request("GET", path, query).get("items") or []

    def list_jobs(self, selector: str) -> list[Object]:
        """Return the jobs with a label, for example `kfp-tfjob/run=x`; raises as `list`."""
        return self.with_kind(self.list(self.jobs(), labelSelector=selector))

    def with_kind(self, jobs: Iterable[Object]) -> list[Object]:
        """Return the jobs of a list with their kind, which lists of Kubernetes' own kinds omit."""
        kind = {"apiVersion": self.kind.api_version, "kind": self.kind.name}
        return [kind | job for job in jobs]

    def annotate(self, path: str, values: Mapping[str, str | None]) -> None:
        """Set annotations of an object."""
        body = {"metadata": {"annotations": dict(values)}}
        self.request("PATCH", path, {}, body)

    def delete(self, path: str, propagation: str = "Foreground") -> None:
        """Delete an object and its dependents (`Background`: later), if it exists."""
        try:
            self.request("DELETE", path, {"propagationPolicy": propagation})
        except NotFoundError:
            return

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: object = None,
    ) -> Object:
        """Make a call, and repeat it after temporary errors; PATCH merges.

        Raises:
            NotFoundError: 404.
            JobExistsError: The name is taken.
            JobRefusedError: The object is not accepted.
        """
        what = f"{method.lower()} {path.partition('/namespaces/')[2] or path}"
        right = f"{method} {self._resource(path)}"

        def call() -> Object:
            found = self.once(method, path, query, CALL_SECONDS, body)
            self._allowed.add(right)
            return found

        def passing(error: Exception) -> bool:
            # A starting API server rejects every call until it has read the roles.
            refused = isinstance(error, ApiError) and error.status == 403
            return transient(error) or (refused and right in self._allowed)

        try:
            return self._patience.run(what, call, passing)
        except ApiError as error:
            raise translate(error, what) from error

    def once(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        seconds: tuple[float, float],
        body: object = None,
    ) -> Object:
        """Make a call without retries, for a caller in a hurry; `seconds` to connect and per byte.

        Raises:
            Exception: One of CALL_FAILED.
        """
        return json.loads(self._call(method, path, query, body, seconds).data or b"{}")

    def lines(
        self,
        path: str,
        query: Mapping[str, str],
        silence: float,
        heard: Callable[[int], None] = lambda size: None,
    ) -> Iterator[bytes]:
        """Yield the lines of an endless reply: a watch or a log.

        There is no retry, because only the caller knows where to continue.

        Args:
            path: The path of a list or a log.
            query: For example, follow=true.
            silence: Seconds without a byte after which the connection counts as dead.
            heard: Called when bytes arrive, with the size of the line that has not ended: that of
                a progress bar may take hours.

        Raises:
            ApiError: The API returned an error.
            urllib3.exceptions.HTTPError: The connection broke, or was silent for too long.
        """
        reply = self._call("GET", path, query, None, (CALL_SECONDS[0], silence))
        try:
            yield from _lines(reply, _LONGEST_EVENT if "watch" in query else _LONGEST_LINE, heard)
        finally:
            reply.close()

    def watch(self, path: str, query: Mapping[str, str]) -> Iterator[Object]:
        """Yield the events of a watch until the server ends it; raises as `lines`."""
        query = {**query, "watch": "true", "timeoutSeconds": str(_WATCH_SECONDS)}
        return map(json.loads, self.lines(path, query, _WATCH_SILENCE))

    def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: object,
        seconds: tuple[float, float],
    ) -> Any:
        if method == "DELETE":
            _refuse_to_delete_everything(path, query)
        content = f"application/{'merge-patch+' if method == 'PATCH' else ''}json"
        headers = {"Accept": "application/json, */*", "Content-Type": content}
        try:
            return self.client.call_api(
                path,
                method,
                query_params=dict(query),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
                _return_http_data_only=True,
                _preload_content=False,  # the models would drop fields
                _request_timeout=tuple(seconds),  # the client ignores anything else in silence
            )
        except ApiException as error:
            raise ApiError.of(error) from None


def _refuse_to_delete_everything(path: str, query: Mapping[str, str]) -> None:
    """Reject a deletion without an object name or a label value."""
    _, kind, *name = [*path.partition("/namespaces/")[2].split("/"), ""]
    requirements = query.get("labelSelector", "").split(",")
    if kind and any(name):
        return
    if not any(re.fullmatch(r"[^=!]+=[^=!]+", item.strip()) for item in requirements):
        raise ValueError(
            f"delete {path} with the label selector {query.get('labelSelector', '')!r} would"
            " delete objects of other owners"
        )


def _lines(
    reply: Any, longest: int = _LONGEST_LINE, heard: Callable[[int], None] = lambda size: None
) -> Iterator[bytes]:
    """Split a stream into lines, and keep only the beginning of long lines."""
    rest, cut, size = b"", False, 0
    for chunk in reply.stream(_CHUNK, decode_content=False):
        *whole, rest = (rest + chunk).split(b"\n")
        size = len(rest) if whole else size + len(chunk)
        heard(size)
        for line in whole:
            if not cut:
                yield line
            cut = False
        if len(rest) > longest:
            if not cut:
                yield rest[:longest]
            rest, cut = b"", True
    if rest and not cut:
        yield rest
