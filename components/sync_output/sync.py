"""Verifies that a run's output is complete in the store, or reports what is missing.

The sidecar that mirrored it has exited, and neither the sidecar's exit code nor the TFJob's proves
that every byte is stored. So this step checks everything: the run's manifest must exist, the
trainer's record of completion must belong to the same attempt, and every object is verified.
Otherwise, evaluate would score a model whose variables are partly missing or from another attempt.
Called by sync_output's component.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kfp_tfjob.common.errors import DataError, ObjectNotFoundError, Problem, first
from kfp_tfjob.common.escaping import code
from kfp_tfjob.common.formatting import counted, listed
from kfp_tfjob.storage import documents
from kfp_tfjob.storage.layout import OUTPUT, RUN_COMPLETION, RUN_MODEL, SAVED_MODEL
from kfp_tfjob.storage.manifest import Manifest
from kfp_tfjob.uploader import verify

from ..step import Step
from ..summary import WHY_NO_DATA, WHY_NOT_EVALUATED, proven_summary

log = logging.getLogger(__name__)

_MOST_PROBLEMS = 50  # a folder that is gone would otherwise list thousands of objects


@dataclass(frozen=True)
class SyncResult:
    """The verified output of a run.

    Attributes:
        model_uri: The directory of the SavedModel; empty without one.
        manifest: The verified objects, with keys relative to the run's directory.
        end: Markdown about a run that ends here; empty if its model is evaluated.
    """

    model_uri: str
    manifest: Manifest
    end: str = ""

    @property
    def output_digest(self) -> str:
        """The SHA-256 that names the whole output."""
        return self.manifest.digest

    @property
    def markdown(self) -> str:
        """The report: how much was verified. Its panel is 500 px wide."""
        objects = self.manifest.objects
        stored = f"{counted(len(objects), 'object')}, {counted(self.manifest.size, 'byte')}"
        lines = [
            "# The output is stored",
            "",
            f"**Verified:** {stored}, of attempt {self.manifest.attempt}",
            "",
            *([f"**Model:** {code(self.model_uri)}", ""] if self.model_uri else []),
            *([self.end, ""] if self.end else []),
            f"**Digest:** {code(self.output_digest)}",
            "",
            "`manifest.json` contains the checksums of all objects.",
        ]
        return "\n".join(lines) + "\n"


def run(step: Step, evaluate: bool = True) -> SyncResult:
    """Verify a run's output.

    Args:
        step: The run, and the store that holds its output.
        evaluate: Whether the model is evaluated next; if not, the output needs no model, and a
            record says that the run ends here.

    Returns:
        The verified output.

    Raises:
        DataError: The output was never completed, an object is missing or damaged, or the model
            to evaluate is missing.
    """
    manifest = _manifest(step)
    problems: list[Problem | str] = [*_completion_problems(step, manifest)]
    # The trainer may write any kind of model to this folder if it is not evaluated here.
    has_model = any(stored.key.startswith(f"{RUN_MODEL}/") for stored in manifest.objects)
    if evaluate:
        problems += _model_problems(step, manifest)
    problems += first(
        verify(step.store, step.run.base, manifest),
        _MOST_PROBLEMS,
        "objects are missing or differ",
    )
    DataError.raise_if(problems)
    log.info(
        "the output is complete: %s, %s",
        counted(len(manifest.objects), "object"),
        counted(manifest.size, "byte"),
    )
    model_uri = str(step.run.model) if has_model else ""
    if evaluate:
        return SyncResult(model_uri, manifest)
    reason = WHY_NOT_EVALUATED if _has_data(step) else WHY_NO_DATA
    record = {"run_id": step.run_id, "why": reason}
    step.store.write(step.run.not_evaluated, json.dumps(record).encode(), "application/json")
    return SyncResult(model_uri, manifest, proven_summary(step, reason))


@dataclass(frozen=True)
class _Claim:
    """The part of an attempt's claim that is read here; launch_tfjob writes it."""

    inputs: Mapping[str, Any] = field(default_factory=dict)


def _has_data(step: Step) -> bool:
    """Return whether the run trained on a dataset, according to its newest attempt's claim."""
    attempts = step.store.numbers(step.run.attempts)
    if not attempts:
        return True
    claim = documents.read(_Claim, step.store.read(step.run.attempt(attempts[-1])))
    return claim.inputs.get("data") != ""


def _manifest(step: Step) -> Manifest:
    """Read the run's manifest, and check that no other pipeline has overwritten it."""
    try:
        manifest = step.store.read_manifest(step.run.manifest)
    except ObjectNotFoundError as error:
        raise DataError(
            Problem(
                f"the output of run {step.run_id} was never completed",
                received=f"no {step.run.manifest}",
                expected="the manifest that the chief's sidecar writes once everything is stored",
                fix="find out why launch_tfjob ended, then retry the run",
                name="output-incomplete",
            )
        ) from error
    if (manifest.kind, manifest.run_id) != ("output", step.run_id):
        raise DataError(
            Problem(
                f"{step.run.manifest} is not the manifest of this run's output",
                received=f"kind {manifest.kind!r} of run {manifest.run_id!r}",
                expected=f"kind 'output' of run {step.run_id!r}",
                fix="start a new run, with an output_uri that no other pipeline uses",
            )
        )
    return manifest


@dataclass(frozen=True)
class _Completion:
    """The content of completion.json, which the chief's supervisor writes."""

    run_id: str
    attempt: int


def _completion_problems(step: Step, manifest: Manifest) -> list[Problem]:
    """Return the problem of a completion record that is missing or from another attempt."""
    expected = f"the record of run {step.run_id}, attempt {manifest.attempt}"
    fix = "start a new run, because a retry does not train again"
    try:
        completion = documents.read(_Completion, step.store.read(step.run.completion))
    except ObjectNotFoundError:
        if any(stored.key == RUN_COMPLETION for stored in manifest.objects):
            return []  # verifying all objects reports it
        return [Problem(f"{step.run.completion} is missing", None, expected, fix)]
    except documents.InvalidDocumentError as error:
        return [Problem(f"{step.run.completion} cannot be read", str(error), expected, fix)]
    if (completion.run_id, completion.attempt) != (step.run_id, manifest.attempt):
        received = f"run {completion.run_id}, attempt {completion.attempt}"
        return [Problem(f"{step.run.completion} is from another attempt", received, expected, fix)]
    return []


def _model_problems(step: Step, manifest: Manifest) -> list[Problem]:
    """Return the problem of an output without a SavedModel where evaluate looks for it."""
    keys = {stored.key for stored in manifest.objects}
    if f"{RUN_MODEL}/{SAVED_MODEL}" in keys:
        return []
    folders = [
        key.removesuffix(f"/{SAVED_MODEL}") for key in keys if key.endswith(f"/{SAVED_MODEL}")
    ]
    # The user's program knows the folder as $OUTPUT_DIR.
    elsewhere = [folder.replace(OUTPUT, "$OUTPUT_DIR", 1) for folder in sorted(folders)]
    write = "make the training write its model to $OUTPUT_DIR/model"
    return [
        Problem(
            f"the output of run {step.run_id} contains no model",
            received=f"a SavedModel in {listed(elsewhere, 3)}"
            if elsewhere
            else _first_names(manifest),
            expected=f"a SavedModel in {RUN_MODEL}/, with {SAVED_MODEL}",
            fix=f"{write}, not to {elsewhere[0]}"
            if elsewhere
            else f"{write}, for example with model.export, or set train_options.evaluate to false",
            name="no-model-in-output",
        )
    ]


def _first_names(manifest: Manifest) -> str:
    """List the first 10 files and folders of an output, for a message."""
    names = sorted({"/".join(stored.key.split("/")[:2]) for stored in manifest.objects})
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "") or "an empty output"
