"""The init container: what a replica finds before its program starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.launch_tfjob.setup import Task, run
from storage.address import S3Address
from storage.errors import DataError
from storage.store import Store
from uploader import push


@pytest.fixture
def environment(store: Store, base: S3Address, tmp_path: Path) -> dict[str, str]:
    """That of a worker whose program reads the dataset from a folder."""
    (tmp_path / "dataset").mkdir()
    for name in ("train-00000.tfrecord", "validation-00000.tfrecord", "test-00000.tfrecord"):
        (tmp_path / "dataset" / name).write_text(name)
    (tmp_path / "dataset" / "schema.json").write_text("{}")
    push(store, tmp_path / "dataset", base / "datasets" / "d", "dataset")
    return {
        "JOB_DIR": str(tmp_path / "job"),
        "OUTPUT_DIR": str(tmp_path / "job" / "output"),
        "RUN_URI": str(base / "runs" / "r"),
        "DATASET_URI": str(base / "datasets" / "d"),
        "DATA_DIR": str(tmp_path / "job" / "data"),
    }


def test_a_program_finds_the_dataset_without_its_test_rows(
    environment: dict[str, str], store: Store
) -> None:
    assert run(Task.from_environment(environment), lambda: store) is None
    folder = Path(environment["DATA_DIR"])
    assert {path.name for path in folder.iterdir()} == {
        "schema.json",
        "train-00000.tfrecord",
        "validation-00000.tfrecord",
    }
    assert (folder.parent / "supervisor.py").exists()


def test_a_damaged_dataset_starts_no_program(
    environment: dict[str, str], store: Store, base: S3Address
) -> None:
    store.write(base / "datasets" / "d" / "train-00000.tfrecord", b"something else altogether")
    with pytest.raises(DataError, match="train-00000.tfrecord"):
        run(Task.from_environment(environment), lambda: store)


def test_a_replica_without_data_dir_fetches_nothing(
    environment: dict[str, str], store: Store
) -> None:
    del environment["DATA_DIR"]
    run(Task.from_environment(environment), lambda: pytest.fail("the store was opened"))
    assert not (Path(environment["JOB_DIR"]) / "data").exists()
