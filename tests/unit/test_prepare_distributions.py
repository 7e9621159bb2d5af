"""Counts by bins, their merging, and the drift and the leaks that are seen in rows."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_tfjob.components.prepare_data import leaking_columns
from kfp_tfjob.components.prepare_data.distributions import (
    MOST_COLUMNS,
    MOST_VALUES,
    ColumnRows,
    Distributions,
    DistributionsDocument,
    Drift,
    measure,
)
from kfp_tfjob.components.prepare_data.report import drift_cell
from kfp_tfjob.components.prepare_data.sample import Sample
from kfp_tfjob.features.coding import Coding
from kfp_tfjob.features.imputation import Missing
from kfp_tfjob.features.schema import Schema
from kfp_tfjob.features.types.base import NO_DATE
from kfp_tfjob.features.types.boolean import Boolean
from kfp_tfjob.features.types.category import Category
from kfp_tfjob.features.types.date import Date
from kfp_tfjob.features.types.number import Number
from kfp_tfjob.features.types.string import String
from tests.typed_schema import keys_of, typed

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


def people(rows: int) -> np.ndarray:
    """Return rows as they are in the runs; about a tenth of the values are missing values."""
    random = np.random.default_rng(1)
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
    rows = np.zeros(len(labels), _kind(columns.shape[1]))
    rows["features"] = columns
    return Sample(rows, labels)


def _schema(columns: int, classes: int | None) -> Schema:
    names = None if classes is None else [str(i) for i in range(classes)]
    features = {str(i): "float32" for i in range(columns)}
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
    found = leaking_columns.find(_schema(4, classes), _train(columns, labels))
    assert [item.name for item in found] == ["0"]
    assert (found[0].measure == leaking_columns.AUC) == (classes == 2)
    few = leaking_columns.find(_schema(4, classes), _train(columns[:50], labels[:50]))
    assert few == []


def test_copies_of_rows_do_not_make_a_category_suspicious() -> None:
    random = np.random.default_rng(3)
    visitors = tuple(map(str, range(2000)))
    coding = Coding((Category("visitor", dictionary=visitors, vocabulary=visitors),))
    schema = typed(keys_of(coding) | {"label": {"name": "y", "classes": ["no", "yes"]}})
    labels = np.repeat(random.integers(0, 2, 2000), 2)
    rows = np.zeros(4000, _kind(0, 1))
    rows["codes"][:, 0] = np.repeat(np.arange(2, 2002), 2)  # 0 and 1: unknown and missing
    assert leaking_columns.find(schema, Sample(rows, labels)) == []


def test_labels_without_a_choice_are_no_leak() -> None:
    columns = np.zeros((200, 1), np.float32)
    assert leaking_columns.find(_schema(1, 2), _train(columns, np.zeros(200, np.int64))) == []
    assert leaking_columns.find(_schema(1, None), _train(columns, np.ones(200, np.float32))) == []


@pytest.mark.parametrize(
    ("psi", "largest", "style"),
    [(0.3, 0.25, "bad"), (0.3, 0.5, "warning"), (0.3, None, "warning"), (0.05, 0.01, "bad")],
)
def test_the_report_colours_by_the_limit_of_the_contract(psi, largest, style):
    assert drift_cell(Drift(psi, 0.0), largest) == (style, f"{psi:.3f}")
