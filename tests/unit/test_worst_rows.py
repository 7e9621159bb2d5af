"""The rows with the greatest errors: the right ones, and only the columns that may be shown."""

from typing import Any

import numpy as np
import pytest

from kfp_tfjob.judging.predictions import ClassPredictions, ValuePredictions
from kfp_tfjob.judging.rows import Batch
from kfp_tfjob.judging.sample import Sample
from kfp_tfjob.judging.worst import Worst

COLUMNS = ("age", "salary", "city")


def packed(count: int, weights: bool = False) -> tuple[Batch, Any, np.ndarray]:
    """Return rows of a regression, their predictions and absolute errors."""
    rng = np.random.default_rng(3)
    features = rng.normal(size=(count, 3)).astype(np.float32)
    labels, values = rng.normal(size=(2, count)).astype(np.float32)
    weight = rng.integers(0, 2, count).astype(np.float32) if weights else None
    batch = Batch(features, labels, weight)
    return batch, ValuePredictions.of(labels, values, weight), np.abs(values - labels)


def parts(batch: Batch, predictions: Any, size: int) -> Any:
    for start in range(0, len(batch.labels), size):
        rows = slice(start, start + size)
        weights = None if batch.weights is None else batch.weights[rows]
        features = batch.features
        if isinstance(features, dict):
            features = {name: values[rows] for name, values in features.items()}
        else:
            features = features[rows]
        yield Batch(features, batch.labels[rows], weights), predictions[rows], np.empty(0)


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("weights", [False, True])
def test_the_worst_rows_of_a_regression_do_not_depend_on_batches(size: int, weights: bool) -> None:
    batch, predictions, errors = packed(500, weights)
    if batch.weights is not None:
        errors = errors * (batch.weights > 0)
    worst = Worst(COLUMNS, ["city", "age"], 9)
    for part in parts(batch, predictions, size):
        worst.add(*part)
    expected = np.argsort(-errors, kind="stable")[:9]
    assert [row.number for row in worst.rows] == expected.tolist()
    for row in worst.rows:
        assert row.values == {
            "age": pytest.approx(batch.features[row.number, 0]),
            "city": pytest.approx(batch.features[row.number, 2]),
        }
        assert row.error == pytest.approx(abs(row.predicted - row.label), abs=1e-6)


@pytest.mark.parametrize("classes", [2, 4])
def test_of_classes_only_wrong_rows_are_errors(classes: int) -> None:
    rng = np.random.default_rng(classes)
    labels = rng.integers(0, classes, 300)
    logits = rng.normal(size=(300, classes)) + 1.5 * np.eye(classes)[labels]
    scores = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    predictions = ClassPredictions.of(labels, scores)
    features = {"age": np.arange(300.0), "city": np.array(["Rome"] * 300, object)}
    worst = Worst(("age", "city"), ["age"], 300)
    for part in parts(Batch(features, labels), predictions, 64):
        worst.add(*part)
    wrong = np.flatnonzero(scores.argmax(axis=1) != labels)
    assert sorted(row.number for row in worst.rows) == wrong.tolist()
    assert [row.error for row in worst.rows] == sorted((r.error for r in worst.rows), reverse=True)
    for row in worst.rows:
        assert row.values == {"age": float(row.number)}
        most, true = row.probability
        assert most == pytest.approx(scores[row.number].max(), abs=1e-6)
        assert true == pytest.approx(scores[row.number, row.label], abs=1e-6)
        assert row.predicted == scores[row.number].argmax()


def test_predictions_that_are_no_numbers_are_left_out() -> None:
    labels = np.zeros(3, np.float32)
    predictions = ValuePredictions.of(labels, [np.nan, 1.0, np.inf])
    worst = Worst(("age",), ["age"], 5)
    worst.add(Batch(np.zeros((3, 1)), labels), predictions, np.empty(0))
    assert [row.number for row in worst.rows] == [1]


@pytest.mark.parametrize("size", [3, 100, 1000])
def test_a_sample_has_the_same_rows_for_any_batches(size: int) -> None:
    batch, predictions, _ = packed(1000, weights=True)
    batch = batch._replace(features=np.arange(1000.0)[:, None] * np.ones(3))
    sample = Sample(1000, 50, seed=7)
    for part in parts(batch, predictions, size):
        sample.add(*part)
    kept = sample.batch()
    assert kept is not None and kept.weights is not None
    numbers = kept.features[:, 0].astype(int)
    assert len(set(numbers.tolist())) == 50 and (np.diff(numbers) > 0).all()
    np.testing.assert_array_equal(kept.labels, batch.labels[numbers])
    np.testing.assert_array_equal(kept.weights, batch.weights[numbers])
    again = Sample(1000, 50, seed=7)
    again.add(batch, predictions, np.empty(0))
    np.testing.assert_array_equal(again.batch().features, kept.features)


def test_a_sample_of_few_rows_has_all_of_them() -> None:
    batch, predictions, _ = packed(20)
    sample = Sample(20, 50, seed=7)
    sample.add(batch, predictions, np.empty(0))
    np.testing.assert_array_equal(sample.batch().features, batch.features)
    assert Sample(20, 50, seed=7).batch() is None
