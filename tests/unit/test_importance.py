"""Permutation importance: right values, honest intervals, bounded time, the same every time."""

from typing import Any

import numpy as np
import pytest

from kfp_tfjob.judging.importance import SHUFFLES, Importances, importances
from kfp_tfjob.judging.predictions import ClassPredictions, Predictions, ValuePredictions
from kfp_tfjob.judging.rows import Batch

COLUMNS = ("strong", "weak", "unused", "twin")
SLOPES = np.array([2.0, 0.5, 0.0, 0.0])


class Linear:
    """Predicts SLOPES x columns, and counts the rows that it was asked for."""

    def __init__(self, is_class: bool = False) -> None:
        self.is_class, self.rows, self.calls = is_class, 0, 0

    def predict(self, batch: Batch) -> Predictions:
        features = batch.features
        features = np.stack([features[name] for name in COLUMNS], axis=1)
        self.calls, self.rows = self.calls + 1, self.rows + len(features)
        values = features @ SLOPES
        if not self.is_class:
            return ValuePredictions.of(batch.labels, values, batch.weights)
        second = 1 / (1 + np.exp(-values))
        scores = np.stack([1 - second, second], axis=1)
        return ClassPredictions.of(batch.labels, scores, batch.weights)


def rows(seed: int, count: int = 400, is_class: bool = False, weights: bool = False) -> Batch:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(count, 4))
    features[:, 3] = features[:, 0]
    values = features @ SLOPES
    if is_class:
        labels: Any = (rng.random(count) < 1 / (1 + np.exp(-values))).astype(int)
    else:
        labels = values + rng.normal(size=count)
    columns = {name: features[:, at] for at, name in enumerate(COLUMNS)}
    return Batch(columns, labels, rng.integers(1, 4, count) if weights else None)


def measure(sample: Batch, metric: str = "mae", seconds: float = 60.0, **more: Any) -> Importances:
    model = Linear(metric in ("auc", "accuracy"))
    classes = ["no", "yes"] if model.is_class else []
    found = importances(model, sample, COLUMNS, metric, 0.95, seconds, classes, **more)
    assert found is not None
    return found


@pytest.mark.parametrize("metric", ["mae", "rmse", "auc", "accuracy"])
def test_columns_are_ordered_by_what_the_model_loses_without_them(metric: str) -> None:
    found = measure(rows(1, 2000, metric in ("auc", "accuracy")), metric)
    assert list(found.columns)[:2] == ["strong", "weak"]
    strong, weak = found.columns["strong"], found.columns["weak"]
    assert 0 < strong.low < strong.value < strong.high
    assert weak.high < strong.low
    for name in ("unused", "twin"):  # the model does not read them
        assert found.columns[name] == type(strong)(0.0, 0.0, 0.0)
    assert (found.rows, found.shuffles, found.left) == (2000, SHUFFLES, ())


def test_the_same_sample_gives_the_same_figures() -> None:
    sample = rows(2, weights=True)
    assert measure(sample) == measure(sample)


@pytest.mark.parametrize("metric", ["rmse", "auc"])
def test_the_interval_covers_what_many_rows_show(metric: str) -> None:
    is_class = metric == "auc"
    truth = measure(rows(99, 20_000, is_class), metric).columns
    hits = {"strong": 0, "weak": 0}
    turns = 40
    for seed in range(turns):
        found = measure(rows(seed, 200, is_class), metric).columns
        for name in hits:
            hits[name] += found[name].low <= truth[name].value <= found[name].high
    for name, hit in hits.items():
        assert 0.89 <= hit / turns <= 1.0, (name, hit / turns)


def test_without_time_every_column_is_shuffled_less_often_and_the_rest_is_named() -> None:
    clock = iter(range(1000))
    found = measure(rows(4, 4000), seconds=3, clock=lambda: float(next(clock)))
    assert list(found.columns) and found.left == COLUMNS[3:]
    assert found.shuffles == 1
    clock = iter(range(1000))
    found = measure(rows(4, 4000), seconds=9, clock=lambda: float(next(clock)))
    assert found.left == () and found.shuffles == 2


def test_rows_that_do_not_define_the_metric_have_no_importance() -> None:
    one_class = rows(6, is_class=True)._replace(labels=np.zeros(400, int))
    model = Linear(is_class=True)
    assert importances(model, one_class, COLUMNS, "auc", 0.95, 60, ["no", "yes"]) is None
    few = Batch({name: it[:5] for name, it in rows(7).features.items()}, rows(7).labels[:5])
    assert importances(Linear(), few, COLUMNS, "mae", 0.95, 60) is None
