"""The checkpoints of a run on the chief's disk: lists them, reads the newest, removes one.

A damaged checkpoint gives way to the one before it, because training can repeat some steps but
cannot continue from wrong weights. Called by `training_state.py` and `checkpoint_writer.py`.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

from kfp_tfjob.common import files
from kfp_tfjob.common.errors import Problem

from .checkpoint_format import Checkpoint, DamagedError, read
from .errors import NotStartedError

log = logging.getLogger(__name__)


def stored_steps(folder: Path) -> list[int]:
    """Return the steps that have a checkpoint, in order; ignore other files."""
    if not folder.is_dir():
        return []
    numbered = (path for path in folder.iterdir() if re.fullmatch("0|[1-9][0-9]*", path.name))
    return sorted(int(path.name) for path in numbered if path.is_dir())


def read_newest(folder: Path) -> Checkpoint | None:
    """Return the newest intact checkpoint, or None; remove damaged ones.

    Raises:
        ConfigurationError: It is from a different version of the trainer.
        NotStartedError: It cannot be read from the disk, but it may be intact.
    """
    for step in reversed(stored_steps(folder)):
        try:
            return read(folder / str(step))
        except (FileNotFoundError, IsADirectoryError, DamagedError) as error:
            log.warning("removing the damaged checkpoint of step %d: %s", step, error)
            remove_checkpoint(folder, step)  # it will be written again
        except OSError as error:
            # Not removed: the store would lose it too.
            raise NotStartedError(
                Problem(
                    f"the checkpoint of step {step} cannot be read",
                    received=error.strerror or str(error),
                    expected=f"readable files in {folder / str(step)}",
                    fix="check the volume; a new attempt may fetch the checkpoint from the store",
                )
            ) from error
    return None


def remove_outdated(folder: Path, keep: int) -> None:
    """Remove all checkpoints but the `keep` newest."""
    for step in stored_steps(folder)[:-keep]:
        remove_checkpoint(folder, step)


def remove_checkpoint(folder: Path, step: int) -> None:
    """Remove the checkpoint of a step; readers never see a partial one."""
    files.take_away(folder / str(step))
