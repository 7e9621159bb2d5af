"""The encoding of columns: what schema.json declares, and the parts of dates."""

import datetime
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_tfjob.features.coding import Coding, Column
from kfp_tfjob.features.imputation import Missing
from kfp_tfjob.features.schema import Schema, SchemaFeature, SchemaLabel
from kfp_tfjob.features.types.boolean import Boolean
from kfp_tfjob.features.types.category import Category
from kfp_tfjob.features.types.date import Date, date_parts
from kfp_tfjob.features.types.number import Number
from kfp_tfjob.features.types.string import String

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
