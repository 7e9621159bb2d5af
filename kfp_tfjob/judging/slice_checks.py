"""Evaluates a model slice by slice: against its thresholds, and against the champion.

A slice fails against the champion only if chance does not explain the loss. Many slices have many
chances to look bad, so their p-values are corrected by Holm's method (1979): if the model is as
good as the champion in every slice, one fails with a probability of at most 1 - confidence.

Called by gate.py after all rows are scored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kfp_tfjob.common.formatting import counted, listed
from kfp_tfjob.options.gate import GateOptions, Slice, Threshold
from kfp_tfjob.registry.verdict_record import Check, VerdictSlice

from .formatting import chance, checked_number, number
from .gain_bound import LEAST_ROWS, Comparison, compare
from .metrics import Measures
from .slices import Part, Slices

_MOST_NAMED = 4  # slices in a sentence; the report's table lists all of them


@dataclass(frozen=True)
class SliceResult(VerdictSlice):
    """A slice's metrics and state; unknown numbers are NaN.

    Attributes:
        value: The primary metric of the model.
        champion: The primary metric of the champion.
        gain: How much better the model is.
        chance: The p-value of the loss after Holm's correction.
        sign: 1 if a higher value of the primary metric is better, else -1.
    """

    value: float = math.nan
    interval: tuple[float, float] = (math.nan, math.nan)
    champion: float = math.nan
    gain: float = math.nan
    chance: float = math.nan
    thresholds: dict[str, float] = field(default_factory=dict)
    sign: int = 1


def judge_slices(
    options: GateOptions,
    metric: str,
    slices: Slices,
    model: Measures,
    champion: Measures | None,
    against: str,
) -> tuple[list[Check], list[SliceResult]]:
    """Evaluate every slice.

    Args:
        options: The gate.
        metric: The primary metric.
        slices: The slices, with the rows of the test split.
        model: The challenger.
        champion: The champion; None if there is none to compare.
        against: The champion's name.

    Returns:
        The checks, and every slice's result.
    """
    results: list[tuple[Slice, SliceResult]] = []
    compared: dict[int, tuple[float, Comparison]] = {}
    for part in slices.parts(model.predictions, champion and champion.predictions):
        result, comparison = _evaluate_slice(part, options, metric, model.classes)
        if comparison is not None and comparison.has_bound:
            compared[len(results)] = (comparison.chance_of_loss(options.margin), comparison)
        results.append((part.source, result))
    chances = holm([uncorrected for uncorrected, _ in compared.values()])
    level = round(1 - options.confidence, 9)
    for index, corrected in zip(compared, chances, strict=True):
        source, result = results[index]
        state = "fail" if corrected < level else result.state
        results[index] = source, replace(result, chance=corrected, state=state)
    checks: list[Check] = []
    incomparable: list[Check] = []
    for declared in options.slices:
        slice_results = [result for source, result in results if source == declared]
        checks += [
            _threshold_check(name, threshold, declared, slice_results)
            for name, threshold in declared.thresholds.items()
        ]
        incomparable += (
            _incomparable_checks(declared, slice_results, metric) if champion is not None else []
        )
    checks += incomparable
    slice_results = [result for _, result in results]
    if champion is not None and slice_results:
        if compared or not incomparable:
            checks.append(_champion_check(slice_results, metric, against, level, options.margin))
    elif slice_results and not any(declared.thresholds for declared in options.slices):
        text = "the slices are only shown, because there is no champion to compare them with"
        checks.append(Check("slices", True, text, metric))
    return checks, slice_results


def worst_first(results: Sequence[SliceResult]) -> list[SliceResult]:
    """Sort slices by state, then by gain over the champion, or by value without a champion."""

    def rank(slice_result: SliceResult) -> tuple[int, float]:
        merit = (
            slice_result.gain
            if math.isfinite(slice_result.gain)
            else slice_result.sign * slice_result.value
        )
        state_rank = ("fail", "pass", "insufficient").index(slice_result.state)
        return state_rank, merit if math.isfinite(merit) else math.inf

    return sorted(results, key=rank)


def holm(chances: Sequence[float]) -> list[float]:
    """Return the p-values of several tests after Holm's correction, in the same order."""
    order = sorted(range(len(chances)), key=lambda index: chances[index])
    corrected, floor = [0.0] * len(chances), 0.0
    for step, index in enumerate(order):
        floor = max(floor, min(1.0, (len(chances) - step) * chances[index]))
        corrected[index] = floor
    return corrected


def _evaluate_slice(
    part: Part, options: GateOptions, metric: str, classes: list[str] | None
) -> tuple[SliceResult, Comparison | None]:
    state = "insufficient"
    result = SliceResult(part.name, part.source.column, part.rows, state, metric)
    if part.model is None:
        return result, None
    model = Measures(part.model, classes)
    limits = part.source.thresholds
    thresholds = {name: model.estimate(name).value for name in limits}
    estimate = model.estimate(metric)
    if any(
        math.isfinite(metric_value) and not limits[name].passes(metric_value)
        for name, metric_value in thresholds.items()
    ):
        state = "fail"
    elif math.isfinite(estimate.value) and estimate.effective_sample_size >= LEAST_ROWS:
        state = "pass"
    result = replace(
        result,
        state=state,
        value=estimate.value,
        interval=estimate.interval(options.interval_confidence),
        thresholds=thresholds,
        sign=estimate.sign,
    )
    if part.champion is None:
        return result, None
    champion = Measures(part.champion, classes)
    comparison = compare(model, champion, metric, options.confidence)
    return replace(result, champion=comparison.reference, gain=comparison.gain), comparison


def _incomparable_checks(source: Slice, results: list[SliceResult], metric: str) -> list[Check]:
    """Return one failed check if the metric is undefined in all of a column's slices."""
    # The AUC is undefined for one class, as is the recall of a class without rows.
    undefined = [
        slice_result
        for slice_result in results
        if slice_result.rows >= source.min_rows and math.isnan(slice_result.value)
    ]
    any_compared = any(math.isfinite(slice_result.chance) for slice_result in results)
    if source.thresholds or any_compared or not undefined:
        return []
    text = (
        f"slices of {source.column} cannot be compared: {metric} has no value in"
        f" {_name_slices(undefined)}; compare by a metric that they have, give them thresholds,"
        " or remove them"
    )
    return [Check("slices", False, text, metric, threshold=source.column)]


def _threshold_check(
    metric: str, threshold: Threshold, source: Slice, results: list[SliceResult]
) -> Check:
    """Check a threshold in all of a column's slices."""
    limits = threshold.model_dump(exclude_none=True)
    # By pairs and not by name, because a name is shortened, so two slices may share one.
    evaluated: list[tuple[SliceResult, float]] = []
    unknown: list[SliceResult] = []
    for slice_result in results:
        value = slice_result.thresholds.get(metric, math.nan)
        if math.isfinite(value):
            evaluated.append((slice_result, value))
        else:
            unknown.append(slice_result)
    omitted = _omitted_suffix(unknown, metric, "not judged")
    column = source.column
    if not evaluated:
        text = (
            f"{metric} could not be evaluated in any slice of"
            f" {column}{omitted or ': there is none'}"
        )
        return Check("slice_threshold", False, text, metric, threshold=limits)
    worst, worst_value = min(evaluated, key=lambda pair: threshold.slack(pair[1]))
    failed = [
        f"{slice_result.name} ({checked_number(value, threshold.passes)})"
        for slice_result, value in evaluated
        if not threshold.passes(value)
    ]
    if failed:
        text = f"{metric} is not {threshold} in {listed(failed, _MOST_NAMED)}"
    else:
        text = (
            f"{metric} is {threshold} in {counted(len(evaluated), 'slice')} of {column}, the worst"
            f" is {worst.name} with {checked_number(worst_value, threshold.passes)}"
        )
    return Check(
        "slice_threshold", not failed, text + omitted, metric, worst_value, threshold=limits
    )


def _champion_check(
    results: list[SliceResult], metric: str, against: str, level: float, accepted: float
) -> Check:
    """Check that no slice is worse than the champion, so that no p-value is below the level."""
    margin = f" by more than {accepted:.12g}" if accepted else ""
    compared = [slice_result for slice_result in results if math.isfinite(slice_result.chance)]
    omitted = _omitted_suffix(
        [slice_result for slice_result in results if not math.isfinite(slice_result.chance)],
        metric,
        "not compared",
    )
    if not compared:
        return Check("slices", True, f"no slice could be compared{omitted}", metric)
    worst = min(compared, key=lambda slice_result: slice_result.gain)
    failed = sorted(
        (slice_result for slice_result in compared if slice_result.chance < level),
        key=lambda slice_result: slice_result.chance,
    )
    if failed:
        named = [
            f"{slice_result.name} ({number(slice_result.value)}, not"
            f" {number(slice_result.champion)}; p {chance(slice_result.chance)})"
            for slice_result in failed
        ]
        text = f"{metric} is worse than that of {against}{margin} in {listed(named, _MOST_NAMED)}"
    else:
        slice_count = counted(len(compared), "slice")
        text = (
            f"{metric} is not worse than that of {against}{margin}, beyond chance, in any of"
            f" {slice_count}"
        )
    return Check("slices", not failed, text + omitted, metric, worst.gain, threshold=level)


def _omitted_suffix(results: list[SliceResult], metric: str, heading: str) -> str:
    """Return the omitted slices as the end of a sentence; empty if there are none."""
    return (
        f"; {heading}, with too few rows or no {metric}: {_name_slices(results)}" if results else ""
    )


def _name_slices(results: list[SliceResult]) -> str:
    return listed(
        [f"{slice_result.name} ({counted(slice_result.rows, 'row')})" for slice_result in results],
        _MOST_NAMED,
    )
