"""Judges a model slice by slice: against its thresholds, and against the champion.

A slice fails against the champion only if chance does not explain the loss. Many slices have many
chances to look bad, so their p-values are corrected by Holm's method (1979): if the model is as
good as the champion in every slice, one fails with a probability of at most 1 - confidence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kfp_tfjob.judging.compare import LEAST_ROWS, Comparison, compare
from kfp_tfjob.judging.formatting import chance, number
from kfp_tfjob.judging.metrics import Measures
from kfp_tfjob.judging.slices import Part, Slices
from kfp_tfjob.options.gate import GateOptions, Slice, Threshold
from kfp_tfjob.storage.formatting import counted, listed
from kfp_tfjob.storage.verdict_record import Check, VerdictSlice

_MOST_NAMED = 4  # slices in a sentence


@dataclass(frozen=True)
class SliceResult(VerdictSlice):
    """What was found in one slice; numbers that are not known are NaN.

    Attributes:
        value: The primary metric of the model.
        champion: Its value for the champion.
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
    """Judge every slice.

    Args:
        options: The gate.
        metric: The primary metric.
        slices: The slices, with the rows of the test split.
        model: The challenger.
        champion: The champion; None if there is none to compare.
        against: The champion's name.

    Returns:
        The checks, and what was found in each slice.
    """
    results: list[tuple[Slice, SliceResult]] = []
    compared: dict[int, tuple[float, Comparison]] = {}
    for part in slices.parts(model.predictions, champion and champion.predictions):
        result, comparison = _of_part(part, options, metric, model.classes)
        if comparison is not None and comparison.known:
            compared[len(results)] = (comparison.chance_of_loss(options.margin), comparison)
        results.append((part.source, result))
    chances = holm([uncorrected for uncorrected, _ in compared.values()])
    level = round(1 - options.confidence, 9)
    for place, corrected in zip(compared, chances, strict=True):
        source, result = results[place]
        state = "fail" if corrected < level else result.state
        results[place] = source, replace(result, chance=corrected, state=state)
    checks: list[Check] = []
    never: list[Check] = []
    for one in options.slices:
        of_one = [result for source, result in results if source == one]
        checks += [_threshold(name, it, one, of_one) for name, it in one.thresholds.items()]
        never += _never_compared(one, of_one, metric) if champion is not None else []
    checks += never
    everyone = [result for _, result in results]
    if champion is not None and everyone:
        if compared or not never:
            checks.append(_against(everyone, metric, against, level, options.margin))
    elif everyone and not any(one.thresholds for one in options.slices):
        text = "the slices are only shown, because there is no champion to compare them with"
        checks.append(Check("slices", True, text, metric))
    return checks, everyone


def worst_first(results: Sequence[SliceResult]) -> list[SliceResult]:
    """Return slices by state, then by how much worse than the champion or the other slices."""

    def place(it: SliceResult) -> tuple[int, float]:
        value = it.gain if math.isfinite(it.gain) else it.sign * it.value
        known = ("fail", "pass", "insufficient").index(it.state)
        return known, value if math.isfinite(value) else math.inf

    return sorted(results, key=place)


def holm(chances: Sequence[float]) -> list[float]:
    """Return the p-values of several tests after Holm's correction, in the same order."""
    order = sorted(range(len(chances)), key=lambda place: chances[place])
    corrected, least = [0.0] * len(chances), 0.0
    for step, place in enumerate(order):
        least = max(least, min(1.0, (len(chances) - step) * chances[place]))
        corrected[place] = least
    return corrected


def _of_part(
    part: Part, options: GateOptions, metric: str, classes: list[str] | None
) -> tuple[SliceResult, Comparison | None]:
    state = "insufficient"
    result = SliceResult(part.name, part.source.column, part.rows, state, metric)
    if part.model is None:
        return result, None
    model = Measures(part.model, classes)
    limits = part.source.thresholds
    thresholds = {name: model.estimate(name).value for name in limits}
    found = model.estimate(metric)
    if any(math.isfinite(it) and not limits[name].passes(it) for name, it in thresholds.items()):
        state = "fail"
    elif math.isfinite(found.value) and found.support >= LEAST_ROWS:
        state = "pass"
    result = replace(
        result,
        state=state,
        value=found.value,
        interval=found.interval(options.interval_confidence),
        thresholds=thresholds,
        sign=found.sign,
    )
    if part.champion is None:
        return result, None
    champion = Measures(part.champion, classes)
    comparison = compare(model, champion, metric, options.confidence)
    return replace(result, champion=comparison.other, gain=comparison.gain), comparison


def _never_compared(source: Slice, results: list[SliceResult], metric: str) -> list[Check]:
    """Return the failed check of a column none of whose slices can be evaluated; otherwise none."""
    # The AUC of one class has no value, nor the recall of a class without rows.
    undefined = [it for it in results if it.rows >= source.min_rows and math.isnan(it.value)]
    known = any(math.isfinite(it.chance) for it in results)
    if source.thresholds or known or not undefined:
        return []
    text = (
        f"slices of {source.column} cannot be compared: {metric} has no value in"
        f" {_rows(undefined)}; compare by a metric that they have, give them thresholds, or remove"
        " them"
    )
    return [Check("slices", False, text, metric, threshold=source.column)]


def _threshold(
    metric: str, threshold: Threshold, source: Slice, results: list[SliceResult]
) -> Check:
    """Check a threshold in all slices of a column."""
    limits = threshold.model_dump(exclude_none=True)
    judged = {
        it.name: value
        for it in results
        if math.isfinite(value := it.thresholds.get(metric, math.nan))
    }
    left = _left([it for it in results if it.name not in judged], metric, "not judged")
    column = source.column
    if not judged:
        text = (
            f"{metric} could not be evaluated in any slice of {column}{left or ': there is none'}"
        )
        return Check("slice_threshold", False, text, metric, threshold=limits)
    worst = min(judged, key=lambda name: threshold.slack(judged[name]))
    failed = {name: value for name, value in judged.items() if not threshold.passes(value)}
    if failed:
        named = listed([f"{name} ({number(value)})" for name, value in failed.items()], _MOST_NAMED)
        text = f"{metric} is not {threshold} in {named}"
    else:
        text = (
            f"{metric} is {threshold} in {counted(len(judged), 'slice')} of {column}, the worst is"
            f" {worst} with {number(judged[worst])}"
        )
    return Check(
        "slice_threshold", not failed, text + left, metric, judged[worst], threshold=limits
    )


def _against(
    results: list[SliceResult], metric: str, against: str, level: float, accepted: float
) -> Check:
    """Check that no slice is worse than the champion: that no p-value is below the level."""
    margin = f" by more than {accepted:g}" if accepted else ""
    compared = [it for it in results if math.isfinite(it.chance)]
    left = _left([it for it in results if not math.isfinite(it.chance)], metric, "not compared")
    if not compared:
        return Check("slices", True, f"no slice could be compared{left}", metric)
    worst = min(compared, key=lambda it: it.gain)
    failed = sorted((it for it in compared if it.chance < level), key=lambda it: it.chance)
    if failed:
        named = [
            f"{it.name} ({number(it.value)}, not {number(it.champion)}; p {chance(it.chance)})"
            for it in failed
        ]
        text = f"{metric} is worse than that of {against}{margin} in {listed(named, _MOST_NAMED)}"
    else:
        many = counted(len(compared), "slice")
        text = (
            f"{metric} is not worse than that of {against}{margin}, beyond chance, in any of {many}"
        )
    return Check("slices", not failed, text + left, metric, worst.gain, threshold=level)


def _left(results: list[SliceResult], metric: str, what: str) -> str:
    """Return which slices were omitted, as the end of a sentence; empty without any."""
    return f"; {what}, with too few rows or no {metric}: {_rows(results)}" if results else ""


def _rows(results: list[SliceResult]) -> str:
    return listed([f"{it.name} ({counted(it.rows, 'row')})" for it in results], _MOST_NAMED)
