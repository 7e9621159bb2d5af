"""Records some steps of the chief for TensorBoard's profile plugin.

Steps usually run in groups, inside one call of TensorFlow. The plugin distinguishes steps by a
marker around each call, so recorded steps run one by one. All replicas have the same range, which
keeps their groups equal. Called by `loop.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf

from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.options.train import Profile

log = logging.getLogger(__name__)


class Profiler:
    """Records the steps of `train_options.profile`.

    A process that resumes within the range records the rest of it.

    Args:
        profile: The range; None to record nothing.
        all_steps: The steps of the whole training.
        folder: The folder of a TensorBoard run.
        is_chief: Whether this process records.

    Raises:
        ConfigurationError: The range ends after the last step of the training.
    """

    def __init__(
        self, profile: Profile | None, all_steps: int, folder: Path, is_chief: bool
    ) -> None:
        self._profile, self._folder, self._is_chief = profile, folder, is_chief
        self._records = False
        if profile and profile.last > all_steps:
            raise ConfigurationError(
                Problem(
                    "train_options.profile has steps beyond the end of the training",
                    received=f"steps {profile.start} to {profile.last}",
                    expected=f"steps from 1 to {all_steps}",
                    fix="lower its start or steps, or train more epochs",
                    path="train_options.profile",
                )
            )

    def at_most(self, done: int) -> int | None:
        """Return the number of steps after `done` that may run in one call; None for any number."""
        if not self._profile or done >= self._profile.last:
            return None
        return max(self._profile.start - 1 - done, 1)

    @contextmanager
    def step(self, done: int) -> Iterator[None]:
        """Record the steps after `done` that run in the block, if they are in the range."""
        profile = self._profile
        if not (profile and self._is_chief and profile.start - 1 <= done < profile.last):
            yield
            return
        if not self._records:
            tf.profiler.experimental.start(str(self._folder))
            self._records = True
        with tf.profiler.experimental.Trace("train", step_num=done + 1, _r=1):
            yield
        if done + 1 == profile.last:
            self.close()

    def close(self) -> None:
        """Write the recorded steps; a callback may have ended the training within the range."""
        if self._records:
            tf.profiler.experimental.stop()
            self._records = False
            log.info("the profile is in %s", self._folder)
