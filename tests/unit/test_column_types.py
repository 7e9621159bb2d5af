"""What holds for every column type, whatever the values."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kfp_tfjob.components.prepare_data.column_profile import ColumnProfile
from kfp_tfjob.components.prepare_data.kinds import decide
from kfp_tfjob.features.cells import Cells, Texts
from kfp_tfjob.features.types import TYPES
from kfp_tfjob.features.types.base import ColumnType, TrainValues, missing_in
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
    return column.fit("x", rule, DataOptions()).raw_column(values)[0].as_py()


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
        rf"""kind\b["'\]]*\)?\s*(==|!=|in)\s*\(?["']({names})["']|\b(Number|Boolean|Category|Date|String)"""
        r"""\.kind\b|isinstance\([^)]*\b(Number|Boolean|Category|Date|String)\b"""
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
