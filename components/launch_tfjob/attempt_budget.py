"""Decides which attempts use up train_options.max_attempts.

A claim, `attempts/NNNN.json`, gives an attempt to one launcher, and limits the attempts. Only
consecutive attempts without progress count. On spot nodes, a week of training loses many pods, and
each attempt that stored a newer checkpoint made progress. Called by the loop over the attempts in
engine.py.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kfp_tfjob.common.formatting import counted
from kfp_tfjob.jobs.tfjob import TFJOB
from kfp_tfjob.jobs.verdict import Verdict
from kfp_tfjob.storage import documents


@dataclass(frozen=True)
class Claim:
    """A run's state when an attempt begins.

    Attributes:
        attempt: The number of the attempt, from 1.
        since: The first attempt since a person started the run.
        began: When that attempt was claimed, in seconds since 1970 by its launcher's clock.
        checkpoint: The newest step stored so far; 0 if there is none.
        fruitless: Consecutive attempts before this one that stored no newer checkpoint.
        inputs: What decides which model is trained, by parameter; empty in a claim of an earlier
            version.
        kind: The kind of the job; a claim of an earlier version is about a TFJob.
        tracking: The MLflow run that the back end's plugin created for the step, as variables.
    """

    attempt: int
    since: int
    began: float
    checkpoint: int
    fruitless: int
    inputs: Mapping[str, Any] = field(default_factory=dict)
    kind: str = TFJOB.name
    tracking: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def first(cls, attempt: int, checkpoint: int) -> Claim:
        """Return the claim of the first attempt that counts."""
        return cls(attempt, attempt, time.time(), checkpoint, 0)

    def next(self, attempt: int, checkpoint: int, previous: Verdict | None = None) -> Claim:
        """Return the claim of a later attempt.

        Args:
            attempt: Its number.
            checkpoint: The newest step in the store.
            previous: The verdict of the attempt before it; None if it counts in any case.
        """
        uses_budget = previous is None or previous.uses_budget
        fruitless = 0 if checkpoint > self.checkpoint else self.fruitless + int(uses_budget)
        newest = max(checkpoint, self.checkpoint)  # reaching the same step again is no progress
        return Claim(attempt, self.since, self.began, newest, fruitless)

    def used(self, most: int) -> str:
        """Return how many attempts came before, and how many of `most` made no progress."""
        attempts = counted(self.attempt - self.since, "attempt")
        if not self.fruitless:
            return f"{attempts}, and the last one stored a newer checkpoint"
        last = f"the last {self.fruitless}" if self.fruitless > 1 else "the last one"
        stored = "newer checkpoint" if self.checkpoint else "checkpoint to resume from"
        return (
            f"{attempts}, and {last} stored no {stored}; train_options.max_attempts allows"
            f" {most} such attempts in a row"
        )

    def to_bytes(self, run_id: str, job: str, spec_hash: str) -> bytes:
        """Return the record of the claim."""
        record = {"run_id": run_id, "job": job, "spec_hash": spec_hash} | vars(self)
        record["launcher"] = uuid.uuid4().hex  # two launchers must never own the same claim
        return json.dumps(record, indent=1).encode()

    @classmethod
    def from_bytes(cls, data: bytes, attempt: int) -> Claim:
        """Read a claim back."""
        return replace(documents.read(cls, data), attempt=attempt)
