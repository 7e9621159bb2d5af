"""Which type a column has, and what holds for every type, whatever the values."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kfp_tfjob.common.errors import Problem
from kfp_tfjob.components.prepare_data import column_profile
from kfp_tfjob.components.prepare_data.column_profile import ColumnProfile
from kfp_tfjob.components.prepare_data.faults import BlockFaults
from kfp_tfjob.components.prepare_data.kinds import Feature, decide
from kfp_tfjob.components.prepare_data.source.readers.arrow_table import Chunk
from kfp_tfjob.features.cells import Cells, Texts
from kfp_tfjob.features.types import TYPES
from kfp_tfjob.features.types.base import (
    CODES,
    ColumnMoments,
    ColumnStatistics,
    ColumnType,
    Summary,
    TrainValues,
    missing_in,
)
from kfp_tfjob.features.types.category import CategoryStatistics
from kfp_tfjob.options.data import COLUMN_TYPES, DataOptions, Gaps

TABLES = [it.name for it in COLUMN_TYPES if it.rules]
WORDS = "|\t| |0|1|01|1.0|-0|1e39|1e-46|nan|inf|1,5|1.234,5|true|FALSE| yes|n\t|on|maybe|ı|İ|a\nb"
WORDS += (
    "|\u2003|\n2024-01-02|2024-02-29|2023-02-29|2024-01-02T03:04:05.123456789+05:30|東京|e\u0301"
)
WORDS += "|0000-01-01|9999-12-31 23:59:59|31.12.2024|12/31/2024|2 Jan 2024"
# Each type's example with other digits.
EXAMPLES = [re.sub("[0-9]+", "[0-9]{1,3}", re.escape(str(it.example))) for it in TYPES.values()]
CELLS = st.one_of(
    st.sampled_from(EXAMPLES).flatmap(lambda it: st.from_regex(it, fullmatch=True)),
    st.sampled_from(WORDS.split("|")),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.floats().map(str),
    st.datetimes().map(str),
)
NULLS = pa.array([""])


def parsed(column: type[ColumnType], text: str) -> object:
    """Return what a reader makes of a cell, as the signature has it; None if it is invalid."""
    values, invalid = column.parse(Cells(pa.array([text.encode()]), NULLS))
    if any(rows.any() for rows in invalid.values()):
        return None
    if isinstance(values, Texts):
        return ["", *values.texts][values.codes[0]].encode()
    if missing_in(values)[0]:
        return column.raw_missing
    rule = TrainValues(Gaps(rule="fail"), np.zeros(0))
    stored = column.fit("x", rule, DataOptions()).to_arrow(values)
    return column.raw_values(stored).tolist()[0]


@pytest.mark.parametrize("kind", TABLES)
@given(text=CELLS)
def test_the_server_reads_a_cell_as_training_reads_it(kind: str, text: str) -> None:
    column = TYPES[kind]
    expected = parsed(column, text)
    if kind == "number":  # which JSON has as a number
        given = "x" if expected is None else None if expected != expected else expected
    else:
        given = text
    values, wrong = column.read([given])
    if expected is None:
        assert wrong
        return
    assert not wrong
    found = values[0].decode() if isinstance(values[0], bytes) else values[0].item()
    expected = expected.decode() if isinstance(expected, bytes) else expected
    assert found == expected or found != found and expected != expected
    shown = column.sample_column(values)
    assert shown.null_count == (found in ("", column.raw_missing) or found != found)
    again, invalid = column.parse(Cells(shown, NULLS))
    assert not any(rows.any() for rows in invalid.values())
    if not isinstance(again, Texts):
        assert missing_in(again)[0] == bool(shown.null_count)


@pytest.mark.parametrize("kind", TABLES)
def test_a_rule_against_missing_values_is_stored(kind: str) -> None:
    """Only numbers, booleans and dates kept it, so a server accepted null in a category."""
    for rule in ("fail", "drop"):
        column = TYPES[kind].fit("x", TrainValues(Gaps(rule=rule), np.zeros(0)), DataOptions())
        stored = column.learned["missing"]
        assert stored == {"rule": rule, "value": None, "indicator": False}
        assert not column.takes_missing
        summary = Summary(9, ColumnMoments(mean=0, std=0), None, None, np.zeros(0), np.zeros(2))
        if column.kind != "category":  # which needs statistics of its own
            statistics = ColumnStatistics(count=9, missing=9)
            assert column.suspicions(summary, statistics, DataOptions()) == []
    if TYPES[kind].field is CODES:
        column = TYPES[kind].fit("x", TrainValues(None, np.zeros(0)), DataOptions())
        assert column.takes_missing and "missing" not in column.learned


def profile(cells: list[str], first: int) -> ColumnProfile:
    found = ColumnProfile("x")
    column = pa.array([text.encode() for text in cells], pa.binary())
    found.add(Cells(column, NULLS), "f", np.arange(first, first + len(cells)))
    return found


def plain(found: ColumnProfile) -> dict:
    """Return what counts: equal counters may differ in forms that do not occur."""
    counts = {form: count for form, count in found.counts.items() if count}
    texts = None if found.texts is None else found.texts.hashes.tolist()
    return vars(found) | {"counts": counts, "texts": texts, "forms": {}}


@given(st.lists(st.lists(CELLS, max_size=6), min_size=3, max_size=3))
@example([["1", "2"], ["x", "2024-01-02"], ["1.234,5", "0"]])
def test_profiles_merge_in_any_grouping(parts: list[list[str]]) -> None:
    starts = np.cumsum([0, *map(len, parts)]).tolist()
    blocks = [list(pair) for pair in zip(parts, starts, strict=False)]
    left, middle, right = (profile(*block) for block in blocks)
    left.merge(middle)
    left.merge(right)
    first, later, last = (profile(*block) for block in blocks)
    later.merge(last)
    first.merge(later)
    whole = profile([text for part in parts for text in part], 0)
    assert plain(left) == plain(first) == plain(whole)
    options = DataOptions()
    assert decide([left], options) == decide([whole], options)


def test_nothing_else_asks_which_type_a_column_has(repository: Path) -> None:
    names = "|".join(it.name for it in COLUMN_TYPES)
    asks = re.compile(
        rf"""kind\b["'\]]*\)?\s*(==|!=|in)\s*\(?["']({names})["']|\b(Number|Boolean|Category|Date|String|Words)"""
        r"""\.kind\b|isinstance\([^)]*\b(Number|Boolean|Category|Date|String|Words)\b"""
    )
    allowed = {"kfp_tfjob/features", "components/prepare_data/distributions.py"}
    allowed |= {"components/prepare_data/report.py", "kfp_tfjob/serving/request_counts.py"}
    wrong = [
        f"{path.relative_to(repository)}: {found.group()}"
        for folder in ("components", "kfp_tfjob", "trainer", "pipelines")
        for path in (repository / folder).rglob("*.py")
        if not any(path.relative_to(repository).is_relative_to(it) for it in allowed)
        for found in asks.finditer(path.read_text())
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ("10004.0 10115.0 20095.0", "10004.0"),  # of pandas, with a missing value
        (r"\N 1 2 3", r"\N"),
        ("1.0 2.0 3", ""),
        ("? 1", ""),
        ("1 2 3 none unknown", ""),
        ("01 02 03", ""),
    ],
)
def test_a_category_of_numbers_is_named(values: str, said: str) -> None:
    top = [(text, 9) for text in values.split()]
    column = CategoryStatistics(distinct=9, vocabulary=9, rare=0, top=top)
    warnings = TYPES["category"].warnings({"c": column}, {})
    assert len(warnings) == bool(said)
    assert all(said in text.replace("\\\\", "\\") for text in warnings)


def kind_of(texts: list[str]) -> str | Problem:
    """Return the type of a column of 60 rows with these texts in turn."""
    column = pa.array([texts[i % len(texts)] for i in range(60)]).cast(pa.binary())
    seen = {"b": ColumnProfile("b")}
    faults, nulls = BlockFaults("f", np.arange(60)), pa.array(["", "NA"])
    column_profile.profile(seen, Chunk({"b": column}, faults, 0, nulls))
    kinds, problems = decide(seen.values(), DataOptions())
    (found,) = [*kinds.features, *problems]
    return found.kind if isinstance(found, Feature) else found


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", "-2.5", "+3", ".5", "6.", "1e3", ""], "number"),
        (["0", "1"], "number"),
        (["yes", "No", "1"], "boolean"),
        (["2024-12-31", "1969-01-01T10", "9999-12-31 23:59:59.999999"], "date"),
        (["2024-12-31T10:00Z", "2024-12-31T10:00+0530"], "date"),
        (["2024-12-31T23:59:59.5Z", "2024-12-31T23:59:59.5+01:00"], "date"),
        (["31.12.2024", "1.2.2024 08:30", "2024-12-31"], "date"),
        (["1.234,50", "7", "1,5"], "number"),
        (["1,234.50", "7", "1,500"], "number"),
        (["red", "green", "1"], "category"),
        (["01.02", "v1.2.3", "10/12", "5 kg", "12:30"], "category"),
        (["May 2024", "Jan 5", "March", "Dec", "Sunday", "Mr. May 12"], "category"),
        (["(a)", "(1", "−", "1−2"], "category"),
    ],
)
def test_kinds(texts, kind):
    assert kind_of(texts) == kind


@pytest.mark.parametrize(
    "text",
    ["1,234", "1'000", "1’000", "1 000,5", "1\u202f000", "1\u2009000", "1\xa0000"]
    + ["−5", "-$5", "(1,234.50)", "($5)", "5 €", "5\xa0€", "50%", "50 %", "CHF 5", "12 USD", "1,5"],
)
def test_numbers_of_several_readings_are_refused_by_name(text):
    found = kind_of([text, "7"])
    assert isinstance(found, Problem) and found.what.startswith("column 'b' ")
    assert found.path == "data_options.types"
    assert repr(text) in found.received and "(f, line " in found.what


@pytest.mark.parametrize(
    "text",
    ["31.13.2024", "12/31/2024", "12/31/24", "2024/12/31", "2024-1-2", "31-12-2024 10:00"]
    + ["2024-12-31 10:00 PM", "2024-12-31T10:00 Europe/Berlin", "2024-12-31T10:00:00 UTC"]
    + ["31 Dec 2024", "31-Dec-24", "31. December 2024", "1st Feb 2024", "Dec 31, 2024"]
    + ["December 31st, 2024 10:00", "Tue, 31 Dec 2024 10:00:00 GMT", "Tue Dec 31 10:00:00 2024"]
    + ["Sept. 5, 2024", "2024-02-30"],
)
@pytest.mark.parametrize("others", [[], ["2024-12-31"]], ids=["alone", "among others"])
def test_dates_of_another_form_are_refused_by_name(text, others):
    found = kind_of([text, *others])
    assert isinstance(found, Problem) and "'b'" in found.what
    assert ("several formats" in found.what) == (bool(others) and "Berlin" not in text)
    assert repr(text) in found.received and "2024-12-31T23:59:59+01:00" in found.expected
