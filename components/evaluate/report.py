"""Renders the report of an evaluation as one self-contained HTML file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from kfp_tfjob.components.evaluate.plots import BASELINE, confusions, curves
from kfp_tfjob.judging.estimates import Measured
from kfp_tfjob.judging.formatting import chance, difference, known_rows, number, rough
from kfp_tfjob.judging.metrics import Measures
from kfp_tfjob.judging.predictions import ClassPredictions
from kfp_tfjob.options.gate import GateOptions
from kfp_tfjob.options.metric_names import PER_CLASS, is_own
from kfp_tfjob.options.parse import whole_numbers
from kfp_tfjob.pages.template import render as fill
from kfp_tfjob.storage.escaping import short
from kfp_tfjob.storage.verdict_record import Check, ModelVerdict

_MOST_SLICES = 100
_LONGEST = 60  # characters of the name of a class or a metric
_WITHOUT_DIRECTION = ("mean_error",)  # neither a greater nor a smaller one is better
_COMPARISONS = ("champion", "baseline", "slices")
_NOTHING = Measured(math.nan, math.nan, math.nan)
_FACTS = {
    "run_id": "run",
    "model_uri": "model",
    "model_digest": "SHA-256 of its run's manifest",
    "exported_weights_sha256": "SHA-256 of its weights",
    "dataset_uri": "dataset",
    "dataset_digest": "digest of the dataset",
    "schema_digest": "digest of its schema",
    "evaluator_digest": "digest of the code of gate.evaluator",
}


class _Metric(NamedTuple):
    name: str
    label: str
    model: Measured
    other: Measured
    gain: str


class _Class(NamedTuple):
    name: str
    rows: int
    measured: list[Measured]
    champion: float


def render(
    verdict: ModelVerdict,
    classes: Sequence[str],
    scored: Mapping[str, Measures],
    suspicious: str = "",
) -> str:
    """Return the report as HTML without external references.

    Args:
        verdict: The content of verdict.json.
        classes: The names of the classes; none for a regression.
        scored: `model`, `baseline`, and the champion by its name if it was compared.
        suspicious: What prepare_data found about columns that reveal the label.
    """
    gate = whole_numbers(verdict.gate)
    against = next((who for who in scored if who not in ("model", BASELINE)), BASELINE)
    gate_confidence = gate.get("confidence", GateOptions().confidence)
    champion = verdict.champion
    same_weights = champion is not None and (
        champion.exported_weights_sha256 == verdict.exported_weights_sha256
    )
    return fill(
        "components/evaluate/report.html.j2",
        title=f"Evaluation of {verdict.model_name}",
        verdict=verdict,
        longest=_LONGEST,
        known_rows=known_rows(verdict.also_in_train, verdict.rows),
        suspicious=suspicious,
        direction={"minimize": "lower", "maximize": "higher"}.get(gate.get("direction"), ""),
        confidence=f"{gate_confidence * 100:g}%",
        interval_confidence=f"{verdict.confidence * 100:g}%",
        level=round(1 - gate_confidence, 9),
        against=against,
        metrics=_metrics(scored, against, verdict.primary_metric),
        guess=against == BASELINE and bool(classes),
        baseline={} if against == BASELINE else scored[BASELINE].measured,
        same_weights=same_weights,
        confusions=confusions(classes, scored["model"]),
        curves=curves(classes, scored),
        classes=_classes(classes, scored, against),
        kinds=PER_CLASS,
        facts=_facts(verdict),
        margin=gate.get("margin"),
        gate=json.dumps(gate, indent=1, ensure_ascii=False).splitlines(),
        check_value=lambda check: _check_value(check, verdict.metrics),
        number=number,
        difference=difference,
        rough=rough,
        chance=chance,
        interval=_interval,
        finite=math.isfinite,
        threshold=_threshold,
        most_slices=_MOST_SLICES,
    )


def _metrics(scored: Mapping[str, Measures], against: str, primary: str) -> Iterator[_Metric]:
    """Yield the metrics of the model and of the champion or the baseline, the primary one first."""
    model, other = scored["model"], scored[against]
    for name in sorted(model.measured, key=lambda name: name != primary):
        ours, theirs = model.measured[name], other.measured.get(name, _NOTHING)
        if against == BASELINE and model.estimate(name).against_guess:
            theirs = Measured(model.estimate(name).of_constant, math.nan, math.nan)
        gain = model.estimate(name).sign * (ours.value - theirs.value)
        # Of the user's own metrics, only the primary one has a direction.
        if name in _WITHOUT_DIRECTION or (is_own(name) and name != primary):
            gain = math.nan
        label = short(model.label(name), _LONGEST)
        yield _Metric(name, label, ours, theirs, difference(gain, theirs.value))


def _classes(classes: Sequence[str], scored: Mapping[str, Measures], against: str) -> list[_Class]:
    model = scored["model"]
    if not model.class_metrics or not isinstance(model.predictions, ClassPredictions):
        return []
    cells = model.cells
    support = cells.by_label(cells.counts.astype(float)).astype(int).tolist()
    theirs = {} if against == BASELINE else scored[against].class_metrics
    found = []
    for name, rows in zip(classes, support, strict=True):
        each = [model.class_metrics[f"{kind}/{name}"] for kind in PER_CLASS]
        champion = theirs.get(f"f1/{name}", _NOTHING).value
        found.append(_Class(short(name, _LONGEST), rows, each, champion))
    return found


def _facts(verdict: ModelVerdict) -> list[tuple[str, str]]:
    known = ((words, getattr(verdict, name)) for name, words in _FACTS.items())
    found = [(words, str(value)) for words, value in known if value]
    if champion := verdict.champion:
        whose = f"version {champion.version} of run {champion.run_id}"
        found.append(("champion", whose))
        found.append(("SHA-256 of its weights", str(champion.exported_weights_sha256)))
    return found


def _interval(low: float | None, high: float | None) -> str:
    known = low is not None and math.isfinite(low)
    return f"{number(low)} to {number(high)}" if known else "–"


def _check_value(check: Check, metrics: Mapping[str, float | None]) -> str:
    """Return the value of a check; that of a comparison is a gain."""
    if check.name in _COMPARISONS:
        return difference(check.value, metrics.get(check.metric))
    return number(check.value)


def _threshold(held: float | str | Mapping[str, float] | None) -> str:
    if isinstance(held, Mapping):
        return ", ".join(f"{name} {value:g}" for name, value in held.items())
    return "" if held is None else held if isinstance(held, str) else f"{held:g}"
