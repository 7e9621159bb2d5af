"""Rows in bins of equally many rows, drawn over the bars of a histogram."""

import numpy as np
import pytest

from kfp_tfjob.components.prepare_data.distributions import edges_of
from kfp_tfjob.features.types.base import bars_of
from kfp_tfjob.pages.rebinning import Rebinning

COLUMNS = {
    "even": lambda random: random.uniform(0, 10, 5000),
    "skewed": lambda random: random.lognormal(0, 2, 5000),
    "few values": lambda random: random.integers(0, 17, 5000).astype(float),
    "mostly zero": lambda random: np.maximum(random.normal(-1, 1, 5000), 0),
    "one value": lambda random: np.full(100, 3.0),
}


def bins(values: np.ndarray, edges: tuple[float, ...]) -> list[int]:
    """Count values by bin as distributions.json does: (edge, next edge]."""
    places = np.searchsorted(edges, values.astype(np.float32), side="left")
    return np.bincount(places, minlength=len(edges) + 1).tolist()


@pytest.mark.parametrize("name", COLUMNS)
def test_the_lines_of_train_are_its_bars(name: str) -> None:
    values = COLUMNS[name](np.random.default_rng(1)).astype(np.float32).astype(np.float64)
    edges, ends = edges_of(values.astype(np.float32)), (float(values.min()), float(values.max()))
    bars = bars_of(values, *ends)
    rebinning = Rebinning(edges, bins(values, edges), bars, ends)
    by_bar = rebinning.by_bar(bins(values, edges))
    assert sum(by_bar) == pytest.approx(len(values))
    assert by_bar == pytest.approx(bars, abs=0.02 * len(values))


@pytest.mark.parametrize("name", ["even", "few values"])
def test_other_rows_are_where_their_values_are(name: str) -> None:
    train = COLUMNS[name](np.random.default_rng(1))
    other = COLUMNS[name](np.random.default_rng(2))
    other = other[other < 5]
    edges, ends = edges_of(train.astype(np.float32)), (float(train.min()), float(train.max()))
    rebinning = Rebinning(edges, bins(train, edges), bars_of(train, *ends), ends)
    by_bar = np.array(rebinning.by_bar(bins(other, edges)))
    expected = np.array(bars_of(other, *ends))
    assert by_bar.sum() == pytest.approx(len(other))
    assert np.abs(by_bar - expected).sum() < 0.12 * len(other)


def test_rows_beyond_those_of_train_are_in_the_first_and_the_last_bar() -> None:
    train = np.arange(100.0)
    edges = edges_of(train.astype(np.float32))
    rebinning = Rebinning(edges, bins(train, edges), bars_of(train, 0, 99), (0.0, 99.0))
    by_bar = rebinning.by_bar(bins(np.array([-5.0, -4.0, 1000.0]), edges))
    assert by_bar[0] == pytest.approx(2) and by_bar[-1] == pytest.approx(1)
    assert sum(by_bar) == pytest.approx(3)
