"""Every metric agrees with scikit-learn, whatever the data and however it is cut into batches."""

import math
import tracemalloc
from dataclasses import astuple, replace

import numpy as np
import pytest
from scipy.stats import t as student
from sklearn import metrics as oracle
from sklearn.calibration import calibration_curve

from kfp_tfjob.judging import predictions as of_models
from kfp_tfjob.judging.confusion_metrics import condense
from kfp_tfjob.judging.metric_uncertainty import Estimate, Measured, t_quantile, t_tail
from kfp_tfjob.judging.metrics import Measures
from kfp_tfjob.judging.predictions import ClassPredictions, Predictions, ValuePredictions, joined
from kfp_tfjob.judging.ranking_metrics import curves_of
from kfp_tfjob.judging.ranking_metrics import estimate as curve_estimate
from tests.baselines import two_classes

ROWS = 3000
KINDS = ["balanced", "rare", "tied", "constant", "saturated"]
METRICS = ["balanced_accuracy", "auc", "average_precision", "mcc", "brier", "f1/b", "rmse", "r2"]


def estimate(predictions: Predictions, metric: str, classes: list[str] | None = None) -> Estimate:
    return Measures(predictions, classes).estimate(metric)


def summary(predictions: Predictions, confidence: float) -> dict[str, Measured]:
    return Measures(predictions, confidence=confidence).measured


def binary(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (labels, probability of class 1) of a case that trips naive code."""
    rng = np.random.default_rng(5)
    share = {"rare": 0.004}.get(kind, 0.4)
    labels = (rng.random(ROWS) < share).astype(int)
    logit = rng.normal(size=ROWS) + 1.2 * labels
    scores = {
        "balanced": 1 / (1 + np.exp(-logit)),
        "rare": 1e-4 / (1 + np.exp(-logit)),
        "tied": np.round(1 / (1 + np.exp(-logit)), 1),
        "constant": np.full(ROWS, 0.3),
        "saturated": np.clip(1 / (1 + np.exp(-20 * logit)), 0, 1),
    }
    return labels, scores[kind].astype(np.float32)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_two_classes_agree_with_scikit_learn(kind: str, weighted: bool) -> None:
    labels, scores = binary(kind)
    weights = np.random.default_rng(4).integers(0, 4, ROWS).astype(float) if weighted else None
    predictions = two_classes(labels, scores, weights)
    guesses, by = predictions.predicted, {"sample_weight": weights}
    expected = {
        "accuracy": oracle.accuracy_score(labels, guesses, **by),
        "balanced_accuracy": oracle.balanced_accuracy_score(labels, guesses, **by),
        "mcc": oracle.matthews_corrcoef(labels, guesses, **by),
        "auc": oracle.roc_auc_score(labels, scores, **by),
        "average_precision": oracle.average_precision_score(labels, scores, **by),
        "macro_f1": oracle.f1_score(labels, guesses, average="macro", **by),
        "brier": oracle.brier_score_loss(labels, scores.astype(float), **by),
        "top_2_accuracy": 1.0,
    }
    for metric, value in expected.items():
        assert estimate(predictions, metric).value == pytest.approx(value, abs=1e-12), metric
    log_loss = oracle.log_loss(labels, scores, **by)
    assert estimate(predictions, "log_loss").value == pytest.approx(log_loss, rel=1e-6)


def test_the_calibration_curve_is_that_of_scikit_learn() -> None:
    labels, scores = binary("balanced")
    measures = Measures(two_classes(labels, scores))
    true, predicted = calibration_curve(labels, scores, n_bins=15)
    found = measures.calibration
    used = found.weight > 0
    assert found.observed[used] == pytest.approx(true)
    assert found.predicted[used] == pytest.approx(predicted, abs=1e-6)
    share = found.weight[used] / ROWS
    error = np.dot(share, np.abs(true - predicted))
    assert measures.estimate("ece").value == pytest.approx(error, abs=1e-6)
    assert math.isnan(measures.estimate("ece").interval(0.95)[0])
    sure = Measures(ClassPredictions.of(labels, np.eye(2)[labels]))
    assert sure.estimate("ece").value == 0


@pytest.mark.parametrize("weighted", [False, True])
def test_the_first_k_classes_agree_with_scikit_learn(weighted: bool) -> None:
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 7, ROWS)
    scores = np.round(rng.dirichlet(np.ones(7), ROWS), 1)
    weights = rng.random(ROWS).astype(np.float32) if weighted else None
    predictions = ClassPredictions.of(labels, scores, weights)
    assert predictions.scores.shape == (ROWS, 7)
    assert "top_5_accuracy" in summary(predictions, 0.95)
    for k in (2, 5):
        expected = oracle.top_k_accuracy_score(
            labels, scores, k=k, labels=range(7), sample_weight=weights
        )
        found = estimate(predictions, f"top_{k}_accuracy")
        assert found.value == pytest.approx(expected, abs=1e-12)
        assert found.interval(0.95)[0] < found.value < found.interval(0.95)[1]
    brier = np.average(((scores - np.eye(7)[labels]) ** 2).sum(axis=1), weights=weights)
    assert estimate(predictions, "brier").value == pytest.approx(brier, abs=1e-6)
    mcc = oracle.matthews_corrcoef(labels, predictions.predicted, sample_weight=weights)
    assert estimate(predictions, "mcc").value == pytest.approx(mcc, abs=1e-12)
    shares = np.eye(7)[labels]
    precision = oracle.average_precision_score(shares, predictions.scores, sample_weight=weights)
    assert estimate(predictions, "average_precision").value == pytest.approx(precision, abs=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_come_in_batches_and_many_scores_are_counted_in_bins(
    monkeypatch: pytest.MonkeyPatch, kind: str, weighted: bool
) -> None:
    """The same rows with all limits set low."""
    labels, scores = binary(kind)
    weights = np.random.default_rng(4).integers(0, 4, ROWS) if weighted else [None] * ROWS
    parts = [
        two_classes(labels[at], scores[at], weights[at] if weighted else None)
        for at in (slice(0, 700), slice(700, 2900), slice(2900, ROWS))
    ]
    measures = Measures(two_classes(labels, scores, weights if weighted else None))
    known = {metric: measures.estimate(metric) for metric in measures.names}
    errors = {metric: it.standard_error for metric, it in known.items()}
    monkeypatch.setattr(of_models.RowPredictions.chunks, "__defaults__", (400,))
    held = joined(parts)
    assert isinstance(held, ClassPredictions) and len(list(held.chunks())) == 8
    for metric, expected in known.items():
        found = Measures(held).estimate(metric)
        assert found.value == pytest.approx(expected.value, abs=1e-12), metric
        assert found.standard_error == pytest.approx(errors[metric]), metric
    (binned,) = curves_of(held, exact_scores=0)
    assert measures.exact and not binned.exact
    for metric in ("auc", "average_precision"):
        # One pair of scores in one bin moves a metric of 12 positive rows this much.
        assert getattr(binned, metric) == pytest.approx(known[metric].value, abs=2e-3)
        error = curve_estimate(held, [binned], metric).standard_error
        assert error == pytest.approx(errors[metric], rel=2e-2, abs=1e-12)


@pytest.mark.parametrize("missing", [None, 3])
def test_many_classes_agree_with_scikit_learn(missing: int | None) -> None:
    rng = np.random.default_rng(6)
    names = [f"class {index}" for index in range(5)]
    labels = rng.integers(0, 5, ROWS)
    labels = labels[labels != missing]
    logits = rng.normal(size=(len(labels), 5)) + 1.5 * np.eye(5)[labels]
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    predictions = ClassPredictions.of(labels, probabilities)
    present = np.unique(labels)
    guesses = predictions.predicted
    assert estimate(predictions, "accuracy").value == oracle.accuracy_score(labels, guesses)
    macro = oracle.f1_score(labels, guesses, labels=present, average="macro")
    assert estimate(predictions, "macro_f1").value == pytest.approx(macro, abs=1e-12)
    curves = [
        oracle.roc_auc_score(labels == index, probabilities[:, index].astype(np.float32))
        for index in present
    ]
    assert estimate(predictions, "auc").value == pytest.approx(np.mean(curves), abs=1e-12)
    assert estimate(predictions, "log_loss").value == pytest.approx(
        oracle.log_loss(labels, probabilities, labels=range(5)), rel=1e-6
    )
    _, counts = condense(Measures(predictions).cells, list("abcde"))
    assert (counts == oracle.confusion_matrix(labels, guesses, labels=range(5))).all()
    table = oracle.precision_recall_fscore_support(
        labels, guesses, labels=range(5), zero_division=0
    )
    for kind, values in zip(("precision", "recall", "f1"), table, strict=False):
        for index in present:
            found = estimate(predictions, f"{kind}/{names[index]}", names)
            assert found.value == pytest.approx(values[index], abs=1e-12)
    if missing is not None:
        assert math.isnan(estimate(predictions, f"recall/{names[missing]}", names).value)


@pytest.mark.parametrize("scale", [1, 0.1])
def test_bins_round_little(scale: float) -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, 300_000)
    logits = scale * (rng.normal(size=len(labels)) + labels)
    scores = (1 / (1 + np.exp(-logits))).astype(np.float32)
    (binned,) = curves_of(two_classes(labels, scores), exact_scores=0)
    assert binned.auc == pytest.approx(oracle.roc_auc_score(labels, scores), abs=3e-6)
    precision = oracle.average_precision_score(labels, scores)
    assert binned.average_precision == pytest.approx(precision, abs=3e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_regression_agrees_with_scikit_learn(weighted: bool) -> None:
    rng = np.random.default_rng(7)
    labels = (1e6 + rng.normal(size=ROWS) * 300).astype(np.float32)
    values = (labels + rng.normal(size=ROWS) * 40).astype(np.float32)
    weights = rng.integers(0, 3, ROWS).astype(float) if weighted else None
    predictions = ValuePredictions.of(labels, values, weights)
    labels, values = labels.astype(float), values.astype(float)
    by = {"sample_weight": weights}
    expected = {
        "mae": oracle.mean_absolute_error(labels, values, **by),
        "rmse": oracle.root_mean_squared_error(labels, values, **by),
        "r2": oracle.r2_score(labels, values, **by),
        "mean_error": np.average(values - labels, weights=weights),
    }
    for metric, value in expected.items():
        assert estimate(predictions, metric).value == pytest.approx(value, rel=1e-7), metric


def test_weights_are_repeated_rows() -> None:
    labels, scores = binary("balanced")
    counts = np.random.default_rng(1).integers(0, 3, ROWS)
    rows = np.repeat(np.arange(ROWS), counts)
    weighted = Measures(two_classes(labels, scores, counts), ["a", "b"])
    repeated = Measures(two_classes(labels[rows], scores[rows]), ["a", "b"])
    for metric in (*weighted.names, "precision/b", "recall/a", "f1/b"):
        found, known = weighted.estimate(metric), repeated.estimate(metric)
        assert found.value == pytest.approx(known.value, abs=1e-12), metric
        # A row that counts twice tells less than two rows.
        assert metric == "ece" or found.standard_error > known.standard_error, metric
        assert metric == "ece" or found.effective_sample_size <= known.effective_sample_size


@pytest.mark.parametrize("metric", METRICS)
def test_standard_errors_are_those_of_a_bootstrap(metric: str) -> None:
    rng = np.random.default_rng(8)
    if metric in ("rmse", "r2"):
        truth, errors = rng.normal(size=(2, ROWS))
        model: Predictions = ValuePredictions.of(truth, 0.7 * truth + 0.5 * errors)
    else:
        model = two_classes(*binary("balanced"))
    drawn = [
        estimate(model[rng.integers(0, ROWS, ROWS)], metric, ["a", "b"]).value for _ in range(600)
    ]
    found = estimate(model, metric, ["a", "b"])
    assert found.standard_error == pytest.approx(np.std(drawn), rel=0.1)


def test_a_model_without_an_error_is_not_said_to_make_none() -> None:
    labels = np.repeat([0, 1], [980, 20])
    perfect = Measures(ClassPredictions.of(labels, np.eye(2)[labels]))
    # As many as one error in this many rows would be no surprise (Wilson's interval at 1).
    rows = {"accuracy": 1000, "auc": 20, "average_precision": 20, "balanced_accuracy": 78}
    for metric, count in rows.items():
        low, high = perfect.estimate(metric).interval(0.95)
        assert high == pytest.approx(1)
        assert 1 - low == pytest.approx(3.84 / (count + 3.84), rel=0.2), metric
    low, high = perfect.estimate("mcc").interval(0.95)
    assert (low, high) == (pytest.approx(0.91, abs=0.01), pytest.approx(1))
    constant = Measures(ClassPredictions.of(labels, np.full((1000, 2), 0.5)))
    assert constant.estimate("auc").interval(0.95) == (0.5, 0.5)
    assert constant.estimate("mcc").interval(0.95) == (0, 0)


@pytest.mark.parametrize("mistakes", [0, 3])
@pytest.mark.parametrize("rare", [1, 2, 5])
def test_a_class_of_few_rows_all_wrong_leaves_the_means_uncertain(mistakes: int, rare: int) -> None:
    labels = np.repeat([0, 1, 2], [618, 110, rare])
    guesses = np.where(labels == 2, 0, labels)
    guesses[618 : 618 + mistakes] = 0
    model = Measures(ClassPredictions.of(labels, np.eye(3)[guesses]), ["a", "b", "c"])
    precision = model.estimate("precision/c")  # of no prediction
    assert precision.value == 0 and np.isnan(precision.interval(0.95)).all()
    for metric in ("balanced_accuracy", "macro_f1"):
        low, high = model.estimate(metric).interval(0.95)
        assert 0.58 < low < 0.667 and 0.8 < high < 0.96, metric


@pytest.mark.parametrize("classes", [2, 3])
def test_rows_of_weight_zero_tell_nothing(classes: int) -> None:
    labels = np.arange(120) % classes
    guesses, weights = labels.copy(), np.ones(120, np.float32)
    guesses[:3], weights[:3] = (labels[:3] + 1) % classes, 0  # wrong, but they do not count
    whole = Measures(ClassPredictions.of(labels, np.eye(classes)[guesses], weights))
    rest = Measures(ClassPredictions.of(labels[3:], np.eye(classes)[guesses[3:]]))
    for metric in ("accuracy", "balanced_accuracy", "macro_f1", "mcc"):
        found, known = whole.estimate(metric), rest.estimate(metric)
        assert (found.value, found.effective_sample_size) == (
            pytest.approx(known.value),
            known.effective_sample_size,
        )
        assert found.interval(0.95) == pytest.approx(known.interval(0.95))
    assert whole.cells.counts.sum() == 120  # the confusion matrix shows them
    nothing = Measures(ClassPredictions.of(labels, np.eye(classes)[guesses], 0 * weights))
    assert all(math.isnan(nothing.estimate(metric).value) for metric in ("accuracy", "mcc"))


@pytest.mark.parametrize("metric", ["auc", "average_precision"])
def test_ranks_and_intervals_are_those_without_the_rows_of_weight_zero(metric: str) -> None:
    """A score that only such rows have made the interval's distribution divide 0 by 0."""
    rng = np.random.default_rng(11)
    labels, counted = (rng.random((2, 200)) < [[0.3], [0.5]]).astype(int)
    scores = 1 / (1 + np.exp(2 - rng.normal(size=200) - 3 * labels))
    whole = two_classes(labels, scores, counted)
    rest = two_classes(labels[counted > 0], scores[counted > 0])
    found, expected = (Measured.of(estimate(each, metric), 0.9) for each in (whole, rest))
    assert astuple(found) == pytest.approx(astuple(expected), rel=1e-12)
    assert expected.low < expected.value < expected.high


def test_an_auc_near_one_of_few_rows_is_not_said_to_be_certain() -> None:
    """Of 20 rows of a class, one is below 3 of the 1,980 others."""
    labels = np.repeat([0, 1], [1980, 20])
    scores = np.concatenate([np.linspace(0, 0.5, 1980), np.linspace(0.6, 0.9, 20)])
    scores[-1] = scores[1976]
    found = estimate(two_classes(labels, scores), "auc")
    assert found.value > 0.9998
    low, high = found.interval(0.95)
    assert 0.95 < low < 0.995 and high > found.value


def test_the_rows_of_a_rare_class_decide_what_is_known_of_metrics_over_all_classes() -> None:
    labels = np.repeat([0, 1], [980, 20])
    wrong = labels ^ (np.arange(1000) % 4 == 0)
    measures = Measures(ClassPredictions.of(labels, np.eye(2)[wrong]))
    assert measures.estimate("accuracy").effective_sample_size == 1000
    assert 20 <= measures.estimate("balanced_accuracy").effective_sample_size <= 22
    equal = Measures(ClassPredictions.of(np.tile([0, 1], 500), np.eye(2)[wrong % 2]))
    for metric in ("balanced_accuracy", "mcc", "macro_f1"):
        assert (
            measures.estimate(metric).effective_sample_size
            < equal.estimate(metric).effective_sample_size
        )
    guesses = np.zeros(1000, int)
    guesses[[0, 990, 991]] = 1  # two hits and a false alarm say nothing of the next ones
    seldom = Measures(ClassPredictions.of(labels, np.eye(2)[guesses]))
    assert seldom.estimate("mcc").effective_sample_size < 10


def test_what_the_rows_cannot_define_is_not_a_number() -> None:
    one_class = ClassPredictions.of([1, 1, 1], [[0.2, 0.8]] * 3)
    assert math.isnan(estimate(one_class, "auc").value)
    assert estimate(one_class, "accuracy").value == 1
    broken = ClassPredictions.of([0, 1, 1], [[0.2, 0.8], [np.nan, np.nan], [0.5, 0.5]])
    assert all(math.isnan(item.value) for item in summary(broken, 0.95).values())
    assert math.isnan(estimate(one_class, "rmse").value)
    assert math.isnan(estimate(ValuePredictions.of([1.0, 1.0], [1.0, 2.0]), "r2").value)
    # The weighted mean of equal labels is rounded: r2 was -2e+33.
    labels, weights = np.full(50, 0.1), np.random.default_rng(1).random(50)
    assert math.isnan(estimate(ValuePredictions.of(labels, weights, weights), "r2").value)


def test_the_roc_curve_is_short_finite_and_right() -> None:
    labels, scores = binary("balanced")
    fpr, tpr, thresholds = Measures(two_classes(labels, scores)).curves[0].roc(100)
    assert len(fpr) <= 100
    assert np.isfinite(thresholds).all()
    assert (fpr[0], tpr[0], fpr[-1], tpr[-1]) == (0, 0, 1, 1)
    assert np.trapezoid(tpr, fpr) == pytest.approx(oracle.roc_auc_score(labels, scores), abs=1e-3)
    for at in (1, 40, 80):
        assert tpr[at] == (scores[labels == 1] >= thresholds[at]).mean()
        assert fpr[at] == (scores[labels == 0] >= thresholds[at]).mean()


def test_a_large_confusion_matrix_keeps_the_most_confused_classes() -> None:
    names = [f"c{index}" for index in range(100)]
    labels = np.append(np.repeat(np.arange(100), 10), [40] * 7)
    guesses = np.append(labels[:1000], [41] * 7)
    cells = Measures(ClassPredictions.of(labels, np.eye(100)[guesses])).cells
    shown, small = condense(cells, names)
    assert len(shown) == 30 and shown[-1] == "other"
    assert {"c40", "c41"} < set(shown)
    assert small[shown.index("c40"), shown.index("c41")] == 7
    assert small.sum() == 1007


def test_ten_thousand_classes_need_no_matrix_of_them() -> None:
    rng = np.random.default_rng(12)
    labels, guesses = rng.integers(0, 10_000, (2, 3000))
    predictions = replace(
        ClassPredictions.of(labels % 2, np.eye(2)[guesses % 2]),
        labels=labels.astype(np.int32),
        predicted=guesses.astype(np.int32),
        classes=10_000,
    )
    tracemalloc.start()
    cells = Measures(predictions).cells
    names, counts = condense(cells, [str(name) for name in range(10_000)])
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()
    assert counts.sum() == 3000 and names[-1] == "other"


def test_more_than_thirty_classes_have_no_auc_but_everything_else() -> None:
    rng = np.random.default_rng(3)
    probabilities = rng.dirichlet(np.ones(40), 200)
    predictions = ClassPredictions.of(rng.integers(0, 40, 200), probabilities)
    assert predictions.scores.shape == (200, 0)
    found = summary(predictions, 0.95)
    assert math.isnan(found["auc"].value)
    assert math.isfinite(found["log_loss"].value)


@pytest.mark.parametrize("level", [0.05, 0.975])
def test_quantiles_and_tails_of_t_are_those_of_scipy(level: float) -> None:
    for freedom in range(1, 31):
        wrong = {1: 1e-9, 2: 1e-9, 3: 1e-2}.get(freedom, 3e-3)
        expected = student.ppf(level, freedom)
        assert t_quantile(level, freedom) == pytest.approx(expected, rel=wrong, abs=1e-9)
        if freedom >= 9:
            assert t_tail(expected, freedom) == pytest.approx(1 - level, rel=1e-2)
