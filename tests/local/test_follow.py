"""A folder that follows the champion: whole or not there, whatever happens."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from kfp_tfjob.common.errors import ConfigurationError, DataError
from kfp_tfjob.registry.chain import VerifiedChampion, verify_champion
from kfp_tfjob.registry.champion import read_record
from kfp_tfjob.registry.promotion import promote
from kfp_tfjob.registry.servable import publish_newest
from kfp_tfjob.serving import champion_folder as module
from kfp_tfjob.serving.champion_folder import ChampionFolder
from kfp_tfjob.serving.follower import Follower
from kfp_tfjob.serving.loaded_model import LoadedModel
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.local.published import publish_files

MODEL = "pets"


def files(number: int) -> dict[str, bytes]:
    return {
        "saved_model.pb": b"graph %d" % number,
        "variables/variables.data-00000-of-00001": bytes([number]) * 300_000,
        "assets.extra/columns.json": b"[]",
    }


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
    with pytest.raises(DataError, match="pets"):
        champion.update()
    publish_files(store, layout, MODEL, 1, files(1))
    assert champion.update() == 1
    publish_files(store, layout, MODEL, 2, files(2))
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


def test_a_folder_of_another_model_or_half_a_file_is_replaced(
    store: Store, layout: Layout, tmp_path: Path
) -> None:
    """Both had the number of the champion, so they were served as it."""
    served = tmp_path / "served" / "1"
    publish_files(store, layout, "cats", 1, files(7))
    assert ChampionFolder(store, layout, "cats", served.parent).update() == 1
    publish_files(store, layout, MODEL, 1, files(1))
    assert ChampionFolder(store, layout, MODEL, served.parent).update() == 1
    assert whole(served, 1)
    for damage in (served / "saved_model.pb", served / "variables/variables.data-00000-of-00001"):
        damage.write_bytes(damage.read_bytes()[:3])
        assert ChampionFolder(store, layout, MODEL, served.parent).update() == 1
        assert whole(served, 1)
        damage.unlink()
        assert ChampionFolder(store, layout, MODEL, served.parent).update() == 1
        assert whole(served, 1)
    assert {path.name for path in served.parent.iterdir()} == {".lock", "1"}


@pytest.mark.parametrize("number", ["1", "1700000000"])
def test_versions_of_others_are_not_deleted(
    store: Store, layout: Layout, tmp_path: Path, number: str
) -> None:
    """Programs that export for TensorFlow Serving name their folders by the time."""
    publish_files(store, layout, MODEL, 1, files(1))
    theirs = tmp_path / "models" / number / "saved_model.pb"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"theirs")
    with pytest.raises(ConfigurationError, match=number):
        ChampionFolder(store, layout, MODEL, tmp_path / "models").update()
    assert [path.name for path in theirs.parents[1].iterdir()] == [number]
    assert theirs.read_bytes() == b"theirs"


def removed(store: Store, layout: Layout, number: int) -> None:
    """Do what docs/models.md says about a damaged record that is the newest."""
    record = layout.model(MODEL).champion(number)
    store.write(record, b"{")
    with pytest.raises(DataError):
        verify_champion(store, layout, MODEL)
    store.delete(record)


def test_a_folder_leaves_a_champion_whose_record_was_removed(
    store: Store, layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers load the highest number."""
    champion = ChampionFolder(store, layout, MODEL, tmp_path / "served")

    def numbers() -> list[str]:
        return sorted(it.name for it in (tmp_path / "served").iterdir() if it.name.isdecimal())

    for number in (1, 2):
        publish_files(store, layout, MODEL, number, files(number))
        publish_newest(store, layout, MODEL)
        champion.update()
    with monkeypatch.context() as late:  # a listing that is late is no removal
        late.setattr(Store, "numbers", lambda *_: [1])
        assert champion.update() == 1 and numbers() == ["1", "2"]
    removed(store, layout, 2)
    assert champion.update() == 1 and numbers() == ["1"]
    # Whatever gets the number of the record, gets another number for servers.
    again = replace(verify_champion(store, layout, MODEL).champion, number=2, action="rollback")
    assert promote(store, layout, MODEL, again).served_as == 3
    assert champion.update() == 3 and whole(tmp_path / "served" / "3", 1)


def test_a_server_follows_records_and_not_their_numbers(
    store: Store, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def load(
        _: Store, proven: VerifiedChampion
    ) -> SimpleNamespace:  # takes seconds, and is not meant here
        tried.append(proven.champion.version)
        if proven.champion.why == "too large":
            raise MemoryError
        return SimpleNamespace(champion=proven.champion)

    monkeypatch.setattr(LoadedModel, "of", load)
    for number in (1, 2, 3):
        publish_files(store, layout, MODEL, number, files(number))
    first, second, third = (read_record(store, layout, MODEL, number) for number in (1, 2, 3))
    follower = Follower(store, layout, MODEL, Mock())
    follower.start()
    assert follower.current.champion == third
    with monkeypatch.context() as late:
        late.setattr(Store, "numbers", lambda *_: [1])
        assert not follower.poll()
    # The record before the removed one counts; then another record gets its number.
    removed(store, layout, 3)
    assert follower.poll() and follower.current.champion == second
    assert not follower.poll()
    another = promote(store, layout, MODEL, replace(first, number=3, action="rollback"))
    assert follower.poll() and follower.current.champion == another
    # One that is refused is not tried again at once; another one with its number is.
    publish_files(store, layout, MODEL, 4, files(4))
    place = layout.model(MODEL)
    fourth = read_record(store, layout, MODEL, 4)
    store.write(place.champion(4), replace(fourth, why="too large").to_bytes())
    assert not follower.poll() and not follower.poll()
    removed(store, layout, 4)
    promote(store, layout, MODEL, replace(second, number=4, action="rollback"))
    assert follower.poll() and follower.current.champion.version == 2
    assert tried == [3, 2, 1, 4, 2]
    # Two are removed, and one gets the lower number.
    for number in (4, 3):
        removed(store, layout, number)
    promote(store, layout, MODEL, replace(first, number=3, action="rollback", why="again"))
    assert follower.poll() and follower.current.champion.why == "again"
    for number in (3, 2, 1):
        store.delete(place.champion(number))
    assert not follower.poll() and follower.current.champion.why == "again"


def test_a_second_process_waits_and_finds_it_done(
    store: Store, layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_files(store, layout, MODEL, 1, files(1))
    folder = tmp_path / "served"
    fetched: list[int] = []
    begun, go_on = Event(), Event()
    real = module.fetch

    def slow(store: Store, proven: VerifiedChampion, into: Path) -> None:
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
    with pytest.raises(ConfigurationError, match="model_name"):
        ChampionFolder(store, layout, "../x", tmp_path)
    publish_files(store, layout, MODEL, 1, files(1))
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="/file"):
        ChampionFolder(store, layout, MODEL, tmp_path / "file").update()
