"""Reads and writes raw objects of the Kubernetes API, with retries.

Typed models drop unknown fields and reject objects without an expected field. A plain dict contains
exactly the fields that the server sent. Called by everything that uses a cluster.
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

from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.jobs.kind import JobKind
from kfp_tfjob.jobs.kinds import DEFAULT
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.storage.retry import Patience

from .api_errors import (
    UNREADABLE,
    ApiError,
    ClusterUnavailableError,
    NotFoundError,
    transient,
    translate,
)
from .log_lines import last_state

log = logging.getLogger(__name__)

# A control plane may be replaced meanwhile: its upgrade takes minutes, and the job continues.
PATIENCE = Patience(seconds=900, party="the cluster", error=ClusterUnavailableError)
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# The errors of one failed call: an error response, or no response.
CALL_FAILED = (ApiError, urllib3.exceptions.HTTPError, OSError, *UNREADABLE)
CALL_SECONDS = (5, 30)  # to connect, and between two bytes: a large list is slow to begin
_CONNECTIONS = 1000  # every log and every watch uses one
_LONGEST_LINE = 64 * 1024  # bytes of a log line; the end of a longer line is dropped
_LONGEST_EVENT = 16 * 1024 * 1024  # etcd accepts objects of 1.5 MiB, which are longer as JSON
_CHUNK = 16 * 1024  # bytes of one read; a thousand streams may be open
# The API server ends a watch after 55 s, so a connection that is silent for 70 s is dead.
_WATCH_SECONDS, _WATCH_SILENCE = 55, 70.0


def user_agent() -> str:
    """Return this project's name and version for a cluster's audit log."""
    installed = list(metadata.distributions(name="kfp-tfjob"))
    return "/".join(("kfp-tfjob", *(distribution.version for distribution in installed[:1])))


def connect(configuration: Configuration) -> ApiClient:
    """Return a Kubernetes client with its own connections, for several threads."""
    # Without urllib3's retries, because ours are logged. The client declares the attribute as None.
    vars(configuration).update(retries=False)
    configuration.connection_pool_maxsize = _CONNECTIONS
    client = ApiClient(configuration)
    client.user_agent = user_agent()
    return client


class ClusterClient:
    """One cluster's API for objects in one namespace.

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
        """Return a client for the pod's service account or, outside a pod, for the kubeconfig.

        Raises:
            ConfigurationError: Neither exists.
        """
        configuration = Configuration()
        try:
            config.load_incluster_config(configuration)
        except config.ConfigException:
            namespace = cls._load_kubeconfig(configuration)
        else:  # the environment's proxy is for addresses outside the cluster, so it is not used
            namespace = (_ACCOUNT / "namespace").read_text().strip()
        return cls(connect(configuration), namespace, patience, kind)

    @staticmethod
    def _load_kubeconfig(configuration: Configuration) -> str:
        """Read the kubeconfig, and return its context's namespace."""
        try:
            config.load_kube_config(client_configuration=configuration)
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
        server, proxies = urlsplit(configuration.host), getproxies()
        if server.hostname not in ("localhost", "127.0.0.1", "::1"):
            # kubectl reads the proxy variables, but this client does not.
            vars(configuration).update(proxy=proxies.get(server.scheme), no_proxy=proxies.get("no"))
        return context.get("namespace") or "default"

    @property
    def address(self) -> str:
        """The API server's URL."""
        return self.client.configuration.host

    def with_patience(self, seconds: float) -> ClusterClient:
        """Return the same client with retries for at most `seconds`."""
        return self._with(_patience=replace(self._patience, seconds=seconds))

    def of(self, kind: JobKind) -> ClusterClient:
        """Return the same client for jobs of a different kind."""
        return self._with(kind=kind)

    def clone(self) -> ClusterClient:
        """Return the same client with its own connections, which no other call can block."""
        return self._with(client=connect(self.client.configuration))

    def _with(self, **attributes: Any) -> ClusterClient:
        client = copy(self)
        vars(client).update(_allowed=set(), **attributes)
        return client

    def jobs(self, name: str = "") -> str:
        """Return the API path to the namespace's jobs, or to one job."""
        return self._path(f"/apis/{self.kind.api_version}", self.kind.plural, name)

    def core(self, kind: str, name: str = "") -> str:
        """Return the API path to a core resource, for example `pods`, or to one object."""
        return self._path("/api/v1", kind, name)

    def workflow(self, name: str) -> str:
        """Return the API path to an Argo Workflow."""
        return self._path("/apis/argoproj.io/v1alpha1", "workflows", name)

    def pending_workloads(self, queue: str) -> str:
        """Return the API path to a LocalQueue's pending Workloads, for Kueue 0.15 or later."""
        group = "/apis/visibility.kueue.x-k8s.io/v1beta2"
        return self._path(group, "localqueues", f"{queue}/pendingworkloads")

    @staticmethod
    def _resource(path: str) -> str:
        """Return the RBAC resource of an API path: `pods/log` of `…/namespaces/x/pods/y/log`.

        The path of a namespace, or a path outside one, is returned as it is.
        """
        # The namespace, the kind, the object's name, and the subresource.
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
        """Return the objects in a list."""
        return self.request("GET", path, query).get("items") or []

    def list_jobs(self, selector: str) -> list[Object]:
        """Return the jobs with a label, for example `kfp-tfjob/run=x`; raises as `list`."""
        return self.with_kind(self.list(self.jobs(), labelSelector=selector))

    def with_kind(self, jobs: Iterable[Object]) -> list[Object]:
        """Return listed jobs with their kind, which lists of Kubernetes' own kinds omit."""
        kind = {"apiVersion": self.kind.api_version, "kind": self.kind.name}
        return [kind | job for job in jobs]

    def annotate(self, path: str, values: Mapping[str, str | None]) -> None:
        """Set annotations of an object; None removes one."""
        body = {"metadata": {"annotations": dict(values)}}
        self.request("PATCH", path, {}, body)

    def delete(self, path: str, propagation: str = "Foreground") -> None:
        """Delete an object, if it exists, and its dependents; `Background` deletes those later."""
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
        action = f"{method.lower()} {path.partition('/namespaces/')[2] or path}"
        right = f"{method} {self._resource(path)}"

        def call() -> Object:
            response = self.once(method, path, query, CALL_SECONDS, body)
            self._allowed.add(right)
            return response

        def is_transient(error: Exception) -> bool:
            # A starting API server rejects every call until it has read the roles. So a 403 is
            # temporary if the same right was sufficient before.
            forbidden = isinstance(error, ApiError) and error.status == 403
            return transient(error) or (forbidden and right in self._allowed)

        try:
            return self._patience.run(action, call, is_transient)
        except ApiError as error:
            raise translate(error, action) from error

    def once(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        seconds: tuple[float, float],
        body: object = None,
    ) -> Object:
        """Make a call without retries.

        Args:
            method: The HTTP method.
            path: The API path.
            query: The query parameters.
            seconds: The time limits to connect, and between two bytes of the response.
            body: The body as an object.

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
        """Yield the lines of an endless response, such as a watch or a log.

        A broken stream is not opened again, because only the caller knows where to continue.

        Args:
            path: The path of a list or a log.
            query: The query parameters, for example follow=true.
            silence: Seconds without a byte after which the connection counts as dead.
            heard: Called when bytes arrive, with the size of the unfinished line. A progress bar
                may be one unfinished line for hours.

        Raises:
            ApiError: The API returned an error.
            urllib3.exceptions.HTTPError: The connection broke, or was silent for too long.
        """
        response = self._call("GET", path, query, None, (CALL_SECONDS[0], silence))
        longest = _LONGEST_EVENT if "watch" in query else _LONGEST_LINE
        try:
            yield from _lines(response, longest, heard)
        finally:
            response.close()

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
            _require_narrow_deletion(path, query)
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
                _preload_content=False,  # otherwise, typed models would drop fields
                _request_timeout=tuple(seconds),  # the client silently ignores other types
            )
        except ApiException as error:
            raise ApiError.of(error) from None


def _require_narrow_deletion(path: str, query: Mapping[str, str]) -> None:
    """Reject a deletion without an object name or a label value."""
    _, kind, *name = [*path.partition("/namespaces/")[2].split("/"), ""]
    requirements = query.get("labelSelector", "").split(",")
    if kind and any(name):
        return
    if not any(re.fullmatch(r"[^=!]+=[^=!]+", requirement.strip()) for requirement in requirements):
        raise ValueError(
            f"delete {path} with the label selector {query.get('labelSelector', '')!r} would"
            " delete objects of other owners"
        )


def _lines(
    response: Any, longest: int = _LONGEST_LINE, heard: Callable[[int], None] = lambda size: None
) -> Iterator[bytes]:
    """Split a stream into lines; the end of a line longer than `longest` bytes is dropped."""
    buffer, truncated, size = b"", False, 0
    for chunk in response.stream(_CHUNK, decode_content=False):
        *lines, buffer = (buffer + chunk).split(b"\n")
        size = len(buffer) if lines else size + len(chunk)
        heard(size)
        for line in lines:
            # The beginning of a truncated line was already yielded; this is its end.
            if not truncated:
                yield line
            truncated = False
        if len(buffer) > longest and b"\r" in buffer:
            buffer = _without_earlier_states(buffer)
        if len(buffer) > longest:
            if not truncated:
                yield buffer[:longest]
            buffer, truncated = b"", True
    if buffer and not truncated:
        yield buffer


def _without_earlier_states(bar: bytes) -> bytes:
    """Return an unfinished progress bar's first state, which follows the time, and its last one."""
    first, _, states = bar.partition(b"\r")
    newest = last_state(states.decode(errors="surrogateescape"))
    return first + b"\r" + newest.encode(errors="surrogateescape")
