"""Requests to an API server: credentials of a pod and of a kubeconfig, errors, quantities."""

import json
import threading
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from kubernetes.client import Configuration
from kubernetes.utils.quantity import parse_quantity

from kfp_tfjob.cluster.capacity import quantity
from kfp_tfjob.cluster.server import ApiError, ApiServer

SECONDS = (1.0, 5.0)


class Echo(BaseHTTPRequestHandler):
    """Answers with what it was sent; `/refuse` is refused as by the API server."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        sent = {"path": self.path, "headers": dict(self.headers), "body": body}
        status, answer = 200, sent
        if self.path == "/refuse":
            status, answer = 409, {"reason": "AlreadyExists", "message": "it is there"}
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def address():
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def account(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    (tmp_path / "token").write_text("one\n")
    (tmp_path / "ca.crt").write_text("certificate")
    return tmp_path


def test_a_pod_reads_its_token_again_for_every_request(account, monkeypatch):
    server = ApiServer.of_pod(account)
    assert server.address == "https://10.96.0.1:443"
    assert server.authority == str(account / "ca.crt")
    assert server.credentials() == {"Authorization": "Bearer one"}
    (account / "token").write_text("two")
    assert server.credentials() == {"Authorization": "Bearer two"}
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    assert ApiServer.of_pod(account).address == "https://[fd00::1]:443"


@pytest.mark.parametrize("lacking", ["token", "ca.crt", "KUBERNETES_SERVICE_HOST"])
def test_a_process_that_lacks_something_is_not_in_a_pod(account, monkeypatch, lacking):
    if lacking.isupper():
        monkeypatch.delenv(lacking)
    else:
        (account / lacking).write_text("")
    assert ApiServer.of_pod(account) is None


def test_a_kubeconfig_gives_what_the_kubernetes_client_would_use():
    found = Configuration(host="https://cluster:6443")
    found.ssl_ca_cert, found.cert_file, found.key_file = "ca", "certificate", "key"
    found.api_key = {"authorization": "Bearer old"}
    found.refresh_api_key_hook = lambda known: known.api_key.update(authorization="Bearer new")
    server = ApiServer.of(found)
    assert (server.address, server.authority) == ("https://cluster:6443", "ca")
    assert server.credentials() == {"Authorization": "Bearer new"}
    assert server.tls == {"cert_file": "certificate", "key_file": "key"}
    found.verify_ssl, found.tls_server_name, found.proxy = False, "name", "http://proxy:1"
    server = ApiServer.of(found)
    assert server.tls["cert_reqs"] == "CERT_NONE" and server.tls["server_hostname"] == "name"
    assert server.proxy == "http://proxy:1"


def test_a_request_and_its_answer(address):
    calls = ApiServer(
        address + "/", credentials=lambda: {"Authorization": "Bearer x"}
    ).connections()
    query = {"labelSelector": "a=b,c!=d"}
    sent = json.loads(calls.call("POST", "/apis/x", query, {"é": 1}, "text/x", SECONDS).data)
    assert sent["path"] == "/apis/x?labelSelector=a%3Db%2Cc%21%3Dd"
    assert json.loads(sent["body"]) == {"é": 1}
    assert sent["headers"]["Content-Type"] == "text/x"
    assert sent["headers"]["Authorization"] == "Bearer x"
    sent = json.loads(calls.call("GET", "/y", {}, None, "text/x", SECONDS).data)
    assert (sent["path"], sent["body"]) == ("/y", "") and "Content-Type" not in sent["headers"]


def test_an_error_has_the_words_of_the_server(address):
    calls = ApiServer(address).connections()
    with pytest.raises(ApiError) as found:
        calls.call("POST", "/refuse", {}, {}, "application/json", SECONDS)
    error = found.value
    assert (error.status, error.code, error.message) == (409, "AlreadyExists", "it is there")
    assert str(error) == "HTTP 409 Conflict: it is there"


@pytest.mark.parametrize(
    "text",
    "0 5 -3 +2 1.5 .5 2. 100n 7u 500m 1k 1K 2M 3G 4T 5P 6E 1Ki 2Mi 3Gi 4Ti 5Pi 6Ei 1.5Gi".split(),
)
def test_quantities_are_those_of_the_kubernetes_client(text):
    assert quantity(text) == parse_quantity(text)


def test_quantities_with_an_exponent_and_what_is_none():
    assert quantity("12e3") == quantity("12E3") == Decimal(12000)
    for wrong in ("", "x", "1 Gi", "1gi", "1e", "--1", "1e3Ki"):
        with pytest.raises(ValueError, match="not a quantity"):
            quantity(wrong)
