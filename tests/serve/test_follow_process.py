"""`kfp-tfjob follow` as a process: the folder is whole or not there, also after a kill."""

import subprocess
import sys
from pathlib import Path

import pytest

from kfp_tfjob.serving.champion_folder import ChampionFolder
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.local.published import publish_files
from tests.local.test_follow import MODEL, files, whole
from tests.waiting import until

pytestmark = pytest.mark.slow


def start(layout: Layout, folder: Path, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "kfp_tfjob.pipelines", "follow", MODEL, folder]
    command += ["--output", str(layout.root), "--poll-seconds", "0.1"]
    with open(log, "wb") as written:
        return subprocess.Popen(command, stderr=written)


def test_a_killed_process_leaves_whole_folders(
    store: Store, layout: Layout, tmp_path: Path
) -> None:
    folder = tmp_path / "served"
    publish_files(store, layout, MODEL, 1, files(1))
    ChampionFolder(store, layout, MODEL, folder).update()
    publish_files(store, layout, MODEL, 2, files(2))
    process = start(layout, folder, tmp_path / "log")
    until(lambda: (folder / ".incoming").exists() or (folder / "2").exists())
    process.kill()
    process.wait()
    for path in folder.iterdir():
        assert path.name in (".incoming", ".lock") or whole(path, int(path.name))
    assert ChampionFolder(store, layout, MODEL, folder).update() == 2  # the next process
    assert whole(folder / "2", 2) and not (folder / ".incoming").exists()
