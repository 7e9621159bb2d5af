"""Checkpoints in the background: what they hold, which stay, and what happens when they fail."""

import json
import resource
import shutil
import signal
from pathlib import Path

import keras
import numpy as np
import pytest

from kfp_tfjob.common.errors import ConfigurationError, StepError
from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import CHECKPOINT_STATE, MANIFEST
from kfp_tfjob.trainer.checkpoint_folder import stored_steps
from kfp_tfjob.trainer.checkpoint_format import Checkpoint, Position
from kfp_tfjob.trainer.checkpoint_writer import CheckpointWriter, HostCopy
from tests.local.trainer_jobs import STEPS, Start


def _content(step: int, *variables: tuple[str, np.ndarray]) -> Checkpoint:
    return Checkpoint(Position(step, 0, step), {}, variables or [("w", np.zeros(3, np.float32))])


def test_a_copy_does_not_change_with_the_variables() -> None:
    variables = [
        ("a", keras.Variable(np.ones((2, 2), np.float32))),
        ("b", keras.Variable(np.ones(3), dtype="bfloat16")),
        ("n", keras.Variable(3, dtype="int64", trainable=False)),
    ]
    copy = HostCopy(variables)
    before = copy.take()
    for _, variable in variables:
        variable.assign_add(variable)
    assert [(name, value.tolist()) for name, value in before] == [
        ("a", [[1, 1], [1, 1]]),
        ("b", [1, 1, 1]),
        ("n", 3),
    ]
    assert [value.dtype.name for _, value in before] == ["float32", "bfloat16", "int64"]
    assert copy.take()[2][1] == 6


def test_the_newest_few_stay(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, 2)
    seen = []
    for step in range(1, 7):
        writer.begin(_content(step))
        writer.wait()
        seen.append(stored_steps(tmp_path))
    assert seen == [[1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 6]]


def test_what_fails_in_the_background_is_raised_where_the_training_waits(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    writer = CheckpointWriter(tmp_path / "file", 2)
    writer.begin(_content(1))
    with pytest.raises(ConfigurationError, match="step 1 "):
        writer.wait()
    writer = CheckpointWriter(tmp_path, 2)
    writer.begin(_content(1, ("w", np.array([object()]))))
    with pytest.raises(StepError, match="step 1 "):
        writer.wait()


def test_a_disk_that_is_full_later_ends_the_training(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, 3)
    writer.begin(_content(1))
    writer.wait()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limit[1]))
        writer.begin(_content(2, ("w", np.zeros(1 << 20, np.float32))))
        with pytest.raises(ConfigurationError, match="too large"):
            writer.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    assert [item.name for item in tmp_path.iterdir()] == ["1"]


def test_a_recorded_training_continues(
    jobs: Start, s3: Server, datasets: dict[str, S3Address], tmp_path: Path
) -> None:
    """It stopped at step 506 on a SIGTERM, at commit 4d2ba61."""
    stored = Path(__file__).parents[1] / "data" / "stored" / "trainer"
    shutil.copytree(stored, tmp_path / "0" / "output")
    state = tmp_path / "0" / "output" / "checkpoints" / "506" / CHECKPOINT_STATE
    content = json.loads(state.read_text())
    # The same rows, but TensorFlow's writer orders the columns differently in each process.
    content["settings"]["dataset"] = (
        s3.store().read_manifest(datasets["classification"] / MANIFEST).digest
    )
    state.write_text(json.dumps(content))
    job = jobs(
        "recorded",
        folder=tmp_path,
        MODEL_CODE="kfp_tfjob.trainer.models:mlp",
        HYPERPARAMETERS='{"hidden": [4]}',
        TRAIN_OPTIONS="{}",
    )
    assert job.end() == [0], job.log()
    assert "from step 506" in job.log()
    assert job.checkpoint() == 2 * STEPS
    assert [event["epoch"] for event in job.events("epoch")] == [1, 2]
