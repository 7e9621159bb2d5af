"""Decides whether a model is blessed: a pure function from metrics to a decision.

The gate fails closed: a metric that is missing, not finite or not comparable never passes. judge.py
calls `decide` once for each evaluation. Unless the primary metric is undefined, the other checks
run even after one has failed, so that the verdict lists every reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np

from kfp_tfjob.common.formatting import counted
from kfp_tfjob.options.gate import GateOptions, Threshold
from kfp_tfjob.options.metric_names import is_own, range_of
from kfp_tfjob.registry.verdict_record import Check

from .formatting import checked_number, lower, number, rough
from .gain_bound import LEAST_ROWS, Comparison, compare, compare_with_baseline
from .metrics import Measures
from .predictions import MOST_SCORED_CLASSES, ClassPredictions, Predictions
from .slice_checks import SliceResult, judge_slices
from .slices import Slices


@dataclass(frozen=True)
class ChampionResult:
    """The champion's metrics, or the reason why it cannot be compared.

    Attributes:
        name: The champion's name in messages, for example `champion 3`.
        same: Whether the champion is the challenger, by its weights and its outputs.
        obstacle: Why the champion cannot be compared, as the end of a sentence; empty if it can.
        measures: The champion's metrics on the test rows; None if it cannot be compared.
    """

    name: str
    same: bool = False
    obstacle: str = ""
    measures: Measures | None = None


@dataclass(frozen=True)
class GateDecision:
    """The decision of the gate.

    Attributes:
        blessed: Whether the challenger becomes the champion.
        reasons: Every check that failed, or the check that made the model pass.
        primary_metric: The metric used to compare the models.
        mode: The mode of the gate; empty for an empty gate.
        checks: Every check.
        comparison: The comparison with the champion or the baseline; None without a comparison.
        slices: Every slice's result.
    """

    blessed: bool
    reasons: tuple[str, ...]
    primary_metric: str
    mode: str
    checks: tuple[Check, ...]
    comparison: Comparison | None = None
    slices: tuple[SliceResult, ...] = ()

    @property
    def line(self) -> str:
        """The verdict on one line."""
        return f"{'blessed' if self.blessed else 'not blessed'}: {'; '.join(self.reasons)}"


def decide(
    options: GateOptions | None,
    model: Measures,
    baseline: Measures,
    champion: ChampionResult | None,
    slices: Slices | None = None,
    extra_checks: Sequence[Check] = (),
) -> GateDecision:
    """Decide whether a challenger becomes the champion.

    Args:
        options: The gate; None for an empty one.
        model: The challenger.
        baseline: The trivial model, on the same rows.
        champion: The champion's result; None without a champion.
        slices: The slices of the test rows.
        extra_checks: Checks of the test rows and of the model's history.
    """
    metric = _primary_metric(options, model.predictions)
    if options is None:
        reason = "the gate is empty, and an empty gate blesses nothing"
        return GateDecision(False, (reason,), metric, "", (Check("gate", False, reason),))
    checks = [_primary_metric_check(metric, model), *extra_checks]
    if checks[0].passed and model.predictions.constant:
        text = f"the model predicts the same for all {model.predictions.rows:,} test rows"
        checks.append(Check("constant", False, text))
    checks += [
        _threshold_check(name, threshold, options, model)
        for name, threshold in options.thresholds.items()
    ]
    slice_results: list[SliceResult] = []
    if slices is not None and checks[0].passed:
        champion_measures, champion_name = (
            (champion.measures, champion.name) if champion else (None, "")
        )
        slice_checks, slice_results = judge_slices(
            options, metric, slices, model, champion_measures, champion_name
        )
        checks += slice_checks
    comparison = None
    first = champion is None
    if champion and champion.same:
        checks.append(Check("same_model", False, f"same model as {champion.name}"))
    elif not checks[0].passed:
        first = False  # nothing to compare
    elif champion and champion.measures is None:
        first = options.incompatible_champion == "treat_as_first"
        checks.append(_incompatible_check(champion, first))
    elif champion and champion.measures:
        comparison = compare(model, champion.measures, metric, options.confidence)
        checks.append(_champion_check(model.label(metric), comparison, champion.name, options))
    if first and options.first_model == "beat_baseline":
        comparison = compare_with_baseline(model, baseline, metric, options.confidence)
        against = "a guess" if comparison.with_guess else "the baseline"
        only_label = _describe_only_label(model)
        checks.append(
            _superiority_check("baseline", model.label(metric), comparison, against, only_label)
        )
    elif first:
        checks.append(Check("first_model", True, "the first model is accepted without comparison"))
    failed = tuple(check.explanation for check in checks if not check.passed)
    # The last check is the comparison, or the check that replaces it.
    reasons = failed or (checks[-1].explanation,)
    blessed = not failed
    return GateDecision(
        blessed, reasons, metric, options.mode, tuple(checks), comparison, tuple(slice_results)
    )


def _primary_metric(options: GateOptions | None, predictions: Predictions) -> str:
    if options and options.primary_metric != "auto":
        return options.primary_metric
    if not isinstance(predictions, ClassPredictions):
        return "rmse"
    return "auc" if predictions.classes == 2 else "accuracy"


def _primary_metric_check(metric: str, model: Measures) -> Check:
    value = model.estimate(metric).value
    has_value = math.isfinite(value)
    words = f"is {number(value)}" if has_value else _explain_unknown(metric, model)
    explanation = f"{model.label(metric)} {words}"
    return Check("primary_metric", has_value, explanation, metric, value)


def _explain_unknown(metric: str, model: Measures) -> str:
    """Return the reason why a metric is undefined, as the end of a sentence."""
    predictions = model.predictions
    wrong, first = predictions.not_finite
    if wrong:
        where = f"in {wrong} of {counted(predictions.rows, 'test row')}, first in row {first}"
        return f"has no value: the model predicts numbers that are not finite, {where}"
    few = "has no value on these test rows: not enough test data"
    if is_own(metric):
        if metric in model.numbers:
            return "has no value: gate.evaluator returned a number that is not finite"
        return few  # all rows have the weight 0
    name = metric.partition("/")[2]
    if name in (model.classes or []):
        return f"has no value: there are no test rows of class {name}"
    if isinstance(predictions, ClassPredictions) and predictions.scores.shape[1] == 0:
        return f"has no value for more than {MOST_SCORED_CLASSES} classes: use accuracy"
    only = _describe_only_label(model)
    return f"{few}: all of them {only}" if only else few


def _describe_only_label(model: Measures) -> str:
    """Return the label that all test rows share, as the end of a sentence; empty if they differ."""
    predictions = model.predictions
    if isinstance(predictions, ClassPredictions):
        present = np.flatnonzero(model.cells.by_label(model.cells.weight))
        if len(present) != 1:
            return ""
        only = model.classes[present[0]] if model.classes else f"number {present[0]}"
        return f"are of class {only}"
    label = predictions.only_label
    return "" if math.isnan(label) else f"have the label {label:.7g}"


def _threshold_check(
    name: str, threshold: Threshold, options: GateOptions, model: Measures
) -> Check:
    limits = threshold.model_dump(exclude_none=True)
    estimate = model.estimate(name)
    if not math.isfinite(estimate.value):
        reason = _explain_unknown(name, model)
        if is_own(name) and name not in model.names and model.predictions.finite:
            available = ", ".join(filter(is_own, model.names)) or "none"
            reason = (
                f"has no value: gate.evaluator returned no such number (its metrics: {available})"
            )
        return Check("threshold", False, f"{name} {reason}", name, threshold=limits)
    passed = threshold.passes(estimate.value)
    shown = checked_number(estimate.value, threshold.passes)
    text = f"{model.label(name)} {shown} is {'' if passed else 'not '}{threshold}"
    interval = estimate.interval(options.interval_confidence)
    return Check("threshold", passed, text, name, estimate.value, interval, limits)


def _incompatible_check(champion: ChampionResult, first: bool) -> Check:
    text = f"{champion.name} cannot be compared: {champion.obstacle}"
    if first:
        return Check("champion", True, f"{text}; the model is treated as the first one")
    fix = 'set "incompatible_champion": "treat_as_first" in gate to replace it anyway'
    return Check("champion", False, f"{text}; {fix}")


def _champion_check(
    label: str, comparison: Comparison, against: str, options: GateOptions
) -> Check:
    if options.mode == "superior":
        return _superiority_check("champion", label, comparison, against)
    if options.mode == "point":
        passed = comparison.gain > 0
        text = f"{_describe_values(label, comparison, against, passed)} (by its value alone)"
        return _comparison_check("champion", comparison, passed, text, 0.0)
    if options.mode != "non_inferior":
        assert_never(options.mode)
    passed = comparison.low >= -options.margin
    words = "is not worse than" if passed else "may be worse than"
    text = (
        f"{label} {number(comparison.challenger)} {words} {against} {number(comparison.reference)}"
        f" by more than {options.margin:.12g} ({_describe_bound(comparison)})"
    )
    return _comparison_check("champion", comparison, passed, text, -options.margin)


def _superiority_check(
    name: str, label: str, comparison: Comparison, against: str, only_label: str = ""
) -> Check:
    passed = comparison.low > 0
    text = f"{_describe_values(label, comparison, against, passed)} ({_describe_bound(comparison)})"
    if not passed and comparison.gain > 0 and comparison.has_bound:
        text += ": not enough test data to tell" + (
            f", because all test rows {only_label}"
            if only_label
            else f"; a true gain of {rough(comparison.detectable)} would be detected 8 times in 10"
        )
    return _comparison_check(name, comparison, passed, text, 0.0)


def _describe_values(label: str, comparison: Comparison, against: str, better: bool) -> str:
    words = "beats" if better else "does not beat"
    return (
        f"{label} {number(comparison.challenger)} {words} {against} {number(comparison.reference)}"
    )


def _describe_bound(comparison: Comparison) -> str:
    if comparison.has_bound:
        return f"{comparison.confidence * 100:g}% bound {lower(comparison.low)}"
    if math.isfinite(comparison.gain):
        usable = comparison.effective_sample_size
        usable_units = counted(usable, f"usable {comparison.unit}")
        return f"not enough test data: {usable_units}, at least {LEAST_ROWS} needed"
    return "there is no value to compare"


def _comparison_check(
    name: str, comparison: Comparison, passed: bool, text: str, threshold: float
) -> Check:
    interval = (comparison.low, comparison.high)
    if comparison.decisive and math.inf in map(abs, range_of(comparison.metric)):
        text += (
            f"; {counted(comparison.decisive, comparison.unit)} decide, so the bound does not hold"
            f" if the model rarely makes errors that are larger than those of these"
            f" {comparison.unit}s"
        )
    return Check(name, passed, text, comparison.metric, comparison.gain, interval, threshold)
