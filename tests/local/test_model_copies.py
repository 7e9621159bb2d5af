"""The copies of champions that runs on this machine leave: each store has its own."""

import json
from pathlib import Path

from kfp_tfjob.components.step import Step
from kfp_tfjob.pipelines.local.ending import Ending
from kfp_tfjob.pipelines.local.home import Home
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.local.published import VERDICT, publish_files

NAME = "income"


def ended(store: Store, output: S3Address, home: Home, scratch: Path) -> Path:
    """Publish a model below an output_uri, end its run, and return the copy that it names."""
    step = Step("finish", scratch.name, Layout(output), store)
    publish_files(store, step.layout, NAME, 1, {"saved_model.pb": scratch.name.encode()})
    store.write(step.run.verdict, json.dumps(VERDICT).encode())
    home.run(step.run_id).mkdir(parents=True)
    said: list[str] = []
    assert Ending(step, NAME, home, False, said.append).tell(0, 0) == 0
    (line,) = [it for it in said if it.startswith("model ")]
    return Path(line.removeprefix("model").strip())


def test_models_of_one_name_in_two_places_have_a_copy_each(
    store: Store, base: S3Address, tmp_path: Path
) -> None:
    home = Home(tmp_path / "home")
    copies = {it: ended(store, base / it, home, tmp_path / it) for it in ("mine", "yours")}
    for project, copy in copies.items():
        assert (copy / "model" / "saved_model.pb").read_bytes() == project.encode()


def test_the_documented_folder_is_that_of_the_embedded_store(tmp_path: Path) -> None:
    home, embedded = Home(tmp_path), S3Address("kfp-tfjob")
    assert home.models(NAME, "", embedded) == tmp_path / "models" / NAME
    others = [("", embedded / "b"), ("http://a", embedded), ("http://b", embedded)]
    folders = {home.models(NAME, *place) for place in others}
    assert len(folders) == 3 and tmp_path / "models" / NAME not in folders
