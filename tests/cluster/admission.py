"""Admission that refuses every job of one namespace, by a webhook on this host."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from kubernetes import client
from kubernetes.client.exceptions import ApiException

from kfp_tfjob.jobs.manifest import Identity, build_job
from tests.cluster.host import BRIDGE_ADDRESS
from tests.cluster.launches import Launch
from tests.cluster.processes import wait_until

_SECONDS = 60
_RULE = {"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["tfjobs", "jobsets"]}
_RULES = [_RULE | {"operations": ["CREATE"]}]


@contextlib.contextmanager
def webhook(launch: Launch, message: str) -> Iterator[None]:
    """Have a webhook answer every creation of a job in a launch's namespace with no."""
    cluster, namespace = launch.cluster, launch.namespace
    certificate, key = cluster.authority.issue("refusing", "/CN=refusing", (BRIDGE_ADDRESS,))
    server = ThreadingHTTPServer((BRIDGE_ADDRESS, 0), _refusing(message))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hook = {
        "name": "budget.team-a.test",
        "clientConfig": {
            "url": f"https://{BRIDGE_ADDRESS}:{server.server_address[1]}/",
            "caBundle": cluster.authority.trusted,
        },
        "rules": _RULES,
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    api = client.AdmissionregistrationV1Api(cluster.api)
    name = f"refuse-{namespace}"
    body = {"metadata": {"name": name}, "webhooks": [hook]}
    api.create_validating_webhook_configuration(body)

    def refused() -> bool:
        job = build_job(launch.spec(), Identity("probe", 1))
        try:
            cluster.custom.create_namespaced_custom_object(*launch.place, job, dry_run="All")
        except ApiException as error:
            return message in str(error.body)
        return False

    try:
        # The API server hears of new admission rules by a watch of its own.
        assert wait_until(refused, _SECONDS)
        yield
    finally:
        api.delete_validating_webhook_configuration(name)
        server.shutdown()
        server.server_close()


def _refusing(message: str) -> Callable[..., BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = {
                "apiVersion": body["apiVersion"],
                "kind": body["kind"],
                "response": {
                    "uid": body["request"]["uid"],
                    "allowed": False,
                    "status": {"code": 403, "message": message},
                },
            }
            data = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return Handler
