"""The claim of an attempt, `attempts/NNNN.json`, and what the run may still use up.

Only attempts without progress count, in a row: on spot nodes a week of training loses many pods,
and each attempt that stored a newer checkpoint has brought the run forward.

The time of the whole run is counted from what the launcher of the first attempt wrote down by its
own clock, and compared with the clock of the launcher that asks. The store has a different clock,
which is not used; launchers of one cluster differ by seconds, the limit is days.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kfp_tfjob.storage.words import counted


@dataclass(frozen=True)
class Claim:
    """What is known when an attempt begins.

    Attributes:
        attempt: From 1.
        since: The first attempt since a person started the run.
        began: When that one was claimed, by its launcher's clock: seconds since 1970.
        checkpoint: The newest step that was ever stored by then; 0 for none.
        fruitless: How many attempts in a row before this one have stored no newer checkpoint.
    """

    attempt: int
    since: int
    began: float
    checkpoint: int
    fruitless: int

    @classmethod
    def first(cls, attempt: int, checkpoint: int) -> Claim:
        """Return the claim of the first attempt that counts."""
        return cls(attempt, attempt, time.time(), checkpoint, 0)

    def next(self, attempt: int, checkpoint: int, counts: bool = True) -> Claim:
        """Return the claim of a later attempt.

        Args:
            attempt: Its number.
            checkpoint: The newest step that is stored now.
            counts: Whether this attempt had its chance; one that got no nodes had none.
        """
        fruitless = 0 if checkpoint > self.checkpoint else self.fruitless + int(counts)
        newest = max(checkpoint, self.checkpoint)  # coming as far once more is no progress
        return Claim(attempt, self.since, self.began, newest, fruitless)

    def left(self, seconds: float) -> float:
        """Return how many of the seconds of the whole run are left; a clock may have been set."""
        return min(self.began + seconds - time.time(), seconds)

    def used(self, most: int) -> str:
        """Say how many attempts there were before this one, and how many may be in vain.

        Args:
            most: `train_options.max_attempts`.
        """
        made = counted(self.attempt - self.since, "attempt")
        if not self.fruitless:
            return f"{made}, and the last one stored a newer checkpoint"
        last = f"the last {self.fruitless}" if self.fruitless > 1 else "the last one"
        return (
            f"{made}, and {last} stored no newer checkpoint; train_options.max_attempts allows"
            f" {most} such in a row"
        )

    def to_bytes(self, run_id: str, job: str, spec_hash: str) -> bytes:
        """Return the record of the claim.

        Args:
            run_id: The run.
            job: The name of the job.
            spec_hash: Of its manifest.
        """
        record = {"run_id": run_id, "job": job, "spec_hash": spec_hash} | vars(self)
        record["launcher"] = uuid.uuid4().hex  # two launchers must not both believe it is theirs
        return json.dumps(record, indent=1).encode()

    @classmethod
    def from_bytes(cls, data: bytes, attempt: int) -> Claim:
        """Read a claim back; one of an earlier version knows only where the counting began."""
        record: Mapping[str, Any] = json.loads(data)
        since = int(record["since"])
        return cls(
            attempt,
            since,
            float(record.get("began", time.time())),
            int(record.get("checkpoint", 0)),
            int(record.get("fruitless", attempt - since)),
        )
