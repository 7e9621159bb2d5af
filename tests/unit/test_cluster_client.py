"""The client of an API server: its credentials, time limits, answers, and streams."""

import datetime
import json
import re
import socket
from pathlib import Path
from types import SimpleNamespace

import certifi
import pytest
import urllib3
from kubernetes.client import Configuration
from kubernetes.config import incluster_config, kube_config

from kfp_tfjob.cluster import client
from kfp_tfjob.cluster.api_errors import (
    ApiError,
    ForbiddenError,
    NotFoundError,
    transient,
    translate,
    webhook_is_away,
)
from kfp_tfjob.cluster.backend import JobExistsError, JobRefusedError
from kfp_tfjob.cluster.client import ClusterClient, _lines, connect
from kfp_tfjob.cluster.kubernetes import KubernetesBackend
from kfp_tfjob.cluster.log_lines import cut
from kfp_tfjob.common.errors import ConfigurationError, StepError
from tests.http_server import Handler, serving
from tests.unit.cluster_objects import client_of

SECONDS = (60.0, 60.0)
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u, namespace: team-a}}]
clusters: [{name: c, cluster: {server: "SERVER"}}]
users: [{name: u, user: {token: secret}}]
"""


_QUEUES = "/apis/visibility.kueue.x-k8s.io/v1beta2/namespaces/team-a/localqueues"
PENDING = f"{_QUEUES}/a100/pendingworkloads"


class Echo(Handler):
    """Answers with what it was sent, and knows one queue of Kueue."""

    def do_GET(self) -> None:
        sent = {"path": self.path, "headers": dict(self.headers), "body": self.body().decode()}
        if self.path == PENDING:
            names = enumerate(("tfjob-a-1", "tfjob-b-2"))
            items = [{"metadata": {"name": it}, "positionInLocalQueue": at} for at, it in names]
            self.answer({"items": items})
        elif "/localqueues/" in self.path:
            self.answer({"reason": "Forbidden", "message": "no right"}, 403)
        else:
            self.answer(sent)

    do_PATCH = do_GET


@pytest.fixture
def address():
    with serving(Echo) as server:
        yield server.url


@pytest.mark.parametrize(
    ("queue", "workload", "place"),
    [("a100", "tfjob-b-2", 2), ("a100", "admitted", None), ("t4", "tfjob-b-2", None)],
)
def test_the_place_in_a_queue(address, queue, workload, place):
    assert KubernetesBackend(client_of(address)).place_in_queue(queue, workload) == place


def bearer(api: ClusterClient) -> str:
    return api.client.configuration.auth_settings()["BearerToken"]["value"]


@pytest.fixture
def account(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:1")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setattr(client, "_ACCOUNT", tmp_path)
    (tmp_path / "token").write_text("one")
    (tmp_path / "namespace").write_text("team-b\n")
    (tmp_path / "ca.crt").write_text(Path(certifi.where()).read_text())
    return tmp_path


def test_a_pod_reads_its_token_again_within_a_minute(account, monkeypatch):
    api = ClusterClient.from_environment()
    settings = api.client.configuration
    assert (api.address, api.namespace) == ("https://[fd00::1]:443", "team-b")
    assert settings.ssl_ca_cert == str(account / "ca.crt") and settings.proxy is None
    assert bearer(api) == "bearer one"
    (account / "token").write_text("two")
    later = SimpleNamespace(now=lambda: datetime.datetime.now() + datetime.timedelta(seconds=61))
    monkeypatch.setattr(incluster_config, "datetime", SimpleNamespace(**vars(datetime)))
    monkeypatch.setattr(incluster_config.datetime, "datetime", later)
    assert bearer(api) == "bearer two"


@pytest.mark.parametrize("lacking", ["token", "ca.crt", "KUBERNETES_SERVICE_HOST"])
def test_a_process_that_lacks_something_is_not_in_a_pod(account, monkeypatch, lacking):
    if lacking.isupper():
        monkeypatch.delenv(lacking)
    else:
        (account / lacking).write_text("")
    with pytest.raises(ConfigurationError, match="no cluster"):
        ClusterClient.from_environment()


@pytest.mark.parametrize(
    ("server", "no_proxy", "manager"),
    [
        ("https://cluster:6443", "other", urllib3.ProxyManager),
        ("https://cluster:6443", "cluster", urllib3.PoolManager),
        ("https://127.0.0.1:6443", "", urllib3.PoolManager),  # kubectl needs no NO_PROXY either
    ],
)
def test_a_kubeconfig_and_the_proxy_of_the_environment(
    tmp_path, monkeypatch, server, no_proxy, manager
):
    path = tmp_path / "config"
    path.write_text(KUBECONFIG.replace("SERVER", server))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    # The client reads its variable when it is imported.
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    for name, value in (("HTTPS_PROXY", "http://proxy:1"), ("NO_PROXY", no_proxy)):
        monkeypatch.delenv(name.lower(), raising=False)
        monkeypatch.setenv(name, value)
    api = ClusterClient.from_environment()
    assert (api.address, api.namespace, bearer(api)) == (server, "team-a", "Bearer secret")
    assert type(api.client.rest_client.pool_manager) is manager


def test_a_request_and_its_answer(address):
    settings = Configuration(host=address, api_key={"authorization": "Bearer x"})
    api = ClusterClient(connect(settings), "team-a")
    query = {"labelSelector": "a=b,c!=d"}
    sent = api.once("PATCH", "/apis/x", query, SECONDS, {"é": 1})
    assert sent["path"] == "/apis/x?labelSelector=a%3Db%2Cc%21%3Dd"
    assert json.loads(sent["body"]) == {"é": 1}
    assert sent["headers"]["Content-Type"] == "application/merge-patch+json"
    assert sent["headers"]["authorization"] == "Bearer x"
    assert re.fullmatch(r"kfp-tfjob/\S+", sent["headers"]["User-Agent"])
    sent = api.once("GET", "/y", query, SECONDS)
    assert (sent["path"], sent["body"]) == ("/y?labelSelector=a%3Db%2Cc%21%3Dd", "")


@pytest.mark.parametrize("call", ["a call", "a stream"])
def test_a_server_that_stalls_ends_a_call(call):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts, and says nothing
        api = client_of(f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(urllib3.exceptions.ReadTimeoutError) as found:
            if call == "a stream":
                next(api.lines("/x", {"watch": "true"}, 0.3))
            else:
                api.once("GET", "/x", {}, (60, 0.3))
    assert transient(found.value)


def test_a_broken_tls_connection_is_tried_again(address):
    with pytest.raises(urllib3.exceptions.SSLError) as found:
        client_of(address.replace("http:", "https:")).once("GET", "/x", {}, SECONDS)
    assert transient(found.value) and "\n" not in str(found.value)


WEBHOOK = 'admission webhook "validator.tfjob..." denied the request: no container tensorflow'
RBAC = 'tfjobs is forbidden: User "x" cannot create resource "tfjobs"'
AWAY = 'Internal error occurred: failed calling webhook "validator.tfjob": connection refused'


def error(status: int, message: str = "", reason: str = "") -> ApiError:
    body = json.dumps({"message": message, "reason": reason})
    return ApiError(status, "what HTTP says", body)


@pytest.mark.parametrize(
    ("status", "message", "kind", "code", "verdict"),
    [
        (403, WEBHOOK, JobRefusedError, 2, "refused"),
        (403, "pods is forbidden: exceeded quota: q", JobRefusedError, 2, "refused"),
        (403, RBAC, ForbiddenError, 2, "user_error"),
        (401, "Unauthorized", ForbiddenError, 2, "user_error"),
        (404, "not found", NotFoundError, 1, "failed"),
        (409, "already exists", JobExistsError, 1, "failed"),
        (422, "is invalid", JobRefusedError, 2, "refused"),
        (400, "strict decoding error", JobRefusedError, 2, "refused"),
        (405, "no such method", StepError, 1, "failed"),
    ],
)
def test_an_answer_is_told_apart_and_shown_verbatim(status, message, kind, code, verdict):
    found = translate(error(status, message), "create TFJob ns/j")
    assert type(found) is kind
    assert (found.code, found.verdict) == (code, verdict)
    assert message in str(found)


@pytest.mark.parametrize(
    ("found", "passes"),
    [
        (error(500, AWAY), True),
        (error(429), True),
        (error(410), True),
        (error(503), True),
        (error(401), True),
        (error(409, reason="Conflict"), True),
        (error(409, reason="AlreadyExists"), False),
        (error(403), False),
        (error(404), False),
        (error(422), False),
        (urllib3.exceptions.ProtocolError("cut"), True),
        (urllib3.exceptions.ReadTimeoutError(None, "", "slow"), True),
        (ConnectionResetError(), True),
        (json.JSONDecodeError("cut", "", 0), True),
        (KeyError("a defect"), False),
    ],
)
def test_what_passes_by_itself(found, passes):
    assert transient(found) is passes


def test_a_webhook_that_is_away_and_a_body_that_is_no_json():
    assert webhook_is_away(error(500, AWAY)) and not webhook_is_away(error(500, "etcd"))
    broken = ApiError(502, "Bad Gateway", b"<html>")
    assert "Bad Gateway" in str(translate(broken, "x"))


def test_the_right_of_a_path():
    kind = ClusterClient._resource
    assert kind("/api/v1/namespaces/n/pods/p/log") == "pods/log"
    assert kind("/apis/kubeflow.org/v1/namespaces/n/tfjobs/j") == "tfjobs"
    assert kind("/apis/kubeflow.org/v1/namespaces/n/tfjobs") == "tfjobs"
    assert kind("/api/v1/nodes") == "/api/v1/nodes"


def test_a_stream_is_cut_into_lines_and_what_is_too_long_is_cut_short():
    class Reply:
        def stream(self, size, decode_content):
            yield from (b"a\nb", b"c\n", b"x" * 40_000, b"x" * 40_000, b"yy\nd\ne")

    lines = list(_lines(Reply()))
    assert lines[:2] == [b"a", b"bc"] and lines[3:] == [b"d", b"e"]
    assert len(lines[2]) == 64 * 1024


def test_a_progress_bar_longer_than_a_line_keeps_its_time_and_its_last_state():
    class Reply:
        def stream(self, size, decode_content):
            yield b"2026-01-01T10:00:00.123456789Z "
            for step in range(30_000):
                yield b"\rstep %d of 30000\x08\x08\x08" % step
            yield b"\ndone"

    bar, last = _lines(Reply())
    assert cut(bar) == ("2026-01-01T10:00:00.123456789Z", "step 29999 of 30000\x08\x08\x08")
    assert len(bar) <= 64 * 1024 and last == b"done"
