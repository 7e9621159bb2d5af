"""Retries calls after transient errors, within a time limit.

boto3 limits the number of tries, and refused connections use them up within seconds. A limit in
seconds means the same for every kind of failure, so users know how long an outage may last. Called
by the clients of the store, the cluster and the back end.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from kfp_tfjob.common.errors import Problem, StepError, StoreUnavailableError
from kfp_tfjob.common.formatting import counted

log = logging.getLogger(__name__)
Result = TypeVar("Result")


@dataclass(frozen=True)
class Patience:
    """How long a call is retried.

    Attributes:
        seconds: The time limit, counted from the first failure.
        first: The longest first pause in seconds; later ones double.
        longest: The longest pause in seconds.
        silence: The longest wait of one call for an answer or its next piece, in seconds.
        clock: Monotonic time in seconds; tests replace it.
        sleep: Waits for seconds; tests replace it.
        party: The called service, for the error.
        error: The error after the time limit.
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
        self, action: str, call: Callable[[], Result], transient: Callable[[Exception], bool]
    ) -> Result:
        """Return the result of `call`, which is retried while its errors are transient.

        Args:
            action: What the call does, for the log and the error, for example `list s3://b/p`.
            call: The call; it must be safe to repeat.
            transient: Tells whether an error is transient.

        Raises:
            StepError: The time limit is over; the last error is its cause.
            Exception: An error of `call` that is not transient.
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
                    raise self.error(self._problem(action, error)) from error
                if failures == 1:  # later ones would repeat this line every few seconds
                    reason = answer_of(error) or _short(error)
                    log.warning("%s: %s; trying again", action, reason)
                # Full jitter: replicas that lost the store together must not all retry at once.
                self.sleep(min(random.uniform(0, pause) + 0.01, max(deadline - now, 0.01)))
                pause = min(pause * 2, self.longest)
            else:
                if failures:
                    log.info("%s: succeeded after %s", action, counted(failures, "failure"))
                return result

    def _problem(self, action: str, error: Exception) -> Problem:
        """Return the problem to report after the time limit, by whether the service answered."""
        duration = f" for {self.seconds:.0f} s" if self.seconds >= 1 else ""
        if answer := answer_of(error):
            return Problem(
                f"{self.party} answered with an error{duration}: {action}",
                received=answer,
                expected="an answer without an error",
                fix="find the cause, for example in its log, then run again",
            )
        return Problem(
            f"{self.party} did not respond{duration}: {action}",
            received=f"{type(error).__name__}: {error}",
            expected="an answer",
            fix="check that the endpoint is up and reachable, then run again",
        )


def answer_of(error: Exception) -> str:
    """Return an error response's status, code and message in one line; empty without a response.

    boto3's own message says "reached max retries: 0", because this module does the retries.
    """
    response = getattr(error, "response", None)
    if isinstance(response, Mapping) and "Error" in response:  # of boto3
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", "")
        code, message = (str(response["Error"].get(key) or "") for key in ("Code", "Message"))
        parts = [f"HTTP {status}" if status else "", code if code != str(status) else ""]
        return ": ".join(filter(None, [" ".join(filter(None, parts)), message]))
    status = getattr(error, "status", None)  # of Kubernetes and of Kubeflow Pipelines
    return _short(error) if isinstance(status, int) and status else ""


def _short(error: Exception) -> str:
    """Return the first two lines of an error's message, because some quote whole replies."""
    return " ".join(str(error).splitlines()[:2])
