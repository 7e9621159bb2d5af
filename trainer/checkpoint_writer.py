"""Writing checkpoints while the training goes on: one at a time, in a thread.

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

from storage.errors import ConfigurationError, Problem, StepError
from trainer.checkpoint import Checkpoint, remove, steps
from trainer.replicas import parts_of

log = logging.getLogger(__name__)


class HostCopy:
    """The values of variables in the memory of this machine, in arrays that are used again.

    Fresh memory for every copy would double what a copy costs.

    Args:
        variables: Name and variable.
    """

    def __init__(self, variables: Sequence[tuple[str, Any]]) -> None:
        self._variables = variables
        self._arrays: list[np.ndarray] = []

    def take(self) -> list[tuple[str, np.ndarray]]:
        """Return name and value; the values last until the next call."""
        values = [np.asarray(next(parts_of(item)).read_value()) for _, item in self._variables]
        if not self._arrays:
            self._arrays = [np.empty_like(value) for value in values]
        for array, value in zip(self._arrays, values, strict=True):
            np.copyto(array, value)
        names = (name for name, _ in self._variables)
        return list(zip(names, self._arrays, strict=True))


class CheckpointWriter:
    """Writes checkpoints to a folder and removes those nobody needs any more.

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
        kept = {self.best_step}
        self._thread = threading.Thread(
            target=self._write, args=(content, kept), name="checkpoint", daemon=True
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

    def _write(self, content: Checkpoint, kept: set[int | None]) -> None:
        step = content.position.step
        try:
            if content.write(self._folder):
                log.info("saved the checkpoint of step %d", step)
            for old in steps(self._folder)[: -self._keep]:
                if old not in kept:
                    remove(self._folder, old)
        except OSError as error:
            self._error = not_writable(self._folder, f"the checkpoint of step {step}", error)
        except Exception as error:  # whatever it is, the training must not go on without it
            self._error = StepError(
                f"the checkpoint of step {step} cannot be written ({type(error).__name__}: {error})"
            )


def not_writable(folder: Path, what: str, error: OSError) -> ConfigurationError:
    """Return the error of a folder that takes no file."""
    return ConfigurationError(
        Problem(
            f"{what} cannot be written to {folder}",
            received=str(error.strerror or error),
            expected="a folder that this replica may write to, with space for the checkpoints",
            fix="give the volume more space or the right owner; pod.chief.ephemeral_storage is the"
            " space of a pod's own disk, train_options.checkpoint_keep says how many checkpoints"
            " stay",
        )
    )
