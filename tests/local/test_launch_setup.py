"""What a restarted chief is given back: its newest checkpoint, the best one, the progress lines."""

from __future__ import annotations

import json
from pathlib import Path

from components.launch_tfjob.setup import Task, restore
from storage import manifest as manifests
from storage.address import S3Address
from storage.layout import RunLayout
from storage.store import Store
from uploader import push


def _checkpoint(store: Store, run: RunLayout, folder: Path, step: int, best: int | None) -> None:
    source = folder / f"source-{step}"
    source.mkdir()
    state = {"best_checkpoint": {"step": best} if best is not None else {}}
    (source / "checkpoint.json").write_text(json.dumps(state))
    (source / "variables.bin").write_bytes(bytes([step]))
    push(store, source, run.checkpoints / str(step), "checkpoint")


def _task(run: RunLayout, folder: Path) -> Task:
    environment = {
        "JOB_DIR": str(folder / "job"),
        "OUTPUT_DIR": str(folder / "output"),
        "RUN_URI": str(run.base),
        "RESTORE": "1",
    }
    return Task.from_environment(environment)


def test_the_newest_and_the_best_checkpoint_come_back(
    store: Store, base: S3Address, tmp_path: Path
) -> None:
    run = RunLayout(base)
    for step, best in {3: None, 5: 3, 7: 5, 9: 5}.items():
        _checkpoint(store, run, tmp_path, step, best)
    store.write(run.output / "progress.jsonl", b"{}\n")
    store.delete(run.checkpoints / "9" / manifests.NAME)  # it was being stored when the pod died
    task = _task(run, tmp_path)
    checkpoints = task.output_dir / "checkpoints"
    assert restore(task, store) == 7
    assert {item.name for item in checkpoints.iterdir()} == {"5", "7"}
    assert (checkpoints / "5" / "variables.bin").read_bytes() == b"\5"
    assert (task.output_dir / "progress.jsonl").read_bytes() == b"{}\n"


def test_a_best_checkpoint_that_is_gone_or_unknown_is_no_error(
    store: Store, base: S3Address, tmp_path: Path
) -> None:
    run = RunLayout(base)
    _checkpoint(store, run, tmp_path, 7, best=5)
    task = _task(run, tmp_path)
    assert restore(task, store) == 7
    other = RunLayout(base / "other")
    source = tmp_path / "plain"
    source.mkdir()
    (source / "weights").write_bytes(b"x")  # of a program of the user's own
    push(store, source, other.checkpoints / "4", "checkpoint")
    task = _task(other, tmp_path / "second")
    assert restore(task, store) == 4
    assert [item.name for item in (task.output_dir / "checkpoints").iterdir()] == ["4"]
