"""Admission that refuses every TFJob of one namespace, by a webhook on this host."""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from kubernetes import client
from kubernetes.client.exceptions import ApiException

from tests.cluster.cluster import Cluster
from tests.cluster.host import BRIDGE_ADDRESS
from tests.cluster.processes import wait_until
from tests.cluster.workloads import container, template, tfjob

_SECONDS = 60
_RULE = {"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["tfjobs", "jobsets"]}
_RULES = [_RULE | {"operations": ["CREATE"]}]


@contextlib.contextmanager
def webhook(cluster: Cluster, namespace: str, message: str) -> Iterator[None]:
    """Have a webhook answer every creation of a TFJob in a namespace with no and a message."""
    certificate, key = cluster.issue("refusing-webhook", "/CN=refusing", (BRIDGE_ADDRESS,))
    server = ThreadingHTTPServer((BRIDGE_ADDRESS, 0), _refusing(message))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    authority = base64.b64encode(cluster.authority_certificate.read_bytes()).decode()
    hook = {
        "name": "budget.team-a.test",
        "clientConfig": {
            "url": f"https://{BRIDGE_ADDRESS}:{server.server_address[1]}/",
            "caBundle": authority,
        },
        "rules": _RULES,
        "namespaceSelector": _only(namespace),
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    api = client.AdmissionregistrationV1Api(cluster.api)
    name = f"refuse-{namespace}"
    body = {"metadata": {"name": name}, "webhooks": [hook]}
    api.create_validating_webhook_configuration(body)
    try:
        _wait_until_refused(cluster, namespace, message)
        yield
    finally:
        api.delete_validating_webhook_configuration(name)
        server.shutdown()
        server.server_close()


def _only(namespace: str) -> dict[str, object]:
    return {"matchLabels": {"kubernetes.io/metadata.name": namespace}}


def _wait_until_refused(cluster: Cluster, namespace: str, message: str) -> None:
    """The API server hears of new admission rules by a watch of its own."""
    path = ("kubeflow.org", "v1", namespace, "tfjobs")
    body = tfjob("probe", {"Chief": template(container(""))})

    def refused() -> bool:
        try:
            cluster.custom.create_namespaced_custom_object(*path, body, dry_run="All")
        except ApiException as error:
            return message in str(error.body)
        return False

    if not wait_until(refused, _SECONDS):
        raise TimeoutError(f"TFJobs in {namespace} are still admitted")


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
