"""Checkpoints: everything that is needed to go on as if nothing had happened.

    checkpoints/<step>/checkpoint.json     what is in the other file, and where the training stood
    checkpoints/<step>/variables.bin       the bytes of all variables, one after the other

The chief alone writes and reads them; the other replicas get everything from the chief. A directory
appears under its number by one rename, when it is complete, and never changes after.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from kfp_tfjob.storage import files
from kfp_tfjob.storage.errors import ConfigurationError, Problem
from kfp_tfjob.storage.layout import CHECKPOINT_STATE, CHECKPOINT_VARIABLES
from kfp_tfjob.storage.words import listed
from kfp_tfjob.trainer.exits import NotStartedError

_FAMILY = "kfp-tfjob/checkpoint/"
FORMAT = f"{_FAMILY}1"
_ARRAYS = "best"  # the key of callback_arrays: part of the format, which older trainers read too

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Position:
    """Where a training stands.

    Attributes:
        step: Steps done since the start.
        epoch: The epoch that is under way, from 0.
        step_in_epoch: Steps of that epoch that are done; when it is all of them, the evaluation of
            the epoch is still to come.
    """

    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint.

    Attributes:
        position: Where the training stood.
        settings: What has to be equal for the position to mean the same: seed, batch, rows.
        variables: Name and value of every variable of the model and the optimizer, in order.
        metrics: The running sums of the metrics, one text of bytes for each process.
        callbacks: State of the callbacks, for JSON.
        callback_arrays: The arrays in the state of the callbacks, which `callbacks` refers to by
            their number.
        best_checkpoint: Which checkpoint was the best when this one was made: `metric`, `step` and
            `value`; empty when there was none.
    """

    position: Position
    settings: Mapping[str, Any]
    variables: Sequence[tuple[str, np.ndarray]]
    metrics: Sequence[bytes] = ()
    callbacks: Mapping[str, Any] = field(default_factory=dict)
    callback_arrays: Sequence[np.ndarray] = ()
    best_checkpoint: Mapping[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> bool:
        """Write it to `folder/<step>`, which appears complete or not at all.

        Returns:
            False when the step was there already: the same step has the same content.
        """
        target = folder / str(self.position.step)
        if target.exists():
            return False
        with files.written(target) as partial:
            partial.mkdir(parents=True)
            self._write_to(partial)
        return True

    def _write_to(self, folder: Path) -> None:
        digest, entries = sha256(), []
        with open(folder / CHECKPOINT_VARIABLES, "wb") as file:
            for name, value in [*self.variables, *((_ARRAYS, it) for it in self.callback_arrays)]:
                # Not copied: that would hold the lock of the interpreter, and the training with it.
                data = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
                entries.append(_Entry(name, list(value.shape), str(value.dtype)))
                digest.update(data)
                file.write(data)
        state = {
            "format": FORMAT,
            "position": vars(self.position),
            "settings": dict(self.settings),
            "variables": [vars(entry) for entry in entries[: len(self.variables)]],
            _ARRAYS: [vars(entry) for entry in entries[len(self.variables) :]],
            "metrics": [item.hex() for item in self.metrics],
            "callbacks": dict(self.callbacks),
            "best_checkpoint": dict(self.best_checkpoint),
            "sha256": digest.hexdigest(),
        }
        (folder / CHECKPOINT_STATE).write_text(json.dumps(state, indent=1) + "\n")

    def check_fits(self, variables: Sequence[tuple[str, Any]], settings: Mapping[str, Any]) -> None:
        """Check that it belongs to this model and this training.

        Args:
            variables: Name and variable, as they are now.
            settings: As they are now.

        Raises:
            ConfigurationError: It belongs to another one.
        """
        problems = [
            Problem(
                f"the checkpoint of step {self.position.step} was made with another {name}",
                received=self.settings.get(name),
                expected=value,
                fix="start a new run, or give the parameters the run was started with",
            )
            for name, value in settings.items()
            if self.settings.get(name) != value
        ]
        if differences := _differences(self.variables, variables):
            problems.append(
                Problem(
                    f"the checkpoint of step {self.position.step} is from a different model",
                    received=listed([then for then, _ in differences], 5, "; "),
                    expected=listed([now for _, now in differences], 5, "; "),
                    fix="start a new run, or give the model code and hyperparameters the run was"
                    " started with",
                )
            )
        ConfigurationError.raise_if(problems)


@dataclass(frozen=True)
class _Entry:
    name: str
    shape: list[int]
    dtype: str


def steps(folder: Path) -> list[int]:
    """Return the steps that have a checkpoint, in order; other files are left alone."""
    if not folder.is_dir():
        return []
    numbered = (it for it in folder.iterdir() if re.fullmatch("0|[1-9][0-9]*", it.name))
    return sorted(int(item.name) for item in numbered if item.is_dir())


def newest(folder: Path) -> Checkpoint | None:
    """Return the newest checkpoint that is whole, or None; damaged ones are removed.

    Raises:
        ConfigurationError: It is from a different version of the trainer.
        NotStartedError: The disk does not give it, although it may be whole.
    """
    for step in reversed(steps(folder)):
        try:
            return _read(folder / str(step))
        except (FileNotFoundError, IsADirectoryError, ValueError, KeyError, TypeError) as error:
            log.warning("the checkpoint of step %d is damaged and removed: %s", step, error)
            remove(folder, step)  # it will be written again
        except OSError as error:
            # What is removed here is removed from the store too.
            raise NotStartedError(
                Problem(
                    f"the checkpoint of step {step} cannot be read",
                    received=error.strerror or str(error),
                    expected=f"that the disk gives the files in {folder / str(step)}",
                    fix="look at the volume; another attempt may bring the checkpoint from the"
                    " store",
                )
            ) from error
    return None


def remove(folder: Path, step: int) -> None:
    """Remove the checkpoint of a step; a reader never finds half of it under its name."""
    files.take_away(folder / str(step))


def _read(folder: Path) -> Checkpoint:
    state = json.loads((folder / CHECKPOINT_STATE).read_text())
    if state["format"] != FORMAT:
        if str(state["format"]).startswith(_FAMILY):
            raise ConfigurationError(
                Problem(
                    f"the checkpoint of step {folder.name} is from a different trainer version",
                    received=state["format"],
                    expected=FORMAT,
                    fix="go on with the train_image that wrote it, or start a new run",
                )
            )
        raise ValueError(f"format {state['format']!r}")
    data = (folder / CHECKPOINT_VARIABLES).read_bytes()
    if sha256(data).hexdigest() != state["sha256"]:
        raise ValueError(f"{CHECKPOINT_VARIABLES} has another SHA-256")
    values, at = [], 0
    for entry in [*state["variables"], *state[_ARRAYS]]:
        dtype = _numpy_dtype(entry["dtype"])
        count = int(np.prod(entry["shape"], dtype=np.int64))
        values.append(np.frombuffer(data, dtype, count, at).reshape(entry["shape"]))
        at += count * dtype.itemsize
    names = [entry["name"] for entry in state["variables"]]
    return Checkpoint(
        position=Position(**state["position"]),
        settings=state["settings"],
        variables=list(zip(names, values, strict=False)),
        metrics=[bytes.fromhex(item) for item in state["metrics"]],
        callbacks=state["callbacks"],
        callback_arrays=values[len(names) :],
        best_checkpoint=state["best_checkpoint"],
    )


def _numpy_dtype(name: str) -> np.dtype[Any]:
    import ml_dtypes  # bfloat16 and its kin; TensorFlow brings it

    return np.dtype(getattr(ml_dtypes, name, name))


def _dtype(variable: Any) -> str:
    return str(getattr(variable.dtype, "name", variable.dtype))


def _differences(
    then: Sequence[tuple[str, Any]], now: Sequence[tuple[str, Any]]
) -> list[tuple[str, str]]:
    """Return the variables that differ, as words: those of the checkpoint, those of the model."""
    before, after = list(map(_in_words, then)), list(map(_in_words, now))
    if before == after:
        return []
    old = {name: words for (name, _), words in zip(then, before, strict=True)}
    new = {name: words for (name, _), words in zip(now, after, strict=True)}
    pairs = [(old.get(name, f"no {name}"), new.get(name, f"no {name}")) for name in old | new]
    # The same variables in another order are another model too: their bytes have no names.
    different = [pair for pair in pairs if pair[0] != pair[1]]
    return different or [pair for pair in zip(before, after, strict=False) if pair[0] != pair[1]]


def _in_words(item: tuple[str, Any]) -> str:
    name, variable = item
    return f"{name} {tuple(variable.shape)} {_dtype(variable)}"
