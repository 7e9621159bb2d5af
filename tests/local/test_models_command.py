"""`kfp-tfjob models` on a real store: what people and programs see, and what changes."""

import json
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from kfp_tfjob.pipelines.cli import main
from kfp_tfjob.pipelines.commands.store import open_models
from kfp_tfjob.pipelines.local.home import BUCKET
from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.registry.champion import read_champion
from kfp_tfjob.registry.run_folder import claim
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.local.published import NAME, judged, publish

WHY = ("--reason", "it is slow")


@pytest.fixture
def models(layout: Layout) -> Callable[..., Result]:
    def call(*words: str) -> Result:
        given = ["models", *words, "--output", str(layout.root)]
        return CliRunner().invoke(main, given, env={"LOGNAME": "eva"})

    return call


def test_the_commands(
    store: Store, layout: Layout, models: Callable[..., Result], tmp_path: Path
) -> None:
    assert models("list").exit_code == 0
    publish(store, layout, "r1")
    publish(store, layout, "r2")
    (row,) = json.loads(models("list", "--json").output)
    assert (row["name"], row["version"], row["serving"], row["versions"]) == (NAME, 2, 2, 2)
    shown = json.loads(models("show", NAME, "--json").output)
    assert shown["proof"] == "" and shown["serving_uri"].endswith("/serving/2")

    # Nothing changes without a person who says yes.
    plan = models("rollback", NAME, *WHY, "--dry-run")
    assert "r2" in plan.output and "r1" in plan.output
    assert models("rollback", NAME, *WHY).exit_code == 2
    assert models("rollback", NAME).exit_code == 2  # no reason
    before = read_champion(store, layout, NAME)
    assert before is not None and before.number == 2
    done = models("rollback", NAME, *WHY, "--yes")
    assert done.exit_code == 0 and f"servers read {layout.model(NAME).servable(3)}" in done.output

    # A run that was not blessed becomes the champion, if a person says why.
    judged(store, layout, "r3", tmp_path / "run")
    judged(store, layout, "c82b2f4a-1", tmp_path / "one")
    judged(store, layout, "c82b9999-1", tmp_path / "two")
    several = models("promote", NAME, "--run", "c82b", *WHY, "--dry-run")
    assert several.exit_code == 2
    assert "c82b2f4a-1" in several.stderr and "c82b9999-1" in several.stderr
    short = models("promote", NAME, "--run", "c82b2", *WHY, "--dry-run")
    assert "run c82b2f4a-1" in short.output, short.output
    claim(store, layout, "shaped-1", f"{NAME}/2026-11-26")
    judged(store, layout, "shaped-1", tmp_path / "shaped")
    shaped = models("promote", NAME, "--run", "shaped", *WHY, "--dry-run")
    assert "run shaped-1" in shaped.output, shaped.stderr
    plan = models("promote", NAME, "--run", "r3", *WHY, "--dry-run")
    assert "not blessed: " in plan.output
    assert models("promote", NAME, "--run", "r3", *WHY, "--yes").exit_code == 0
    champion = read_champion(store, layout, NAME)
    assert champion is not None
    assert (champion.version, champion.action, champion.by) == (4, "promote", "eva")
    shown = json.loads(models("show", NAME, "--json").output)
    assert shown["proof"] == "" and shown["history"][0]["why"] == "it is slow"
    graph = store.read(layout.model(NAME).servable(4) / "saved_model.pb")
    assert graph == b"a graph"

    assert "add --apply" in models("prune", NAME, "--keep", "1").output
    assert "deleted version 2" in models("prune", NAME, "--keep", "1", "--apply").output
    refused = models("rollback", NAME, "--to", "2", *WHY, "--yes")
    assert refused.exit_code == 2 and "pets" in refused.stderr
    assert models("show", NAME).exit_code == 0
    # What a killed publish left is finished.
    store.delete(layout.model(NAME).servable(4) / "saved_model.pb")
    assert " sync pets" in models("show", NAME).output
    assert models("sync", NAME).exit_code == 0
    assert store.read(layout.model(NAME).servable(4) / "saved_model.pb") == b"a graph"


def test_a_name_or_a_run_that_does_not_exist(
    store: Store, layout: Layout, models: Callable[..., Result]
) -> None:
    publish(store, layout, "r1")
    found = models("show", "pet")
    assert found.exit_code == 2 and "'pets'?" in found.stderr
    found = models("promote", NAME, "--run", "r9", *WHY, "--yes")
    assert found.exit_code == 2 and "r9" in found.stderr
    found = models("rollback", NAME, *WHY, "--yes")
    assert found.exit_code == 2 and "pets" in found.stderr


def test_home_takes_precedence_over_the_environment(
    store: Store, layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --home, a rollback changed the store in the variable."""
    publish(store, layout, "r1")
    monkeypatch.setenv("KFP_TFJOB_OUTPUT_URI", str(layout.root))
    with Server.start(tmp_path / "s3") as server:
        server.store().make_bucket(BUCKET)

    def names(*options: str) -> list[str]:
        listed = CliRunner().invoke(main, ["models", "list", "--json", *options])
        return [row["name"] for row in json.loads(listed.output)]

    assert names() == [NAME]
    assert names("--home", str(tmp_path)) == []
    assert names("--home", str(tmp_path), "--output", str(layout.root)) == [NAME]
    with click.Context(main):
        models = open_models("", "", "", tmp_path)
        assert models.options == f" --home {tmp_path}"
