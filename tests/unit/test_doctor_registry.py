"""What the doctor asks a registry, against a fake of the distribution API."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kfp_tfjob.pipelines.doctor.registry import Answer, Reference, ask


class FakeRegistry(BaseHTTPRequestHandler):
    """Has `team/x:1` for everyone, `team/token:1` for those with a token, `team/mine:1` for none.

    Its token server gives a token to everyone.
    """

    def do_HEAD(self) -> None:
        assert "application/vnd.oci.image.index.v1+json" in self.headers["Accept"]
        name, status = self.path.removeprefix("/v2/"), 404
        if name == "team/x/manifests/1":
            status = 200
        elif name in ("team/token/manifests/1", "team/mine/manifests/1"):
            known = self.headers["Authorization"] == "Bearer anyone"
            status = 200 if known and "token" in name else 401
        self.send_response(status)
        if status == 401:
            here = f"http://127.0.0.1:{self.server.server_address[1]}"
            ways = f'realm="{here}/token",service="fake",scope="repository:team:pull"'
            self.send_header("WWW-Authenticate", f"Bearer {ways}")
        self.end_headers()

    def do_GET(self) -> None:
        assert self.path == "/token?service=fake&scope=repository%3Ateam%3Apull"
        data = json.dumps({"token": "anyone"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def registry() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), FakeRegistry) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("team/x:1", Answer.HAS),
        ("team/x:2", Answer.LACKS),
        ("team/token:1", Answer.HAS),
        ("team/mine:1", Answer.LOGIN),
    ],
)
def test_answers(registry, name, answer):
    assert ask(f"{registry}/{name}", "http") is answer


def test_a_registry_that_is_not_there():
    assert ask("127.0.0.1:1/x:1") is Answer.AWAY
    assert ask("set-your-registry.invalid/x:1") is Answer.AWAY


@pytest.mark.parametrize(
    ("image", "parts"),
    [
        ("python:3.11", ("registry-1.docker.io", "library/python", "3.11")),
        ("team/x", ("registry-1.docker.io", "team/x", "latest")),
        ("docker.io/team/x:1", ("registry-1.docker.io", "team/x", "1")),
        ("localhost:5000/x:1", ("localhost:5000", "x", "1")),
        ("ghcr.io/a/b/c:1@sha256:12", ("ghcr.io", "a/b/c", "sha256:12")),
    ],
)
def test_names(image, parts):
    found = Reference.parse(image)
    assert (found.host, found.repository, found.version) == parts
