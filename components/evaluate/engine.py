"""Scores challenger and champion on the same test rows in one pass, and writes the verdict."""

from __future__ import annotations

import json
import logging
import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.evaluate import report
from components.evaluate.gate import Decision, Rival, decide
from components.evaluate.metrics import MOST_SHOWN_CLASSES, condense, finite, roc_curve
from components.evaluate.model import Scorer, Task, weights_digest
from components.evaluate.opponent import Opponent
from components.evaluate.options import parse_gate
from components.evaluate.predictions import (
    ClassPredictions,
    Predictions,
    constant_classifier,
    constant_regression,
)
from components.evaluate.rows import TestData
from components.evaluate.scored import Scored
from components.publish.champion import Champion, read_champion
from components.step import Step
from storage.address import S3Address
from storage.errors import ConfigurationError, Problem
from uploader import pull

FORMAT = "kfp-tfjob/verdict/1"
_MODEL = "output/model"  # below runs/<run_id>
_INTERVALS = 0.95  # of an empty gate, which names no confidence

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Evaluation:
    """What evaluate found.

    Attributes:
        blessed: Whether the model is to be published.
        verdict_uri: Where verdict.json lies; report.html lies beside it.
        metrics: Finite numbers for the metrics of Kubeflow Pipelines.
        html: The report.
        confusion: (names, counts) with at most 30 classes; None for a regression.
        roc: (false positive rate, true positive rate, threshold), at most 100 points; None unless
            there are two classes and test rows of both.
    """

    blessed: bool
    verdict_uri: str
    metrics: dict[str, float]
    html: str
    confusion: tuple[list[str], list[list[int]]] | None
    roc: tuple[list[float], list[float], list[float]] | None


def run(
    step: Step, dataset_uri: str, model_name: str, model_uri: str, gate: Mapping[str, Any]
) -> Evaluation:
    """Judge the model of a run.

    Args:
        step: What every engine is given.
        dataset_uri: The prepared dataset.
        model_name: Whose champion the model is compared with.
        model_uri: The SavedModel, `<output_uri>/runs/<run_id>/output/model`.
        gate: As in the form.

    Returns:
        The verdict; a model that is not good enough is no error.

    Raises:
        ConfigurationError: gate or an address is wrong.
        DataError: The model or the dataset is missing, damaged, or does not fit the other.
    """
    options = parse_gate(gate)
    confidence = options.confidence if options else _INTERVALS
    model = S3Address.parse(model_uri, "model_uri")
    source = _run_of(model)
    with tempfile.TemporaryDirectory(prefix="evaluate-") as scratch:
        folder = Path(scratch)
        dataset = S3Address.parse(dataset_uri, "dataset_uri")
        data = TestData.fetch(step.store, dataset, folder / "data")
        task = Task.of(data.schema)
        manifest = pull(step.store, source, folder / "run", _below(_MODEL))
        challenger_folder = folder / "run" / _MODEL
        digest = weights_digest(challenger_folder)
        champion = read_champion(step.store, step.layout, model_name)
        challenger = Scorer(challenger_folder, task, "the model")
        opponent = champion and Opponent(
            step, model_name, champion, digest, data.schema, task, folder / "champion"
        )
        predictions = _one_pass(data, challenger, opponent)
    rival = opponent.rival() if opponent else None
    classes = list(task.classes)
    baseline = _baseline(task, data.statistics, predictions)
    decision = decide(options, predictions, baseline, rival, classes)
    scored = {"model": Scored.of(predictions, confidence, classes)}
    if rival and rival.predictions is not None:
        scored[rival.name] = Scored.of(rival.predictions, confidence, classes)
    scored["baseline"] = Scored.of(baseline, confidence, classes)
    verdict = {
        "format": FORMAT,
        **_decision(decision),
        "confidence": confidence,
        "rows": predictions.rows,
        **_measured(scored["model"]),
        "baseline": _measured(scored["baseline"])["metrics"],
        "champion": _champion(champion, rival, scored),
        "model_name": model_name,
        "model_uri": str(model),
        "run_id": manifest.run_id,
        "model_digest": manifest.digest,
        "weights_digest": digest,
        "dataset_digest": data.digest,
        "schema_digest": data.schema["schema_digest"],
        "gate": dict(gate),
    }
    html = report.render(verdict, task, scored)
    _write(step, verdict, html)
    log.info("%s", decision.line)
    return Evaluation(
        decision.blessed,
        str(step.run.evaluation / "verdict.json"),
        _kfp_metrics(scored, predictions.rows),
        html,
        _confusion(predictions, classes),
        _roc(predictions),
    )


def _one_pass(data: TestData, challenger: Scorer, opponent: Opponent | None) -> Predictions:
    parts: list[Predictions] = []
    for features, labels in data.batches():
        parts.append(challenger.predict(features, labels))
        if opponent:
            opponent.predict(features, labels)
    return type(parts[0]).join(parts)


def _run_of(model: S3Address) -> S3Address:
    """Return the run a model belongs to, whose manifest proves it."""
    key = model.key.removesuffix(f"/{_MODEL}")
    if key == model.key:
        raise ConfigurationError(
            Problem(
                "model_uri is not the output of a run",
                received=str(model),
                expected=f"s3://BUCKET/PREFIX/runs/RUN_ID/{_MODEL}",
                fix="give evaluate what sync_output returned",
            )
        )
    return S3Address(model.bucket, key)


def _below(prefix: str) -> Any:
    return lambda key: key.startswith(f"{prefix}/")


def _baseline(task: Task, statistics: Mapping[str, Any], of: Predictions) -> Predictions:
    label = statistics["label"]
    if task.name == "regression":
        return constant_regression(of.labels, float(label["mean"]))
    return constant_classifier(of.labels, [label["counts"][name] for name in task.classes])


def _decision(decision: Decision) -> dict[str, Any]:
    return {
        "blessed": decision.blessed,
        "reasons": list(decision.reasons),
        "primary_metric": decision.primary_metric,
        "mode": decision.mode,
        "checks": [
            {
                "name": check.name,
                "metric": check.metric,
                "value": check.value,
                "interval": list(check.interval),
                "threshold": check.threshold,
                "pass": check.passed,
                "explanation": check.explanation,
            }
            for check in decision.checks
        ],
        "minimum_detectable_gain": decision.comparison.detectable if decision.comparison else None,
    }


def _measured(scored: Scored) -> dict[str, Any]:
    everything = {**scored.measured, **scored.classes}
    return {
        "metrics": {name: item.value for name, item in scored.measured.items()},
        "class_metrics": {name: item.value for name, item in scored.classes.items()},
        "intervals": {name: [item.low, item.high] for name, item in everything.items()},
    }


def _champion(
    champion: Champion | None, rival: Rival | None, scored: Mapping[str, Scored]
) -> dict[str, Any] | None:
    """Return what the verdict says of the champion; publish relies on `number`."""
    if champion is None or rival is None:
        return None
    found = scored.get(rival.name)
    return {
        "number": champion.number,
        "version": champion.version,
        "run_id": champion.run_id,
        "weights_digest": champion.weights_digest,
        "schema_digest": champion.schema_digest,
        "compared": found is not None,
        "obstacle": rival.obstacle,
        "metrics": _measured(found)["metrics"] if found else {},
    }


def _write(step: Step, verdict: Mapping[str, Any], html: str) -> None:
    """Write the report, and then the verdict, which says that both are there."""
    page = html.encode()
    step.store.write(step.run.evaluation / "report.html", page, "text/html; charset=utf-8")
    body = json.dumps(_plain(verdict), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    step.store.write(step.run.evaluation / "verdict.json", body.encode(), "application/json")


def _plain(value: Any) -> Any:
    """Return a value as JSON can hold it: what is not a number is null."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _kfp_metrics(scored: Mapping[str, Scored], rows: int) -> dict[str, float]:
    """Return the numbers for the form of Kubeflow Pipelines, which takes finite ones only."""
    found: dict[str, float] = {"test_rows": rows}
    for who, one in scored.items():
        prefix = "" if who == "model" else f"{who.partition(' ')[0]}_"
        found |= {f"{prefix}{name}": item.value for name, item in one.measured.items()}
    found |= {name: item.value for name, item in scored["model"].classes.items()}
    return finite(found)


def _confusion(
    predictions: Predictions, classes: list[str]
) -> tuple[list[str], list[list[int]]] | None:
    if not isinstance(predictions, ClassPredictions):
        return None
    names, matrix = condense(predictions.confusion(), classes, MOST_SHOWN_CLASSES)
    return [name[:60] for name in names], matrix.tolist()


def _roc(predictions: Predictions) -> tuple[list[float], list[float], list[float]] | None:
    if not isinstance(predictions, ClassPredictions) or predictions.classes != 2:
        return None
    if not predictions.finite or len(set(predictions.labels.tolist())) < 2:
        return None
    curve = roc_curve(predictions.labels, predictions.scores[:, 0])
    fpr, tpr, thresholds = ([round(float(value), 6) for value in part] for part in curve)
    return fpr, tpr, thresholds
