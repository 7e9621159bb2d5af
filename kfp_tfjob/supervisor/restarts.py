"""Decides whether a command that ended is restarted in its pod, and after what pause.

Restarting helps after a signal, a lost peer or a port in use, but not after an error that would
happen again. A command that dies three times without passing the steps in which it died before
would also die in another attempt. Called by `supervise.py`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from . import exit_codes
from .environment import Environment
from .exit_codes import meaning_of

# The pause before a restart. The first restart follows at once; without progress the pause doubles.
FIRST_PAUSE = 1.0  # seconds, before the second restart
LONGEST_PAUSE = 30.0  # seconds: longer would only keep GPUs idle
LEAST_OF_PAUSE = 0.5  # the smallest random share of the pause; replicas restart at different times
# This many crashes without progress between them are a crash loop.
CRASH_LOOP = 3


@dataclass(frozen=True)
class Decision:
    """The decision after the end of a command.

    Attributes:
        again: Whether the command is restarted.
        code: If not, the exit code of the replica.
        reason: The reason; empty for the meaning of the code.
        pause: Seconds before the next start.
    """

    again: bool
    code: int
    reason: str = ""
    pause: float = 0.0


class Restarts:
    """Decides whether a command that ended is restarted.

    Args:
        environment: Its `max_restarts` limits the restarts; 0 for a user's own command.
    """

    def __init__(self, environment: Environment) -> None:
        self.most, self.count = environment.max_restarts, 0
        # Ends without progress, and those among them that the command itself caused.
        self._fruitless_ends = self._crashes = 0
        self._tried = 0

    def decide(self, code: int, done: int, tried: int, patience: float) -> Decision:
        """Decide after an end that was not requested.

        Args:
            code: Exit code.
            done: Number of steps that were done.
            tried: The last of the steps in progress.
            patience: Seconds left to wait for peers.
        """
        final = code < 128 or code in (exit_codes.STOPPED, exit_codes.NOT_STORED)
        if final or not self.most:
            return Decision(False, code)
        # Progress means to complete the steps in which the command ended last time.
        if done >= max(self._tried, 1):
            self._fruitless_ends = self._crashes = 0
        self._tried = max(tried, self._tried)
        self._fruitless_ends += 1
        self._crashes += code not in (exit_codes.PEER_LOST, exit_codes.NOT_STARTED)
        if self._crashes >= CRASH_LOOP:
            position = f"in the steps {done + 1} to {tried}" if tried else "before the first step"
            return Decision(
                False,
                exit_codes.FAILED,
                f"{meaning_of(code)}, {self._crashes} times without progress, the last time"
                f" {position}: restarting does not help. Fix: read the log; if memory ran"
                " out, raise pod.all.memory or set a smaller train_batch_size",
            )
        if self.count >= self.most:
            return Decision(False, code, f"{meaning_of(code)}, after {self.count} restarts")
        if code == exit_codes.NOT_STARTED and patience <= 0:
            return Decision(False, code)
        self.count += 1
        return Decision(True, code, meaning_of(code), self._pause())

    def _pause(self) -> float:
        if self._fruitless_ends < 2:
            return 0.0
        longest = min(FIRST_PAUSE * 2.0 ** (self._fruitless_ends - 2), LONGEST_PAUSE)
        return longest * random.uniform(LEAST_OF_PAUSE, 1)
