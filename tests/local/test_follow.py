"""A folder that follows the champion: whole or not there, whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

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


def start(layout: Layout, folder: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "kfp_tfjob.pipelines", "follow", MODEL, folder]
    command += ["--output", str(layout.root), "--poll-seconds", "0.1", *more]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def until(true: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)


def test_the_process_follows_and_keeps_the_one_before(
    store: Store, layout: Layout, tmp_path: Path
) -> None:
    folder = tmp_path / "served"
    publish(store, layout, MODEL, 1, files(1), tmp_path)
    process = start(layout, folder)
    try:
        for number in (2, 3):
            until((folder / str(number - 1)).is_dir, process)
            publish(store, layout, MODEL, number, files(number), tmp_path)
            until((folder / str(number)).is_dir, process)
            assert whole(folder / str(number), number)
        until(lambda: not (folder / "1").exists(), process)
        # A champion that was altered is not taken, and the reason is told once.
        publish(store, layout, MODEL, 4, files(4), tmp_path)
        version = layout.model(MODEL).version(4)
        store.write(version / "model" / "saved_model.pb", b"graph 9")
        time.sleep(0.5)
        assert whole(folder / "3", 3)
    finally:
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=30)[1]
    assert process.returncode == 0
    told = said.count("the folder stays as it is")
    # The process may have fetched the fourth one before it was altered.
    assert told == 1 or (told == 0 and whole(folder / "4", 4))


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
    assert champion.update() == 2 and whole(folder / "2", 2)
    assert {path.name for path in folder.iterdir()} == {"1", "2"}


def test_a_killed_process_leaves_whole_folders(
    store: Store, layout: Layout, tmp_path: Path
) -> None:
    folder = tmp_path / "served"
    publish(store, layout, MODEL, 1, files(1), tmp_path)
    ChampionFolder(store, layout, MODEL, folder).update()
    publish(store, layout, MODEL, 2, files(2), tmp_path)
    process = start(layout, folder)
    until(lambda: (folder / ".incoming").exists() or (folder / "2").exists(), process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    for path in folder.iterdir():
        assert path.name == ".incoming" or whole(path, int(path.name))
    assert start(layout, folder, "--once").wait(60) == 0
    assert whole(folder / "2", 2) and not (folder / ".incoming").exists()


def test_wrong_inputs(store: Store, layout: Layout, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="model_name is not valid"):
        ChampionFolder(store, layout, "../x", tmp_path)
    publish(store, layout, MODEL, 1, files(1), tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        ChampionFolder(store, layout, MODEL, tmp_path / "file").update()
