"""Proofs by simulation: intervals cover, equal models are not promoted, slices rarely cry wolf.

`make test-statistics` runs them, in some minutes.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from kfp_tfjob.judging.gain_bound import compare
from kfp_tfjob.judging.metrics import Measures
from kfp_tfjob.judging.predictions import ClassPredictions, Predictions, ValuePredictions
from kfp_tfjob.judging.rows import Batch
from kfp_tfjob.judging.slice_checks import judge_slices
from kfp_tfjob.judging.slices import Slices
from kfp_tfjob.options.gate import parse_gate
from tests.baselines import two_classes
from tests.typed_schema import typed

pytestmark = pytest.mark.slow
log = logging.getLogger(__name__)

TIMES = 10_000
ROWS = 1000
BINARY = ["accuracy", "balanced_accuracy", "auc", "average_precision", "macro_f1", "mcc"]
BINARY += ["log_loss", "brier", "precision/b", "recall/b", "f1/b"]
MANY = ["accuracy", "balanced_accuracy", "auc", "macro_f1", "mcc", "log_loss", "top_2_accuracy"]
VALUES = ["rmse", "mae", "r2", "mean_error"]
OWN = ["own/cost", "own/missed", "own/sharp"]
CLASSES = ["a", "b", "c", "d"]


def binary(
    rng: np.random.Generator,
    rows: int,
    models: int = 1,
    share: float = 1 / 3,
    slope: float = 1.5,
    start: float = -1.25,
    own_noise: float = 0.44,
) -> list[Predictions]:
    """Return models of the same rows, a share of them of class 1, whose errors are much alike."""
    labels = (rng.random(rows) < share).astype(np.int64)
    common = start + slope * labels + 0.9 * rng.normal(size=rows)
    logits = [common + own_noise * rng.normal(size=rows) for _ in range(models)]
    return [two_classes(labels, 1 / (1 + np.exp(-logit))) for logit in logits]


# Models that are nearly always right.
few_errors = partial(binary, slope=5, start=-2.5)
# One row in 100 is of class 1, and the models often miss it.
rare = partial(binary, share=1 / 100, slope=3, start=-2.6, own_noise=1)


def weighted(
    make: Callable[..., list[Predictions]], rng: np.random.Generator, rows: int, models: int = 1
) -> list[Predictions]:
    """Return models with row weights from 0.5 to 2."""
    weights = rng.uniform(0.5, 2, rows).astype(np.float32)
    return [replace(one, weights=weights) for one in make(rng, rows, models)]


def many(rng: np.random.Generator, rows: int, models: int = 1) -> list[Predictions]:
    """Return models of four classes."""
    labels = rng.integers(0, 4, rows)
    common = rng.normal(size=(rows, 4))
    found: list[Predictions] = []
    for _ in range(models):
        logits = 1.2 * np.eye(4)[labels] + common + 0.4 * rng.normal(size=(rows, 4))
        scores = np.exp(logits)
        found.append(ClassPredictions.of(labels, scores / scores.sum(axis=1, keepdims=True)))
    return found


def values(rng: np.random.Generator, rows: int, models: int = 1) -> list[Predictions]:
    """Return regressions with long-tailed errors."""
    truth = rng.normal(size=rows)
    common = 0.5 * rng.standard_t(8, rows)
    return [
        ValuePredictions.of(truth, truth + common + 0.3 * rng.normal(size=rows))
        for _ in range(models)
    ]


def own(rng: np.random.Generator, rows: int, models: int = 1) -> list[Predictions]:
    """Return models of two classes with metrics of the user's own, which have a value by row."""
    found: list[Predictions] = []
    for one in binary(rng, rows, models):
        assert isinstance(one, ClassPredictions)
        missed, alarm = one.labels > one.predicted, one.labels < one.predicted
        shares = {"own/cost": 10.0 * missed + alarm, "own/missed": missed}
        found.append(replace(one, own=shares | {"own/sharp": one.losses**2}))
    return found


KINDS: dict[str, tuple[Callable[..., list[Predictions]], list[str]]] = {
    "two classes": (binary, BINARY),
    "with weights": (partial(weighted, binary), BINARY),
    "few errors": (few_errors, BINARY),
    "four classes": (many, MANY),
    "regression": (values, VALUES),
    "own": (own, OWN),
    "own with weights": (partial(weighted, own), OWN),
    "rare class": (rare, BINARY),
}
EACH = [(kind, metric) for kind, (_, metrics) in KINDS.items() for metric in metrics]
# A few rows say little of the tails of an AUC near 1: its interval may cover more often.
WIDER = ("few errors", "rare class")
OF_SCORES = ("auc", "average_precision")
COMPARED = [
    (kind, metric, rows)
    for kind, (_, metrics) in KINDS.items()
    for rows in ((2 * ROWS,) if kind == "rare class" else (200, ROWS))
    for metric in metrics
    if metric != "mean_error"  # it cannot compare models
]
SMOOTH = [one for one in EACH if one[0] not in WIDER]


def grouped(cases: list[tuple[Any, ...]]) -> list[Any]:
    """Return the cases of a test, with those of one kind on one processor."""
    return [pytest.param(*one, marks=pytest.mark.xdist_group(str(one[0]))) for one in cases]


def near(found: int, times: int, low: float, high: float) -> bool:
    """Tell whether the 99.9 % binomial interval of a share meets the range."""
    share = found / times
    reach = NormalDist().inv_cdf(0.9995) * math.sqrt(max(share * (1 - share), 1e-4) / times)
    return share + reach >= low and share - reach <= high


@cache
def covered(kind: str) -> dict[str, int]:
    """Return for each metric how often its 95 % interval covers the true value."""
    make, metrics = KINDS[kind]
    rng = np.random.default_rng(1)
    (whole,) = make(rng, 4_000_000)
    population = Measures(whole, CLASSES)
    true = {metric: population.estimate(metric).value for metric in metrics}
    found = dict.fromkeys(metrics, 0)
    rows = 2 * ROWS if kind == "rare class" else ROWS
    for _ in range(TIMES):
        model = Measures(make(rng, rows)[0], CLASSES)
        for metric in metrics:
            low, high = model.estimate(metric).interval(0.95)
            found[metric] += low <= true[metric] <= high
    return found


@pytest.mark.parametrize(("kind", "metric"), grouped(EACH))
def test_intervals_cover_the_true_value(kind: str, metric: str) -> None:
    found = covered(kind)[metric]
    log.info("%s, %s: %.2f %% of the 95 %% intervals cover", kind, metric, 100 * found / TIMES)
    most = 1.0 if metric in OF_SCORES and kind in WIDER else 0.965
    assert near(found, TIMES, 0.935, most)


@cache
def promoted(kind: str, rows: int) -> dict[str, int]:
    """Return for each metric how often one of two equal models is promoted."""
    make, metrics = KINDS[kind]
    rng = np.random.default_rng(rows)
    found = dict.fromkeys(metrics, 0)
    for _ in range(TIMES):
        challenger, champion = (Measures(one, CLASSES) for one in make(rng, rows, 2))
        for metric in metrics:
            found[metric] += compare(challenger, champion, metric).low > 0
    return found


@pytest.mark.parametrize(("kind", "metric", "rows"), grouped(COMPARED))
def test_equal_models_are_rarely_promoted(kind: str, metric: str, rows: int) -> None:
    found = promoted(kind, rows)[metric]
    log.info("%s, %s, %d rows: %.2f %% promoted", kind, metric, rows, 100 * found / TIMES)
    assert near(found, TIMES, 0.0, 0.06)


@pytest.mark.parametrize(("kind", "metric"), grouped(SMOOTH))
def test_intervals_are_as_wide_as_those_of_bootstraps(kind: str, metric: str) -> None:
    """1,000 bootstraps of one test split know the width to 2 %: so it is the mean of 20 splits."""
    make, _ = KINDS[kind]
    rng = np.random.default_rng(7)
    ratios = []
    for _ in range(20):
        (model,) = make(rng, ROWS)
        drawn = [
            Measures(model[rng.integers(0, ROWS, ROWS)], CLASSES).estimate(metric).value
            for _ in range(1000)
        ]
        ratios.append(Measures(model, CLASSES).estimate(metric).standard_error / np.std(drawn))
    log.info("%s, %s: %.3f of the bootstraps' width", kind, metric, np.mean(ratios))
    assert np.mean(ratios) == pytest.approx(1, abs=0.03)


SCHEMA = typed({"features": {"part": "float32"}, "label": {"name": "y", "classes": ["a", "b"]}})


@pytest.mark.parametrize("metric", ["auc", "accuracy", "log_loss", "average_precision"])
def test_slices_of_equal_models_rarely_fail(metric: str) -> None:
    """Ten slices, of 100 to 1,000 rows."""
    rng = np.random.default_rng(11)
    options = parse_gate({"primary_metric": metric, "slices": ["part"]})
    assert options is not None
    part = np.repeat(np.arange(10.0), np.arange(1, 11) * 100)
    failed = 0
    for _ in range(TIMES):
        challenger, champion = binary(rng, len(part), 2)
        slices = Slices(options.slices, SCHEMA)
        slices.add(Batch({"part": part}, challenger.labels))
        checks, _ = judge_slices(
            options, metric, slices, Measures(challenger), Measures(champion), "champion"
        )
        failed += not checks[0].passed
    log.info("%s: some slice fails in %.2f %%", metric, 100 * failed / TIMES)
    assert near(failed, TIMES, 0.0, 0.06)
