"""MLflow's real server on SQLite: register, alias, rollback, an outage, a server that lies."""

import json
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kfp_tfjob.registry import mirror, prune_versions
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.cluster.processes import Process, answers, end_marked
from tests.environments import ROOT, for_mirrors
from tests.http_server import Handler, serving
from tests.local.published import NAME, publish, roll_back
from tests.ports import free_port

pytestmark = pytest.mark.slow
SECONDS = 120.0  # for what a time limit ends after mirror.RUN_SECONDS; only what hangs reaches it


class Server:
    """MLflow's server as a process; it can be stopped and started on the same data."""

    def __init__(self, folder: Path) -> None:
        self._folder, port = folder, free_port()
        self.uri = f"http://127.0.0.1:{port}"
        data = f"sqlite:///{folder}/mlflow.db"
        command = [str(for_mirrors()), "-m", "mlflow", "server", "--backend-store-uri", data]
        command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
        command += ["--artifacts-destination", str(folder / "artifacts")]
        fewer = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # by ten processes
        self._process = Process("mlflow", command, folder, folder, fewer)

    def start(self) -> None:
        self._process.start()
        self._process.wait_until(lambda: answers(f"{self.uri}/health"), 300)

    def stop(self) -> None:
        end_marked(self._folder)  # with its workers


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = Server(tmp_path_factory.mktemp("mlflow"))
    try:
        found.start()
        yield found
    finally:
        found.stop()


@pytest.fixture
def ask(server: Server) -> Callable[..., dict]:
    def call(path: str, **query: str) -> dict:
        url = f"{server.uri}/api/2.0/mlflow/{path}?{urllib.parse.urlencode(query)}"
        return json.load(urllib.request.urlopen(url, timeout=SECONDS))

    return call


@pytest.fixture(autouse=True)
def of_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client runs in its own environment, because the development one does not have it."""
    monkeypatch.setattr(sys, "executable", str(for_mirrors()))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def test_register_alias_rollback_and_an_outage(
    store: Store,
    layout: Layout,
    server: Server,
    ask: Callable[..., dict],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)

    def alias() -> dict:
        return ask("registered-models/alias", name=NAME, alias="champion")["model_version"]

    def tags(found: dict) -> dict[str, str]:
        return {it["key"].removeprefix("kfp_tfjob."): it["value"] for it in found["tags"]}

    def tagged(**wanted: str) -> None:
        found = tags(alias())
        assert found == found | wanted

    def synced(said: str) -> None:
        (outcome,) = mirror.sync(store, layout, NAME, 120)
        assert outcome.done and outcome.said.startswith(said), outcome.said

    first = publish(store, layout, "r1")
    synced("1 added, 1 changed; ")
    found = alias()
    assert found["source"] == f"{first.version_uri}/model"
    assert found["description"] == "r1 is better"
    tagged(
        version="1",
        champion="1",
        serving="1",
        run_id="r1",
        manifest_sha256=first.manifest_sha256,
        verdict=first.verdict_uri,
        **{"metric.accuracy": "0.51"},
    )
    synced("up ")

    # Metrics are named by users, and by the classes of their data.
    odd = {"own/recall@5": 0.5, "own/cost%": 2.0, "f1/<b>/../é": 0.25, "f1/": 1.0}
    record = layout.model(NAME).champion(1)
    store.write(record, replace(first, metrics=first.metrics | odd).to_bytes())
    synced("")
    tagged(**{"metric.own/recall_5": "0.5", "metric.own/cost_": "2"})
    tagged(**{"metric.f1/_b_/_/é": "0.25", "metric.f1/_": "1"})
    store.write(record, first.to_bytes())
    synced("up ")  # a tag that is no longer wanted stays

    # The server is down: nothing waits for it for long, and nothing is lost.
    server.stop()
    publish(store, layout, "r2")
    publish(store, layout, "r3")
    began = time.monotonic()
    (outcome,) = mirror.sync(store, layout, NAME)
    assert not outcome.done and time.monotonic() - began < SECONDS
    assert "127.0.0.1" in outcome.server
    server.start()
    synced("2 added, 1 changed; ")

    # A rollback moves the alias, and the tags follow.
    roll_back(store, layout, 1)
    synced("")
    tagged(version="1", champion="4", serving="4", action="rollback", by="eva")
    planned = prune_versions.plan(store, layout, NAME, keep=1, hours=24)
    assert not any(why for _, why in prune_versions.execute(store, layout, planned, 1, "eva"))
    synced("")
    listed = ask("model-versions/search", filter=f"name='{NAME}'")["model_versions"]
    assert {tags(it)["version"]: tags(it).get("pruned") for it in listed} == {
        **{"1": None, "2": "yes", "3": None},
    }


class _Lies(Handler):
    def do_GET(self) -> None:
        self.body()
        self.answer(b"<html>I am not MLflow</html>")

    do_POST = do_GET


class _Silent(Handler):
    def do_GET(self) -> None:
        time.sleep(10 * SECONDS)

    do_POST = do_GET


@pytest.mark.parametrize("kind", [_Lies, _Silent])
def test_a_server_that_lies_or_is_silent(
    store: Store, layout: Layout, monkeypatch: pytest.MonkeyPatch, kind: type[Handler]
) -> None:
    publish(store, layout, "r1")
    with serving(kind) as wrong:
        uri = wrong.url.replace("//", "//user:geheim@")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        began = time.monotonic()
        (outcome,) = mirror.sync(store, layout, NAME)
    assert not outcome.done and "geheim" not in outcome.said + outcome.server
    assert time.monotonic() - began < SECONDS
