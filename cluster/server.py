"""Sends requests to the API server of a cluster, with the credentials of a pod or of a kubeconfig.

The Kubernetes client loads 700 modules of typed objects, which takes more than a second of CPU at
the start of every step. None of its objects are used here: a pod needs an address, a certificate
and a token, and urllib3. Only a kubeconfig, which may call plug-ins, is read by that client.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_CONNECTIONS = 1000  # every log and every watch holds one
Headers = Mapping[str, str]


class ApiError(Exception):
    """The API server answered with an error.

    Args:
        status: Of HTTP; None if there was none.
        reason: The words of HTTP beside the status.
        body: What the server sent; an object `Status` as JSON, if it is the API server itself.
    """

    def __init__(
        self, status: int | None = None, reason: str = "", body: bytes | str | None = None
    ) -> None:
        super().__init__(status, reason, body)
        self.status, self.reason, self.body = status, reason, body

    def __str__(self) -> str:
        """Return the status, and the message of the server."""
        return f"HTTP {self.status} {self.reason}: {self.message}"

    @property
    def message(self) -> str:
        """The message of the API server."""
        return str(self._content.get("message") or self.reason or self.status)

    @property
    def code(self) -> str:
        """The API server's code for the kind of error, for instance `AlreadyExists`."""
        return str(self._content.get("reason") or "")

    @property
    def _content(self) -> Mapping[str, Any]:
        try:
            body = json.loads(self.body or "{}")
        except (TypeError, ValueError):
            return {}
        return body if isinstance(body, dict) else {}


def _no_credentials() -> Headers:
    return {}


@dataclass(frozen=True)
class ApiServer:
    """An API server and how to reach it.

    Attributes:
        address: Its URL.
        authority: The file with the certificates to trust; None for the usual ones.
        credentials: Returns the headers of the next request; a token may have changed.
        tls: Further arguments of urllib3 for the connections.
        proxy: The URL of a proxy; empty for none.
        proxy_headers: For the proxy.
    """

    address: str
    authority: str | None = None
    credentials: Callable[[], Headers] = field(default=_no_credentials, repr=False)
    tls: Mapping[str, Any] = field(default_factory=dict, repr=False)
    proxy: str = ""
    proxy_headers: Headers | None = field(default=None, repr=False)

    @classmethod
    def of_pod(cls, account: Path = _ACCOUNT) -> ApiServer | None:
        """Return the server for the service account of this pod; None outside of a pod.

        Args:
            account: The folder that the kubelet mounts, with `token` and `ca.crt`.
        """
        host = os.environ.get("KUBERNETES_SERVICE_HOST")
        port = os.environ.get("KUBERNETES_SERVICE_PORT")
        token, authority = account / "token", account / "ca.crt"
        if not (host and port and _has_content(token) and _has_content(authority)):
            return None
        address = f"https://{f'[{host}]' if ':' in host else host}:{port}"
        # The kubelet replaces a token long before it ends, so it is read for every request.
        return cls(
            address,
            str(authority),
            lambda: {"Authorization": f"Bearer {token.read_text().strip()}"},
        )

    @classmethod
    def of(cls, configuration: Any) -> ApiServer:
        """Return the server of a `kubernetes.client.Configuration`."""

        def credentials() -> Headers:
            settings = configuration.auth_settings().get("BearerToken")
            return {"Authorization": settings["value"]} if settings else {}

        given = {
            "cert_file": configuration.cert_file,
            "key_file": configuration.key_file,
            "assert_hostname": configuration.assert_hostname,
            "server_hostname": configuration.tls_server_name,
            "cert_reqs": None if configuration.verify_ssl else "CERT_NONE",
        }
        return cls(
            configuration.host,
            configuration.ssl_ca_cert,
            credentials,
            {name: value for name, value in given.items() if value is not None},
            configuration.proxy or "",
            configuration.proxy_headers,
        )

    def connections(self) -> Connections:
        """Return new connections to it."""
        return Connections(self)


class Connections:
    """Connections to one API server that are kept open; several threads may use them.

    Args:
        server: The API server.
    """

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._address = server.address.rstrip("/")
        settings = {"ca_certs": server.authority, **server.tls} if server.authority else server.tls
        # Our own retries are enough, and they are logged.
        common = dict(settings, num_pools=4, maxsize=_CONNECTIONS, retries=False)
        if server.proxy:
            self._pool: urllib3.PoolManager = urllib3.ProxyManager(
                server.proxy, proxy_headers=server.proxy_headers, **common
            )
        else:
            self._pool = urllib3.PoolManager(**common)

    def call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: object,
        content: str,
        seconds: tuple[float, float],
    ) -> urllib3.BaseHTTPResponse:
        """Make a request, and return the answer with its body unread.

        Args:
            method: The HTTP method.
            path: The path of the object or list.
            query: For instance a labelSelector.
            body: Sent as JSON; None for no body.
            content: The content type of the body.
            seconds: To connect, and between two bytes.

        Raises:
            ApiError: The server answered with an error.
            urllib3.exceptions.HTTPError: The connection broke, or was silent for too long.
            OSError: The token or a certificate cannot be read.
        """
        headers = {"Accept": "application/json, */*", **self._server.credentials()}
        data = None
        if body is not None:
            headers["Content-Type"], data = content, json.dumps(body).encode()
        reply = self._pool.request(
            method,
            f"{self._address}{path}" + (f"?{urlencode(query)}" if query else ""),
            body=data,
            headers=headers,
            timeout=urllib3.Timeout(connect=seconds[0], read=seconds[1]),
            preload_content=False,
        )
        if 200 <= reply.status <= 299:
            return reply
        try:
            raise ApiError(reply.status, reply.reason or "", reply.data)
        finally:
            reply.release_conn()


def _has_content(file: Path) -> bool:
    try:
        return bool(file.read_bytes().strip())
    except OSError:
        return False
