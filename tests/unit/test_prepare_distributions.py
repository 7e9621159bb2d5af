"""Counts by bins: what each kind of column gets, and that merging equals counting at once."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_tfjob.components.prepare_data.distributions import (
    MOST_COLUMNS,
    MOST_VALUES,
    ColumnRows,
    Distributions,
    DistributionsDocument,
    measure,
)
from kfp_tfjob.features.coding import Coding
from kfp_tfjob.features.types.base import NO_DATE, Missing
from kfp_tfjob.features.types.boolean import Boolean
from kfp_tfjob.features.types.category import Category
from kfp_tfjob.features.types.date import Date
from kfp_tfjob.features.types.number import Number
from kfp_tfjob.features.types.string import String

CITIES = tuple(f"city {i}" for i in range(300))
# The dictionary is in the order of the source, the vocabulary by rows.
PEOPLE = Coding(
    (
        Number("age", Missing("median", 40.0)),
        Boolean("member", Missing("most_frequent", 0)),
        Category("city", dictionary=CITIES[::-1], vocabulary=CITIES[:200]),
        Date("joined", Missing("median", 0), origin=0),
        String("note", bins=8),
        Number("dice", Missing("median", 3.0)),
    )
)


def people(rows: int, seed: int = 1) -> np.ndarray:
    """Return rows as they are in the runs; about a tenth of the values are missing values."""
    random = np.random.default_rng(seed)
    found = np.zeros(rows, _kind(3, 2, 1))
    found["features"][:, 0] = random.normal(40, 10, rows)
    found["features"][:, 1] = random.integers(0, 2, rows)
    found["features"][:, 2] = random.integers(1, 7, rows)
    found["features"][random.random((rows, 3)) < 0.1] = np.nan
    found["codes"][:, 0] = 300 - np.minimum(random.geometric(0.02, rows) - 1, 299)
    found["codes"][:, 1] = random.integers(1, 9, rows)
    found["codes"][random.random((rows, 2)) < 0.1] = 0
    dates = random.integers(-(10**15), 10**15, rows)
    found["dates"][:, 0] = np.where(random.random(rows) < 0.1, NO_DATE, dates)
    return found


def _kind(features: int, codes: int = 0, dates: int = 0) -> np.dtype:
    return np.dtype(
        [("features", "<f4", (features,)), ("codes", "<i4", (codes,)), ("dates", "<i8", (dates,))]
    )


def of_numbers(names: list[str]) -> Coding:
    return Coding(tuple(map(Number, names)))


def stored(coding: Coding, rows: np.ndarray, *label: np.ndarray | str) -> DistributionsDocument:
    """Return what a dataset says whose train split has these rows."""
    found = Distributions.of(coding, rows, *label)
    found.add("train", rows, *label[:1])
    return DistributionsDocument.from_bytes(found.document().to_bytes())


def entry(found: Distributions, name: str) -> ColumnRows:
    return found.document().by_name[name]


def test_each_kind_has_its_bins() -> None:
    rows = people(5000)
    found = Distributions.of(PEOPLE, rows)
    found.add("train", rows)
    age, dice = entry(found, "age"), entry(found, "dice")
    assert len(age.edges) == 21
    present = (~np.isnan(rows["features"][:, 0])).sum()
    assert sum(age.counts["train"]) == present
    inner = age.counts["train"][1:-1]
    assert max(inner) - min(inner) <= 2 and sum(inner) == present  # quantiles
    assert age.gaps == {"train": 5000 - present, "validation": 0, "test": 0}
    assert dice.edges[1:] == (1, 2, 3, 4, 5, 6) and 0.999 < dice.edges[0] < 1
    assert dice.counts["train"][0] == dice.counts["train"][-1] == 0
    third = int((rows["features"][:, 2] == 3).sum())
    assert dice.counts["train"][3] == third
    flags = rows["features"][:, 1]
    assert entry(found, "member").counts["train"] == [(flags == 0).sum(), (flags == 1).sum()]
    city = entry(found, "city")
    assert city.values == CITIES[:MOST_VALUES]
    assert city.counts["train"][0] == (rows["codes"][:, 0] == 300).sum()
    assert city.counts["train"][MOST_VALUES] == sum(
        (rows["codes"][:, 0] == 300 - i).sum() for i in range(MOST_VALUES, 300)
    )
    joined, dates = entry(found, "joined"), rows["dates"][:, 0]
    assert joined.gaps["train"] == (dates == NO_DATE).sum()
    assert joined.counts["train"][1] == ((dates != NO_DATE) & (dates <= joined.edges[1])).sum()
    note = entry(found, "note")
    gaps = int((rows["codes"][:, 1] == 0).sum())
    assert note.gaps["train"] == gaps and note.counts["train"] == [5000 - gaps]
    assert note.values is note.edges is None


@pytest.mark.parametrize("beyond", [-999, 999])
@pytest.mark.parametrize("usual", [1, 5, 400])
def test_values_beyond_those_of_train_have_a_bin_of_their_own(usual: int, beyond: int) -> None:
    coding = Coding(
        (Number("level", Missing("median", 0)), Date("since", Missing("median", 0), origin=0))
    )
    rows = np.zeros(2000, _kind(1, 0, 1))
    rows["features"][:, 0] = rows["dates"][:, 0] = np.arange(2000) % usual
    file = stored(coding, rows)
    live = rows.copy()
    live["features"][:60], live["dates"][:60] = beyond, beyond
    now = Distributions.of_file(file, coding)
    now.add("train", live)
    for old, new in zip(file.columns, now.document().columns, strict=True):
        end = 0 if beyond < 0 else -1
        assert old.counts["train"][end] == 0 and new.counts["train"][end] == 60
        found = measure(old.counts["train"], new.counts["train"])
        assert found.psi > 0.1 and not found.is_chance


def test_bins_at_the_ends_of_float32() -> None:
    least = float(np.finfo(np.float32).min)
    rows = np.zeros(3, _kind(1))
    rows["features"][:, 0] = least, 0, -least
    (x,) = stored(of_numbers(["x"]), rows).columns
    assert x.counts["train"] == [1, 1, 1, 0]  # nothing finite is below the first


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 400), max_size=5), st.randoms(use_true_random=False))
def test_parts_in_any_order_equal_one_pass(sizes: list[int], order) -> None:
    rows = people(400 + sum(sizes))
    labels = np.arange(len(rows), dtype=np.float32) / 7
    edges = Distributions.of(PEOPLE, rows[:400], labels[:400], "income")
    whole = replace(edges)
    whole.add("train", rows[:400], labels[:400])
    whole.add("test", rows[400:], labels[400:])
    ends = np.cumsum([400, *sizes]).tolist()
    parts = [("train", 0, 400), *(("test", *pair) for pair in zip(ends, ends[1:], strict=False))]
    order.shuffle(parts)
    merged = replace(edges)
    for split, start, end in parts:
        part = replace(edges)
        part.add(split, rows[start:end], labels[start:end])
        merged.merge(part.counts)
    assert merged.document() == whole.document()
    counts = whole.document().label.counts
    assert sum(counts["train"]) == 400 and sum(counts["test"]) == sum(sizes)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_edges_are_exact_in_float32(values: list[float]) -> None:
    rows = np.zeros(len(values), _kind(1))
    rows["features"][:, 0] = values
    below, *edges = Distributions.of(of_numbers(["x"]), rows).columns[0].edges
    if below == np.float32(min(values)):  # nothing finite is below it
        edges = [below, *edges]
    assert np.float32(below) <= min(values) and len(edges) <= 20
    if len(set(values)) <= 20:
        assert {np.float32(edge) for edge in edges} == {np.float32(value) for value in values}
    assert {np.float32(edge) for edge in edges} <= {np.float32(value) for value in values}


def test_the_bins_of_another_dataset() -> None:
    rows = people(3000)
    file = stored(PEOPLE, rows, rows["dates"][:, 0] * 1e-9, "income")
    # Columns move, one is new, one is of another kind, and the dictionary has another order.
    other = Coding(
        (
            Number("dice", Missing("median", 3.0)),
            Number("new", Missing("median", 3.0)),
            Number("age", Missing("median", 40.0)),
            Category("city", dictionary=("Rome", *CITIES[:50]), vocabulary=("Rome",)),
            Category("member", dictionary=("yes",), vocabulary=("yes",)),
        )
    )
    found = Distributions.of_file(file, other)
    assert [item.name for item in found.columns] == ["dice", "age", "city"]
    some = np.zeros(4, _kind(3, 2))
    some["features"] = [[1, 0, 40], [7, 0, 41], [6, 0, np.nan], [np.nan, 0, 42]]
    some["codes"][:, 0] = [0, 1, 2, 3]  # a missing value, Rome, city 0, city 1
    found.add("train", some, np.zeros(4))
    assert entry(found, "dice").counts["train"] == [0, 1, 0, 0, 0, 0, 1, 1]
    assert entry(found, "dice").gaps["train"] == 1
    city = entry(found, "city")
    assert city.gaps["train"] == 1
    assert city.counts["train"][:3] == [1, 1, 0] and city.counts["train"][-1] == 1
    assert found.document().label.name == "income"


def test_a_wide_table_has_its_first_columns() -> None:
    rows = np.zeros(3, _kind(MOST_COLUMNS + 5))
    names = [str(i) for i in range(MOST_COLUMNS + 5)]
    found = Distributions.of(of_numbers(names), rows)
    found.add("validation", rows)
    body = found.document()
    assert len(body.columns) == MOST_COLUMNS and body.columns_left_out == 5
    assert body.columns[0].counts["validation"] == [0, 3, 0]
