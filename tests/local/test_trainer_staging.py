"""The dataset on the disk of a replica: all of it, only once, and only where there is space."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from storage import manifest as manifests
from storage.address import S3Address
from storage.errors import ConfigurationError, DataError
from storage.manifest import Manifest
from storage.store import Store
from tests.faults.proxy import FaultProxy
from trainer.staging import check_writable, stage
from uploader import push

FILES = {
    "schema.json": b"{}",
    **{
        f"{split}-{shard:05d}.tfrecord": hashlib.sha256(f"{split}{shard}".encode()).digest() * 999
        for split in ("train", "validation", "test")
        for shard in range(3)
    },
}
STAGED = {name: data for name, data in FILES.items() if not name.startswith("test-")}


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
    stage(store, dataset, folder)
    assert _content(folder) == STAGED
    assert len(proxy.of("GET", "tfrecord")) == 6

    # A kill in the middle: one file is not there, one is cut off, one has other bytes.
    (folder / "train-00000.tfrecord").rename(folder / ".train-00000.tfrecord.part")
    (folder / "train-00001.tfrecord").write_bytes(FILES["train-00001.tfrecord"][:-1])
    (folder / "validation-00002.tfrecord").write_bytes(bytes(len(STAGED["train-00001.tfrecord"])))
    stage(store, dataset, folder)
    assert _content(folder) == STAGED
    assert len(proxy.of("GET", "tfrecord")) == 9


def test_the_disk_is_looked_at_before_anything_is_fetched(
    store: Store, proxy: FaultProxy, dataset: S3Address, tmp_path: Path
) -> None:
    old = store.read_manifest(dataset / manifests.NAME)
    huge = [
        replace(item, size=10**15) if item.key == "train-00001.tfrecord" else item
        for item in old.objects
    ]
    store.write(dataset / manifests.NAME, Manifest.of(old.kind, huge).to_bytes())
    with pytest.raises(ConfigurationError) as found:
        stage(Store(proxy.endpoint), dataset, tmp_path / "data")
    (problem,) = found.value.problems
    assert str(dataset) in problem.what and str(tmp_path / "data") in problem.what
    assert problem.expected.startswith("1000000.00 GB")
    assert problem.received.endswith("GB free")
    assert "ephemeral_storage" in problem.fix
    assert not proxy.of("GET", "tfrecord")
    assert not list((tmp_path / "data").iterdir())


def test_what_changed_in_the_store_is_named_and_never_used(
    store: Store, dataset: S3Address, tmp_path: Path
) -> None:
    store.write(dataset / "train-00001.tfrecord", bytes(len(FILES["train-00001.tfrecord"])))
    store.delete(dataset / "validation-00000.tfrecord")
    with pytest.raises(DataError) as found:
        stage(store, dataset, tmp_path / "data")
    first, second = map(str, found.value.problems)
    assert "train-00001.tfrecord is not what its manifest says" in first
    assert "validation-00000.tfrecord is missing" in second
    assert not (tmp_path / "data" / "train-00001.tfrecord").exists()


def test_a_folder_that_takes_no_file_is_refused(
    store: Store, dataset: S3Address, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="the dataset cannot be written to .*/file/data"):
        stage(store, dataset, tmp_path / "file" / "data")
    with pytest.raises(ConfigurationError, match="the output cannot be written to .*/file"):
        check_writable(tmp_path / "file")
    check_writable(tmp_path / "output")
    assert not list((tmp_path / "output").iterdir())
