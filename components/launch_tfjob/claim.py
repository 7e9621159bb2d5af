"""Reads and writes the claim of an attempt, `attempts/NNNN.json`, and limits the attempts.

Only consecutive attempts without progress count. On spot nodes, a week of training loses many pods,
and each attempt that stored a newer checkpoint made progress.

The launcher of the first attempt records the start of the run by its own clock. Later launchers
compare it with their own clocks, not with the clock of the store. The clocks of one cluster differ
by seconds, and the limit is in days.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kfp_tfjob.storage.words import counted


@dataclass(frozen=True)
class Claim:
    """The state of a run when an attempt begins.

    Attributes:
        attempt: The number of the attempt, from 1.
        since: The first attempt since a person started the run.
        began: When that attempt was claimed, in seconds since 1970 by its launcher's clock.
        checkpoint: The newest step stored so far; 0 if there is none.
        fruitless: Consecutive attempts before this one that stored no newer checkpoint.
        inputs: What decides which model is trained, by parameter; empty in a claim of an earlier
            version.
    """

    attempt: int
    since: int
    began: float
    checkpoint: int
    fruitless: int
    inputs: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def first(cls, attempt: int, checkpoint: int) -> Claim:
        """Return the claim of the first attempt that counts."""
        return cls(attempt, attempt, time.time(), checkpoint, 0)

    def next(self, attempt: int, checkpoint: int, counts: bool = True) -> Claim:
        """Return the claim of a later attempt.

        Args:
            attempt: Its number.
            checkpoint: The newest step that is stored now.
            counts: Whether the attempt of this claim counts; one that got no nodes does not.
        """
        fruitless = 0 if checkpoint > self.checkpoint else self.fruitless + int(counts)
        newest = max(checkpoint, self.checkpoint)  # reaching the same step again is no progress
        return Claim(attempt, self.since, self.began, newest, fruitless)

    def left(self, seconds: float) -> float:
        """Return the seconds left for the run, at most all of them if a clock was set back."""
        return min(self.began + seconds - time.time(), seconds)

    def used(self, most: int) -> str:
        """Return the number of earlier attempts, and how many may make no progress.

        Args:
            most: `train_options.max_attempts`.
        """
        made = counted(self.attempt - self.since, "attempt")
        if not self.fruitless:
            return f"{made}, and the last one stored a newer checkpoint"
        last = f"the last {self.fruitless}" if self.fruitless > 1 else "the last one"
        return (
            f"{made}, and {last} stored no newer checkpoint; train_options.max_attempts allows"
            f" {most} such attempts in a row"
        )

    def to_bytes(self, run_id: str, job: str, spec_hash: str) -> bytes:
        """Return the record of the claim.

        Args:
            run_id: The run.
            job: The name of the job.
            spec_hash: The spec hash of its manifest.
        """
        record = {"run_id": run_id, "job": job, "spec_hash": spec_hash} | vars(self)
        record["launcher"] = uuid.uuid4().hex  # two launchers must never own the same claim
        return json.dumps(record, indent=1).encode()

    @classmethod
    def from_bytes(cls, data: bytes, attempt: int) -> Claim:
        """Read a claim back."""
        record: Mapping[str, Any] = json.loads(data)
        return cls(
            attempt,
            int(record["since"]),
            float(record["began"]),
            int(record["checkpoint"]),
            int(record["fruitless"]),
            record.get("inputs", {}),
        )
