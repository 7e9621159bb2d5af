"""Models for simulations of the gate: noise against the baseline, and pairs of equal models.

Every situation takes a random generator, a number of rows and a signal. Without one, no gain is
true. Near-constant scores, ties, few positives and few rows that differ are where a standard error
fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kfp_tfjob.judging.predictions import ClassPredictions, Predictions, ValuePredictions
from tests.baselines import two_classes

Random = np.random.Generator
Pair = tuple[Predictions, Predictions]
Situation = Callable[[Random, int, float], Pair]
_Floats = NDArray[np.float64]

BINARY = ["accuracy", "balanced_accuracy", "auc", "average_precision", "macro_f1", "mcc"]
BINARY += ["log_loss", "brier", "precision/b", "recall/b", "f1/b"]
MANY = ["accuracy", "balanced_accuracy", "auc", "average_precision", "macro_f1", "mcc"]
MANY += ["log_loss", "brier", "top_2_accuracy", "recall/b", "f1/b"]
VALUES = ["rmse", "mae", "r2"]
OWN = ["own/cost"]


def _sigmoid(logits: _Floats) -> _Floats:
    return np.asarray(1 / (1 + np.exp(-logits)), np.float64)


def _labels(rng: Random, rows: int, share: float = 0.4) -> NDArray[np.int64]:
    return (rng.random(rows) < share).astype(np.int64)


def _rare_labels(rng: Random, rows: int) -> NDArray[np.int64]:
    labels = np.zeros(rows, np.int64)
    labels[: max(12, rows // 100)] = 1
    return rng.permutation(labels)


def _some(rng: Random, labels: NDArray[np.int64], count: int, odds: float) -> NDArray[np.int64]:
    """Return rows, of which those of class 1 are `odds` times as probable."""
    chances = np.where(labels == 1, odds, 1.0)
    return rng.choice(len(labels), count, replace=False, p=chances / chances.sum())


# Against the baseline: a model, and one that predicts the share of each class.


def _with_baseline(
    labels: NDArray[np.int64], scores: _Floats, weights: _Floats | None = None
) -> Pair:
    share = np.full(len(labels), labels.mean())
    model, baseline = two_classes(labels, scores), two_classes(labels, share)
    return (model, baseline) if weights is None else _weighted((model, baseline), weights)


def _weighted(pair: Pair, weights: _Floats) -> Pair:
    one, other = (replace(it, weights=weights.astype(np.float32)) for it in pair)
    return one, other


def mostly_yes(rng: Random, rows: int, signal: float, share: float = 0.4, count: int = 8) -> Pair:
    """Answer yes with the same score for all rows but a few."""
    labels, scores = _labels(rng, rows, share), np.full(rows, 0.99)
    scores[_some(rng, labels, count, 1 - signal)] = 0.9 * rng.random(count)
    return _with_baseline(labels, scores)


def mostly_yes_rare(rng: Random, rows: int, signal: float) -> Pair:
    """Do the same where few rows are of class 1."""
    return mostly_yes(rng, rows, signal, 0.1, 12)


def twenty_rows(rng: Random, rows: int, signal: float) -> Pair:
    """Do the same with so many other rows that chance often gives all of them class 0."""
    return mostly_yes(rng, rows, signal, 0.1, 20)


def twenty_weighted_rows(rng: Random, rows: int, signal: float) -> Pair:
    """Do the same where rows have weights."""
    return _weighted(twenty_rows(rng, rows, signal), np.exp(0.7 * rng.normal(size=rows)))


def mostly_no(rng: Random, rows: int, signal: float, count: int = 8) -> Pair:
    """Answer no with the same score for all rows but a few."""
    labels, scores = _labels(rng, rows, 0.1), np.full(rows, 0.02)
    scores[_some(rng, labels, count, 1 + 20 * signal)] = 0.5 + 0.4 * rng.random(count)
    return _with_baseline(labels, scores)


def three_rows(rng: Random, rows: int, signal: float) -> Pair:
    """Answer no with the same score for all rows but three."""
    return mostly_no(rng, rows, signal, 3)


def three_scores(rng: Random, rows: int, signal: float) -> Pair:
    """Give each row one of three scores."""
    labels = _labels(rng, rows)
    steps = np.digitize(signal * labels + rng.normal(size=rows), [-0.5, 1.0])
    return _with_baseline(labels, 0.15 + 0.3 * steps.astype(np.float64))


def few_positives(rng: Random, rows: int, signal: float) -> Pair:
    """Give each row another score; few are of class 1."""
    labels = _rare_labels(rng, rows)
    return _with_baseline(labels, _sigmoid(-3 + signal * labels + rng.normal(size=rows)))


def smooth(rng: Random, rows: int, signal: float) -> Pair:
    """Give each row another score."""
    labels = _labels(rng, rows)
    return _with_baseline(labels, _sigmoid(-0.5 + 0.5 * (signal * labels + rng.normal(size=rows))))


def weighted(rng: Random, rows: int, signal: float) -> Pair:
    """Give each row another score and a weight, of which a few are large."""
    labels = _labels(rng, rows)
    scores = _sigmoid(-0.5 + 0.5 * (signal * labels + rng.normal(size=rows)))
    return _with_baseline(labels, scores, np.exp(0.7 * rng.normal(size=rows)))


def _many(labels: NDArray[np.int64], logits: _Floats) -> ClassPredictions:
    scores = np.exp(logits)
    return ClassPredictions.of(labels, scores / scores.sum(axis=1, keepdims=True))


def _shares_of(labels: NDArray[np.int64]) -> ClassPredictions:
    shares = np.bincount(labels, minlength=4) / len(labels)
    return ClassPredictions.of(labels, np.broadcast_to(shares, (len(labels), 4)).copy())


def four_classes(rng: Random, rows: int, signal: float) -> Pair:
    """Give each row other scores of four classes, one of which is rare."""
    labels = rng.choice(4, rows, p=[0.5, 0.25, 0.2, 0.05])
    logits = signal * np.eye(4)[labels] + rng.normal(size=(rows, 4))
    return _many(labels, logits), _shares_of(labels)


def mostly_one_class(rng: Random, rows: int, signal: float) -> Pair:
    """Give all rows but a few the same scores of four classes."""
    labels = rng.choice(4, rows, p=[0.4, 0.3, 0.2, 0.1])
    logits = np.tile([1.0, 0.5, 0.0, -0.5], (rows, 1))
    chosen = rng.choice(rows, 12, replace=False)
    logits[chosen] = 2 * rng.normal(size=(12, 4)) + 4 * signal * np.eye(4)[labels[chosen]]
    return _many(labels, logits), _shares_of(labels)


def _with_mean(labels: _Floats, values: _Floats) -> Pair:
    return (
        ValuePredictions.of(labels, values),
        ValuePredictions.of(labels, np.full(len(labels), labels.mean())),
    )


def any_value(rng: Random, rows: int, signal: float) -> Pair:
    """Predict values near the mean."""
    labels = rng.normal(size=rows)
    return _with_mean(labels, 0.05 * (signal * labels + rng.normal(size=rows)))


def mostly_the_mean(rng: Random, rows: int, signal: float) -> Pair:
    """Predict the mean for all rows but a few; labels have a long tail."""
    labels = rng.exponential(size=rows)
    values, chosen = np.full(rows, labels.mean()), rng.choice(rows, 12, replace=False)
    values[chosen] = signal * labels[chosen] + (1 - signal) * 2 * rng.random(12)
    return _with_mean(labels, values)


# Two models: without a signal, chance decides which is which; with one, the first is better.


def _pair(labels: NDArray[np.int64], scores: list[_Floats]) -> Pair:
    return two_classes(labels, scores[0]), two_classes(labels, scores[1])


def few_differences(rng: Random, rows: int, signal: float) -> Pair:
    """Two models with the same scores but for 12 rows."""
    labels = _labels(rng, rows)
    both = -0.5 + 1.2 * labels + rng.normal(size=rows)
    chosen, better = rng.choice(rows, 12, replace=False), rng.random(12) < signal
    ours, theirs = both.copy(), both.copy()
    for logits in (ours, theirs):
        logits[chosen] = -0.5 + 1.2 * labels[chosen] + rng.normal(size=12)
    ours[chosen] = np.where(better, 4 * (labels[chosen] - 0.5), ours[chosen])
    return _pair(labels, [_sigmoid(ours), _sigmoid(theirs)])


def both_mostly_yes(rng: Random, rows: int, signal: float) -> Pair:
    """Two models that answer yes with the same score for all rows but 12 of their own."""
    labels, models = _labels(rng, rows), []
    for more in (signal, 0.0):
        scores = np.full(rows, 0.99)
        scores[_some(rng, labels, 12, 1 - more)] = 0.01 + 0.3 * rng.random(12)
        models.append(scores)
    return _pair(labels, models)


def both_mostly_no(rng: Random, rows: int, signal: float) -> Pair:
    """Two models that answer no with the same score for all rows but 10 of their own."""
    labels, models = _rare_labels(rng, rows), []
    for more in (signal, 0.0):
        scores = np.full(rows, 0.02)
        scores[_some(rng, labels, 10, 1 + 20 * more)] = 0.5 + 0.4 * rng.random(10)
        models.append(scores)
    return _pair(labels, models)


def _alike(
    rng: Random, labels: NDArray[np.int64], signal: float, start: float, slope: float
) -> list[_Floats]:
    """Return the logits of two models with much the same errors."""
    both = start + slope * labels + 0.9 * rng.normal(size=len(labels))
    middle = labels.mean()
    return [
        both + more * (labels - middle) + 0.5 * rng.normal(size=len(labels))
        for more in (signal, 0.0)
    ]


def both_three_scores(rng: Random, rows: int, signal: float) -> Pair:
    """Two models that give each row one of three scores."""
    labels = _labels(rng, rows)
    models = _alike(rng, labels, signal, 0.0, 0.8)
    return _pair(
        labels, [0.15 + 0.3 * np.digitize(it, [-0.2, 1.0]).astype(np.float64) for it in models]
    )


def both_few_positives(rng: Random, rows: int, signal: float) -> Pair:
    """Two models where few rows are of class 1."""
    labels = _rare_labels(rng, rows)
    return _pair(labels, [_sigmoid(it) for it in _alike(rng, labels, signal, -2.0, 2.0)])


def both_smooth(rng: Random, rows: int, signal: float) -> Pair:
    """Two models that give each row another score."""
    labels = _labels(rng, rows)
    return _pair(labels, [_sigmoid(it) for it in _alike(rng, labels, signal, -0.5, 1.2)])


def both_weighted(rng: Random, rows: int, signal: float) -> Pair:
    """Two models on rows with weights, of which a few are large."""
    weights = np.exp(0.7 * rng.normal(size=rows)).astype(np.float32)
    ours, theirs = both_smooth(rng, rows, signal)
    return replace(ours, weights=weights), replace(theirs, weights=weights)


def both_four_classes(rng: Random, rows: int, signal: float) -> Pair:
    """Two models of four classes, one of which is rare."""
    labels = rng.choice(4, rows, p=[0.5, 0.25, 0.2, 0.05])
    both = 1.2 * np.eye(4)[labels] + rng.normal(size=(rows, 4))
    ours, theirs = (
        _many(labels, both + more * np.eye(4)[labels] + 0.5 * rng.normal(size=(rows, 4)))
        for more in (signal, 0.0)
    )
    return ours, theirs


def both_values(rng: Random, rows: int, signal: float) -> Pair:
    """Two regressions whose errors are rare and large."""
    labels = rng.normal(size=rows)
    both = labels + 0.3 * rng.standard_t(2, rows)
    ours, theirs = (
        ValuePredictions.of(labels, both + (1 - more) * 0.5 * rng.standard_t(2, rows))
        for more in (signal, 0.0)
    )
    return ours, theirs


def few_costs(rng: Random, rows: int, signal: float) -> Pair:
    """Two models with a cost of the user's own that differs in few rows."""
    labels = _labels(rng, rows)
    errors = rng.permutation(rows)[:10]
    ours_too = rng.random(10) < 0.5 - signal / 2
    models = []
    for wrong in (errors[ours_too], errors[~ours_too]):
        cost = np.zeros(rows)
        cost[wrong] = np.where(labels[wrong] == 1, 10.0, 1.0)
        model = two_classes(labels, np.where(labels == 1, 0.9, 0.1))
        lower = frozenset({"own/cost"})
        models.append(replace(model, own={"own/cost": cost}, minimize=lower))
    return models[0], models[1]


def _groups(rows: int) -> NDArray[np.int64]:
    """Return the number of each row's group: 20 rows each, or fewer of a small split."""
    return np.arange(rows) // min(20, rows // 12)


def groups(rng: Random, rows: int, signal: float) -> Pair:
    """Give rows of one group, which mostly have one label, similar scores."""
    group = _groups(rows)
    share = rng.beta(0.3, 0.5, group[-1] + 1)[group]
    labels = (rng.random(rows) < share).astype(np.int64)
    scores = signal * labels + rng.normal(size=group[-1] + 1)[group] + 0.3 * rng.normal(size=rows)
    pair = _with_baseline(labels, _sigmoid(-0.5 + 0.5 * scores))
    return _in_groups(pair, group)


def both_groups(rng: Random, rows: int, signal: float) -> Pair:
    """Two models, each of which is right or wrong in most rows of a group."""
    group, labels = _groups(rows), _labels(rng, rows)
    models = []
    for more in (signal, 0.0):
        skill = (0.4 + more + 1.2 * rng.normal(size=group[-1] + 1))[group]
        scores = _sigmoid(skill * (2 * labels - 1) + 0.5 * rng.normal(size=rows))
        models.append(two_classes(labels, scores))
    return _in_groups((models[0], models[1]), group)


def _in_groups(pair: Pair, group: NDArray[np.int64]) -> Pair:
    one, other = (replace(it, groups=group.astype(np.uint64)) for it in pair)
    return one, other


AGAINST_BASELINE: dict[str, tuple[Situation, list[str]]] = {
    it.__name__: (it, metrics)
    for metrics, situations in (
        (BINARY, (mostly_yes, mostly_yes_rare, twenty_rows, twenty_weighted_rows, mostly_no)),
        (BINARY, (three_rows, three_scores)),
        (BINARY, (few_positives, smooth, weighted)),
        # The precision of a class is left out: docs/support.md.
        ([it for it in BINARY if it != "precision/b"], (groups,)),
        (MANY, (four_classes, mostly_one_class)),
        (VALUES, (any_value, mostly_the_mean)),
    )
    for it in situations
}
AGAINST_CHAMPION: dict[str, tuple[Situation, list[str]]] = {
    it.__name__: (it, metrics)
    for metrics, situations in (
        (BINARY, (few_differences, both_mostly_yes, both_mostly_no, both_three_scores)),
        (BINARY, (both_few_positives, both_smooth, both_weighted, both_groups)),
        (MANY, (both_four_classes,)),
        (VALUES, (both_values,)),
        (OWN, (few_costs,)),
    )
    for it in situations
}
