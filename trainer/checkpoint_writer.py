"""Writing checkpoints while the training continues: one at a time, in a thread.

The training waits for the copy of its variables only. What goes wrong in the thread is raised where
the training next meets this writer.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kfp_tfjob.storage.errors import StepError
from kfp_tfjob.trainer.checkpoint import Checkpoint, remove, steps
from kfp_tfjob.trainer.replicas import parts_of
from kfp_tfjob.trainer.staging import not_writable

log = logging.getLogger(__name__)


class HostCopy:
    """The values of variables in memory of this machine that is used again for every copy.

    Fresh memory would more than double what a copy costs.

    Args:
        variables: Name and variable.
    """

    def __init__(self, variables: Sequence[tuple[str, Any]]) -> None:
        self._variables = variables
        self._arrays = [np.array(_value(item)) for _, item in variables]

    def take(self) -> list[tuple[str, np.ndarray]]:
        """Return name and value; the values last until the next call."""
        for (_, variable), array in zip(self._variables, self._arrays, strict=True):
            np.copyto(array, _value(variable))
        names = (name for name, _ in self._variables)
        return list(zip(names, self._arrays, strict=True))


def _value(variable: Any) -> np.ndarray:
    """Return the value of a variable without copying it, where it is in this memory already."""
    return np.asarray(next(parts_of(variable)).read_value())


class CheckpointWriter:
    """Writes checkpoints to a folder and removes those no longer needed.

    Args:
        folder: Of the checkpoints.
        keep: How many of the newest stay.

    Attributes:
        best_step: One more that stays, however old it is; None when there is none.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.best_step: int | None = None
        self._folder, self._keep = folder, keep
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self, content: Checkpoint) -> None:
        """Write a checkpoint; the caller must have waited for the one before."""
        self._thread = threading.Thread(
            target=self._write, args=(content, self.best_step), name="checkpoint", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Return when what was begun is written.

        Raises:
            StepError: It cannot be written.
        """
        if self._thread:
            self._thread.join()
            self._thread = None
        if self._error:
            raise self._error

    def _write(self, content: Checkpoint, best_step: int | None) -> None:
        step = content.position.step
        try:
            if content.write(self._folder):
                log.info("saved the checkpoint of step %d", step)
            for old in steps(self._folder)[: -self._keep]:
                if old != best_step:
                    remove(self._folder, old)
        except OSError as error:
            self._error = not_writable(self._folder, f"the checkpoint of step {step}", error)
        except Exception as error:  # whatever it is, the training must not go on without it
            self._error = StepError(
                f"the checkpoint of step {step} cannot be written ({type(error).__name__}: {error})"
            )
