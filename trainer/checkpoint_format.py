"""A checkpoint, the complete state of a training run, and the form of its files.

    checkpoints/<step>/checkpoint.json     the index of variables.bin, and the position
    checkpoints/<step>/variables.bin       the bytes of all variables, in order

Only the chief writes and reads them; it sends the state to the other replicas. One rename gives a
complete directory its number, and it never changes after that. Called by `training_state.py`, which
makes checkpoints, `checkpoint_writer.py` and `checkpoint_folder.py`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from kfp_tfjob.common import files
from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.common.formatting import listed
from kfp_tfjob.storage import documents
from kfp_tfjob.storage.layout import CHECKPOINT_STATE, CHECKPOINT_VARIABLES

_FAMILY = "kfp-tfjob/checkpoint/"
FORMAT = f"{_FAMILY}1"

_Document = TypeVar("_Document")


class DamagedError(Exception):
    """A checkpoint's files have changed since they were written, so it may be removed."""


@dataclass(frozen=True)
class Position:
    """The position of a training run.

    Attributes:
        step: Steps done since the start.
        epoch: The current epoch, from 0.
        step_in_epoch: Steps done in that epoch. When all are done, its evaluation comes next.
    """

    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint.

    Attributes:
        position: The position of training.
        settings: Values that must be equal to resume: seed, batch, rows.
        variables: Name and value of every variable of the model and the optimizer, in order.
        metrics: The running sums of the metrics, one byte string for each process.
        callbacks: The state of the callbacks, as JSON values.
        callback_arrays: The arrays in that state; `callbacks` refers to them by number.
    """

    position: Position
    settings: Mapping[str, Any]
    variables: Sequence[tuple[str, np.ndarray]]
    metrics: Sequence[bytes] = ()
    callbacks: Mapping[str, Any] = field(default_factory=dict)
    callback_arrays: Sequence[np.ndarray] = ()

    def write(self, folder: Path) -> bool:
        """Write the checkpoint to `folder/<step>`, which appears complete or not at all.

        Returns:
            False if the step exists already: the same step has the same content.
        """
        target = folder / str(self.position.step)
        if target.exists():
            return False
        with files.atomic_write(target) as partial:
            partial.mkdir(parents=True)
            self._write_to(partial)
        return True

    def _write_to(self, folder: Path) -> None:
        digest, entries = sha256(), []
        with open(folder / CHECKPOINT_VARIABLES, "wb") as file:
            for name, value in [
                *self.variables,
                *(("best", array) for array in self.callback_arrays),
            ]:
                # Not copied: a copy would hold the interpreter lock and block training.
                content = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
                entries.append(_Entry(name, list(value.shape), str(value.dtype)))
                digest.update(content)
                file.write(content)
        state = _State(
            format=FORMAT,
            position=self.position,
            settings=dict(self.settings),
            variables=entries[: len(self.variables)],
            best=entries[len(self.variables) :],
            metrics=[sums.hex() for sums in self.metrics],
            callbacks=dict(self.callbacks),
            sha256=digest.hexdigest(),
        )
        # Not `documents.to_bytes`: a callback's state may contain NaN and infinity.
        text = json.dumps(state, default=vars, indent=1)
        (folder / CHECKPOINT_STATE).write_text(text + "\n")

    def check_fits(self, variables: Sequence[tuple[str, Any]], settings: Mapping[str, Any]) -> None:
        """Check that the checkpoint belongs to this model and this training.

        Args:
            variables: The current names and variables.
            settings: The current settings.

        Raises:
            ConfigurationError: It belongs to a different model or training.
        """
        problems = [
            Problem(
                f"{name} differs from that in the run's checkpoint of step {self.position.step}",
                received=value,
                expected=self.settings.get(name),
                fix="start a new run, or use the original parameters of this run",
                name="changed-since-training",
            )
            for name, value in settings.items()
            if self.settings.get(name) != value
        ]
        if differences := _differences(self.variables, variables):
            problems.append(
                Problem(
                    f"the checkpoint of step {self.position.step} is from a different model",
                    received=listed([current for _, current in differences], 5, "; "),
                    expected=listed([stored for stored, _ in differences], 5, "; "),
                    fix="start a new run, or use the original model code and hyperparameters of"
                    " this run",
                    name="changed-since-training",
                )
            )
        ConfigurationError.raise_if(problems)


@dataclass(frozen=True)
class _Entry:
    """An array in variables.bin."""

    name: str
    shape: list[int]
    dtype: str


@dataclass(frozen=True)
class _Header:
    """The key of checkpoint.json that is read first, because another version has other keys."""

    format: str


@dataclass(frozen=True)
class _State(_Header):
    """The content of checkpoint.json.

    Attributes:
        best: The index of callback_arrays; its name is part of the format.
        metrics: The running sums in hexadecimal.
        sha256: That of variables.bin.
    """

    position: Position
    settings: dict[str, Any]
    variables: list[_Entry]
    best: list[_Entry]
    metrics: list[str]
    callbacks: dict[str, Any]
    sha256: str


def read(folder: Path) -> Checkpoint:
    """Return the checkpoint in `folder`, whose name is its step.

    Raises:
        ConfigurationError: It is from a different version of the trainer.
        DamagedError: Its files have changed since they were written.
        OSError: A file is missing or cannot be read.
    """
    text = (folder / CHECKPOINT_STATE).read_bytes()
    stored_format = _parse(_Header, text).format
    if stored_format != FORMAT:
        if stored_format.startswith(_FAMILY):
            raise ConfigurationError(
                Problem(
                    f"the checkpoint of step {folder.name} is from another trainer version",
                    received=stored_format,
                    expected=FORMAT,
                    fix="continue with the train_image that wrote it, or start a new run",
                    name="changed-since-training",
                )
            )
        raise DamagedError(f"format {stored_format!r}")
    state = _parse(_State, text)
    if str(state.position.step) != folder.name:
        raise DamagedError(f"{CHECKPOINT_STATE} is of step {state.position.step}")
    content = (folder / CHECKPOINT_VARIABLES).read_bytes()
    if sha256(content).hexdigest() != state.sha256:
        raise DamagedError(f"{CHECKPOINT_VARIABLES} has a different SHA-256")
    arrays = _arrays_of(content, [*state.variables, *state.best])
    try:
        metrics = [bytes.fromhex(sums) for sums in state.metrics]
    except ValueError as error:
        raise DamagedError(f"{CHECKPOINT_STATE}: {error}") from None
    names = [entry.name for entry in state.variables]
    return Checkpoint(
        position=state.position,
        settings=state.settings,
        variables=list(zip(names, arrays, strict=False)),
        metrics=metrics,
        callbacks=state.callbacks,
        callback_arrays=arrays[len(names) :],
    )


def _parse(kind: type[_Document], text: bytes) -> _Document:
    """Return checkpoint.json, or its header.

    Raises:
        DamagedError: It is not JSON, lacks a key, or a value has another type.
    """
    try:
        return documents.read(kind, text, longest=None)
    except documents.InvalidDocumentError as error:
        raise DamagedError(f"{CHECKPOINT_STATE}: {error}") from None


def _arrays_of(content: bytes, entries: Sequence[_Entry]) -> list[np.ndarray]:
    """Return the arrays in variables.bin, which contains only them.

    Raises:
        DamagedError: The entries do not describe this content.
    """
    dtypes = [_numpy_dtype(entry.dtype) for entry in entries]
    counts = [math.prod(entry.shape) for entry in entries]
    sizes = [count * dtype.itemsize for count, dtype in zip(counts, dtypes, strict=True)]
    if sum(sizes) != len(content) or any(min(entry.shape, default=0) < 0 for entry in entries):
        raise DamagedError(f"{len(content):,} bytes of variables have other shapes")
    arrays, offset = [], 0
    for entry, dtype, count, size in zip(entries, dtypes, counts, sizes, strict=True):
        arrays.append(np.frombuffer(content, dtype, count, offset).reshape(entry.shape))
        offset += size
    return arrays


def _numpy_dtype(name: str) -> np.dtype[Any]:
    import ml_dtypes  # for bfloat16 and similar types; comes with TensorFlow

    try:
        return np.dtype(getattr(ml_dtypes, name, name))
    except TypeError as error:
        raise DamagedError(f"{CHECKPOINT_STATE}: {error}") from None


def _dtype(variable: Any) -> str:
    return str(getattr(variable.dtype, "name", variable.dtype))


def _differences(
    stored: Sequence[tuple[str, Any]], current: Sequence[tuple[str, Any]]
) -> list[tuple[str, str]]:
    """Return a description of each variable that differs: in the checkpoint, and in the model."""
    before, after = list(map(_describe_variable, stored)), list(map(_describe_variable, current))
    if before == after:
        return []
    old = {name: description for (name, _), description in zip(stored, before, strict=True)}
    new = {name: description for (name, _), description in zip(current, after, strict=True)}
    pairs = [(old.get(name, f"no {name}"), new.get(name, f"no {name}")) for name in old | new]
    # Another order means another model too: variables.bin contains no names.
    different = [pair for pair in pairs if pair[0] != pair[1]]
    return different or [pair for pair in zip(before, after, strict=False) if pair[0] != pair[1]]


def _describe_variable(named_variable: tuple[str, Any]) -> str:
    """Return the name, shape and type of a variable, for a message."""
    name, variable = named_variable
    return f"{name} {tuple(variable.shape)} {_dtype(variable)}"
