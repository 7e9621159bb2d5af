"""MLflow's real server on SQLite: register, alias, rollback, an outage, a server that lies."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kfp_tfjob.registry import mirror, prune_versions
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.cluster.processes import running
from tests.http_server import Handler, serving
from tests.local.published import NAME, publish, roll_back
from tests.mirrors.mlflow_server import Server

pytestmark = pytest.mark.slow
SECONDS = 120.0  # for what a time limit ends after mirror.RUN_SECONDS; only what hangs reaches it


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(Server(tmp_path)) as server:
        yield server


@pytest.fixture
def ask(server: Server) -> Callable[..., dict]:
    return server.get


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
        assert outcome.done and outcome.message.startswith(said), outcome.message

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


def test_a_version_is_linked_to_the_run_of_its_training(
    store: Store, layout: Layout, server: Server, ask: Callable[..., dict]
) -> None:
    other = server.post("experiments/create", name="other")["experiment_id"]

    def training(run_id: str, experiment: str = "0", **more: str) -> str:
        tags = {"kfp_tfjob.run_id": run_id, "kfp_tfjob.champion": "false"} | more
        body = [{"key": key, "value": value} for key, value in tags.items()]
        created = server.post("runs/create", experiment_id=experiment, tags=body)
        return created["run"]["info"]["run_id"]

    def tags(run: str) -> dict[str, str]:
        found = ask("runs/get", run_id=run)["run"]["data"]["tags"]
        return {item["key"].removeprefix("kfp_tfjob."): item["value"] for item in found}

    def synced() -> dict:
        pod = {"MLFLOW_TRACKING_URI": server.uri}  # in pod.all.env only
        (outcome,) = mirror.sync(store, layout, NAME, SECONDS, pod)
        assert outcome.done, outcome.message
        return ask("registered-models/alias", name=NAME, alias="champion")["model_version"]

    training("r1", **{"kfp_tfjob.task_key": "another-task"})
    first, second = training("r1"), training("r2", other)
    for run_id, run in (("r1", first), ("r2", second)):
        publish(store, layout, run_id)
        assert synced()["run_id"] == run
    assert (tags(first)["champion"], tags(second)["champion"]) == ("false", "true")
    assert (tags(second)["model"], tags(second)["version"]) == (NAME, "2")
    roll_back(store, layout, 1)
    assert synced()["run_id"] == first
    assert (tags(first)["champion"], tags(second)["champion"]) == ("true", "false")


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
    assert not outcome.done and "geheim" not in outcome.message + outcome.server
    assert time.monotonic() - began < SECONDS
