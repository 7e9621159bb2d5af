"""What changed from the champion to the model, metric by metric."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from kfp_tfjob.judging.compare import compare
from kfp_tfjob.judging.estimates import Estimate, Measured, paired_error
from kfp_tfjob.judging.formatting import difference
from kfp_tfjob.judging.scored import Scored
from kfp_tfjob.options.metric_names import is_own
from kfp_tfjob.pages import small

BASELINE = "baseline"
_WITHOUT_DIRECTION = ("mean_error",)  # neither a greater nor a smaller one is better
SAMPLED_ROWS = 262_144  # of many: their influence stands for that of all
_BLOCKS = 16


class Gain(NamedTuple):
    """A metric of both models.

    Attributes:
        metric: Its name.
        model: Its value for the model, with a two-sided interval.
        other: The same for the champion or the baseline.
        gain: How much better the model is; above 0 is better for every metric.
        low: The lower one-sided bound of the gain; NaN if unknown.
        high: The upper one.
    """

    metric: str
    model: Measured
    other: Measured
    gain: float
    low: float
    high: float

    @property
    def style(self) -> str:
        """Whether the gain is beyond chance: `good`, `bad` or `quiet`."""
        return "good" if self.low > 0 else "bad" if self.high < 0 else "quiet"

    @property
    def drawn(self) -> Markup:
        """The gain and its bounds around 0."""
        known = [abs(end) for end in (self.gain, self.low, self.high) if math.isfinite(end)]
        most = max(known, default=0.0) or 1.0
        return small.estimate(self.gain, (self.low, self.high), (-most, most), 0.0, self.style)

    @property
    def text(self) -> str:
        """The gain with its sign."""
        return difference(self.gain, self.other.value)

    @property
    def bounds(self) -> str:
        """Its bounds."""
        if not math.isfinite(self.low):
            return ""
        ends = (difference(end, self.other.value) for end in (self.low, self.high))
        return " to ".join(ends)


@dataclass(frozen=True)
class Changes:
    """What changed from another model to the judged one.

    Attributes:
        against: The name of the other model: `champion 3`, or `baseline`.
        gains: Its metrics, and those of the model.
    """

    against: str
    gains: list[Gain]


def changes(scored: Mapping[str, Scored], confidence: float, primary: str = "") -> Changes:
    """Compare the model with the champion; if there is none to compare, with the baseline.

    Of many rows, the bounds of a gain come from the influence of some of them, in blocks over the
    whole split: the paired test of every metric would take as long as all else that judges a model.
    They are right to a few tenths of a percent of their width. The baseline gets none then.

    Args:
        scored: `model`, `baseline`, and the champion by its name if it was compared.
        confidence: Of each one-sided bound.
        primary: The primary metric, which comes first: of those of the user's own, only it has a
            direction.
    """
    model = scored["model"]
    against = next((who for who in scored if who not in ("model", BASELINE)), BASELINE)
    other = scored[against]
    error_of: Callable[[Estimate, Estimate], float] = paired_error
    if model.predictions.rows > SAMPLED_ROWS:
        error_of = _unknown if against == BASELINE else _of_some_rows
    about = (model, other, confidence, primary, error_of)
    names = sorted(model.measured, key=lambda name: name != primary)
    return Changes(against, [_gain(it, *about) for it in names])


def _gain(
    metric: str,
    model: Scored,
    other: Scored,
    confidence: float,
    primary: str,
    error_of: Callable[[Estimate, Estimate], float],
) -> Gain:
    nothing = Measured(math.nan, math.nan, math.nan)
    ours, theirs = model.measured[metric], other.measured.get(metric, nothing)
    if metric in _WITHOUT_DIRECTION or (is_own(metric) and metric != primary):
        return Gain(metric, ours, theirs, math.nan, math.nan, math.nan)
    found = compare(model.measures, other.measures, metric, confidence, error_of)
    return Gain(metric, ours, theirs, found.gain, found.low, found.high)


def _unknown(ours: Estimate, theirs: Estimate) -> float:
    return math.nan


def _of_some_rows(ours: Estimate, theirs: Estimate) -> float:
    """Return the standard error of the difference of two metrics, estimated from blocks of rows."""
    if ours.rule is None or theirs.rule is None:
        return math.nan
    rows, size = ours.predictions.rows, SAMPLED_ROWS // _BLOCKS
    squares = 0.0
    for start in np.linspace(0, rows - size, _BLOCKS).astype(int).tolist():
        block = slice(start, start + size)
        pull = ours.rule(ours.predictions[block]) - theirs.rule(theirs.predictions[block])
        squares += float(np.einsum("i,i->", pull, pull))
    return math.sqrt(squares / (_BLOCKS * size) / rows)
