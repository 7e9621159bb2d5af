"""Writes checkpoints in a thread, one at a time, while training continues.

Training waits only for the copy of its variables. The next call of `wait` raises an error of
the thread. Called by `training_state.py`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kfp_tfjob.common.errors import ConfigurationError, Problem, StepError
from kfp_tfjob.storage.layout import CHECKPOINT_STATE

from .checkpoint_folder import remove_outdated, stored_steps
from .checkpoint_format import Checkpoint
from .replicas import parts_of
from .staging import not_writable

log = logging.getLogger(__name__)


class HostCopy:
    """Copies the values of variables to host memory, which is reused for every copy.

    New memory would more than double the cost of a copy.

    Args:
        variables: Names and variables.
    """

    def __init__(self, variables: Sequence[tuple[str, Any]]) -> None:
        self._variables = variables
        self._arrays = [np.array(_value(variable)) for _, variable in variables]

    def take(self) -> list[tuple[str, np.ndarray]]:
        """Return names and values; the values are valid until the next call."""
        for (_, variable), array in zip(self._variables, self._arrays, strict=True):
            np.copyto(array, _value(variable))
        names = (name for name, _ in self._variables)
        return list(zip(names, self._arrays, strict=True))


def _value(variable: Any) -> np.ndarray:
    """Return the value of a variable, without a copy if it is in host memory already."""
    return np.asarray(next(parts_of(variable)).read_value())


def _foreign_folders(folder: Path) -> list[int]:
    """Return the numbers of folders that are not checkpoints; each would hide its step's own."""
    return [
        step
        for step in stored_steps(folder)
        if not (folder / str(step) / CHECKPOINT_STATE).exists()
    ]


def _foreign_folders_problem(folder: Path, foreign: list[int]) -> Problem:
    return Problem(
        "the model code wrote into the folder of the trainer's checkpoints",
        received=", ".join(str(folder / str(number)) for number in foreign[:5]),
        expected=f"no numbered folders in {folder}, except those of the trainer",
        fix="give the callback's files another folder",
    )


class CheckpointWriter:
    """Writes checkpoints to a folder and removes outdated ones.

    Args:
        folder: The folder of the checkpoints.
        keep: Number of newest checkpoints to keep.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder, self._keep = folder, keep
        self._thread: threading.Thread | None = None
        self._error: StepError | None = None

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self, checkpoint: Checkpoint) -> None:
        """Start to write a checkpoint; call `wait` for the previous one first."""
        self._thread = threading.Thread(
            target=self._write, args=(checkpoint,), name="checkpoint", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Return when the checkpoint is written.

        Raises:
            StepError: It cannot be written; a ConfigurationError if other files are in its place.
        """
        if self._thread:
            self._thread.join()
            self._thread = None
        if self._error:
            raise self._error

    def _write(self, checkpoint: Checkpoint) -> None:
        step = checkpoint.position.step
        if foreign := _foreign_folders(self._folder):
            self._error = ConfigurationError(_foreign_folders_problem(self._folder, foreign))
            return
        try:
            if checkpoint.write(self._folder):
                log.info("saved the checkpoint of step %d", step)
            remove_outdated(self._folder, self._keep)
        except OSError as error:
            self._error = not_writable(self._folder, f"the checkpoint of step {step}", error)
        except Exception as error:  # training must not continue without a checkpoint
            self._error = StepError(
                f"the checkpoint of step {step} cannot be written ({type(error).__name__}: {error})"
            )
