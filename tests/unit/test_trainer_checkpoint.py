"""Checkpoints as files: whole or not there, kept and removed, refused with what differs."""

import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from kfp_tfjob.common.errors import ConfigurationError
from kfp_tfjob.common.files import sweep
from kfp_tfjob.trainer.checkpoint_folder import read_newest, remove_checkpoint, stored_steps
from kfp_tfjob.trainer.checkpoint_format import Checkpoint, Position
from kfp_tfjob.trainer.errors import NotStartedError

SETTINGS = {"seed": 1}


def _content(step: int, **variables: np.ndarray) -> Checkpoint:
    values = variables or {"w": np.full((2, 3), step, np.float32)}
    return Checkpoint(Position(step, 0, step), SETTINGS, list(values.items()), [b"\x01\x02"])


def newest_step(folder: Path) -> int:
    found = read_newest(folder)
    assert found is not None
    return found.position.step


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A folder with the checkpoints 1 and 2."""
    for step in (1, 2):
        _content(step).write(tmp_path)
    return tmp_path


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    values = {
        "w": np.arange(6, dtype=np.float32).reshape(2, 3),
        "turned": np.arange(6, dtype=np.float64).reshape(2, 3).T,
        "half": np.array([1.5, -2], ml_dtypes.bfloat16),
        "seed": np.array([7, 2**32 - 1], np.uint32),
        "iterations": np.array(5, np.int64),
        "none": np.empty((0, 4), np.float32),
    }
    content = dataclasses.replace(_content(5, **values), callback_arrays=[np.ones(2, np.float32)])
    assert content.write(tmp_path)
    assert not content.write(tmp_path)
    found = read_newest(tmp_path)
    assert found is not None
    assert (found.position, found.settings) == (Position(5, 0, 5), SETTINGS)
    assert found.metrics == [b"\x01\x02"]
    for (name, value), (expected, item) in zip(found.variables, values.items(), strict=True):
        assert name == expected
        assert value.dtype == item.dtype
        np.testing.assert_array_equal(value, item)
    np.testing.assert_array_equal(found.callback_arrays[0], [1, 1])


@pytest.mark.parametrize("file", ["variables.bin", "checkpoint.json"])
@pytest.mark.parametrize("kept", [0, 1, 20])
def test_a_torn_checkpoint_is_never_restored_and_can_be_written_again(
    two: Path, file: str, kept: int
) -> None:
    torn = two / "2" / file
    torn.write_bytes(torn.read_bytes()[:kept])
    assert newest_step(two) == 1 and stored_steps(two) == [1]
    assert _content(2).write(two)
    assert newest_step(two) == 2


@pytest.mark.parametrize(
    "damage",
    [
        {"position": {"stepp": 2, "epoch": 0}},
        {"position": None},
        {"position": {"step": "2"}},
        {"variables": [{"name": "w"}]},
        {"variables": [{"name": "w", "shape": [7], "dtype": "float32"}]},
        {"variables": [{"name": "w", "shape": [-1], "dtype": "float32"}]},
        {"variables": [{"name": "w", "shape": [2, 3], "dtype": "float3z"}]},
        {"variables": [{"name": "w", "shape": [2], "dtype": "float32"}]},
        {"metrics": ["zz"]},
        {"callbacks": []},
        {"sha256": 1},
        {"format": None},
    ],
    ids=str,
)
def test_a_damaged_index_is_removed_with_its_checkpoint(two: Path, damage: dict[str, Any]) -> None:
    path = two / "2" / "checkpoint.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | damage))
    assert newest_step(two) == 1 and stored_steps(two) == [1]


def test_a_state_of_callbacks_may_be_infinite(tmp_path: Path) -> None:
    callbacks = {"best": math.inf, "last": -math.inf}
    assert dataclasses.replace(_content(1), callbacks=callbacks).write(tmp_path)
    checkpoint = read_newest(tmp_path)
    assert checkpoint is not None and checkpoint.callbacks == callbacks


def test_what_an_end_by_force_left_is_no_checkpoint(tmp_path: Path) -> None:
    assert read_newest(tmp_path / "nothing") is None
    _content(1).write(tmp_path)
    (tmp_path / "1").rename(tmp_path / ".1.tmp")
    assert read_newest(tmp_path) is None
    sweep(tmp_path)
    assert not list(tmp_path.iterdir())
    _content(12).write(tmp_path)
    _content(3).write(tmp_path)
    assert stored_steps(tmp_path) == [3, 12]
    remove_checkpoint(tmp_path, 12)
    assert [item.name for item in tmp_path.iterdir()] == ["3"]


def test_another_model_is_refused_with_the_variables_that_differ() -> None:
    then = _content(7, a=np.zeros((6, 64)), b=np.zeros(64), gone=np.zeros(2))
    now = [("a", np.zeros((6, 5))), ("b", np.zeros(64)), ("new", np.zeros(3, np.float32))]
    with pytest.raises(ConfigurationError) as found:
        then.check_fits(now, {"seed": 2})
    seed, model = found.value.problems
    assert (seed.received, seed.expected) == (2, 1)
    assert model.received == "a (6, 5) float64; no gone; new (3,) float32"
    assert model.expected == "a (6, 64) float64; gone (2,) float64; no new"
    assert model.fix
    then.check_fits(then.variables, SETTINGS)
    with pytest.raises(ConfigurationError, match="different model"):
        then.check_fits(list(reversed(then.variables)), SETTINGS)


def test_what_lies_beside_checkpoints_is_left_alone(tmp_path: Path) -> None:
    _content(3).write(tmp_path)
    for name in ("007", "٩", "-1", "best"):
        (tmp_path / name).mkdir()
    (tmp_path / "12").write_text("a file")
    before = sorted(tmp_path.iterdir())
    assert newest_step(tmp_path) == 3
    assert stored_steps(tmp_path) == [3]
    assert sorted(tmp_path.iterdir()) == before


def test_a_checkpoint_of_a_newer_program_is_refused_and_stays(two: Path) -> None:
    state = two / "2" / "checkpoint.json"
    state.write_text(state.read_text().replace("checkpoint/1", "checkpoint/2"))
    with pytest.raises(ConfigurationError, match="step 2"):
        read_newest(two)
    assert stored_steps(two) == [1, 2]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc has a file that cannot be read")
def test_a_checkpoint_the_disk_does_not_give_is_not_taken_for_a_damaged_one(two: Path) -> None:
    variables = two / "2" / "variables.bin"
    variables.unlink()
    variables.symlink_to("/proc/self/mem")  # reading it is an input/output error
    with pytest.raises(NotStartedError, match="step 2 "):
        read_newest(two)
    assert stored_steps(two) == [1, 2]
    variables.unlink()
    assert newest_step(two) == 1
