"""The ranking of rows by score: AUC, average precision, and the curves behind them.

A *cut* is a threshold of the score. Up to `EXACT_SCORES` scores, each distinct score is a cut. With
more, a cut is one of 262,144 bins of equal width in the scores' logit, so that memory does not grow
with the rows. This rounding is far smaller than the error of 1,000 bootstraps. Called by
`metrics.py` and `verdict_document.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .metric_uncertainty import (
    Estimate,
    inner,
    small_sample_correction,
    unknown,
    with_positive_weight,
)
from .null_distributions import LabelTerms
from .predictions import ClassPredictions, weights_of

EXACT_SCORES = 4_194_304  # 24 bytes each in memory; a row has one for every class with a curve
BINS = 1 << 18  # each is 0.0004 logits wide; the arrays of one class take a few MB
_LOGITS = (-88.0, 17.0)  # the range of float32: logit(1e-38) is -87.5, of the largest below 1, 16.6
_Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Curve:
    """Weights of a class's rows and of all other rows, by their score for that class.

    Attributes:
        index: The class.
        exact: Whether each distinct score is a cut.
        scores: (cuts,) the scores, ascending; for a bin, its highest score.
        positive: (cuts,) the weight of the class's rows at each cut.
        negative: (cuts,) the weight of all other rows.
        squares: (2, cuts) the squared weights of the class's rows and of the other rows.
        effective_sample_sizes: The number of the class's rows and of other rows; for weighted rows,
            the number of equal rows with as much information.
        tied: (cuts,) whether all scores of a cut are equal.
        rows: (cuts,) the number of rows with a weight at each cut.
    """

    index: int
    exact: bool
    scores: NDArray[np.float32]
    positive: _Floats
    negative: _Floats
    squares: _Floats
    effective_sample_sizes: tuple[int, int]
    tied: NDArray[np.bool_]
    rows: NDArray[np.int64]

    @property
    def defined(self) -> bool:
        """Whether there are rows of the class and rows of other classes."""
        return min(self.effective_sample_sizes) > 0

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
        """(cuts,) the share of other rows below a row of the class; ties count half."""
        return (np.cumsum(self.negative) - self.negative / 2) / self.negative.sum()

    @cached_property
    def above_negative(self) -> _Floats:
        """(cuts,) the share of the class's rows above another row; ties count half."""
        return 1 - (np.cumsum(self.positive) - self.positive / 2) / self.positive.sum()

    @cached_property
    def weight_at_or_above(self) -> tuple[_Floats, _Floats]:
        """(cuts,) weights of the class's and of other rows with at least each cut's score."""
        return np.cumsum(self.positive[::-1])[::-1], np.cumsum(self.negative[::-1])[::-1]

    @cached_property
    def precision(self) -> _Floats:
        """(cuts,) the share of the class among the rows with at least each cut's score.

        In a bin with different scores, it is the precision at a row in the middle of the bin, which
        counts that row and half of the bin's other rows. Otherwise, scores that differ little would
        count as ties.
        """
        row_weight = np.divide(
            self.squares[0], self.positive, out=np.zeros(len(self.scores)), where=self.positive > 0
        )
        true, false = self.weight_at_or_above
        true = true - np.where(self.tied, 0, (self.positive - row_weight) / 2)
        false = false - np.where(self.tied, 0, self.negative / 2)
        return np.divide(true, true + false, out=np.ones(len(true)), where=true + false > 0)

    @cached_property
    def edges(self) -> _Floats:
        """(cuts + 1,) the ranks at which the cuts begin and end, as shares from 0 to 1."""
        boundaries = np.append(0.0, np.cumsum(self.positive + self.negative))
        return boundaries / boundaries[-1]

    @cached_property
    def ranks(self) -> _Floats:
        """(cuts,) the share of all rows with a lower score, plus half of the rows at the cut."""
        return (self.edges[1:] + self.edges[:-1]) / 2

    @cached_property
    def auc_influence(self) -> tuple[_Floats, _Floats]:
        """(cuts,) influence of a row of the class, and of another row, on the AUC."""
        scales = [
            small_sample_correction(rows) / part.sum()
            for rows, part in zip(
                self.effective_sample_sizes, (self.positive, self.negative), strict=True
            )
        ]
        return (
            scales[0] * (self.below_positive - self.auc),
            scales[1] * (self.above_negative - self.auc),
        )

    @cached_property
    def precision_influence(self) -> tuple[_Floats, _Floats]:
        """(cuts,) influence of a row of the class, and of another row, on the average precision.

        A row of the class adds its own precision. Every row changes the precision at each lower
        score, towards 1 if it is of the class, and otherwise towards 0.
        """
        totals = self.weight_at_or_above[0] + self.weight_at_or_above[1]
        share_at_cut = np.divide(self.positive, totals, out=np.zeros(len(totals)), where=totals > 0)
        rises, falls = np.cumsum(share_at_cut), np.cumsum(share_at_cut * self.precision)
        scale = small_sample_correction(self.effective_sample_sizes[0]) / self.positive.sum()
        own_terms = self.precision - self.average_precision + rises - falls
        return scale * own_terms, -scale * falls

    def cut_influence(self, metric: str) -> tuple[_Floats, _Floats]:
        """Return `auc_influence` or `precision_influence`."""
        return self.auc_influence if metric == "auc" else self.precision_influence

    def cut_influence_at_ranks(self, metric: str, edges: _Floats) -> tuple[_Floats, _Floats]:
        """Return the mean influence in the ranges of ranks that another model's cuts cover.

        Args:
            metric: `auc` or `average_precision`.
            edges: (ranges + 1,) the other model's `edges`.
        """
        widths = np.diff(self.edges)
        positive, negative = (
            np.diff(np.interp(edges, self.edges, np.append(0.0, np.cumsum(influence * widths))))
            / np.maximum(np.diff(edges), 1e-300)  # rows without weight span an empty range
            for influence in self.cut_influence(metric)
        )
        return positive, negative

    def influence(
        self, metric: str, chunk: ClassPredictions, source: Curve | None = None
    ) -> _Floats:
        """Return the (rows,) influence on a metric, without the factor `rows`.

        Args:
            metric: `auc` or `average_precision`.
            chunk: The rows.
            source: The curve of the model that predicted the rows, if that is another model. Its
                ranks are used instead of its scores, whose scale may differ.
        """
        if source is None:
            cuts, (positive, negative) = (
                _find_cuts(self.scores, chunk.score(self.index)),
                self.cut_influence(metric),
            )
        else:
            cuts = _find_cuts(source.scores, chunk.score(self.index))
            positive, negative = self.cut_influence_at_ranks(metric, source.edges)
        influence = np.where(chunk.labels == self.index, positive[cuts], negative[cuts])
        return influence if chunk.weights is None else influence * weights_of(chunk)

    def variance(self, metric: str) -> float:
        """Return the square of the standard error of a metric."""
        pairs = zip(self.squares, self.cut_influence(metric), strict=True)
        return sum(inner(squares, pull**2) for squares, pull in pairs)

    def chance_terms(self, metric: str) -> _Floats:
        """(cuts,) the term that a row adds to a metric if a shuffle gives it the class's label.

        For the AUC, it is the row's rank, as in Wilcoxon's test. For the average precision, it is
        the precision at the row, plus the rise in precision at the rows below it.
        """
        share = self.share
        if metric == "auc":
            return (self.ranks - 0.5) / (share * (1 - share))
        rows_at_or_above, precision = self._precision_by_chance
        # The rises at the rows below, and at the other rows of the cut.
        rises = np.cumsum(self.rows / rows_at_or_above) - 1 / rows_at_or_above
        return (precision + share * rises) / share

    @cached_property
    def _precision_by_chance(self) -> tuple[_Floats, _Floats]:
        """(cuts,) rows with at least each cut's score, and the precision there by chance.

        The precision at a row of the class is above the class's share, because it counts that row.
        """
        rows = self.rows.astype(np.float64)
        rows_at_or_above = np.maximum(np.cumsum(rows[::-1])[::-1], 1)
        mean_weight = (self.positive.sum() + self.negative.sum()) / rows.sum()
        own_weight = float(self.squares[0].sum() / self.positive.sum() / mean_weight)
        other_share = (self.share * rows.sum() - own_weight) / max(rows.sum() - own_weight, 1)
        other_rows = rows_at_or_above - 1
        return rows_at_or_above, (own_weight + other_share * other_rows) / (own_weight + other_rows)

    def chance_mean(self, metric: str) -> tuple[float, float]:
        """Return the mean of a metric if the labels are shuffled, and its extra variance.

        The average precision of few rows is above their share by chance. It is not exactly a sum of
        terms, because the precision at a row depends on the labels of the rows above it; the extra
        variance covers this.
        """
        if metric == "auc":
            return 0.5, 0.0
        rows_at_or_above, precision = self._precision_by_chance
        mean = float(self.rows @ precision) / float(self.rows.sum())
        # The label is 1 for a row of the class, and its mean is the share; each row adds 1 / rows.
        deviation = (1 - self.share) / self.rows.sum()
        return mean, deviation**2 * float(self.rows @ (1 / rows_at_or_above))

    def prior_variance(self, metric: str) -> float:
        """Return the usual variance of a metric with this value and these numbers of rows.

        For the AUC, it is the variance with exponential scores (Hanley and McNeil 1982). For the
        average precision, it is a binomial proportion's variance over the class's rows (Boyd, Eng
        and Page 2013).
        """
        positives, negatives = self.effective_sample_sizes
        if metric != "auc":
            return self.average_precision * (1 - self.average_precision) / positives
        auc = self.auc
        two_positives = auc / (2 - auc) - auc**2  # two rows of the class, one other row
        two_negatives = 2 * auc**2 / (1 + auc) - auc**2
        pair_variance = (
            auc * (1 - auc) + (positives - 1) * two_positives + (negatives - 1) * two_negatives
        )
        return pair_variance / (positives * negatives)

    def roc(self, points: int) -> tuple[_Floats, _Floats, _Floats]:
        """Return (false positive rate, true positive rate, threshold), each (at most `points`,).

        The points are thinned evenly along the curve. The first threshold is the highest score
        plus 1, because Kubeflow Pipelines cannot store infinity.
        """
        true, false = (part[::-1] / max(part[0], 1e-300) for part in self.weight_at_or_above)
        cuts = self.scores[::-1].astype(np.float64)
        tpr, fpr = np.append(0.0, true), np.append(0.0, false)
        thresholds = np.append(cuts[0] + 1, cuts)
        if len(fpr) > points:
            keep = _thin_points(fpr + tpr, points)
            fpr, tpr, thresholds = fpr[keep], tpr[keep], thresholds[keep]
        return fpr, tpr, thresholds

    def precision_recall(self, points: int) -> tuple[_Floats, _Floats]:
        """Return (recall, precision), each (at most `points`,), by rising recall."""
        recall = self.weight_at_or_above[0][::-1] / max(self.positive.sum(), 1e-300)
        precision = self.precision[::-1]
        recall, precision = np.append(0.0, recall), np.append(precision[0], precision)
        if len(recall) > points:
            keep = _thin_points(
                recall + np.append(0.0, np.abs(np.diff(precision)).cumsum()), points
            )
            recall, precision = recall[keep], precision[keep]
        return recall, precision


def curves_of(predictions: ClassPredictions, exact_scores: int = EXACT_SCORES) -> list[Curve]:
    """Return the curve of every class with scores.

    Args:
        predictions: The model's predictions.
        exact_scores: The largest number of scores that are not binned.
    """
    classes = list(predictions.scored_classes())
    exact = predictions.rows * len(classes) <= exact_scores
    return [_build_curve(predictions, index, exact) for index in classes]


def estimate(predictions: ClassPredictions, curves: list[Curve], metric: str) -> Estimate:
    """Estimate `auc` or `average_precision`: of class 1, or the mean over the classes present."""
    defined = [curve for curve in curves if curve.defined]
    if not defined:
        return unknown(metric, predictions)
    auc = metric == "auc"
    values = [curve.auc if auc else curve.average_precision for curve in defined]
    sample_size = min(min(curve.effective_sample_sizes) for curve in defined)
    scale = predictions.rows / len(defined)

    def influence(chunk: ClassPredictions) -> _Floats:
        total = np.zeros(chunk.rows)
        for curve in defined:
            total += curve.influence(metric, chunk)
        return total * scale

    # The curves of several classes share their rows, so their variances do not add up.
    variance = defined[0].variance(metric) if len(defined) == 1 else math.nan

    def cross_influence(predictor: Estimate, chunk: ClassPredictions) -> _Floats:
        total = np.zeros(chunk.rows)
        for curve, source in zip(defined, predictor.curves, strict=True):
            total += curve.influence(metric, chunk, source)
        return total * scale

    value = float(np.mean(values))
    prior_variance = (
        math.fsum(curve.prior_variance(metric) for curve in defined) / len(defined) ** 2
    )
    return Estimate(
        metric,
        value,
        predictions,
        influence,
        sample_size,
        False,
        variance,
        prior_variance,
        relabeled=_label_terms(predictions, defined, metric),
        cross_influence=cross_influence,
        curves=tuple(defined),
        of_constant=0.5 if auc else float(np.mean([curve.share for curve in defined])),
    )


def _label_terms(predictions: ClassPredictions, curves: list[Curve], metric: str) -> LabelTerms:
    """Return the metric as a function of the labels."""
    predictions = with_positive_weight(predictions)
    shares, spreads = predictions.label_shares
    means, variances = zip(*(curve.chance_mean(metric) for curve in curves), strict=True)
    expected, extra_variance = float(np.mean(means)), math.fsum(variances) / len(curves) ** 2
    scale = 1 / len(curves) / predictions.rows

    def of_cuts() -> Iterator[tuple[NDArray[np.int64], _Floats]]:
        curve = curves[0]
        terms = curve.chance_terms(metric) * scale
        yield curve.rows, np.stack([np.zeros(len(terms)), terms], axis=1)

    def of_rows() -> Iterator[tuple[NDArray[np.int64], _Floats]]:
        curve_terms = [curve.chance_terms(metric) * scale for curve in curves]
        for chunk in predictions.chunks():
            values = np.zeros((chunk.rows, predictions.classes))
            for curve, terms in zip(curves, curve_terms, strict=True):
                values[:, curve.index] = terms[_find_cuts(curve.scores, chunk.score(curve.index))]
            yield np.ones(chunk.rows, np.int64), values

    blocks = of_cuts if predictions.classes == 2 else of_rows
    return LabelTerms(shares, spreads, blocks, expected, extra_variance)


def _build_curve(predictions: ClassPredictions, index: int, exact: bool) -> Curve:
    """Return the curve of a class, given its index and whether each distinct score is a cut."""
    if exact:
        scores = np.unique(predictions.score(index))
        tied = np.ones(len(scores), bool)
    else:
        scores, tied = _occupied_bins(predictions, index)
    weight_sums, squares = np.zeros((2, 2, len(scores)))
    rows = np.zeros(len(scores), np.int64)
    for chunk in predictions.chunks():
        # One bincount for both: the other rows are counted in a second range after the class's.
        cuts, weights = _find_cuts(scores, chunk.score(index)), weights_of(chunk)
        rows += np.bincount(cuts[weights > 0], minlength=len(scores))
        cuts += np.where(chunk.labels == index, 0, len(scores))
        weight_sums += np.bincount(cuts, weights, squares.size).reshape(squares.shape)
        squares += np.bincount(cuts, weights**2, squares.size).reshape(squares.shape)
    return Curve(
        index=index,
        exact=exact,
        scores=scores,
        positive=weight_sums[0],
        negative=weight_sums[1],
        squares=squares,
        effective_sample_sizes=_effective_sample_sizes(weight_sums, squares),
        tied=tied,
        rows=rows,
    )


def _occupied_bins(
    predictions: ClassPredictions, index: int
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return each non-empty bin's highest score, ascending, and whether its scores are equal."""
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


def _find_cuts(cuts: NDArray[np.float32], scores: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the (rows,) index of each score's cut."""
    # Sorted scores search neighboring memory, which takes a quarter of the time.
    order = np.argsort(scores)
    cut_of_score = np.empty(len(scores), np.int64)
    cut_of_score[order] = np.searchsorted(cuts, scores[order])
    return cut_of_score


def _effective_sample_sizes(counts: _Floats, squares: _Floats) -> tuple[int, int]:
    """Return the effective numbers of the class's rows and of other rows (Kish)."""
    totals, square_sums = counts.sum(axis=1), squares.sum(axis=1)
    positive, negative = (
        int(total**2 / square + 1e-6) if total > 0 else 0
        for total, square in zip(totals.tolist(), square_sums.tolist(), strict=True)
    )
    return positive, negative


def _thin_points(along: _Floats, points: int) -> NDArray[np.int64]:
    """Return the indices of at most `points` points, evenly along a curve."""
    nearest = np.searchsorted(along, np.linspace(0, along[-1], points))
    return np.unique(np.clip(nearest, 0, len(along) - 1))
