"""The client of an API server: its credentials, time limits, errors, and quantities."""

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
from kfp_tfjob.cluster.client import ClusterClient, connect
from kfp_tfjob.cluster.errors import transient
from kfp_tfjob.cluster.kubernetes import KubernetesBackend
from kfp_tfjob.storage.errors import ConfigurationError
from tests.http_server import Handler, serving

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
            places = {"tfjob-a-1": 0, "tfjob-b-2": 1}
            items = [
                {"metadata": {"name": it}, "positionInLocalQueue": at} for it, at in places.items()
            ]
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


def client_of(address: str) -> ClusterClient:
    return ClusterClient(connect(Configuration(host=address)), "team-a")


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
