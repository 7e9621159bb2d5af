"""Decides whether a model is blessed: a pure function from measurements to a verdict.

It fails closed: a value that is missing, not a number or not comparable never passes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np

from kfp_tfjob.judging.compare import LEAST_ROWS, Comparison, compare, compare_with_baseline
from kfp_tfjob.judging.formatting import lower, number, rough
from kfp_tfjob.judging.metrics import Measures
from kfp_tfjob.judging.predictions import (
    MOST_SCORED_CLASSES,
    ClassPredictions,
    Predictions,
)
from kfp_tfjob.judging.slice_checks import SliceResult, judge_slices
from kfp_tfjob.judging.slices import Slices
from kfp_tfjob.options.gate import GateOptions, Threshold
from kfp_tfjob.options.metric_names import is_own, range_of
from kfp_tfjob.storage.formatting import counted
from kfp_tfjob.storage.verdict_record import Check


@dataclass(frozen=True)
class Rival:
    """The champion as the gate sees it.

    Attributes:
        name: Its name in messages, for example `champion 3`.
        same: Whether it is the challenger, by its weights and its outputs.
        obstacle: Why it cannot be compared, as the end of a sentence; empty when it can.
        measures: Its metrics on the test rows; None when it cannot be compared.
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
        comparison: With the champion or the baseline; None when there was none.
        slices: What was found in each slice.
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
    champion: Rival | None,
    slices: Slices | None = None,
    more: Sequence[Check] = (),
) -> GateDecision:
    """Judge a challenger.

    Args:
        options: The gate; None for an empty one.
        model: The challenger.
        baseline: The trivial model, on the same rows.
        champion: The champion, if there is one.
        slices: The slices of the test rows.
        more: Checks of the test rows and of the history of the model.
    """
    metric = _primary_metric(options, model.predictions)
    if options is None:
        reason = "the gate is empty, and an empty gate blesses nothing"
        return GateDecision(False, (reason,), metric, "", (Check("gate", False, reason),))
    checks = [_finite(metric, model), *more]
    if checks[0].passed and model.predictions.constant:
        text = f"the model predicts the same for all {model.predictions.rows:,} test rows"
        checks.append(Check("constant", False, text))
    checks += [
        _threshold(name, threshold, options, model)
        for name, threshold in options.thresholds.items()
    ]
    found: list[SliceResult] = []
    if slices is not None and checks[0].passed:
        theirs, named = (champion.measures, champion.name) if champion else (None, "")
        more, found = judge_slices(options, metric, slices, model, theirs, named)
        checks += more
    comparison = None
    first = champion is None
    if champion and champion.same:
        checks.append(Check("same_model", False, f"same model as {champion.name}"))
    elif not checks[0].passed:
        first = False  # nothing to compare
    elif champion and champion.measures is None:
        first = options.incompatible_champion == "treat_as_first"
        checks.append(_incompatible(champion, first))
    elif champion and champion.measures:
        comparison = compare(model, champion.measures, metric, options.confidence)
        checks.append(_champion(model.label(metric), comparison, champion.name, options))
    if first and options.first_model == "beat_baseline":
        comparison = compare_with_baseline(model, baseline, metric, options.confidence)
        against = "a guess" if comparison.with_guess else "the baseline"
        checks.append(_superior("baseline", model.label(metric), comparison, against))
    elif first:
        checks.append(Check("first_model", True, "the first model is accepted without comparison"))
    failed = tuple(check.explanation for check in checks if not check.passed)
    # The last check is the comparison, or the check that replaces it.
    reasons = failed or (checks[-1].explanation,)
    blessed = not failed
    return GateDecision(
        blessed, reasons, metric, options.mode, tuple(checks), comparison, tuple(found)
    )


def _primary_metric(options: GateOptions | None, predictions: Predictions) -> str:
    if options and options.primary_metric != "auto":
        return options.primary_metric
    if not isinstance(predictions, ClassPredictions):
        return "rmse"
    return "auc" if predictions.classes == 2 else "accuracy"


def _finite(metric: str, model: Measures) -> Check:
    value = model.estimate(metric).value
    known = math.isfinite(value)
    words = f"is {number(value)}" if known else _why_unknown(metric, model)
    explanation = f"{model.label(metric)} {words}"
    return Check("primary_metric", known, explanation, metric, value)


def _why_unknown(metric: str, model: Measures) -> str:
    """Return why a metric has no value."""
    predictions = model.predictions
    wrong, first = predictions.not_finite
    if wrong:
        where = f"in {wrong} of {counted(predictions.rows, 'test row')}, first in row {first}"
        return f"has no value: the model predicts numbers that are not finite, {where}"
    few = "has no value on these test rows: not enough test data"
    if is_own(metric):
        return few  # all rows have the weight 0
    name = metric.partition("/")[2]
    if name in (model.classes or []):
        return f"has no value: there are no test rows of class {name}"
    if isinstance(predictions, ClassPredictions):
        if predictions.scores.shape[1] == 0:
            return f"has no value for more than {MOST_SCORED_CLASSES} classes: use accuracy"
        present = np.flatnonzero(model.cells.by_label(model.cells.weight))
        if len(present) == 1:
            only = model.classes[present[0]] if model.classes else f"number {present[0]}"
            return f"{few}: all of them are of class {only}"
    return few


def _threshold(name: str, threshold: Threshold, options: GateOptions, model: Measures) -> Check:
    limits = threshold.model_dump(exclude_none=True)
    found = model.estimate(name)
    if not math.isfinite(found.value):
        why = _why_unknown(name, model)
        if is_own(name) and name not in model.predictions.own and model.predictions.finite:
            others = ", ".join(filter(is_own, model.names)) or "none"
            why = f"has no value: gate.evaluator returned no such number (its metrics: {others})"
        return Check("threshold", False, f"{name} {why}", name, threshold=limits)
    passed = threshold.passes(found.value)
    text = f"{model.label(name)} {number(found.value)} is {'' if passed else 'not '}{threshold}"
    interval = found.interval(options.interval_confidence)
    return Check("threshold", passed, text, name, found.value, interval, limits)


def _incompatible(champion: Rival, first: bool) -> Check:
    text = f"{champion.name} cannot be compared: {champion.obstacle}"
    if first:
        return Check("champion", True, f"{text}; the model is treated as the first one")
    fix = 'set "incompatible_champion": "treat_as_first" in gate to replace it anyway'
    return Check("champion", False, f"{text}; {fix}")


def _champion(label: str, found: Comparison, against: str, options: GateOptions) -> Check:
    if options.mode == "superior":
        return _superior("champion", label, found, against)
    if options.mode == "point":
        passed = found.gain > 0
        text = f"{_values(label, found, against, passed)} (by its value alone)"
        return _check("champion", found, passed, text, 0.0)
    if options.mode != "non_inferior":
        assert_never(options.mode)
    passed = found.low >= -options.margin
    words = "is not worse than" if passed else "may be worse than"
    text = (
        f"{label} {number(found.challenger)} {words} {against} {number(found.other)}"
        f" by more than {options.margin:g} ({_bound(found)})"
    )
    return _check("champion", found, passed, text, -options.margin)


def _superior(name: str, label: str, found: Comparison, against: str) -> Check:
    passed = found.low > 0
    text = f"{_values(label, found, against, passed)} ({_bound(found)})"
    if not passed and found.gain > 0 and found.known:
        text += (
            f": not enough test data to tell; a true gain of {rough(found.detectable)} would be"
            " detected 8 times in 10"
        )
    return _check(name, found, passed, text, 0.0)


def _values(label: str, found: Comparison, against: str, better: bool) -> str:
    words = "beats" if better else "does not beat"
    return f"{label} {number(found.challenger)} {words} {against} {number(found.other)}"


def _bound(found: Comparison) -> str:
    if found.known:
        return f"{found.confidence * 100:g}% bound {lower(found.low)}"
    if math.isfinite(found.gain):
        return f"not enough test data: {found.support} usable rows, at least {LEAST_ROWS} needed"
    return "there is no value to compare"


def _check(name: str, found: Comparison, passed: bool, text: str, threshold: float) -> Check:
    interval = (found.low, found.high)
    if found.decisive and math.inf in map(abs, range_of(found.metric)):
        text += (
            f"; {counted(found.decisive, 'row')} decide, so the bound does not hold if the model"
            " rarely makes errors that are larger than those of these rows"
        )
    return Check(name, passed, text, found.metric, found.gain, interval, threshold)
