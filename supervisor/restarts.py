"""When a command that ended is started again inside the pod, and the pause before that."""

from __future__ import annotations

import random
from dataclasses import dataclass

from kfp_tfjob.supervisor import exit_codes
from kfp_tfjob.supervisor.environment import Environment
from kfp_tfjob.supervisor.exit_codes import meaning_of

# The pause before a restart. The first restart is at once; without progress the pause doubles.
FIRST_PAUSE = 1.0  # seconds, before the second restart
LONGEST_PAUSE = 30.0
LEAST_OF_PAUSE = 0.5  # a random part of the pause from here on, so that replicas spread
# This many deaths without progress in between are a crash loop.
CRASH_LOOP = 3


@dataclass(frozen=True)
class Decision:
    """What follows the end of a command.

    Attributes:
        again: Whether it is started again.
        code: Else, the exit code of the replica.
        reason: Why not; empty for what the code means.
        pause: Seconds before the next start.
    """

    again: bool
    code: int
    reason: str = ""
    pause: float = 0.0


class Restarts:
    """Decides whether a command that ended is started again.

    Args:
        told: Its `max_restarts` is how often it may be; 0 for a user's own command.
    """

    def __init__(self, told: Environment) -> None:
        self.most, self.count = told.max_restarts, 0
        self._fruitless = self._own = self._tried = 0

    def decide(self, code: int, done: int, tried: int, patience: float) -> Decision:
        """Decide after an end that no one asked for.

        Args:
            code: Exit code.
            done: Steps the command had done.
            tried: The steps under way reached up to this one.
            patience: Seconds left to wait for peers.
        """
        final = code < 128 or code in (exit_codes.STOPPED, exit_codes.NOT_STORED)
        if final or not self.most:
            return Decision(False, code)
        # Progress is to pass the steps in which it ended the last time.
        if done >= max(self._tried, 1):
            self._fruitless = self._own = 0
        self._tried = max(tried, self._tried)
        self._fruitless += 1
        self._own += code not in (exit_codes.PEER_LOST, exit_codes.NOT_STARTED)
        if self._own >= CRASH_LOOP:
            where = f"in the steps {done + 1} to {tried}" if tried else "before the first step"
            return Decision(
                False,
                exit_codes.FAILED,
                f"{meaning_of(code)}, {self._own} times without progress, the last time"
                f" {where}: starting again does not help. Fix: look at the log; if memory ran"
                " out, raise pod.all.memory or lower train_batch_size",
            )
        if self.count >= self.most:
            return Decision(False, code, f"{meaning_of(code)}, after {self.count} restarts")
        if code == exit_codes.NOT_STARTED and patience <= 0:
            return Decision(False, code)
        self.count += 1
        return Decision(True, code, meaning_of(code), self._pause())

    def _pause(self) -> float:
        if self._fruitless < 2:
            return 0.0
        longest = min(FIRST_PAUSE * 2.0 ** (self._fruitless - 2), LONGEST_PAUSE)
        return longest * random.uniform(LEAST_OF_PAUSE, 1)
