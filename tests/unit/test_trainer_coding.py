"""The coding of columns: what schema.json declares, and packed rows by numpy."""

import datetime
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_tfjob.features.coding import Coding, Column
from kfp_tfjob.features.record_layout import DamagedRecordError
from kfp_tfjob.features.schema import Schema, SchemaFeature, SchemaLabel
from kfp_tfjob.features.types import category, string
from kfp_tfjob.features.types.base import NO_DATE, ColumnType, Missing
from kfp_tfjob.features.types.boolean import Boolean
from kfp_tfjob.features.types.category import Category
from kfp_tfjob.features.types.date import Date, date_parts
from kfp_tfjob.features.types.number import Number
from kfp_tfjob.features.types.string import String
from kfp_tfjob.storage.errors import DataError
from tests.problems import problem_of

_CITIES = ("Rome", "Bonn", "Paris")
_CODING = Coding(
    (
        Category("city", dictionary=_CITIES, vocabulary=("Paris", "Rome")),
        Number("age", Missing("median", 38.5, indicator=True)),
        Date("born", Missing("median", 0), origin=-86_400_000_000),
        String("note", bins=16),
        Boolean("member", Missing("most_frequent", 1)),
    )
)
_DAY = 86_400_000_000  # microseconds


def _pack(floats: list[list[float]], codes: list[list[int]], dates: list[list[int]]) -> np.ndarray:
    return _CODING.pack(
        np.array(floats, np.float32), np.array(codes, np.int64), np.array(dates, np.int64)
    )


def test_the_numbers_come_first_and_then_the_codes() -> None:
    assert _CODING.names == (
        "age", "age.missing", "born.year", "born.month", "born.day", "born.weekday", "born.hour",
        "born.seconds", "member", "city", "note",
    )  # fmt: skip
    assert (_CODING.width, _CODING.numbers, _CODING.lengths) == (11, 9, (2, 2, 1))
    assert _CODING.columns == (
        Column("city", "category", 9, 1, 4),
        Column("age", "number", 0, 2, 0),
        Column("born", "date", 2, 6, 0),
        Column("note", "text", 10, 1, 17),
        Column("member", "boolean", 8, 1, 0),
    )


def test_a_row_is_packed() -> None:
    packed = _pack([[41.25, 0]], [[1, 17 - 1]], [[3 * 3_600_000_000 + 1_500_000]])
    assert packed.dtype == np.float32
    assert packed.tolist() == [[41.25, 0, 1970, 1, 1, 3, 3, 86_400 + 10_801.5, 0, 3, 16]]


def test_gaps_and_rare_texts() -> None:
    packed = _pack([[np.nan, np.nan]] * 2, [[0, 0], [2, 1]], [[NO_DATE], [-_DAY]])
    assert packed[0].tolist() == [38.5, 1, 1970, 1, 1, 3, 0, 86_400, 1, category.GAP, 0]
    assert packed[1].tolist() == [38.5, 1, 1969, 12, 31, 2, 0, 0, 1, category.UNKNOWN, 1]


@given(st.lists(st.datetimes(), min_size=1), st.datetimes())
def test_dates_agree_with_the_calendar_of_python(
    dates: list[datetime.datetime], origin: datetime.datetime
) -> None:
    start = datetime.datetime(1970, 1, 1)
    one = datetime.timedelta(microseconds=1)
    micro = np.array([(date - start) // one for date in dates])
    *parts, whole, rest = date_parts(micro, np.int64((origin - start) // one))
    assert np.transpose(parts).tolist() == [
        [date.year, date.month, date.day, date.weekday(), date.hour] for date in dates
    ]
    assert (whole * 1_000_000 + rest).tolist() == [(date - origin) // one for date in dates]


@pytest.mark.parametrize(
    ("far", "day", "hour"),
    [(-(2**63) + 1, (-290_308, 12, 21), 19), (2**63 - 1, (294_247, 1, 10), 4)],
)
def test_the_farthest_dates(far: int, day: tuple[int, int, int], hour: int) -> None:
    """The calendar of numpy overflows here, so the expected days are those of Java."""
    found = [int(part[0]) for part in date_parts(np.array([far]), np.array([-far]))]
    assert (tuple(found[:3]), found[4]) == (day, hour)
    assert found[5] * 1_000_000 + found[6] == 2 * far


def test_the_schema_says_everything() -> None:
    features = tuple(SchemaFeature(it.name, it.schema_type) for it in _CODING.features)
    learned = tuple(it.learned for it in _CODING.features)
    label = SchemaLabel("y", ("no", "yes"))
    declared = Schema(task="classification", features=features, label=label, coding=learned)
    data = declared.to_bytes()
    assert Schema.from_bytes(data).encoding == _CODING
    schema = json.loads(data)
    assert schema["features"][:2] == [
        {"name": "city", "type": "category"},
        {"name": "age", "type": "float32"},
    ]
    assert schema["coding"][1] == {"missing": {"rule": "median", "value": 38.5, "indicator": True}}
    assert "weight" not in schema and schema["label"] == {"name": "y", "classes": ["no", "yes"]}


@pytest.mark.parametrize(
    "column", [Date("when", Missing("fail", None), origin=0), Number("n", Missing("fail", None))]
)
def test_a_forbidden_gap_is_named(column: ColumnType) -> None:
    floats, dates = np.full((2, 1), np.nan, np.float32), np.full((2, 1), NO_DATE)
    lengths = Coding((column,)).lengths
    given = floats[:, : lengths[0]], np.empty((2, 0), int), dates[:, : lengths[2]]
    assert repr(column.name) in problem_of(Coding((column,)).pack, *given, kind=DataError).what


@pytest.mark.parametrize(("code", "name"), [([4, 0], "city"), ([-1, 0], "city"), ([0, 17], "note")])
def test_a_code_outside_its_dictionary_is_damage(code: list[int], name: str) -> None:
    with pytest.raises(DamagedRecordError, match=repr(name)):
        _pack([[0, 0]], [code], [[0]])


# From the reference implementation of SipHash-2-4: the text of n bytes is 00 01 02 ...
_VECTORS = {
    0: 0x726FDB47DD0E0E31,
    1: 0x74F839C593DC67FD,
    7: 0xAB0200F58B01D137,
    8: 0x93F5F5799A932462,
    15: 0xA129CA6149BE45E5,
    63: 0x958A324CEB064572,
}


def test_the_hash_has_the_published_values() -> None:
    found = string.siphash([bytes(range(length)) for length in _VECTORS])
    assert [hex(value) for value in found.tolist()] == [hex(value) for value in _VECTORS.values()]


def test_the_hashes_in_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs/replica.md").read_text()
    for text in ("London", "london", "München", "東京"):
        hashed, place = (string.siphash([text.encode()])[0], string.bins_of([text.encode()], 1024))
        assert f"| `{text}` | {hashed:016x} | {place[0]} |" in page
