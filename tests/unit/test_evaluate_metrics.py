"""Every metric agrees with scikit-learn, whatever the data and however it is cut into batches."""

import math

import numpy as np
import pytest
from sklearn import metrics as oracle

from kfp_tfjob.components.evaluate.metrics import (
    condense,
    estimate,
    finite,
    roc_curve,
    summary,
    t_quantile,
)
from kfp_tfjob.components.evaluate.predictions import (
    ClassPredictions,
    ValuePredictions,
    constant_classifier,
    constant_regression,
)

ROWS = 3000


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


@pytest.mark.parametrize("kind", ["balanced", "rare", "tied", "constant", "saturated"])
def test_two_classes_agree_with_scikit_learn(kind: str) -> None:
    labels, scores = binary(kind)
    predictions = ClassPredictions.of(labels, np.stack([1 - scores, scores], axis=1))
    expected = {
        "accuracy": oracle.accuracy_score(labels, predictions.predicted),
        "auc": oracle.roc_auc_score(labels, scores),
        "macro_f1": oracle.f1_score(labels, predictions.predicted, average="macro"),
    }
    for metric, value in expected.items():
        assert estimate(predictions, metric).value == pytest.approx(value, abs=1e-12), metric
    assert estimate(predictions, "log_loss").value == pytest.approx(
        oracle.log_loss(labels, np.stack([1 - scores, scores], axis=1)), rel=1e-6
    )


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
    assert (
        predictions.confusion() == oracle.confusion_matrix(labels, guesses, labels=range(5))
    ).all()
    table = oracle.precision_recall_fscore_support(
        labels, guesses, labels=range(5), zero_division=0
    )
    for index in present:
        for kind, values in zip(("precision", "recall", "f1"), table, strict=False):
            found = estimate(predictions, f"{kind}/{names[index]}", names)
            assert found.value == pytest.approx(values[index], abs=1e-12)
    if missing is not None:
        assert math.isnan(estimate(predictions, f"recall/{names[missing]}", names).value)


def test_regression_agrees_with_scikit_learn() -> None:
    rng = np.random.default_rng(7)
    labels = (1e6 + rng.normal(size=ROWS) * 300).astype(np.float32)
    values = (labels + rng.normal(size=ROWS) * 40).astype(np.float32)
    predictions = ValuePredictions.of(labels, values)
    labels, values = labels.astype(float), values.astype(float)
    expected = {
        "mae": oracle.mean_absolute_error(labels, values),
        "rmse": oracle.root_mean_squared_error(labels, values),
        "r2": oracle.r2_score(labels, values),
    }
    for metric, value in expected.items():
        assert estimate(predictions, metric).value == pytest.approx(value, rel=1e-9), metric


def test_the_batch_size_changes_nothing() -> None:
    labels, scores = binary("balanced")
    probabilities = np.stack([1 - scores, scores], axis=1)
    whole = ClassPredictions.of(labels, probabilities)
    for size in (1, 7, 4096):
        joined = ClassPredictions.join(
            [
                ClassPredictions.of(labels[at : at + size], probabilities[at : at + size])
                for at in range(0, ROWS, size)
            ]
        )
        assert (joined.confusion() == whole.confusion()).all()
        for metric in ("accuracy", "auc", "macro_f1", "log_loss"):
            assert estimate(joined, metric).value == estimate(whole, metric).value


@pytest.mark.parametrize("metric", ["accuracy", "auc", "macro_f1", "log_loss", "f1/b"])
def test_standard_errors_are_those_of_a_bootstrap(metric: str) -> None:
    rng = np.random.default_rng(8)
    labels, scores = binary("balanced")
    probabilities = np.stack([1 - scores, scores], axis=1)
    classes = ["a", "b"]

    def value(rows: np.ndarray) -> float:
        drawn = ClassPredictions.of(labels[rows], probabilities[rows])
        return estimate(drawn, metric, classes).value

    drawn = [value(rng.integers(0, ROWS, ROWS)) for _ in range(600)]
    found = estimate(ClassPredictions.of(labels, probabilities), metric, classes)
    assert found.standard_error == pytest.approx(np.std(drawn), rel=0.1)


@pytest.mark.parametrize("metric", ["rmse", "mae", "r2"])
def test_standard_errors_of_a_regression_are_those_of_a_bootstrap(metric: str) -> None:
    rng = np.random.default_rng(9)
    labels = rng.normal(size=ROWS)
    values = 0.7 * labels + 0.5 * rng.normal(size=ROWS)

    def value(rows: np.ndarray) -> float:
        return estimate(ValuePredictions.of(labels[rows], values[rows]), metric).value

    drawn = [value(rng.integers(0, ROWS, ROWS)) for _ in range(600)]
    found = estimate(ValuePredictions.of(labels, values), metric)
    assert found.standard_error == pytest.approx(np.std(drawn), rel=0.1)


def test_what_the_rows_cannot_define_is_not_a_number() -> None:
    one_class = ClassPredictions.of([1, 1, 1], [[0.2, 0.8]] * 3)
    assert math.isnan(estimate(one_class, "auc").value)
    assert estimate(one_class, "accuracy").value == 1
    broken = ClassPredictions.of([0, 1, 1], [[0.2, 0.8], [np.nan, np.nan], [0.5, 0.5]])
    assert all(math.isnan(item.value) for item in summary(broken, 0.95).values())
    assert math.isnan(estimate(one_class, "rmse").value)
    assert math.isnan(estimate(ValuePredictions.of([1.0, 1.0], [1.0, 2.0]), "r2").value)
    assert finite({"a": math.nan, "b": 1.0, "c": math.inf}) == {"b": 1.0}


def test_the_baselines_know_only_the_training_rows() -> None:
    labels = np.array([0, 1, 1, 2])
    constant = constant_classifier(labels, [10, 70, 20])
    assert estimate(constant, "accuracy").value == 0.5
    assert estimate(constant, "auc").value == 0.5
    assert estimate(constant, "log_loss").value == pytest.approx(
        -np.log([0.1, 0.7, 0.7, 0.2]).mean(), rel=1e-6
    )
    assert estimate(constant_regression([1.0, 3.0], 2.0), "rmse").value == 1


def test_the_roc_curve_is_short_finite_and_right() -> None:
    labels, scores = binary("balanced")
    fpr, tpr, thresholds = roc_curve(labels, scores)
    assert len(fpr) <= 100
    assert np.isfinite(thresholds).all()
    assert (fpr[0], tpr[0], fpr[-1], tpr[-1]) == (0, 0, 1, 1)
    assert np.trapezoid(tpr, fpr) == pytest.approx(oracle.roc_auc_score(labels, scores), abs=1e-3)
    for at in (1, 40, 80):
        assert tpr[at] == (scores[labels == 1] >= thresholds[at]).mean()
        assert fpr[at] == (scores[labels == 0] >= thresholds[at]).mean()


def test_a_large_confusion_matrix_keeps_the_most_confused_classes() -> None:
    names = [f"c{index}" for index in range(100)]
    matrix = 10 * np.eye(100, dtype=np.int64)
    matrix[40, 41] = 7
    shown, small = condense(matrix, names, 30)
    assert len(shown) == 30 and shown[-1] == "other"
    assert {"c40", "c41"} < set(shown)
    assert small[shown.index("c40"), shown.index("c41")] == 7
    assert small.sum() == matrix.sum()


def test_more_than_thirty_classes_have_no_auc_but_everything_else() -> None:
    rng = np.random.default_rng(3)
    probabilities = rng.dirichlet(np.ones(40), 200)
    predictions = ClassPredictions.of(rng.integers(0, 40, 200), probabilities)
    assert predictions.scores.shape == (200, 0)
    found = summary(predictions, 0.95)
    assert math.isnan(found["auc"].value)
    assert math.isfinite(found["log_loss"].value)


@pytest.mark.parametrize(("level", "freedom", "value"), [(0.95, 9, 1.8331), (0.975, 29, 2.0452)])
def test_quantiles_of_t_are_those_of_the_tables(level: float, freedom: int, value: float) -> None:
    assert t_quantile(level, freedom) == pytest.approx(value, abs=2e-3)
