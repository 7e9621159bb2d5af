"""Reads and writes a run's attempts in the store: claims, ends, checkpoints and the output.

Called by launch_tfjob's engine, and by preflight's engine for a run that continues.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from kfp_tfjob.common.errors import (
    ConfigurationError,
    DataError,
    ObjectExistsError,
    ObjectNotFoundError,
    Problem,
    StepError,
)
from kfp_tfjob.jobs.attempt_record import AttemptEnd
from kfp_tfjob.jobs.failure_record import Failure
from kfp_tfjob.jobs.kind import JobKind
from kfp_tfjob.jobs.kinds import kind_named
from kfp_tfjob.jobs.manifest import spec_hash
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.options.parameter_masking import masked
from kfp_tfjob.registry.run_folder import newest_checkpoint
from kfp_tfjob.storage import documents
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import MANIFEST, RUN_MODEL, dataset_digest
from kfp_tfjob.storage.manifest import Manifest

from ..step import Step
from .attempt_budget import Claim

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Dataset:
    """The data of a training.

    Attributes:
        uri: Its address.
        digest: Its digest; empty for files without a manifest.
        schema_digest: The digest of its schema; empty if prepare_data did not write it.
    """

    uri: str
    digest: str = ""
    schema_digest: str = ""


@dataclass(frozen=True)
class Records:
    """The records of one launch; each method reads or writes the store."""

    step: Step

    def claimed(self) -> list[int]:
        """Return the numbers of all claimed attempts, in order."""
        return self.step.store.numbers(self.step.run.attempts)

    def claim(self, attempt: int) -> Claim:
        """Return the claim of an attempt."""
        return Claim.from_bytes(self.step.store.read(self.step.run.attempt(attempt)), attempt)

    def resumed(self, attempts: Sequence[int]) -> dict[int, int]:
        """Return the newest step in the store when each of these attempts was claimed.

        The first attempt of a run is left out, because it continues nothing. Never raises.
        """
        try:
            return {attempt: self.claim(attempt).checkpoint for attempt in attempts if attempt > 1}
        except (StepError, documents.InvalidDocumentError) as error:
            log.warning("the starts of the attempts are not shown: %s", error)
            return {}

    def kind(self) -> JobKind | None:
        """Return the kind of the run's jobs; None before the first."""
        claimed = self.claimed()
        return kind_named(self.claim(claimed[0]).kind) if claimed else None

    def save_claim(
        self,
        claim: Claim,
        spec: JobSpec,
        manifest: Object,
        tracking: Mapping[str, str] = MappingProxyType({}),
    ) -> bool:
        """Store a claim; return False if a different launcher was faster."""
        inputs, kind = self.inputs(spec), spec.kind.name
        record = replace(claim, inputs=inputs, kind=kind, tracking=dict(tracking))
        name, digest = manifest["metadata"]["name"], spec_hash(manifest)
        data = record.to_bytes(self.step.run_id, name, digest)
        try:
            self.step.store.create(self.step.run.attempt(claim.attempt), data)
        except ObjectExistsError:
            log.info("attempt %d was claimed by another launcher", claim.attempt)
            return False
        return True

    def save_end(self, end: AttemptEnd, final: bool = True) -> None:
        """Record an attempt's end; a final one replaces another record. Never raises."""
        address, store = self.step.run.attempt_end(end.attempt), self.step.store
        try:
            (store.write if final else store.create)(address, end.to_bytes())
        except ObjectExistsError:
            return
        except StepError as error:
            log.warning("cannot record how attempt %d ended: %s", end.attempt, error)

    def failure(self) -> Failure | None:
        """Return the recorded failure of this step, or None."""
        try:
            failure = Failure.from_bytes(self.step.store.read(self.step.run.failure("json")))
        except (ObjectNotFoundError, documents.InvalidDocumentError):
            return None
        return failure if failure.step == self.step.name else None

    def completed(self) -> int:
        """Return the attempt whose output is complete in the store, or 0."""
        store, run = self.step.store, self.step.run
        try:
            attempt = store.read_manifest(run.manifest).attempt
            completion = json.loads(store.read(run.completion))
        except ObjectNotFoundError:
            return 0
        if completion.get("attempt") != attempt:
            raise DataError(
                Problem(
                    f"the manifest and the completion record in {run.base} are from different"
                    " attempts",
                    received=f"attempts {attempt} and {completion.get('attempt')}",
                    expected="the same attempt",
                    fix="start a new run, and let no other program write into its folder",
                )
            )
        return attempt

    def newest_checkpoint(self) -> int:
        """Return the newest step that is complete in the store, or 0."""
        return newest_checkpoint(self.step.store, self.step.run)

    def output(self) -> Manifest:
        """Return the manifest of the complete output."""
        return self.step.store.read_manifest(self.step.run.manifest)

    def model_uri(self, output: Manifest) -> str:
        """Return the model's address, or nothing for a program that stores none."""
        has_model = any(item.key.startswith(f"{RUN_MODEL}/") for item in output.objects)
        return str(self.step.run.model) if has_model else ""

    def trained_inputs(self) -> Mapping[str, Any]:
        """Return the inputs of the newest attempt; empty if no attempt has saved any training."""
        claimed = self.claimed()
        if claimed and (self.completed() or self.newest_checkpoint()):
            return self.claim(claimed[-1]).inputs
        return {}

    def dataset(self, spec: JobSpec) -> Dataset | None:
        """Return the dataset's address and digests; None for a run without a dataset."""
        if not spec.dataset_uri:
            return None
        dataset = S3Address.parse(spec.dataset_uri, "dataset_uri")
        try:
            manifest = self.step.store.read_manifest(dataset / MANIFEST)
        except ObjectNotFoundError:  # a program may read files of any kind
            return Dataset(str(dataset))
        schema_digest = str(manifest.details.get("schema_digest", ""))
        return Dataset(str(dataset), dataset_digest(dataset, manifest), schema_digest)

    def inputs(self, spec: JobSpec) -> Mapping[str, Any]:
        """Return the parameters that affect the trained model, without secrets."""
        parameters = masked(spec.for_result)
        dataset = self.dataset(spec)
        return parameters | {"data": (dataset.digest or dataset.uri) if dataset else ""}


def require_same(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to continue a training, or to use its output, with other inputs.

    Raises:
        ConfigurationError: It names every parameter that differs.
    """
    ConfigurationError.raise_if(
        Problem(
            f"{name} has changed since this run trained",
            received=json.dumps(now[name], ensure_ascii=False),
            expected=json.dumps(then, ensure_ascii=False),
            fix="start a new run without --run-id, or continue with the original value",
            path="" if name == "data" else name,
            name="changed-since-training",
        )
        for name, then in before.items()
        if name in now and now[name] != then
    )
