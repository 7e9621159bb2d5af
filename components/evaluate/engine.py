"""Evaluates a run's model, and stores the verdict and the report.

A run may be retried after its model was published. Its verdict has then been acted on, so it is
final: the step evaluates the model again for its outputs, but returns and keeps the first verdict.
Called by evaluate's component.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp_tfjob.common.errors import DataError, ObjectNotFoundError
from kfp_tfjob.common.formatting import counted
from kfp_tfjob.judging.judge import EvaluationRequest, judge
from kfp_tfjob.registry.champion_records import record_of
from kfp_tfjob.registry.training_cache import TrainedRun, remember
from kfp_tfjob.registry.verdict_record import ModelVerdict
from kfp_tfjob.storage.address import S3Address

from ..step import Step
from ..summary import suspicious_columns
from . import report
from .artifacts import confusion, kfp_metrics, roc
from .wrong_images import WrongImages

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Evaluation:
    """The result of evaluate.

    Attributes:
        blessed: Whether the model is to be published.
        verdict_uri: Address of verdict.json; report.html is next to it.
        metrics: Finite numbers for Kubeflow Pipelines, by name.
        html: The report.
        confusion: (names, counts) with at most 30 classes; None for a regression.
        roc: (false positive rate, true positive rate, threshold), at most 100 points; None unless
            there are two classes and both have test rows.
    """

    blessed: bool
    verdict_uri: str
    metrics: dict[str, float]
    html: str
    confusion: tuple[list[str], list[list[int]]] | None
    roc: tuple[list[float], list[float], list[float]] | None


def run(
    step: Step,
    dataset_uri: str,
    model_name: str,
    model_uri: str,
    gate: Mapping[str, Any],
    inputs_digest: str = "",
    gpus: int = 0,
) -> Evaluation:
    """Evaluate a run's model on the test rows, and store its verdict and report.

    Args:
        step: The run and its store.
        dataset_uri: The prepared dataset.
        model_name: The name used to look up the champion.
        model_uri: The SavedModel, `<output_uri>/runs/<run_id>/output/model`.
        gate: The run parameter `gate`.
        inputs_digest: From preflight; empty to leave no record of the run's inputs.
        gpus: How many GPUs the models may use.

    Returns:
        The verdict and the outputs; a model that is not good enough is not an error.

    Raises:
        ConfigurationError: gate or an address is wrong.
        DataError: The model or the dataset is missing or damaged, or they do not match.
    """
    request = EvaluationRequest.parse(model_name, model_uri, dataset_uri, gate)
    with tempfile.TemporaryDirectory(prefix="evaluate-") as scratch:
        judged = judge(step.store, step.layout, request, Path(scratch), gpus)
        model, classes = judged.measured["model"], judged.data.schema.classes
        suspicious = suspicious_columns(step.store, dataset_uri)
        wrong = WrongImages.read(judged.data, model.predictions, classes)
        html = report.render(judged.verdict, classes, judged.measured, suspicious, wrong)
        if published_verdict := _read_published_verdict(step, model_name):
            log.warning("the run is published, so its verdict is kept: %s", step.run.verdict)
            html = step.store.read(step.run.report).decode()
        metrics = kfp_metrics(judged.measured, judged.decision.slices)
        matrix, roc_curve = confusion(model, classes), roc(model)
    _remove(step, step.run.not_evaluated)  # of an earlier attempt with evaluate: false
    if not published_verdict:
        _write(step, judged.verdict, html)
    if inputs_digest and not published_verdict:
        evaluated_run = TrainedRun(step.run_id, str(step.run.base), str(step.run.verdict))
        remember(step.store, step.layout, model_name, inputs_digest, evaluated_run)
    rows = counted(judged.verdict.rows, "test row")
    log.info("verdict on %s: %s", rows, judged.decision.line)
    blessed = published_verdict.blessed if published_verdict else judged.decision.blessed
    return Evaluation(
        blessed=blessed,
        verdict_uri=str(step.run.verdict),
        metrics=metrics,
        html=html,
        confusion=matrix,
        roc=roc_curve,
    )


def _read_published_verdict(step: Step, model_name: str) -> ModelVerdict | None:
    """Return this run's first verdict if its model was published since; otherwise None."""
    try:
        verdict = ModelVerdict.read(step.store, step.run.verdict)
    except DataError:
        return None  # not evaluated yet, or the verdict is damaged and must be written again
    trained_by = (step.run_id, step.task_key)
    champion = record_of(step.store, step.layout, model_name, trained_by, verdict.met)
    return verdict if champion else None


def _write(step: Step, verdict: ModelVerdict, html: str) -> None:
    """Write the report, then the verdict, which marks both as complete.

    In a run that is continued, publish may have evaluated the model again in an earlier attempt.
    That was about the earlier verdict, so it must not replace this one.
    """
    for stale_record in (step.run.second_verdict, step.run.lost_race):
        _remove(step, stale_record)
    step.store.write(step.run.report, html.encode(), "text/html; charset=utf-8")
    step.store.write(step.run.verdict, verdict.to_bytes(), "application/json")


def _remove(step: Step, address: S3Address) -> None:
    """Delete an object if it exists."""
    with suppress(ObjectNotFoundError):
        step.store.head(address)
        step.store.delete(address)
