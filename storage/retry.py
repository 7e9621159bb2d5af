"""Retries: one lost connection or one 503 ends nothing, and no wait is without an end."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from kfp_tfjob.storage.errors import Problem, StepError, StoreUnavailableError
from kfp_tfjob.storage.words import counted

log = logging.getLogger(__name__)
Result = TypeVar("Result")


@dataclass(frozen=True)
class Patience:
    """How long a call is repeated.

    Attributes:
        seconds: The budget from the first failure on.
        first: The longest first pause in seconds; later ones double.
        longest: The longest pause in seconds.
        silence: The longest one call waits for an answer, or for the next piece of it, in seconds.
        clock: Seconds that never go back; a seam for tests.
        sleep: Waits for seconds; a seam for tests.
        party: Who is called, for the error.
        error: What is raised when the budget is used up.
    """

    seconds: float = 120.0
    first: float = 0.2
    longest: float = 10.0
    silence: float = 60.0
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)
    party: str = "the store"
    error: type[StepError] = StoreUnavailableError

    def run(
        self, what: str, call: Callable[[], Result], transient: Callable[[Exception], bool]
    ) -> Result:
        """Return the result of `call`, repeated while its errors are transient.

        Args:
            what: The call in words, for the log and the error.
            call: What to do; it must be safe to repeat.
            transient: Tells whether an error may pass by itself.

        Raises:
            StepError: The budget is used up; the last error is its cause.
            Exception: Whatever `call` raised that is not transient.
        """
        pause, deadline, failures = self.first, None, 0
        while True:
            try:
                result = call()
            except Exception as error:
                if not transient(error):
                    raise
                now = self.clock()
                deadline = now + self.seconds if deadline is None else deadline
                failures += 1
                if now >= deadline:
                    raise self.error(
                        Problem(
                            f"{self.party} did not answer for {self.seconds:.0f} s: {what}",
                            received=f"{type(error).__name__}: {error}",
                            expected="an answer",
                            fix="check that the endpoint is up and reachable, then run again",
                        )
                    ) from error
                if failures == 1:
                    said = " ".join(str(error).splitlines()[:2])  # some errors quote whole replies
                    log.warning("%s: %s; trying again", what, said)
                # Full jitter: replicas that lost the store together must not come back together.
                self.sleep(min(random.uniform(0, pause) + 0.01, max(deadline - now, 0.01)))
                pause = min(pause * 2, self.longest)
            else:
                if failures:
                    log.info("%s: worked after %s", what, counted(failures, "failure"))
                return result
