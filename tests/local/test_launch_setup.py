"""The init container: what a program finds when it starts, and a chief when it starts again."""

import logging
import shutil
from pathlib import Path

import pytest

from kfp_tfjob.common.errors import DataError
from kfp_tfjob.components.launch_tfjob.setup.__main__ import run
from kfp_tfjob.components.launch_tfjob.setup.restore import restore
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.checksum import file_crc64nvme
from kfp_tfjob.storage.layout import MANIFEST, RunLayout
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader import push
from kfp_tfjob.uploader.local_files import scan
from kfp_tfjob.uploader.mirror import Mirror
from tests.faults.proxy import Fault, FaultProxy, damage_reply, slow_down
from tests.faults.world import content, write_files
from tests.local.sidecar import Pod
from tests.local.trainer_jobs import SECONDS, STEPS, Job, Start


@pytest.fixture
def environment(store: Store, base: S3Address, tmp_path: Path) -> dict[str, str]:
    """That of a worker whose program reads the dataset from a folder."""
    names = [f"{split}/00000.parquet" for split in ("train", "validation", "test")]
    files = dict.fromkeys(["schema.json", *names], b"{}")
    push(store, write_files(tmp_path / "dataset", files), base / "datasets" / "d", "dataset")
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
    assert run(environment, lambda: store) is None
    folder = Path(environment["DATA_DIR"])
    files = (path for path in folder.rglob("*") if path.is_file())
    found = sorted(str(path.relative_to(folder)) for path in files)
    assert found == ["schema.json", "train/00000.parquet", "validation/00000.parquet"]
    assert (folder.parent / "supervisor.pyz").exists()


def test_a_damaged_dataset_starts_no_program(
    environment: dict[str, str], store: Store, base: S3Address
) -> None:
    store.write(base / "datasets" / "d" / "train/00000.parquet", b"something else altogether")
    with pytest.raises(DataError, match="train/00000.parquet"):
        run(environment, lambda: store)


def test_a_replica_without_data_dir_fetches_nothing(
    environment: dict[str, str], store: Store
) -> None:
    del environment["DATA_DIR"]
    run(environment, lambda: pytest.fail("the store was opened"))
    assert not (Path(environment["JOB_DIR"]) / "data").exists()


def test_the_newest_complete_checkpoint_comes_back(
    environment: dict[str, str], store: Store, tmp_path: Path
) -> None:
    layout = RunLayout(S3Address.parse(environment["RUN_URI"]))
    for step in (3, 7, 9):
        source = write_files(tmp_path / f"checkpoint-{step}", {"variables.bin": bytes([step])})
        push(store, source, layout.checkpoints / str(step), "checkpoint")
    store.delete(layout.checkpoints / "9" / MANIFEST)  # it was being stored when the pod died
    assert run(environment | {"RESTORE": "1"}, lambda: store) == 7
    (found,) = Path(environment["OUTPUT_DIR"], "checkpoints").iterdir()
    assert found.name == "7" and (found / "variables.bin").read_bytes() == b"\7"


BESIDE = {
    "progress.jsonl": b"{}\n",
    "logs/train/events.out.tfevents.1.host": b"event" * 100,
    "own/best.keras": bytes(3_000_000),
    "own/\u00fcn\u00ef + %\ncode.txt": b"",
    # A program may write its best model long before its last epoch.
    "model/saved_model.pb": b"best",
    "model.keras": b"best",
}


def _mirror(store: Store, layout: RunLayout, folder: Path, attempt: int) -> Mirror:
    """Store what a folder holds, as the sidecar does."""
    mirror = Mirror(store, folder, layout, "r", attempt)
    mirror.store(scan(folder), scan(folder))
    return mirror


@pytest.fixture
def stored(store: Store, base: S3Address, tmp_path: Path) -> RunLayout:
    """A run with a stored checkpoint, and what its pod has left beside it and later."""
    layout = RunLayout(base)
    files = {"completion.json": b"old"} | BESIDE | {"checkpoints/5/data": b"five"}
    files |= {"own/x.tmp": b"half", ".uploader/identity.json": b"{}"}
    first = write_files(tmp_path / "first", files)
    mirror = _mirror(store, layout, first, 1)
    write_files(first, {"own/later.txt": b"of a step that is not in the checkpoint"})
    mirror.store(scan(first), scan(first))
    store.write(layout.output / "own/removed.txt", b"the callback itself has removed it")
    return layout


def test_what_lay_beside_the_checkpoint_comes_back_and_only_that_is_sent_again(
    stored: RunLayout, proxy: FaultProxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    output, store = tmp_path / "second", Store(proxy.endpoint)
    assert restore(store, stored, output) == 5
    found = scan(output).files
    assert found.keys() == BESIDE.keys() | {"checkpoints/5/data"}
    for path, data in BESIDE.items():
        assert (output / path).read_bytes() == data
    assert "6 files " in caplog.text
    assert restore(store, stored, output) == 5  # it is there
    assert not proxy.of("PUT")

    second = _mirror(store, stored, output, 2)
    assert second.missing(scan(output)) == []
    targets = {seen.target.partition("/output/")[2] for seen in proxy.of("PUT", "/output/")}
    assert len(targets) == len(BESIDE) - 1  # the SavedModel stays as it is
    assert "model/saved_model.pb" not in targets
    keys = {item.key for item in second.publish(scan(output)).objects}
    assert keys == {f"output/{path}" for path in found}


def test_a_file_that_cannot_be_had_is_left_out(
    stored: RunLayout, store: Store, proxy: FaultProxy, tmp_path: Path, caplog
) -> None:
    store.delete(stored.output / "progress.jsonl")
    proxy.faults = [Fault(damage_reply, "GET", "tfevents", times=1)]
    output = tmp_path / "second"
    assert restore(Store(proxy.endpoint), stored, output) == 5
    assert {path for path in BESIDE if not (output / path).exists()} == {
        "progress.jsonl",
        "logs/train/events.out.tfevents.1.host",
    }
    assert "2 files " in caplog.text
    assert "'progress.jsonl': " in caplog.text
    assert "events.out.tfevents.1.host': " in caplog.text
    assert (output / "checkpoints/5/data").read_bytes() == b"five"


MODEL = {
    "model/saved_model.pb": b"graph",
    "model/variables/variables.index": b"index",
    "model/assets/words.txt": b"words",
}


@pytest.mark.parametrize("lost", MODEL)
def test_a_saved_model_comes_back_completely_or_not_at_all(
    store: Store, base: S3Address, proxy: FaultProxy, tmp_path: Path, caplog, lost: str
) -> None:
    layout = RunLayout(base)
    first = write_files(tmp_path / "first", BESIDE | MODEL | {"checkpoints/5/data": b"five"})
    _mirror(store, layout, first, 1)
    if lost == "model/saved_model.pb":
        store.write(layout.output / lost, b"")  # the next export was on its way
    proxy.faults = [Fault(damage_reply, "GET", lost)]
    output = tmp_path / "second"
    assert restore(Store(proxy.endpoint), layout, output) == 5
    assert not (output / "model").exists()
    assert scan(output).files.keys() == (BESIDE.keys() - MODEL.keys()) | {"checkpoints/5/data"}
    assert "3 files " in caplog.text


def test_a_newer_saved_model_comes_back_with_all_its_files(
    store: Store, base: S3Address, tmp_path: Path
) -> None:
    layout = RunLayout(base)
    first = write_files(tmp_path / "first", MODEL | {"checkpoints/5/data": b"five"})
    mirror = _mirror(store, layout, first, 1)
    newer = dict.fromkeys(MODEL, b"newer") | {"model/assets/more.txt": b"newer"}
    write_files(first, newer)
    mirror.store(scan(first), scan(first))
    output = tmp_path / "second"
    assert restore(store, layout, output) == 5
    assert content(output) == newer | {"checkpoints/5/data": b"five"}


def test_no_training_waits_for_its_logs(
    stored: RunLayout, proxy: FaultProxy, tmp_path: Path, caplog
) -> None:
    proxy.faults = [Fault(slow_down, "GET|HEAD", "own/|logs/|progress|model", times=float("inf"))]
    output = tmp_path / "second"
    assert restore(Store(proxy.endpoint, patience=Patience(0.1)), stored, output) == 5
    assert scan(output).files.keys() == {"checkpoints/5/data"}
    assert "6 files " in caplog.text


def test_a_training_that_begins_anew_finds_nothing_of_the_old_one(
    stored: RunLayout, store: Store, tmp_path: Path
) -> None:
    store.delete(stored.checkpoints / "5" / MANIFEST)
    assert restore(store, stored, tmp_path / "second") is None
    assert not scan(tmp_path / "second").files


def test_nothing_is_written_outside_of_the_output(
    store: Store, base: S3Address, tmp_path: Path
) -> None:
    layout = RunLayout(base)
    names = ["../evil", "own/../../evil", "/evil", ".uploader/flush-reply.json", "a//b", "good"]
    source = write_files(tmp_path / "source", {"data": b"x"})
    details = {"step": 5, "files": names}
    push(store, source, layout.checkpoints / "5", "checkpoint", details=details)
    for name in names:
        store.write(S3Address(base.bucket, f"{layout.output.key}/{name}"), b"x")
    output = tmp_path / "deep" / "output"
    assert restore(store, layout, output) == 5
    assert {p.relative_to(tmp_path / "deep").as_posix() for p in tmp_path.glob("deep/**/*")} == {
        "output",
        "output/checkpoints",
        "output/checkpoints/5",
        "output/checkpoints/5/data",
        "output/good",
    }


# The loss only falls, so `best.keras` is that of the first epoch; the first attempt does not end.
CODE = """
import os, time
import keras
from kfp_tfjob.trainer.models import mlp

class Hold(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        while epoch == 3 and os.environ["ATTEMPT"] == "1":
            time.sleep(0.1)

def build_model(dataset):
    return mlp(dataset)

def callbacks(dataset):
    best = {"monitor": "loss", "mode": "max", "save_best_only": True}
    return [keras.callbacks.ModelCheckpoint("own/best.keras", **best), Hold()]
"""


def _points(folder: Path) -> list[int]:
    """Return the steps of a curve that TensorBoard would show."""
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

    board = EventAccumulator(str(folder))
    board.Reload()
    return [event.step for event in board.Tensors("epoch_loss")]


@pytest.mark.slow
def test_a_chief_on_a_new_disk_ends_with_all_it_ever_wrote(
    jobs: Start,
    store: Store,
    base: S3Address,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    layout = RunLayout(base / "runs" / "moved")
    manifest = layout.checkpoints / str(3 * STEPS) / MANIFEST
    pod = Pod(tmp_path / "0", layout, "")
    request.addfinalizer(pod.stop)
    output = pod.output

    pod.sidecar()
    job: Job = jobs(
        "moved",
        code=CODE,
        folder=tmp_path,
        EPOCHS="5",
        TRAIN_OPTIONS='{"checkpoint_seconds": 0.01}',
        FLUSH_BARRIER="1",
        STORE_DEADLINE=str(SECONDS),
    )
    job.until(lambda: store.has(manifest))
    pod.stop()
    job.processes[0].kill()
    job.processes[0].wait()
    best = file_crc64nvme(output / "own" / "best.keras")
    curves = {path for path in scan(output).files if path.startswith("logs/")}
    assert len(curves) == 2
    shutil.rmtree(output)

    assert restore(store, layout, output) == 3 * STEPS
    assert curves | {"own/best.keras", "progress.jsonl"} <= scan(output).files.keys()
    job.environment["ATTEMPT"] = "2"
    pod.sidecar("--attempt", "2")
    assert job.start().end() == [0], job.log() + pod.log()

    objects = {item.key: item for item in store.read_manifest(layout.manifest).objects}
    assert objects["output/own/best.keras"].crc64nvme == best
    assert {f"output/{path}" for path in curves} < {key for key in objects if "/logs/" in key}
    assert [line["epoch"] for line in job.events("epoch")] == [1, 2, 3, 4, 5]
    for split in ("train", "validation"):
        assert _points(output / "logs" / split) == [0, 1, 2, 3, 4]
