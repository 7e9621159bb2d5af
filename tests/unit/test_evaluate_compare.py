"""The comparison of two models decides as often, and only as often, as it says."""

import math
import zlib
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from kfp_tfjob.judging.gain_bound import LEAST_ROWS, Comparison, compare_with_baseline
from kfp_tfjob.judging.gain_bound import compare as compare_measures
from kfp_tfjob.judging.metrics import Measures
from kfp_tfjob.judging.predictions import ClassPredictions, Predictions, ValuePredictions
from tests.baselines import two_classes
from tests.unit.gate_situations import AGAINST_BASELINE


def compare(challenger: Predictions, champion: Predictions, metric: str) -> Comparison:
    return compare_measures(Measures(challenger), Measures(champion), metric)


def classifier(labels: np.ndarray, logit: np.ndarray) -> ClassPredictions:
    return two_classes(labels, 1 / (1 + np.exp(-logit)))


def pair(
    rng: np.random.Generator, metric: str, rows: int, better: float = 0.0
) -> tuple[Predictions, Predictions]:
    """Return two models whose errors are much alike; the first is better by `better`."""
    common, ours, theirs = rng.normal(size=(3, rows))
    if metric in ("rmse", "mae"):
        truth = rng.normal(size=rows)
        return (
            ValuePredictions.of(truth, truth + (1 - better) * (0.9 * common + 0.44 * ours)),
            ValuePredictions.of(truth, truth + 0.9 * common + 0.44 * theirs),
        )
    labels = (rng.random(rows) < 0.5).astype(int)
    signal = 1.5 * (labels - 0.5)
    return (
        classifier(labels, signal * (1 + better) + 0.9 * common + 0.44 * ours),
        classifier(labels, signal + 0.9 * common + 0.44 * theirs),
    )


@pytest.mark.parametrize("metric", ["auc", "rmse"])
def test_equal_models_are_rarely_promoted(metric: str) -> None:
    """With 60 rows; `make test-statistics` simulates more of them."""
    rng = np.random.default_rng(60)
    repeats = 600
    promoted = sum(compare(*pair(rng, metric, 60), metric).low > 0 for _ in range(repeats))
    assert promoted / repeats <= 0.06


@pytest.mark.parametrize("metric", ["auc", "log_loss", "rmse", "mae"])
def test_the_bound_is_that_of_a_paired_bootstrap(metric: str) -> None:
    rng = np.random.default_rng(3)
    rows = 1500
    challenger, champion = pair(rng, metric, rows, 0.1)
    found = compare(challenger, champion, metric)

    def drawn() -> float:
        chosen = rng.integers(0, rows, rows)
        return compare(challenger[chosen], champion[chosen], metric).gain

    gains = [drawn() for _ in range(300)]
    reach = found.gain - found.low
    assert reach == pytest.approx(1.645 * np.std(gains), rel=0.1)
    assert found.high - found.gain == pytest.approx(reach)


def test_the_accuracy_needs_what_the_exact_test_needs() -> None:
    """Four rows won and none lost is 1 in 16 by chance, five is 1 in 32."""
    labels = np.zeros(100, int)
    right, wrong = [0.9, 0.1], [0.1, 0.9]
    challenger = ClassPredictions.of(labels, [right] * 100)
    for won, enough in ((4, False), (5, True)):
        champion = ClassPredictions.of(labels, [wrong] * won + [right] * (100 - won))
        assert (compare(challenger, champion, "accuracy").low > 0) is enough


@pytest.mark.parametrize(("few", "enough"), [(3, False), (20, False), (25, False), (26, True)])
def test_the_auc_of_a_near_constant_model_needs_what_the_exact_test_needs(
    few: int, enough: bool
) -> None:
    """All rows with a lower score are of the other class; 1.2 times 5% by chance is the most."""
    labels = np.repeat([0, 1], [270, 30])
    scores = np.ones(300)
    scores[:few] = np.linspace(0.1, 0.9, few)  # no two of them are equal
    chance = math.comb(270, few) / math.comb(300, few)
    found = compare(two_classes(labels, scores), two_classes(labels, np.full(300, 0.1)), "auc")
    assert found.with_baseline and (found.low > 0) is enough
    assert found.tail and found.tail(found.gain) == pytest.approx(chance, rel=0.02)


@pytest.mark.parametrize(("below", "above"), [(4, 4), (4, 5), (3, 5)])
def test_the_auc_of_a_few_rows_on_both_sides_has_the_chance_of_shuffled_labels(
    below: int, above: int
) -> None:
    """Of 40 rows, some have a lower score than all others, and some a higher one."""
    others, positives = 40 - below - above, 12
    scores = np.repeat([0.2, 0.5, 0.8], [below, others, above])
    chances: dict[float, float] = {}
    for low, high in np.ndindex(below + 1, above + 1):
        between = positives - low - high
        labels = np.zeros(40, int)
        for first, count in ((0, low), (below, between), (below + others, high)):
            labels[first : first + count] = 1
        found = compare(two_classes(labels, scores), two_classes(labels, np.full(40, 0.3)), "auc")
        gain = round(found.gain, 9)
        ways = math.comb(below, low) * math.comb(others, between) * math.comb(above, high)
        chances[gain] = chances.get(gain, 0.0) + ways / math.comb(40, positives)
        assert found.tail
        tail = found.tail
    # Sums that differ by less than a step of the grid, 1/32 of a deviation, may be one point of it.
    step = math.sqrt(sum(chance * gain**2 for gain, chance in chances.items())) / 32
    for gain in chances:
        at_least = [
            sum(chance for other, chance in chances.items() if other >= gain + away)
            for away in (step, -step)
        ]
        assert at_least[0] - 1e-6 <= tail(gain) <= at_least[1] + 1e-6


def test_too_few_rows_of_one_class_give_no_bound() -> None:
    rng = np.random.default_rng(4)
    labels = np.array([1] * (LEAST_ROWS - 1) + [0] * 500)
    logit = rng.normal(size=len(labels)) + 5 * labels
    found = compare(classifier(labels, logit), classifier(labels, 0 * logit), "auc")
    assert found.gain > 0.4
    assert not found.has_bound and math.isnan(found.low)


@pytest.mark.parametrize("metric", ["rmse", "mae"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("label", [0.0, 7.0, 0.1, 1e6])
def test_equal_labels_do_not_tell_a_regression_from_the_baseline(
    label: float, weighted: bool, metric: str
) -> None:
    """No shuffle of them changes the metric, beyond rounding, which was taken for a variance."""
    rng = np.random.default_rng(1)
    for rows in (20, 64, 300):
        labels, weights = np.full(rows, label), rng.random(rows) if weighted else None
        values = np.where(np.arange(rows) == 3, label + 0.125, label + 0.25)
        model = Measures(ValuePredictions.of(labels, values, weights))
        baseline = Measures(ValuePredictions.of(labels, np.full(rows, label + 0.5), weights))
        comparison = compare_with_baseline(model, baseline, metric)
        assert comparison.gain > 0.2 and comparison.low == 0
        assert comparison.tail and comparison.tail(comparison.gain) in (0.0, 1.0)


@pytest.mark.parametrize("metric", ["log_loss", "brier"])
def test_weighted_rows_of_one_class_do_not_tell_a_model_from_the_baseline(metric: str) -> None:
    rng = np.random.default_rng(1)
    for _ in range(5):
        labels, weights = np.ones(50, np.int64), rng.random(50)
        model = two_classes(labels, np.clip(0.75 + 0.2 * rng.normal(size=50), 0.01, 0.99))
        baseline = two_classes(labels, np.full(50, 0.4))
        measures = [Measures(replace(part, weights=weights)) for part in (model, baseline)]
        comparison = compare_with_baseline(measures[0], measures[1], metric)
        assert comparison.gain > 0 and comparison.low == 0


@pytest.mark.parametrize("scale", [1e15, 1e17, 1e20])
def test_a_regression_that_diverged_is_worse_than_the_baseline(scale: float) -> None:
    rng = np.random.default_rng(3)
    for rows in (100, 1000):
        labels = rng.normal(size=rows)
        model = Measures(ValuePredictions.of(labels, scale * rng.normal(size=rows)))
        baseline = Measures(ValuePredictions.of(labels, np.full(rows, 0.1)))
        assert compare_with_baseline(model, baseline, "rmse").low < 0


@pytest.mark.parametrize("classes", [4, 5, 10])
def test_a_constant_classifier_has_no_gain(classes: int) -> None:
    """With few rows, rounding was taken for a variance."""
    rng = np.random.default_rng(5)
    metrics = ("accuracy", "balanced_accuracy", "auc", "macro_f1", "mcc", "log_loss", "brier")
    for rows in (12, 16, 20):
        for _ in range(10):
            labels = rng.integers(0, classes, rows)
            shares = np.bincount(labels, minlength=classes) / rows
            model, baseline = (
                Measures(ClassPredictions.of(labels, np.tile(probabilities, (rows, 1))))
                for probabilities in (rng.dirichlet(np.ones(classes)), shares)
            )
            for metric in metrics:
                assert not compare_with_baseline(model, baseline, metric).low > 0


@pytest.mark.parametrize("metric", ["balanced_accuracy", "mcc"])
def test_more_than_a_thousand_classes_are_compared_with_the_baseline(metric: str) -> None:
    """The distribution of shuffled labels is not known for so many classes."""
    rng = np.random.default_rng(7)
    labels = np.tile(np.arange(1001), 3)
    baseline = Measures(ClassPredictions.of(labels, np.full((len(labels), 1001), 1 / 1001)))
    for wrong, better in ((0.3, True), (1.0, False)):
        guesses = np.where(rng.random(len(labels)) < wrong, rng.permutation(labels), labels)
        probabilities = np.full((len(labels), 1001), 1e-4, np.float32)
        probabilities[np.arange(len(labels)), guesses] = 0.9
        model = Measures(ClassPredictions.of(labels, probabilities))
        assert (compare_with_baseline(model, baseline, metric).low > 0) is better


def test_a_difference_of_the_detectable_size_is_found_eight_times_in_ten() -> None:
    rng = np.random.default_rng(5)
    rows, repeats = 1000, 200
    found = [compare(*pair(rng, "rmse", rows), "rmse") for _ in range(50)]
    size = float(np.mean([item.detectable for item in found]))
    promoted = sum(compare(*pair(rng, "rmse", rows, size), "rmse").low > 0 for _ in range(repeats))
    assert 0.7 < promoted / repeats < 0.9


def with_costs(
    model: ClassPredictions, costs: tuple[float, float] = (1, 1), **more: object
) -> ClassPredictions:
    """Return a model with what its errors cost, of rows of class 0 and of class 1."""
    wrong = model.predicted != model.labels
    return replace(model, own={"own/cost": wrong * np.array(costs)[model.labels]}, **more)


def test_a_metric_of_ones_own_is_compared_as_a_built_in_one() -> None:
    rng = np.random.default_rng(4)
    challenger, champion = pair(rng, "accuracy", 1500, 0.1)
    weights = rng.uniform(0.5, 2, 1500).astype(np.float32)
    for weighted in (None, weights):
        ours, theirs = (replace(one, weights=weighted) for one in (challenger, champion))
        known = compare(ours, theirs, "accuracy")
        lower = frozenset({"own/cost"})
        own = compare(
            with_costs(ours, minimize=lower), with_costs(theirs, minimize=lower), "own/cost"
        )
        assert own.gain == pytest.approx(known.gain)
        close = 0.01 * (known.gain - known.low)
        assert (own.low, own.high) == pytest.approx((known.low, known.high), abs=close)
        assert compare(with_costs(ours), with_costs(theirs), "own/cost").gain == -own.gain


def test_equal_models_that_differ_in_few_rows_are_rarely_promoted_by_their_cost() -> None:
    """By a t-test, 10% would be."""
    rng = np.random.default_rng(5)
    labels = np.arange(100) % 2
    good = np.where(labels, 3.0, -3.0)
    promoted = 0
    for _ in range(600):
        lost = rng.permutation(100)[:6]  # errors of which each model has some
        of_ours = rng.random(6) < 0.5
        models = []
        for wrong in (lost[of_ours], lost[~of_ours]):
            logit = good.copy()
            logit[wrong] *= -1
            models.append(with_costs(classifier(labels, logit), (1, 10)))
        promoted += compare(models[0], models[1], "own/cost").high < 0
    assert promoted / 600 <= 0.06


def test_a_gain_that_is_its_critical_value_does_not_pass() -> None:
    """Its bound is 0, but was 2e-17 because of rounding: the interval contained the baseline."""
    make, _ = AGAINST_BASELINE["three_scores"]
    rng = np.random.default_rng(zlib.crc32(b"three_scores 300 0"))
    model, baseline = next(islice((make(rng, 300, 0.0) for _ in range(2_000)), 1943, None))
    measures = Measures(model, ["a", "b"])
    comparison = compare_with_baseline(measures, Measures(baseline, ["a", "b"]), "auc")
    assert comparison.gain == pytest.approx(0.04954, abs=1e-5) and comparison.low == 0
    interval = comparison.without_contradiction(measures.estimate("auc").interval(0.9))
    assert interval[0] == pytest.approx(comparison.reference)
