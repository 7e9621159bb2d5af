"""PSI, and what is chance."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_tfjob.components.prepare_data import leaks
from kfp_tfjob.components.prepare_data.distributions import Drift, measure
from kfp_tfjob.components.prepare_data.report import drift_cell
from kfp_tfjob.components.prepare_data.sample import Sample
from kfp_tfjob.features.schema import Schema
from tests.typed_schema import typed


def test_the_figures_of_a_known_case() -> None:
    found = measure([50, 50], [80, 20])
    assert found.psi == pytest.approx(0.3 * math.log(1.6) - 0.3 * math.log(0.4))
    assert not found.is_chance


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1))
def test_the_figures_have_bounds(pairs: list[tuple[int, int]]) -> None:
    before, now = zip(*pairs, strict=True)
    found = measure(before, now)
    if not sum(before) or not sum(now):
        assert found is None
        return
    assert 0 <= found.psi < 1000 and found.chance >= 0
    same = measure(before, before)
    assert same.psi == 0
    assert measure(now, before).psi == pytest.approx(found.psi)


def test_few_rows_differ_by_chance_alone() -> None:
    random = np.random.default_rng(1)
    alarms = {50: 0, 5000: 0}
    for rows in alarms:
        for _ in range(500):
            one, other = (np.bincount(random.integers(0, 20, rows), minlength=20) for _ in "12")
            found = measure(one, other)
            alarms[rows] += not found.is_chance
    assert max(alarms.values()) <= 3
    moved = np.minimum(random.integers(0, 24, 300), 19)
    one = np.bincount(random.integers(0, 20, 300), minlength=20)
    assert not measure(one, np.bincount(moved, minlength=20)).is_chance


def _train(columns: np.ndarray, labels: np.ndarray) -> Sample:
    width = (columns.shape[1],)
    kind = [("features", "<f4", width), ("codes", "<i4", (0,)), ("dates", "<i8", (0,))]
    rows = np.zeros(len(labels), np.dtype(kind))
    rows["features"] = columns
    return Sample(rows, labels)


def _schema(columns: int, classes: int | None) -> Schema:
    names = None if classes is None else [str(i) for i in range(classes)]
    features = [{"name": str(i), "type": "float32"} for i in range(columns)]
    return typed({"features": features, "label": {"name": "y", "classes": names}})


@pytest.mark.parametrize("classes", [2, 3, None])
def test_a_column_is_suspicious_only_if_it_predicts_other_rows(classes: int | None) -> None:
    random = np.random.default_rng(3)
    labels = random.integers(0, classes, 4000) if classes else random.normal(size=4000)
    columns = np.stack(
        [
            labels * 2 + random.uniform(0, 0.9 if classes else 1e-3, 4000),  # tells it
            random.normal(size=4000),
            labels + random.normal(size=4000),  # predicts it well
            random.permutation(4000),  # as many values as rows
        ],
        axis=1,
    )
    found = leaks.find(_schema(4, classes), _train(columns, labels))
    assert [item.name for item in found] == ["0"]
    assert (found[0].measure == leaks.AUC) == (classes == 2)
    few = leaks.find(_schema(4, classes), _train(columns[:50], labels[:50]))
    assert few == []


def test_labels_without_a_choice_are_no_leak() -> None:
    columns = np.zeros((200, 1), np.float32)
    assert leaks.find(_schema(1, 2), _train(columns, np.zeros(200, np.int64))) == []
    assert leaks.find(_schema(1, None), _train(columns, np.ones(200, np.float32))) == []


@pytest.mark.parametrize(
    ("psi", "largest", "style"),
    [(0.3, 0.25, "bad"), (0.3, 0.5, "warning"), (0.3, None, "warning"), (0.05, 0.01, "bad")],
)
def test_the_report_colours_by_the_limit_of_the_contract(psi, largest, style):
    assert drift_cell(Drift(psi, 0.0), largest) == (style, f"{psi:.3f}")
