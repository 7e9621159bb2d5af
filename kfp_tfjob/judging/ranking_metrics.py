"""The ranking of rows by score: AUC, average precision, and the curves behind them.

Up to `EXACT_SCORES`, each score is a separate cut. With more, the scores in one of 262,144 bins
of equal width in their logit are one cut. This rounding is far smaller than what 1,000 bootstraps
could show.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kfp_tfjob.judging.chance import LabelTerms
from kfp_tfjob.judging.estimates import (
    Estimate,
    correction,
    counting,
    inner,
    label_shares,
    unknown,
    weights_of,
)
from kfp_tfjob.judging.predictions import ClassPredictions

EXACT_SCORES = 4_194_304  # 24 bytes each in memory; a row has one for every class with a curve
BINS = 1 << 18
_LOGITS = (-88.0, 17.0)  # of float32: 1e-38 has -87.5, the largest below 1 has 16.6
_Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Curve:
    """Rows of one class and of all others, by their score for that class.

    Attributes:
        index: The class.
        exact: Whether each score is a separate cut.
        scores: (cuts,) the scores, ascending; of a bin, its highest.
        positive: (cuts,) the weight of the class's rows at each cut.
        negative: (cuts,) the weight of all other rows.
        squares: (2, cuts) the same as positive and negative, of squared weights.
        support: Rows of the class and other rows; of weighted rows, as many as tell as much.
        tied: (cuts,) whether all scores of a cut are equal.
        rows: (cuts,) the number of rows with a weight at each cut.
    """

    index: int
    exact: bool
    scores: NDArray[np.float32]
    positive: _Floats
    negative: _Floats
    squares: _Floats
    support: tuple[int, int]
    tied: NDArray[np.bool_]
    rows: NDArray[np.int64]

    @property
    def defined(self) -> bool:
        """Whether there are rows of the class and others."""
        return min(self.support) > 0

    @property
    def share(self) -> float:
        """The share of the class among all rows."""
        return float(self.positive.sum() / (self.positive.sum() + self.negative.sum()))

    @cached_property
    def auc(self) -> float:
        """The share of pairs in the right order; a tie counts half."""
        return float(np.dot(self.positive, self.below_positive) / self.positive.sum())

    @cached_property
    def average_precision(self) -> float:
        """The mean precision at the score of each row of the class."""
        return float(np.dot(self.positive, self.precision) / self.positive.sum())

    @cached_property
    def below_positive(self) -> _Floats:
        """(cuts,) for a row of the class: the share of the others below it; ties count half."""
        return (np.cumsum(self.negative) - self.negative / 2) / self.negative.sum()

    @cached_property
    def above_negative(self) -> _Floats:
        """(cuts,) for another row: the share of the class above it; ties count half."""
        return 1 - (np.cumsum(self.positive) - self.positive / 2) / self.positive.sum()

    @cached_property
    def found(self) -> tuple[_Floats, _Floats]:
        """(cuts,) weights of the class and of the others with at least the score of each cut."""
        return np.cumsum(self.positive[::-1])[::-1], np.cumsum(self.negative[::-1])[::-1]

    @cached_property
    def precision(self) -> _Floats:
        """(cuts,) the share of the class among the rows with at least the score of each cut.

        In a bin of different scores, it is what a row of the class has in the middle of the bin:
        itself and half of the other rows. Otherwise, narrow logits would look like ties.
        """
        alone = np.divide(
            self.squares[0], self.positive, out=np.zeros(len(self.scores)), where=self.positive > 0
        )
        true, false = self.found
        true = true - np.where(self.tied, 0, (self.positive - alone) / 2)
        false = false - np.where(self.tied, 0, self.negative / 2)
        return np.divide(true, true + false, out=np.ones(len(true)), where=true + false > 0)

    @cached_property
    def edges(self) -> _Floats:
        """(cuts + 1,) where each cut begins and ends in the order of all rows, from 0 to 1."""
        both = np.append(0.0, np.cumsum(self.positive + self.negative))
        return both / both[-1]

    @cached_property
    def ranks(self) -> _Floats:
        """(cuts,) the share of all rows with a lower score, and half of those at the cut."""
        return (self.edges[1:] + self.edges[:-1]) / 2

    @cached_property
    def auc_pulls(self) -> tuple[_Floats, _Floats]:
        """(cuts,) how much a row of the class, or another one, moves the AUC; see `influence`."""
        scales = [
            correction(rows) / part.sum()
            for rows, part in zip(self.support, (self.positive, self.negative), strict=True)
        ]
        return (
            scales[0] * (self.below_positive - self.auc),
            scales[1] * (self.above_negative - self.auc),
        )

    @cached_property
    def precision_pulls(self) -> tuple[_Floats, _Floats]:
        """(cuts,) the same for the average precision.

        A row of the class adds its own precision. Every row changes the precision at each lower
        score: towards 1 if it is of the class, else towards 0.
        """
        both = self.found[0] + self.found[1]
        each = np.divide(self.positive, both, out=np.zeros(len(both)), where=both > 0)
        rises, falls = np.cumsum(each), np.cumsum(each * self.precision)
        scale = correction(self.support[0]) / self.positive.sum()
        own = self.precision - self.average_precision + rises - falls
        return scale * own, -scale * falls

    def pulls(self, metric: str) -> tuple[_Floats, _Floats]:
        """Return `auc_pulls` or `precision_pulls`."""
        return self.auc_pulls if metric == "auc" else self.precision_pulls

    def pulls_at(self, metric: str, edges: _Floats) -> tuple[_Floats, _Floats]:
        """Return the mean pulls in ranges of ranks: those of the cuts of another model.

        Args:
            metric: `auc` or `average_precision`.
            edges: (ranges + 1,) as `edges` of the other model.
        """
        widths = np.diff(self.edges)
        ours, others = (
            np.diff(np.interp(edges, self.edges, np.append(0.0, np.cumsum(pulls * widths))))
            / np.maximum(np.diff(edges), 1e-300)  # rows without weight have no range
            for pulls in self.pulls(metric)
        )
        return ours, others

    def influence(
        self, metric: str, chunk: ClassPredictions, source: Curve | None = None
    ) -> _Floats:
        """Return the (rows,) influence on a metric, but for the factor rows.

        Args:
            metric: `auc` or `average_precision`.
            chunk: The rows.
            source: The curve of the model that predicted them, if that is another one. Only ranks
                count: two models may have different scales.
        """
        if source is None:
            cuts, (ours, others) = _places(self.scores, chunk.score(self.index)), self.pulls(metric)
        else:
            cuts = _places(source.scores, chunk.score(self.index))
            ours, others = self.pulls_at(metric, source.edges)
        pull = np.where(chunk.labels == self.index, ours[cuts], others[cuts])
        return pull if chunk.weights is None else pull * weights_of(chunk)

    def variance(self, metric: str) -> float:
        """Return the square of the standard error of a metric."""
        pairs = zip(self.squares, self.pulls(metric), strict=True)
        return sum(inner(squares, pull**2) for squares, pull in pairs)

    def chance_pulls(self, metric: str) -> _Floats:
        """(cuts,) how much a row adds to a metric if chance makes it one of the class.

        For the AUC, that is the rank of the row, as in the test of Wilcoxon. For the average
        precision, it is the precision at the row, and the rise of that at the rows below it.
        """
        share = self.share
        if metric == "auc":
            return (self.ranks - 0.5) / (share * (1 - share))
        reached, precision = self._precision_by_chance
        rises = np.cumsum(self.rows / reached) - 1 / reached  # of rows below, and others at the cut
        return (precision + share * rises) / share

    @cached_property
    def _precision_by_chance(self) -> tuple[_Floats, _Floats]:
        """(cuts,) rows with at least each cut's score, and the precision at a row of the class.

        It is above the share of the class, because the row itself counts.
        """
        rows = self.rows.astype(np.float64)
        reached = np.maximum(np.cumsum(rows[::-1])[::-1], 1)
        mean_weight = (self.positive.sum() + self.negative.sum()) / rows.sum()
        own = float(self.squares[0].sum() / self.positive.sum() / mean_weight)
        others = (self.share * rows.sum() - own) / max(rows.sum() - own, 1)
        return reached, (own + others * (reached - 1)) / (own + reached - 1)

    def chance_mean(self, metric: str) -> tuple[float, float]:
        """Return the mean of a metric if the labels are shuffled, and variance beyond the pulls.

        The average precision of few rows is above their share by chance, and not a sum of terms:
        the precision at a row depends on which other rows are above it.
        """
        if metric == "auc":
            return 0.5, 0.0
        reached, precision = self._precision_by_chance
        mean = float(self.rows @ precision) / float(self.rows.sum())
        beyond = (1 - self.share) / self.rows.sum()
        return mean, beyond**2 * float(self.rows @ (1 / reached))

    def usual_variance(self, metric: str) -> float:
        """Return the variance that such a value usually has.

        Of the AUC, that of exponential scores (Hanley and McNeil 1982); of the average precision,
        that of a share of the class's rows (Boyd, Eng and Page 2013).
        """
        ours, others = self.support
        if metric != "auc":
            return self.average_precision * (1 - self.average_precision) / ours
        auc = self.auc
        two_of_class = auc / (2 - auc) - auc**2  # two rows of the class, one other row
        two_others = 2 * auc**2 / (1 + auc) - auc**2
        parts = auc * (1 - auc) + (ours - 1) * two_of_class + (others - 1) * two_others
        return parts / (ours * others)

    def roc(self, points: int) -> tuple[_Floats, _Floats, _Floats]:
        """Return (false positive rate, true positive rate, threshold), each (at most `points`,).

        The points are thinned evenly along the curve. The first threshold is the highest score
        plus 1, because Kubeflow Pipelines cannot store infinity.
        """
        true, false = (part[::-1] / max(part[0], 1e-300) for part in self.found)
        cuts = self.scores[::-1].astype(np.float64)
        tpr, fpr = np.append(0.0, true), np.append(0.0, false)
        thresholds = np.append(cuts[0] + 1, cuts)
        if len(fpr) > points:
            keep = _thinned(fpr + tpr, points)
            fpr, tpr, thresholds = fpr[keep], tpr[keep], thresholds[keep]
        return fpr, tpr, thresholds

    def precision_recall(self, points: int) -> tuple[_Floats, _Floats]:
        """Return (recall, precision), each (at most `points`,), by rising recall."""
        recall = self.found[0][::-1] / max(self.positive.sum(), 1e-300)
        precision = self.precision[::-1]
        recall, precision = np.append(0.0, recall), np.append(precision[0], precision)
        if len(recall) > points:
            keep = _thinned(recall + np.append(0.0, np.abs(np.diff(precision)).cumsum()), points)
            recall, precision = recall[keep], precision[keep]
        return recall, precision


def curves_of(predictions: ClassPredictions, exact_scores: int = EXACT_SCORES) -> list[Curve]:
    """Return the curve of every class with scores; see the top of this file for the limit."""
    classes = list(predictions.scored_classes())
    exact = predictions.rows * len(classes) <= exact_scores
    return [_curve(predictions, index, exact) for index in classes]


def estimate(predictions: ClassPredictions, curves: list[Curve], metric: str) -> Estimate:
    """Estimate `auc` or `average_precision`: of class 1, or the mean over the classes present."""
    defined = [curve for curve in curves if curve.defined]
    if not defined:
        return unknown(metric, predictions)
    auc = metric == "auc"
    values = [curve.auc if auc else curve.average_precision for curve in defined]
    support = min(min(curve.support) for curve in defined)
    scale = predictions.rows / len(defined)

    def rule(chunk: ClassPredictions) -> _Floats:
        total = np.zeros(chunk.rows)
        for curve in defined:
            total += curve.influence(metric, chunk)
        return total * scale

    # The curves of several classes share their rows, so their variances do not add up.
    variance = defined[0].variance(metric) if len(defined) == 1 else math.nan

    def elsewhere(other: Estimate, chunk: ClassPredictions) -> _Floats:
        total = np.zeros(chunk.rows)
        for curve, source in zip(defined, other.curves, strict=True):
            total += curve.influence(metric, chunk, source)
        return total * scale

    value = float(np.mean(values))
    usual = math.fsum(curve.usual_variance(metric) for curve in defined) / len(defined) ** 2
    return Estimate(
        metric,
        value,
        predictions,
        rule,
        support,
        False,
        variance,
        usual,
        relabeled=_relabeled(predictions, defined, metric),
        rule_elsewhere=elsewhere,
        curves=tuple(defined),
        of_constant=0.5 if auc else float(np.mean([curve.share for curve in defined])),
    )


def _relabeled(predictions: ClassPredictions, curves: list[Curve], metric: str) -> LabelTerms:
    """Return what a metric would be with other labels."""
    predictions = counting(predictions)
    shares, spreads = label_shares(predictions)
    means, more = zip(*(curve.chance_mean(metric) for curve in curves), strict=True)
    expected, beyond = float(np.mean(means)), math.fsum(more) / len(curves) ** 2
    scale = 1 / len(curves) / predictions.rows

    def of_cuts() -> Iterator[tuple[NDArray[np.int64], _Floats]]:
        curve = curves[0]
        ours = curve.chance_pulls(metric) * scale
        yield curve.rows, np.stack([np.zeros(len(ours)), ours], axis=1)

    def of_rows() -> Iterator[tuple[NDArray[np.int64], _Floats]]:
        pulls = [curve.chance_pulls(metric) * scale for curve in curves]
        for chunk in predictions.chunks():
            values = np.zeros((chunk.rows, predictions.classes))
            for curve, ours in zip(curves, pulls, strict=True):
                values[:, curve.index] = ours[_places(curve.scores, chunk.score(curve.index))]
            yield np.ones(chunk.rows, np.int64), values

    blocks = of_cuts if predictions.classes == 2 else of_rows
    return LabelTerms(shares, spreads, blocks, expected, beyond)


def _curve(predictions: ClassPredictions, index: int, exact: bool) -> Curve:
    if exact:
        scores = np.unique(predictions.score(index))
        tied = np.ones(len(scores), bool)
    else:
        scores, tied = _bins(predictions, index)
    counts, squares = np.zeros((2, 2, len(scores)))
    rows = np.zeros(len(scores), np.int64)
    for chunk in predictions.chunks():
        # The cuts of the other rows follow those of the class.
        places, weights = _places(scores, chunk.score(index)), weights_of(chunk)
        rows += np.bincount(places[weights > 0], minlength=len(scores))
        places += np.where(chunk.labels == index, 0, len(scores))
        counts += np.bincount(places, weights, counts.size).reshape(counts.shape)
        squares += np.bincount(places, weights**2, counts.size).reshape(counts.shape)
    support = _support(counts, squares)
    return Curve(index, exact, scores, counts[0], counts[1], squares, support, tied, rows)


def _bins(
    predictions: ClassPredictions, index: int
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return the highest score of each bin with rows, ascending, and whether all are equal."""
    low, high = _LOGITS
    least, most = np.full(BINS, np.inf, np.float32), np.full(BINS, -np.inf, np.float32)
    for chunk in predictions.chunks():
        values = chunk.score(index).astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            logits = np.log(values) - np.log1p(-values)
        bins = (np.clip(logits, low, high) - low) * (BINS / (high - low))
        bins = np.minimum(np.nan_to_num(bins).astype(np.int64), BINS - 1)
        np.minimum.at(least, bins, chunk.score(index))
        np.maximum.at(most, bins, chunk.score(index))
    used = most > -np.inf
    return most[used], (least == most)[used]


def _places(cuts: NDArray[np.float32], scores: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the cut of each score."""
    # In order, one search is beside the next in memory: a quarter of the time.
    order = np.argsort(scores)
    found = np.empty(len(scores), np.int64)
    found[order] = np.searchsorted(cuts, scores[order])
    return found


def _support(counts: _Floats, squares: _Floats) -> tuple[int, int]:
    """Return how many rows of equal weight tell as much: of the class, and others."""
    totals, below = counts.sum(axis=1), squares.sum(axis=1)
    ours, others = (
        int(total**2 / square + 1e-6) if total > 0 else 0
        for total, square in zip(totals.tolist(), below.tolist(), strict=True)
    )
    return ours, others


def _thinned(along: _Floats, points: int) -> NDArray[np.int64]:
    """Return the numbers of at most `points` points, evenly along a curve."""
    wanted = np.searchsorted(along, np.linspace(0, along[-1], points))
    return np.unique(np.clip(wanted, 0, len(along) - 1))
