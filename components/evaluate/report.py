"""Renders the evaluation report as one self-contained HTML file.

The report explains the verdict to the model's owner: which checks failed, what changed from the
champion, and on which slices and classes. People download it and send it on, so it loads nothing
and contains no rows of a table. Of images, it contains a few small copies of those that the model
gets wrong, because a number cannot show why. The layout is report.html.j2. Called by evaluate's
engine.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from kfp_tfjob.common.escaping import short
from kfp_tfjob.judging.formatting import (
    chance,
    checked_number,
    difference,
    leaked_rows_note,
    number,
    rough,
)
from kfp_tfjob.judging.gain_bound import compare, compare_with_baseline
from kfp_tfjob.judging.metric_uncertainty import Measured
from kfp_tfjob.judging.metrics import Measures
from kfp_tfjob.judging.predictions import ClassPredictions
from kfp_tfjob.options.gate import GateOptions, Threshold, parse_gate
from kfp_tfjob.options.metric_names import ONLY_THRESHOLDS, PER_CLASS, is_own, meaning
from kfp_tfjob.options.parse import whole_numbers
from kfp_tfjob.pages.template import render as fill
from kfp_tfjob.registry.verdict_record import Check, ModelVerdict

from .plots import BASELINE, Plot, confusions, curves
from .verdict_plots import MetricRow, gain_plot, gain_style, slice_bars, value_plot
from .wrong_images import WrongImages

_MOST_SLICES = 100  # rows of the table; verdict.json contains all slices
# Test rows with which every gain has bounds: the bounds of all metrics take as long as the metrics.
_MOST_BOUNDED_ROWS = 100_000
_LONGEST = 60  # characters of a class's or a metric's name
_WITHOUT_DIRECTION = ("mean_error",)  # neither a greater nor a smaller one is better
_COMPARISONS = ("champion", "baseline", "slices")
_UNKNOWN = Measured(math.nan, math.nan, math.nan)
_MODES = {
    "superior": "the lower bound of the gain must be above 0",
    "non_inferior": "the lower bound of the gain must not be below minus the margin",
    "point": "the gain itself must be above 0",
}
# Explanations that are no clauses with a subject.
_SAME_MODEL = ("same_model", "taken_back")
_FACTS = {  # fields of the verdict, with their names in the report
    "run_id": "run",
    "model_uri": "model",
    "model_digest": "SHA-256 of its run's manifest",
    "exported_weights_sha256": "SHA-256 of its weights",
    "dataset_uri": "dataset",
    "dataset_digest": "digest of the dataset",
    "schema_digest": "digest of its schema",
    "evaluator_digest": "digest of the code of gate.evaluator",
}


class _ClassRow(NamedTuple):
    """A row in the table of classes; `champion` is its F1, NaN if there is none to compare."""

    name: str
    rows: int
    measured: list[Measured]
    champion: float


def render(
    verdict: ModelVerdict,
    classes: Sequence[str],
    scored: Mapping[str, Measures],
    suspicious: str = "",
    wrong: WrongImages | None = None,
) -> str:
    """Return the report as HTML without external references.

    Args:
        verdict: The content of verdict.json.
        classes: The names of the classes; empty for a regression.
        scored: `model`, `baseline`, and the champion by its name if it was compared.
        suspicious: prepare_data's warning about columns that reveal the label; usually empty.
        wrong: The test images that the model gets wrong; None for a table.
    """
    options = parse_gate(verdict.gate) or GateOptions()
    # The name of the champion if it was compared.
    against = next((name for name in scored if name not in ("model", BASELINE)), BASELINE)
    metrics = list(_metric_rows(scored, against, verdict.primary_metric, options.confidence))
    confidence = f"{options.confidence * 100:g}%"
    champion = verdict.champion
    same_weights = champion is not None and (
        champion.exported_weights_sha256 == verdict.exported_weights_sha256
    )
    return fill(
        "components/evaluate/report.html.j2",
        title=f"Evaluation of {verdict.model_name}",
        verdict=verdict,
        outcome=_outcome(verdict),
        mode_meaning=_MODES.get(verdict.mode, ""),
        verdict_plots=_verdict_plots(verdict, metrics, against, confidence),
        wrong=wrong or WrongImages(),
        longest=_LONGEST,
        leaked_rows_note=leaked_rows_note(verdict.also_in_train, verdict.rows),
        suspicious=suspicious,
        direction={"minimize": "lower", "maximize": "higher"}.get(options.direction or "", ""),
        confidence=confidence,
        interval_confidence=f"{verdict.confidence * 100:g}%",
        level=round(1 - options.confidence, 9),
        against=against,
        metrics=metrics,
        gain_style=gain_style,
        slice_bars=slice_bars(verdict.slices[:_MOST_SLICES]),
        guess=against == BASELINE and bool(classes),
        groups=scored["model"].predictions.group_count,
        baseline={} if against == BASELINE else scored[BASELINE].measured,
        same_weights=same_weights,
        confusions=confusions(classes, scored["model"]),
        curves=curves(classes, scored),
        classes=_class_rows(classes, scored, against),
        kinds=PER_CLASS,
        meaning=meaning,
        facts=_facts(verdict),
        margin=options.margin,
        gate=json.dumps(
            whole_numbers(verdict.gate), indent=1, ensure_ascii=False, sort_keys=True
        ).splitlines(),
        check_value=lambda check: _check_value(check, verdict.metrics),
        number=number,
        difference=difference,
        rough=rough,
        chance=chance,
        interval=_interval,
        finite=math.isfinite,
        threshold=_threshold,
        most_slices=_MOST_SLICES,
        most_bounded_rows=_MOST_BOUNDED_ROWS,
    )


def _outcome(verdict: ModelVerdict) -> str:
    """Return the verdict as a sentence with its reason; several reasons are listed below it."""
    state = "blessed" if verdict.blessed else "not blessed"
    if len(verdict.reasons) != 1:
        return f"The model is {state} for {len(verdict.reasons)} reasons:"
    (reason,) = verdict.reasons
    failed = {check.explanation: check.name for check in verdict.checks}
    subject = "it is the " if failed.get(reason) in _SAME_MODEL else ""
    return f"The model is {state} because {subject}{short(reason, 1000)}."


def _verdict_plots(
    verdict: ModelVerdict, metrics: Sequence[MetricRow], against: str, bound: str
) -> list[Plot]:
    """Return the plots of the compared values and of the gains, as far as there are numbers."""
    primary = next((metric for metric in metrics if metric.name == verdict.primary_metric), None)
    plots = [
        value_plot(verdict, primary, against, bound) if primary else None,
        gain_plot(verdict, metrics, against),
    ]
    return [plot for plot in plots if plot]


def _metric_rows(
    scored: Mapping[str, Measures], against: str, primary: str, confidence: float
) -> Iterator[MetricRow]:
    """Yield the model's metrics next to those it is compared with, the primary metric first."""
    model, compared = scored["model"], scored[against]
    rows = model.predictions.rows
    for name in sorted(model.measured, key=lambda name: name != primary):
        challenger, reference = model.measured[name], compared.measured.get(name, _UNKNOWN)
        estimate = model.estimate(name)
        # A constant prediction never names a rare class, so its precision, recall and F1 would be
        # too easy to beat. A guess that names each class as often as the model replaces it.
        if against == BASELINE and estimate.against_guess:
            reference = Measured(estimate.of_constant, math.nan, math.nan)
        gain = estimate.sign * (challenger.value - reference.value)
        # Of the user's own metrics, only the primary one has a direction.
        if name in _WITHOUT_DIRECTION or (is_own(name) and name != primary):
            gain = math.nan
        low = high = math.nan
        is_bounded = name not in ONLY_THRESHOLDS and estimate.influence is not None
        if rows > _MOST_BOUNDED_ROWS and name != primary:
            is_bounded = False
        if math.isfinite(gain) and is_bounded:
            # The same function as the gate's, so that a check and this row cannot differ.
            of_pair = compare_with_baseline if against == BASELINE else compare
            comparison = of_pair(model, compared, name, confidence)
            low, high = comparison.low, comparison.high
        yield MetricRow(
            name,
            short(model.label(name), _LONGEST),
            meaning(name),
            challenger,
            reference,
            difference(gain, reference.value),
            (gain, low, high),
        )


def _class_rows(
    classes: Sequence[str], scored: Mapping[str, Measures], against: str
) -> list[_ClassRow]:
    """Return each class's rows, precision, recall and F1; empty beyond 30 classes."""
    model = scored["model"]
    if not model.class_metrics or not isinstance(model.predictions, ClassPredictions):
        return []
    cells = model.cells
    support = cells.by_label(cells.counts.astype(float)).astype(int).tolist()
    champion_metrics = {} if against == BASELINE else scored[against].class_metrics
    class_rows = []
    for name, rows in zip(classes, support, strict=True):
        measured = [model.class_metrics[f"{kind}/{name}"] for kind in PER_CLASS]
        champion_f1 = champion_metrics.get(f"f1/{name}", _UNKNOWN).value
        class_rows.append(_ClassRow(short(name, _LONGEST), rows, measured, champion_f1))
    return class_rows


def _facts(verdict: ModelVerdict) -> list[tuple[str, str]]:
    """Return (name, address or digest) of the model, the dataset and the champion, if known."""
    fields = ((label, getattr(verdict, field)) for field, label in _FACTS.items())
    facts = [(label, str(content)) for label, content in fields if content]
    if champion := verdict.champion:
        facts.append(("champion", f"version {champion.version} of run {champion.run_id}"))
        facts.append(("SHA-256 of its weights", str(champion.exported_weights_sha256)))
    return facts


def _interval(low: float | None, high: float | None) -> str:
    is_known = low is not None and math.isfinite(low)
    return f"{number(low)} to {number(high)}" if is_known else "–"


def _check_value(check: Check, metrics: Mapping[str, float | None]) -> str:
    """Format a check's number: a gain for a comparison, otherwise the metric."""
    if check.name in _COMPARISONS:
        return difference(check.value, metrics.get(check.metric))
    if isinstance(check.threshold, Mapping):
        return checked_number(check.value, Threshold.model_validate(check.threshold).passes)
    return number(check.value)


def _threshold(threshold: float | str | Mapping[str, float] | None) -> str:
    """Format a check's threshold: a number, a word, or `min` and `max` of a metric."""
    if isinstance(threshold, Mapping):
        return ", ".join(f"{name} {limit:.12g}" for name, limit in threshold.items())
    if threshold is None:
        return ""
    return threshold if isinstance(threshold, str) else f"{threshold:.12g}"
