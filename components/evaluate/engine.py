"""Scores challenger and champion on the same test rows in one pass, and writes the verdict."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp_tfjob.components.evaluate import report
from kfp_tfjob.components.evaluate.artifacts import confusion, kfp_metrics, roc
from kfp_tfjob.components.step import Step
from kfp_tfjob.judging.check import Check
from kfp_tfjob.judging.gate import decide
from kfp_tfjob.judging.metrics import Measures
from kfp_tfjob.judging.model import Scorer, exported_weights_sha256
from kfp_tfjob.judging.opponent import Opponent
from kfp_tfjob.judging.rows import TestData
from kfp_tfjob.judging.scored import Scored
from kfp_tfjob.judging.scoring import score
from kfp_tfjob.judging.slices import Slices
from kfp_tfjob.judging.verdict import EvaluatedModel, build
from kfp_tfjob.options.gate import parse_gate
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.champion import read_champion
from kfp_tfjob.storage.errors import ConfigurationError, DataError, Problem, Problems
from kfp_tfjob.storage.layout import RUN_MODEL
from kfp_tfjob.storage.manifest import Manifest
from kfp_tfjob.storage.model_names import check_model_name
from kfp_tfjob.storage.trained import Trained, remember
from kfp_tfjob.storage.words import counted, listed
from kfp_tfjob.trainer.load import load
from kfp_tfjob.trainer.serving import Task
from kfp_tfjob.uploader import pull

_CONFIDENCE = 0.95  # for an empty gate, which sets none

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Evaluation:
    """The result of evaluate.

    Attributes:
        blessed: Whether the model is to be published.
        verdict_uri: Address of verdict.json; report.html is next to it.
        metrics: Finite numbers for the metrics of Kubeflow Pipelines.
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
) -> Evaluation:
    """Judge the model of a run.

    Args:
        step: The run and its store.
        dataset_uri: The prepared dataset.
        model_name: The name used to look up the champion.
        model_uri: The SavedModel, `<output_uri>/runs/<run_id>/output/model`.
        gate: As in the form.
        inputs_digest: From preflight; empty to leave no record of the run's inputs.

    Returns:
        The verdict; a model that is not good enough is not an error.

    Raises:
        ConfigurationError: gate or an address is wrong.
        DataError: The model or the dataset is missing or damaged, or they do not match.
    """
    wrong = Problems(check_model_name(model_name))
    options = wrong.of(lambda: parse_gate(gate))
    model = wrong.of(lambda: S3Address.parse(model_uri, "model_uri"))
    source = wrong.of(lambda: _run_of(model)) if model else None
    dataset = wrong.of(lambda: S3Address.parse(dataset_uri, "dataset_uri"))
    if wrong or not (model and source and dataset):
        raise ConfigurationError(*wrong)
    load(gpus=0)  # the CPU is fast enough for scoring, and always available
    with tempfile.TemporaryDirectory(prefix="evaluate-") as scratch:
        folder = Path(scratch)
        data = TestData.fetch(step.store, dataset, folder / "data")
        task = Task.of(data.schema)
        manifest = pull(step.store, source, folder / "run", _is_model)
        _require_model(manifest, source)
        challenger_folder = folder / "run" / RUN_MODEL
        digest = exported_weights_sha256(challenger_folder)
        champion = read_champion(step.store, step.layout, model_name)
        challenger = Scorer(challenger_folder, task, "the model")
        opponent = (
            Opponent(
                step.store,
                step.layout,
                model_name,
                champion,
                digest,
                data,
                task,
                folder / "champion",
            )
            if champion
            else None
        )
        slices = Slices(options.slices if options else [], data.schema, folder / "slices")
        predictions, baseline = score(data, task, challenger, opponent, slices, folder)
        confidence, classes = options.confidence if options else _CONFIDENCE, list(task.classes)
        rival = opponent.rival(classes) if opponent else None
        ours, trivial = Measures(predictions, classes), Measures(baseline, classes)
        decision = decide(options, ours, trivial, rival, classes, slices, _of_rows(data))
        scored = {"model": ours, "baseline": trivial}
        if rival and rival.predictions is not None:
            scored = {
                "model": ours,
                rival.name: Measures.of(rival.predictions),
                "baseline": trivial,
            }
        measured = {who: Scored.of(one, confidence, classes) for who, one in scored.items()}
        judged = EvaluatedModel(
            model_name=model_name,
            model_uri=str(model),
            run_id=manifest.run_id,
            model_digest=manifest.digest,
            exported_weights_sha256=digest,
            dataset_uri=str(dataset),
            dataset_digest=data.digest,
            schema_digest=data.schema["schema_digest"],
            gate=dict(gate),
        )
        verdict = build(decision, judged, measured, confidence, champion, rival)
        html = report.render(verdict, task, measured)
        shown = (
            kfp_metrics(measured, decision.slices),
            html,
            confusion(predictions, classes),
            roc(ours),
        )
    _write(step, verdict, html)
    if inputs_digest:
        judged_run = Trained(step.run_id, str(step.run.base), str(step.run.verdict))
        remember(step.store, step.layout, model_name, inputs_digest, judged_run)
    log.info("verdict on %s: %s", counted(verdict["rows"], "test row"), decision.line)
    return Evaluation(decision.blessed, str(step.run.verdict), *shown)


def _of_rows(data: TestData) -> list[Check]:
    """Return the checks of the test rows that fail."""
    if not data.trained_on:
        return []
    text = (
        f"the test rows were trained on: {listed(data.trained_on, 3)} has the same bytes as a shard"
        " of another split; divide the data again"
    )
    return [Check("trained_on", False, text)]


def _run_of(model: S3Address) -> S3Address:
    """Return the run that a model belongs to; its manifest verifies the model."""
    key = model.key.removesuffix(f"/{RUN_MODEL}")
    if key == model.key:
        raise ConfigurationError(
            Problem(
                "model_uri is not the output of a run",
                received=str(model),
                expected=f"s3://BUCKET/PREFIX/runs/RUN_ID/{RUN_MODEL}",
                fix="pass evaluate the model_uri that sync_output returned",
            )
        )
    return S3Address(model.bucket, key)


def _is_model(key: str) -> bool:
    return key.startswith(f"{RUN_MODEL}/")


def _require_model(manifest: Manifest, run: S3Address) -> None:
    if not any(_is_model(item.key) for item in manifest.objects):
        raise DataError(
            Problem(
                f"{run} has no SavedModel",
                received=f"{len(manifest.objects)} objects, none below {RUN_MODEL}/",
                expected="a SavedModel that the training exports to $OUTPUT_DIR/model",
                fix="make the training command export its model there",
            )
        )


def _write(step: Step, verdict: Mapping[str, Any], html: str) -> None:
    """Write the report, then the verdict, which marks both as complete."""
    step.store.write(step.run.report, html.encode(), "text/html; charset=utf-8")
    body = json.dumps(verdict, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    step.store.write(step.run.verdict, body.encode(), "application/json")
