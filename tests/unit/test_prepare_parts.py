"""Counts of parts of a table, merged in their order, are those of one pass."""

import csv
import io
import pickle
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kfp_tfjob.common.errors import DataError
from kfp_tfjob.components.prepare_data import column_profile, dictionary, labels
from kfp_tfjob.components.prepare_data.column_profile import ColumnProfile
from kfp_tfjob.components.prepare_data.columns_to_rows import Converter
from kfp_tfjob.components.prepare_data.dictionary import Dictionary
from kfp_tfjob.components.prepare_data.faults import BlockFaults, Faults
from kfp_tfjob.components.prepare_data.kinds import Feature, Kinds, columns_of, decide
from kfp_tfjob.components.prepare_data.labels import Labels
from kfp_tfjob.components.prepare_data.source.column_names import Columns
from kfp_tfjob.components.prepare_data.source.readers.arrow_table import ArrowTable, Chunk
from kfp_tfjob.components.prepare_data.source.readers.csv_table import CsvTable
from kfp_tfjob.features.cells import Texts
from kfp_tfjob.options.data import DataOptions
from tests.unit.test_column_types import plain

FEATURES = ("a", "b", "c")
OPTIONS = DataOptions(on_bad_row="drop")
BYTES = "binary"  # becomes a byte that is not UTF-8
FORMS = (
    ["1", "0", "2.5", "-7", " 3 ", "+4", ".5", "1e3"],
    ["1e99", "nan", "inf", "-Infinity"],
    ["2024-01-02", "1969-12-31", "2300-01-01", "0000-01-01", " 1999-09-09"],
    ["2024-01-02T03:04:05", "2024-01-02 03:04:05.123456789Z", "2024-01-02T03:04+02:00"],
    ["31.12.2024", "1/2/2024", "2024/01/02", "2024-02-31"],
    ["1.234,50", "1,5", "$ 3.00", "50%"],
    ["yes", "No", "true", "f"],
    ["red", "green", "blue", "a1", "b,2", 'quoted "', "two\nlines", "ä"],
    ["", "NA", " ", " NA"],
    ["x" * 1001, "0" * 1001, BYTES, "a\0b"],
)


def features_of(kinds: tuple[str, ...]) -> Kinds:
    found = (Feature(name, kind, None, 0) for name, kind in zip(FEATURES, kinds, strict=True))
    return Kinds(tuple(found), ())


@dataclass
class Counted:
    """What a pass over a table, or a part of it, knows."""

    seen: dict[str, ColumnProfile] = field(
        default_factory=lambda: {name: ColumnProfile(name) for name in FEATURES}
    )
    dictionaries: dict[str, Dictionary] = field(default_factory=dict)
    codes: dict[str, list[int]] = field(default_factory=dict)
    rows: list[list[float]] = field(default_factory=list)
    labels: Labels = field(default_factory=lambda: Labels("y"))
    faults: Faults = field(default_factory=Faults)


def written(rows: list[tuple[str, ...]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([(*FEATURES, "y"), *rows])
    return text.getvalue().encode().replace(BYTES.encode(), b"\xff")


def opened(rows: list[tuple[str, ...]], block: int) -> ArrowTable:
    table = CsvTable(io.BytesIO(written(rows)), "t.csv", OPTIONS, block)
    return ArrowTable(table, "t.csv", OPTIONS)


def look(
    found: Counted, rows: list[tuple[str, ...]], block: int, kinds: Kinds | None = None
) -> None:
    columns = columns_of(kinds, "y") if kinds else Columns(FEATURES, "y")
    for chunk in opened(rows, block).chunks(columns):
        column_profile.profile(found.seen, chunk)


def read(found: Counted, rows: list[tuple[str, ...]], block: int, kinds: Kinds) -> None:
    converter = Converter(kinds, "y")
    found.dictionaries = {name: Dictionary() for name in kinds.with_dictionaries}
    found.codes = {name: [] for name in found.dictionaries}
    table = opened(rows, block)
    for chunk in table.chunks(columns_of(kinds, "y")):
        good = converter.rows(chunk)
        found.faults.merge(good.faults)
        numbers = np.nan_to_num(good.features.astype(float), nan=-0.125)
        for floats, days in zip(numbers, good.dates, strict=True):
            found.rows.append([*floats.tolist(), *days.tolist()])
        for name, texts in zip(found.dictionaries, good.texts, strict=True):
            found.codes[name] += found.dictionaries[name].add(texts).codes.tolist()
        found.labels.add(good, np.array([len(good.labels[code]) % 3 for code in good.codes]))


def as_stored(item):
    """Return what the step gets of a task in another process."""
    return pickle.loads(pickle.dumps(item))


def parts_of(rows: list, cuts: list[int]) -> list[list]:
    places = [0, *sorted(cut % (len(rows) + 1) for cut in cuts), len(rows)]
    return [rows[i:j] for i, j in zip(places, places[1:], strict=False)]


def lines_of(rows: list[tuple[str, ...]]) -> int:
    return written(rows).count(b"\n") - 1


def labels_of(found: Labels):
    try:
        label = found.decide("auto")
    except DataError as error:
        return str(error).split("for example")[0]
    return label.classes and (label.classes, found.class_counts(label).tolist())


@st.composite
def columns(draw, rows: int) -> list[str]:
    pools = [texts for texts in FORMS for _ in range(2)]
    usual, other = draw(st.sampled_from(pools)), draw(st.sampled_from(pools))
    rare = draw(st.sampled_from([0, 1, 2, 10]))
    return [
        draw(st.sampled_from(other if draw(st.integers(0, 11)) < rare else usual))
        for _ in range(rows)
    ]


@st.composite
def tables(draw) -> list[tuple[str, ...]]:
    rows = draw(st.integers(0, 30))
    texts = draw(st.lists(st.sampled_from(["u", "v", "1", "2.5", "3"]), min_size=1, unique=True))
    label = [draw(st.sampled_from(texts)) for _ in range(rows)]
    found = [draw(columns(rows)) for _ in FEATURES]
    short = draw(st.sampled_from([0, 0, 5]))
    return [
        row[:2] if short and draw(st.integers(0, short)) == 0 else row
        for row in zip(*found, label, strict=True)
    ]


BLOCKS = st.sampled_from([40, 300, 1 << 16])
few = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


@pytest.fixture(scope="module", autouse=True)
def small_limits():
    """Make limits so small that a few rows exceed them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_profile, "MOST_TEXTS", 5)
        patch.setattr(dictionary, "MOST_TEXTS", 7)
        patch.setattr(labels, "MOST_CLASSES", 4)
        yield


@few
@given(
    tables(),
    st.lists(st.integers(0, 30), max_size=3),
    BLOCKS,
    st.tuples(*(st.sampled_from(["number", "date", "category"]) for _ in FEATURES)),
)
def test_any_parts_are_one_pass(rows, cuts, block, assumed):
    """Kinds that are assumed, right or wrong, change only what the reader parses itself."""
    whole = Counted()
    look(whole, rows, 1 << 16)
    merged, line = Counted(), 0
    for part in parts_of(rows, cuts):
        found = Counted()
        look(found, part, block, features_of(assumed))
        for name, column in found.seen.items():
            later = as_stored(column)
            later.shift(line)
            merged.seen[name].merge(later)
        line += lines_of(part)
    for name in FEATURES:
        assert plain(merged.seen[name]) == plain(whole.seen[name])
    kinds, problems = decide(whole.seen.values(), OPTIONS)
    assert (kinds, problems) == decide(merged.seen.values(), OPTIONS)
    if problems or not kinds.features:
        return

    read(whole, rows, 1 << 16, kinds)
    merged = merged_rows(rows, cuts, block, kinds)
    assert merged.dictionaries == whole.dictionaries and merged.rows == whole.rows
    if not any(it.is_lost for it in whole.dictionaries.values()):  # codes count
        assert merged.codes == whole.codes
    assert labels_of(merged.labels) == labels_of(whole.labels)
    assert merged.labels.text_faults == whole.labels.text_faults
    assert (merged.labels.text_rows == whole.labels.text_rows).all()
    for attribute in ("seen", "rows", "cells", "left_out", "examples"):
        assert getattr(merged.faults, attribute) == getattr(whole.faults, attribute)


def merged_rows(rows, cuts, block, kinds) -> Counted:
    merged, line = Counted(), 0
    merged.dictionaries = {name: Dictionary() for name in kinds.with_dictionaries}
    merged.codes = {name: [] for name in merged.dictionaries}
    for part in parts_of(rows, cuts):
        found = Counted()
        read(found, part, block, kinds)
        for name, texts in found.dictionaries.items():
            places = merged.dictionaries[name].merge(as_stored(texts))
            if not texts.is_lost:  # else no code counts
                merged.codes[name] += places[found.codes[name]].tolist()
        merged.rows += found.rows
        labels, faults = as_stored(found.labels), as_stored(found.faults)
        labels.shift(line)
        faults.shift(line)
        merged.labels.merge(labels)
        merged.faults.merge(faults)
        line += lines_of(part)
    return merged


def test_many_identifiers_leave_a_category_its_texts(monkeypatch):
    """40 columns of identifiers beside a category: only the identifiers are left out."""
    for name, limit in (("MOST_TEXTS", 2_500), ("_MOST_FORMS", 1_000), ("_MOST_ALL_FORMS", 20_000)):
        monkeypatch.setattr(column_profile, name, limit)
    names = [*(f"id{i}" for i in range(40)), "city"]
    found = {name: ColumnProfile(name) for name in names}
    rows = 1000
    for block in range(2):
        numbers = range(block * rows, (block + 1) * rows)
        columns = {
            name: pa.array([f"{name}-{number:08x}" for number in numbers]) for name in names[:40]
        }
        cities = [f"{number % 1800:0100d} city" for number in numbers]
        columns["city"] = pa.array(cities)
        column_profile.profile(found, Chunk(columns, BlockFaults("t", np.arange(rows)), 0))
    kinds, problems = decide(found.values(), OPTIONS)
    assert not problems and kinds.with_dictionaries == ("city",)
    assert [item.name for item in kinds.left_out] == names[:40]


def test_dictionaries_that_do_not_fit_together_are_named(monkeypatch):
    monkeypatch.setattr(dictionary, "MOST_TEXTS", 1000)
    monkeypatch.setattr(dictionary, "_MOST_BYTES", 20_000)
    found = {"a": Dictionary(), "b": Dictionary()}
    codes = np.arange(1, 301, dtype=np.int32)
    found["a"].add(Texts([str(i) for i in range(300)], codes))
    assert dictionary.too_large(found) is None
    found["b"].add(Texts([str(i) for i in range(300)], codes))
    problem = dictionary.too_large(found)
    assert problem and "'a'" in problem.received and "drop" in problem.fix
