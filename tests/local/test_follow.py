"""A folder that follows the champion: whole or not there, whatever happens."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from kfp_tfjob.registry.chain import Proven
from kfp_tfjob.serving import folder as module
from kfp_tfjob.serving.folder import ChampionFolder
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import ConfigurationError, DataError
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.local.stored_champion import publish

MODEL = "pets"


def files(number: int) -> dict[str, bytes]:
    return {
        "saved_model.pb": b"graph %d" % number,
        "variables/variables.data-00000-of-00001": bytes([number]) * 300_000,
        "assets.extra/columns.json": b"[]",
    }


@pytest.fixture
def layout(base: S3Address) -> Layout:
    return Layout(base / "out")


def whole(folder: Path, number: int) -> bool:
    """Tell whether a folder has exactly the files of a version."""
    there = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    return there == files(number)


def test_a_damaged_champion_changes_nothing(store: Store, layout: Layout, tmp_path: Path) -> None:
    folder = tmp_path / "served"
    champion = ChampionFolder(store, layout, MODEL, folder)
    with pytest.raises(DataError, match="pets has no champion"):
        champion.update()
    publish(store, layout, MODEL, 1, files(1), tmp_path)
    assert champion.update() == 1
    publish(store, layout, MODEL, 2, files(2), tmp_path)
    version = layout.model(MODEL).version(2)
    store.write(version / "model" / "saved_model.pb", b"graph 7")
    with pytest.raises(DataError, match="saved_model.pb"):
        champion.update()
    assert sorted(path.name for path in folder.iterdir() if path.name.isdecimal()) == ["1"]
    store.write(version / "model" / "saved_model.pb", b"graph 2")
    # What a killed process left of another version is not taken over.
    left = folder / ".incoming" / "model" / "assets" / "of-another-version"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"old")
    assert champion.update() == 2 and whole(folder / "2", 2)
    assert {path.name for path in folder.iterdir()} == {".lock", "1", "2"}
    (folder / ".incoming").mkdir()  # of one that was killed after the rename
    assert champion.update() == 2 and not (folder / ".incoming").exists()


def test_a_second_process_waits_and_finds_it_done(
    store: Store, layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(store, layout, MODEL, 1, files(1), tmp_path)
    folder = tmp_path / "served"
    fetched: list[int] = []
    begun, go_on = Event(), Event()
    real = module.fetch

    def slow(store: Store, proven: Proven, into: Path) -> None:
        fetched.append(proven.serving)
        begun.set()
        assert go_on.wait(300)
        real(store, proven, into)

    monkeypatch.setattr(module, "fetch", slow)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ChampionFolder(store, layout, MODEL, folder).update)
        assert begun.wait(300)
        second = pool.submit(ChampionFolder(Store(), layout, MODEL, folder).update)
        go_on.set()
        assert (first.result(), second.result(), fetched) == (1, 1, [1])
    assert whole(folder / "1", 1)


def test_wrong_inputs(store: Store, layout: Layout, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="model_name is not valid"):
        ChampionFolder(store, layout, "../x", tmp_path)
    publish(store, layout, MODEL, 1, files(1), tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        ChampionFolder(store, layout, MODEL, tmp_path / "file").update()
