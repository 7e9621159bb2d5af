"""Verifies that a run's output is complete in the store, or reports what is missing.

The sidecar that mirrored it has exited, and neither its exit code nor that of the TFJob proves that
every byte is stored. So this step checks everything: the run's manifest must exist, the
trainer's record of completion must belong to the same attempt, and every object is verified.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kfp_tfjob.components.step import Step
from kfp_tfjob.components.summary import WHY_NO_DATA, WHY_NOT_EVALUATED, proven_summary
from kfp_tfjob.storage import documents
from kfp_tfjob.storage.errors import DataError, ObjectNotFoundError, Problem, first
from kfp_tfjob.storage.escaping import code
from kfp_tfjob.storage.formatting import counted, listed
from kfp_tfjob.storage.layout import OUTPUT, RUN_COMPLETION, RUN_MODEL, SAVED_MODEL
from kfp_tfjob.storage.manifest import Manifest
from kfp_tfjob.uploader import verify

log = logging.getLogger(__name__)

_MOST_PROBLEMS = 50


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
        DataError: The output was never completed, has missing or damaged objects, or has no model.
    """
    manifest = _manifest(step)
    problems: list[Problem | str] = [*_completion_problems(step, manifest)]
    has_model = any(item.key.startswith(f"{RUN_MODEL}/") for item in manifest.objects)
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
    why = WHY_NOT_EVALUATED if _has_data(step) else WHY_NO_DATA
    record = {"run_id": step.run_id, "why": why}
    step.store.write(step.run.not_evaluated, json.dumps(record).encode(), "application/json")
    return SyncResult(model_uri, manifest, proven_summary(step, why))


@dataclass(frozen=True)
class _Claim:
    """What launch_tfjob writes when an attempt begins."""

    inputs: Mapping[str, Any] = field(default_factory=dict)


def _has_data(step: Step) -> bool:
    """Return whether the run trained on a dataset, by its newest claim."""
    claimed = step.store.numbers(step.run.attempts)
    if not claimed:
        return True
    claim = documents.read(_Claim, step.store.read(step.run.attempt(claimed[-1])))
    return claim.inputs.get("data") != ""


def _manifest(step: Step) -> Manifest:
    try:
        manifest = step.store.read_manifest(step.run.manifest)
    except ObjectNotFoundError as error:
        raise DataError(
            Problem(
                f"the output of run {step.run_id} was never completed",
                received=f"no {step.run.manifest}",
                expected="the manifest that the chief's sidecar writes once everything is stored",
                fix="find out why launch_tfjob ended, then start the run again",
            )
        ) from error
    if (manifest.kind, manifest.run_id) != ("output", step.run_id):
        raise DataError(
            Problem(
                f"{step.run.manifest} is not the manifest of this run's output",
                received=f"kind {manifest.kind!r} of run {manifest.run_id!r}",
                expected=f"kind 'output' of run {step.run_id!r}",
                fix="use a separate output_uri for each pipeline, and start the run again",
            )
        )
    return manifest


@dataclass(frozen=True)
class _Completion:
    """The content of completion.json, which the chief's supervisor writes."""

    run_id: str
    attempt: int


def _completion_problems(step: Step, manifest: Manifest) -> list[Problem]:
    """Return what is wrong with the trainer's record of completion."""
    expected = f"the record of run {step.run_id}, attempt {manifest.attempt}"
    fix = "start the run again"
    try:
        found = documents.read(_Completion, step.store.read(step.run.completion))
    except ObjectNotFoundError:
        if any(item.key == RUN_COMPLETION for item in manifest.objects):
            return []  # it is verified like any other object
        return [Problem(f"{step.run.completion} is missing", None, expected, fix)]
    except documents.InvalidDocumentError as error:
        return [Problem(f"{step.run.completion} cannot be read", str(error), expected, fix)]
    if (found.run_id, found.attempt) != (step.run_id, manifest.attempt):
        received = f"run {found.run_id}, attempt {found.attempt}"
        return [Problem(f"{step.run.completion} is from another attempt", received, expected, fix)]
    return []


def _model_problems(step: Step, manifest: Manifest) -> list[Problem]:
    """Return the problem of an output without a SavedModel where evaluate looks for it."""
    keys = {item.key for item in manifest.objects}
    expected = f"{RUN_MODEL}/{SAVED_MODEL}"
    if expected in keys:
        return []
    others = [
        key.removesuffix(f"/{SAVED_MODEL}") for key in keys if key.endswith(f"/{SAVED_MODEL}")
    ]
    elsewhere = [key.replace(OUTPUT, "$OUTPUT_DIR", 1) for key in sorted(others)]
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
        )
    ]


def _first_names(manifest: Manifest) -> str:
    names = sorted({"/".join(item.key.split("/")[:2]) for item in manifest.objects})
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "") or "an empty output"
