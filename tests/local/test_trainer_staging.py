"""The dataset on the disk of a replica: all of it, only once, and only where there is space."""

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from kfp_tfjob.common.errors import ConfigurationError, DataError
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import MANIFEST
from kfp_tfjob.storage.manifest import Manifest
from kfp_tfjob.storage.store import Store
from kfp_tfjob.trainer.staging import stage, work_in
from kfp_tfjob.uploader import push
from tests.faults.proxy import FaultProxy
from tests.local import tiny_dataset
from tests.local.trainer_jobs import STEPS, Start
from tests.problems import problem_of, problems_of

FILES = {
    "schema.json": b"{}",
    **{
        f"{split}-{shard:05d}.tfrecord": hashlib.sha256(f"{split}{shard}".encode()).digest() * 999
        for split in ("train", "validation", "test")
        for shard in range(3)
    },
}
STAGED = {name: data for name, data in FILES.items() if not name.startswith("test")}


@pytest.fixture
def dataset(store: Store, base: S3Address, tmp_path: Path) -> S3Address:
    source = tmp_path / "source"
    source.mkdir()
    for name, data in FILES.items():
        (source / name).write_bytes(data)
    push(store, source, base, "dataset")
    return base


def _content(folder: Path) -> dict[str, bytes]:
    return {item.name: item.read_bytes() for item in folder.iterdir()}


def test_what_an_earlier_life_brought_is_not_fetched_again(
    proxy: FaultProxy, dataset: S3Address, tmp_path: Path
) -> None:
    store, folder = Store(proxy.endpoint), tmp_path / "data"
    stage(store, dataset, folder, tmp_path / "encoded")
    assert _content(folder) == STAGED
    assert len(proxy.of("GET", "tfrecord")) == 6

    # A kill in the middle: one file is not there, one is cut off, one has other bytes.
    (folder / "train-00000.tfrecord").rename(folder / ".train-00000.tfrecord.part")
    (folder / "train-00001.tfrecord").write_bytes(FILES["train-00001.tfrecord"][:-1])
    (folder / "validation-00002.tfrecord").write_bytes(bytes(len(STAGED["train-00001.tfrecord"])))
    stage(store, dataset, folder, tmp_path / "encoded")
    assert _content(folder) == STAGED
    assert len(proxy.of("GET", "tfrecord")) == 9


def test_the_disk_is_looked_at_before_anything_is_fetched(
    store: Store, proxy: FaultProxy, dataset: S3Address, tmp_path: Path
) -> None:
    old = store.read_manifest(dataset / MANIFEST)
    huge = [
        replace(item, size=10**15) if item.key == "train-00001.tfrecord" else item
        for item in old.objects
    ]
    store.write(dataset / MANIFEST, Manifest.of(old.kind, huge).to_bytes())
    problem = problem_of(stage, Store(proxy.endpoint), dataset, tmp_path / "data", tmp_path)
    assert str(dataset) in problem.what and str(tmp_path / "data") in problem.what
    assert problem.expected.startswith("1000000.0 GB")
    assert problem.received.endswith("GB free")
    assert "ephemeral_storage" in problem.fix
    assert not proxy.of("GET", "tfrecord")
    assert not list((tmp_path / "data").iterdir())


def test_what_an_end_by_force_has_left_takes_no_space(
    store: Store, dataset: S3Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk with room for the dataset, and half of it there already."""
    folder, size = tmp_path / "data", sum(map(len, STAGED.values()))

    def disk_usage(_: Path) -> SimpleNamespace:
        taken = sum(item.stat().st_size for item in folder.iterdir())
        return SimpleNamespace(free=size + 1000 - taken)

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    folder.mkdir()
    (folder / ".train-00000.tfrecord.part").write_bytes(FILES["train-00000.tfrecord"][:-1])
    stage(store, dataset, folder, tmp_path / "encoded")
    assert _content(folder) == STAGED


def test_what_changed_in_the_store_is_named_and_never_used(
    store: Store, dataset: S3Address, tmp_path: Path
) -> None:
    store.write(dataset / "train-00001.tfrecord", bytes(len(FILES["train-00001.tfrecord"])))
    store.delete(dataset / "validation-00000.tfrecord")
    found = problems_of(stage, store, dataset, tmp_path / "data", tmp_path, kind=DataError)
    first, second = map(str, found)
    assert "train-00001.tfrecord" in first
    assert "validation-00000.tfrecord" in second
    assert not (tmp_path / "data" / "train-00001.tfrecord").exists()


def test_a_folder_that_takes_no_file_is_refused(
    store: Store, dataset: S3Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # to be back at the end
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="/file/data"):
        stage(store, dataset, tmp_path / "file" / "data", tmp_path)
    with pytest.raises(ConfigurationError, match="/file"):
        work_in(tmp_path / "file")
    work_in(tmp_path / "output")
    assert Path.cwd() == tmp_path / "output" and not list(Path.cwd().iterdir())


def _with_other_rows(folder: Path) -> Path:
    first, second = (tiny_dataset.write(folder) / f"train/0000{at}.parquet" for at in (0, 2))
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    return folder


@pytest.mark.slow
def test_a_dataset_that_was_replaced_is_not_trained_on_further(
    jobs: Start, store: Store, base: S3Address, tmp_path: Path
) -> None:
    address = tiny_dataset.send(store, tiny_dataset.write(tmp_path / "one"), base / "dataset")
    first = jobs("replaced", data=address.key, EPOCHS="1")
    assert first.end() == [0], first.log()
    tiny_dataset.send(store, _with_other_rows(tmp_path / "other"), address)
    again = jobs("replaced", data=address.key, folder=first.folder)
    assert again.end() == [2], again.log()
    assert f"step {STEPS}" in again.words()
