"""The init container: what a program finds when it starts, and a chief when it starts again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from components.launch_tfjob.setup import Task, restore, run
from storage import manifest as manifests
from storage.address import S3Address
from storage.errors import DataError
from storage.layout import RunLayout
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


def _checkpoint(store: Store, layout: RunLayout, folder: Path, step: int, best: int | None) -> None:
    source = folder / f"source-{step}"
    source.mkdir()
    state = {"best_checkpoint": {"step": best} if best is not None else {}}
    (source / "checkpoint.json").write_text(json.dumps(state))
    (source / "variables.bin").write_bytes(bytes([step]))
    push(store, source, layout.checkpoints / str(step), "checkpoint")


def _task(layout: RunLayout, folder: Path) -> Task:
    environment = {
        "JOB_DIR": str(folder / "job"),
        "OUTPUT_DIR": str(folder / "output"),
        "RUN_URI": str(layout.base),
        "RESTORE": "1",
    }
    return Task.from_environment(environment)


def test_the_newest_and_the_best_checkpoint_come_back(
    store: Store, base: S3Address, tmp_path: Path
) -> None:
    layout = RunLayout(base)
    for step, best in {3: None, 5: 3, 7: 5, 9: 5}.items():
        _checkpoint(store, layout, tmp_path, step, best)
    store.write(layout.output / "progress.jsonl", b"{}\n")
    store.delete(layout.checkpoints / "9" / manifests.NAME)  # it was being stored when the pod died
    task = _task(layout, tmp_path)
    checkpoints = task.output_dir / "checkpoints"
    assert restore(task, store) == 7
    assert {item.name for item in checkpoints.iterdir()} == {"5", "7"}
    assert (checkpoints / "5" / "variables.bin").read_bytes() == b"\5"
    assert (task.output_dir / "progress.jsonl").read_bytes() == b"{}\n"


def test_a_best_checkpoint_that_is_gone_or_unknown_is_no_error(
    store: Store, base: S3Address, tmp_path: Path
) -> None:
    layout = RunLayout(base)
    _checkpoint(store, layout, tmp_path, 7, best=5)
    task = _task(layout, tmp_path)
    assert restore(task, store) == 7
    other = RunLayout(base / "other")
    source = tmp_path / "plain"
    source.mkdir()
    (source / "weights").write_bytes(b"x")  # of a program of the user's own
    push(store, source, other.checkpoints / "4", "checkpoint")
    task = _task(other, tmp_path / "second")
    assert restore(task, store) == 4
    assert [item.name for item in (task.output_dir / "checkpoints").iterdir()] == ["4"]
