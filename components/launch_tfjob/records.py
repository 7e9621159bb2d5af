"""What the store knows about the attempts of a run: claims, ends, checkpoints and the output."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass

from kfp_tfjob.components.launch_tfjob.claim import Claim
from kfp_tfjob.components.step import Failure, Step
from kfp_tfjob.jobs.record import AttemptEnd
from kfp_tfjob.storage.errors import (
    DataError,
    ObjectExistsError,
    ObjectNotFoundError,
    Problem,
    StepError,
)
from kfp_tfjob.storage.layout import MANIFEST, RUN_MODEL

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Records:
    """The records of one launch; each method reads or writes the store.

    Attributes:
        step: The run and its store.
    """

    step: Step

    def claimed(self) -> list[int]:
        """Return the numbers of all claimed attempts, in order."""
        return self.step.store.numbers(self.step.run.attempts)

    def claim(self, attempt: int) -> Claim:
        """Return the claim of an attempt."""
        return Claim.from_bytes(self.step.store.read(self.step.run.attempt(attempt)), attempt)

    def keep_claim(self, attempt: int, record: bytes) -> bool:
        """Store a claim; return False if a different launcher was faster."""
        try:
            self.step.store.create(self.step.run.attempt(attempt), record)
        except ObjectExistsError:
            log.info("attempt %d was claimed by a different launcher", attempt)
            return False
        return True

    def keep_end(self, end: AttemptEnd, final: bool = True) -> None:
        """Record the end of an attempt; an unreachable store is not an error.

        Args:
            end: The record.
            final: Whether it replaces an earlier record.
        """
        address, store = self.step.run.attempt_end(end.attempt), self.step.store
        try:
            (store.write if final else store.create)(address, end.to_bytes())
        except ObjectExistsError:
            return
        except StepError as error:
            log.warning("the end of attempt %d is not recorded: %s", end.attempt, error)

    def failure(self) -> Failure | None:
        """Return the recorded failure of this step, or None."""
        try:
            found = Failure.from_bytes(self.step.store.read(self.step.run.failure("json")))
        except (ObjectNotFoundError, ValueError, TypeError):
            return None
        return found if found.step == self.step.name else None

    def completed(self) -> int:
        """Return the attempt whose output is complete in the store, or 0.

        Raises:
            DataError: A different program wrote into the run.
        """
        store, run = self.step.store, self.step.run
        try:
            attempt = store.read_manifest(run.manifest).attempt
            completion = json.loads(store.read(run.completion))
        except ObjectNotFoundError:
            return 0
        if completion.get("attempt") != attempt:
            raise DataError(
                Problem(
                    f"{run.base} has the manifest of one attempt and the completion of a different"
                    " one",
                    received=f"attempts {attempt} and {completion.get('attempt')}",
                    fix="start a new run; a different program wrote into this one",
                )
            )
        return attempt

    def newest_checkpoint(self) -> int:
        """Return the newest step that is complete in the store, or 0."""
        store, checkpoints = self.step.store, self.step.run.checkpoints
        for step in reversed(store.numbers(checkpoints)):
            try:
                store.head(checkpoints / str(step) / MANIFEST)
            except ObjectNotFoundError:
                continue  # it was not stored completely
            return step
        return 0

    def model_uri(self) -> str:
        """Return the address of the model, or nothing for a program that stores none."""
        run = self.step.run
        objects = self.step.store.read_manifest(run.manifest).objects
        has_model = any(item.key.startswith(f"{RUN_MODEL}/") for item in objects)
        return str(run.model) if has_model else ""
