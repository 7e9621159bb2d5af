"""CSV to rows: values, faults with their line, and nothing that depends on where blocks are cut."""

import csv
import io
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kfp_tfjob.common.errors import DataError, Example
from kfp_tfjob.components.prepare_data.faults import Faults
from kfp_tfjob.components.prepare_data.row_requirements import decide
from kfp_tfjob.components.prepare_data.source import resolve
from kfp_tfjob.components.prepare_data.source.column_names import Columns
from kfp_tfjob.components.prepare_data.source.readers import csv_records
from kfp_tfjob.components.prepare_data.source.readers.arrow_table import ArrowTable
from kfp_tfjob.components.prepare_data.source.readers.csv_table import CsvTable
from kfp_tfjob.features.types.number import is_number
from kfp_tfjob.options.data import NULL_VALUES
from tests.fuzz.bounds import bounded
from tests.problems import problems_of
from tests.unit import prepared_files
from tests.unit.prepared_files import data_of, faults_of, names_of, number_rows, read

_LARGEST = float(np.finfo(np.float32).max)


def _table(data: bytes, block: int = 1 << 20, **given: object) -> ArrowTable:
    options = prepared_files.options(**given)
    return ArrowTable(CsvTable(io.BytesIO(data), "f.csv", options, block), "f.csv", options)


def _read(data: bytes | str, block: int = 1 << 20, columns: Columns | None = None, **options):
    """Return header, features, labels, lines of the good rows, and the faults."""
    table = _table(data.encode() if isinstance(data, str) else data, block, **options)
    columns = columns or Columns(tuple(table.names[:-1]), table.names[-1])
    faults, features, labels, lines = Faults(), [], [], []
    for rows in number_rows(table, columns):
        faults.merge(rows.faults)
        features.append(rows.features)
        labels += [rows.labels[code] for code in rows.codes]
        lines += rows.lines.tolist()
    return table.names, np.concatenate(features), labels, lines, faults


def test_values_as_people_write_them():
    names, features, labels, lines, faults = _read(
        ' a ,"b, c",y\r\n1,+2.50,yes\r\n\r\n" -3e2 ", .5,"n""o"\r\nTrue,false, x y \r\n1.,-0,é'
    )
    assert names == ["a", "b, c", "y"]
    assert features.tolist() == [[1, 2.5], [-300, 0.5], [1, 0], [1, 0]]
    assert labels == ["yes", 'n"o', "x y", "é"]
    assert lines == [2, 4, 5, 6]
    assert not faults.bad


BAD = b"""a,b,y
1,2,u
1,abc,u
,2,u
1,nan,u
1,inf,u
1,1e39,u
1,2
1,2,3,4
"1
2",2,v
"quoted",2,"a
b"
1,2,"x
1,2,
1,\xff,u
1,2,\xfe
"1"2,2,u
NA,z,u
5,6,w
"""
EXPECTED = [
    (3, "b", "abc", "text"),
    (4, "a", "", "missing"),
    (5, "b", "nan", "missing"),
    (6, "b", "inf", "not finite"),
    (7, "b", "1e39", "not finite"),
    (8, "", "1,2", "columns"),
    (9, "", "1,2,3,4", "columns"),
    (10, "a", "1\n2", "text"),
    (12, "a", "quoted", "text"),
    (14, "", '1,2,"x', "quotes"),
    (15, "y", "", "missing"),
    (16, "b", "\ufffd", "encoding"),
    (17, "y", "\ufffd", "encoding"),
    (18, "", '"1"2,2,u', "quotes"),
    (19, "a", "NA", "missing"),
]


@pytest.mark.parametrize("block", [7, 64, 1 << 20])
def test_every_fault_is_found_where_it_stands(block, monkeypatch):
    monkeypatch.setattr("kfp_tfjob.components.prepare_data.faults.MOST_EXAMPLES", 100)
    _, features, labels, lines, faults = _read(BAD, block)
    assert faults_of(faults) == EXPECTED
    assert (features.tolist(), labels, lines) == ([[1, 2], [5, 6]], ["u", "w"], [2, 20])
    assert faults.seen == 17
    assert faults.rows == Counter(rule for *_, rule in EXPECTED)
    assert faults.cells["b", "text"] == 2  # line 19 has two faults and counts as one row


def test_the_message_names_the_first_ten_and_the_counts():
    *_, faults = _read("a,y\n" + "1,u\n" * 15 + "x,u\n" * 12)
    total, *examples = faults.problems()
    assert "12 of 27 rows" in total.what and "not a number: 12" in total.what
    assert "data_options.on_bad_row=drop" in total.fix
    assert "f.csv, line 17, column 'a'" in examples[0].what and examples[0].received == "'x'"
    assert len(examples) == 10


def test_a_column_of_text_is_one_problem():
    *_, faults = _read("sex,age,y\n" + "m,1,u\n" * 500 + "f,x,u\n")
    (problem,) = faults.problems()
    assert problem.what.startswith("column 'sex'") and problem.received == "'m'"
    assert 'data_options.drop=["sex"]' in str(problem)


def test_rows_that_do_not_belong_to_the_header_are_one_problem():
    *_, faults = _read("a,y\n" + "1,2,3\n" * 5)
    (problem,) = faults.problems()
    assert problem.what.startswith("5 of 5 rows")


@pytest.mark.parametrize("declared", ["-999", "-999.0"])
@pytest.mark.parametrize("written", ["-999", "-999.0", "-999.00", "-9.99e+02"])
def test_numbers_that_mean_missing(written: str, declared: str):
    _, features, _, _, faults = _read(f"a,y\n1,u\n{written},u\n", null_values=[declared])
    assert features.tolist() == [[1]]
    assert faults_of(faults) == [(3, "a", written, "missing")]


@pytest.mark.parametrize("block", [40, 1 << 20])
@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
def test_a_blank_before_a_quote_makes_a_row_invalid(tmp_path: Path, block: int, delimiter: str):
    """The quotes became a part of the value: the class `"yes"`, the number `"45"` a category."""
    good = ['1,"x, y",u', '2, x,"u"', '"3",x "y",u', '4,"a, ""b"", c" ,u', '5," ""z""",u']
    bad = ['6, "x",u', '7,x, "u"', '  "8",x,u', '9,x, "u" ', '10, "a, b",u', '11, "a ""b""",u']
    rows = [row for pair in zip(good, bad, strict=False) for row in pair] + bad[5:]
    text = "\n".join(["a,b,y", *rows, ""]).replace(",", delimiter)
    path = tmp_path / "f.csv"
    path.write_text(text)
    _, labels, faults = data_of(path, block, delimiter=delimiter, columns=["a"])
    assert len(labels) == len(good) - 1 and set(labels) == {"u"}
    values = [fault.value for fault in faults.examples if fault.rule == "blank"]
    assert values == [row.replace(",", delimiter) for row in bad]


def test_a_blank_before_a_quote_in_the_header_is_refused_and_pandas_removes_it(tmp_path: Path):
    path = tmp_path / "f.csv"
    path.write_text('"age", "city", "y"\n' + '41, "Oslo", "u"\n42, "Rome, Lazio", "v"\n' * 30)
    (problem,) = prepared_files.check(path)
    assert "line 1" in problem and "skipinitialspace" in problem
    pd.read_csv(path, skipinitialspace=True).to_csv(path, index=False)
    assert prepared_files.check(path) == [] and names_of(read(path)) == ["age", "city"]


def test_columns_are_found_by_name_and_the_rest_is_not_looked_at():
    data = b"y,skip,b,a\nu,\xff,1,2\n"
    _, features, labels, _, faults = _read(data, columns=Columns(("a", "b"), "y"))
    assert (features.tolist(), labels, faults.bad) == ([[2, 1]], ["u"], 0)


def test_other_delimiters():
    for delimiter, name in ((";", ";"), ("\t", "tab"), (" ", "space"), ("|", "|")):
        data = 'a,"b,x",y\n1,2,"u,v"\n'.replace(",", delimiter)
        names, features, labels, _, _ = _read(data, delimiter=name)
        assert names == ["a", f"b{delimiter}x", "y"]
        assert (features.tolist(), labels) == ([[1, 2]], [f"u{delimiter}v"])


@pytest.mark.parametrize(
    "data, said",
    [
        (b"", "is empty"),
        (b"\n\r\n\n", "is empty"),
        (b"a,\xff,y\n1,2,3\n", "header"),
        (b"a,b,y\r1,2,u\r", "header"),
        (b'a,"b,y\n1,2,u\n', "header"),
    ],
)
def test_what_has_no_header(data, said):
    with pytest.raises(DataError, match=said):
        _read(data)


def test_a_quote_that_is_never_closed_costs_one_line(monkeypatch):
    monkeypatch.setattr(csv_records, "LONGEST_RECORD", 1000)
    data = 'a,y\n1,"u\n' + "".join(f"{i},u\n" for i in range(2000))
    for block in (50, 700, 1 << 20):
        _, features, _, _, faults = _read(data, block)
        assert faults_of(faults) == [(2, "", '1,"u', "quotes")]
        assert features[:, 0].tolist() == list(range(2000))


def test_a_line_without_end_is_refused(monkeypatch):
    monkeypatch.setattr(csv_records, "LONGEST_RECORD", 1000)
    with pytest.raises(DataError, match=" byte 8 "):
        _read("a,y\n1,u\n" + "1," * 5000, 64)


# Everything that makes CSV difficult is frequent in these.
_cell = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False, width=32).map(repr),
    st.text('01.-+e"\n\r, x', max_size=5),
)
_raw = st.lists(st.text('012.,"\n\r\n\nax', max_size=12), max_size=25).map("".join)
_written = st.lists(st.lists(_cell, min_size=3, max_size=3), max_size=25).map(
    lambda rows: "".join(map(_line, rows))
)


def _line(cells: list[str]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(cells)
    return out.getvalue()


@settings(max_examples=80, deadline=None)
@given(body=st.one_of(_raw, _written), block=st.integers(1, 60))
@example(body='1,2,"a\r\nb"\r\n', block=9)
@example(body='""x,1,2\n"', block=3)
def test_blocks_change_nothing(body, block):
    header = "a,b,y\n"
    whole, parts = _read(header + body), _read(header + body, block)
    assert whole[1].tobytes() == parts[1].tobytes()
    assert whole[2:4] == parts[2:4]
    assert faults_of(whole[4]) == faults_of(parts[4])
    for counts in ("seen", "rows", "cells"):
        assert getattr(whole[4], counts) == getattr(parts[4], counts)


@settings(max_examples=100, deadline=None)
@given(rows=st.lists(st.lists(_cell, min_size=3, max_size=3), max_size=20), bad=st.booleans())
@example(rows=[["0.0", "0.0", "1e100"], ["0.0", "0.0", "-1e38"]], bad=False)
def test_what_a_csv_writer_writes_is_read(rows, bad):
    """The csv module is the oracle; a bad row must not change how the others are read."""
    rows = [[cell.replace("\r", "") for cell in row] for row in rows]
    body = "".join(map(_line, rows)) + ("x,x,x\n" if bad else "")
    _, features, labels, _, faults = _read("a,b,y\n" + body)
    expected = []
    for row in csv.reader(io.StringIO(body), strict=True):
        if any("\n" in cell for cell in row[:2]):
            continue  # float() would strip it
        try:
            with np.errstate(over="ignore"):
                values = [np.float32(float(cell.strip(" \t"))) for cell in row[:2]]
        except (ValueError, OverflowError):
            continue
        label = row[2].strip(" \t")
        if not label or (is_number(label) and abs(float(label)) > _LARGEST):
            continue
        if np.isfinite(values).all():
            expected.append((*values, label))
    assert [(*row, label) for row, label in zip(features, labels, strict=True)] == expected
    assert faults.seen == len(rows) + bad


def test_a_label_that_only_bad_rows_have_is_no_class():
    table = _table(b"a,y\n1,u\nx,lost\n2,v\n")
    (rows,) = [rows for rows in number_rows(table, Columns(("a",), "y")) if len(rows.lines)]
    assert (rows.labels, rows.codes.tolist()) == (["u", "v"], [0, 1])


def check(tmp_path: Path, data: bytes, **options: object) -> list[str]:
    """Return what preflight says of a file."""
    path = tmp_path / "f.csv"
    path.write_bytes(data)
    return prepared_files.check(path, **options)


def test_a_label_of_more_than_1000_characters_is_a_fault(tmp_path: Path):
    assert _read(f"a,y\n1,{'x' * 1000}\n")[2] == ["x" * 1000]
    (said,) = check(tmp_path, f"a,y\n1,{'x' * 1001}\n".encode())
    assert "'y'" in said and "1,000 characters" in said and "data_label" in said


@pytest.mark.parametrize("line", [b"1\n", b"1,2,x\n"])
def test_a_quote_that_stays_open_costs_bounded_memory_and_is_named(tmp_path: Path, line: bytes):
    """Short lines after it took 1.8 GB and 58 s, and the number of columns was blamed."""
    size = csv_records.LONGEST_RECORD + (1 << 20)
    data = b'a,b,y\n"1,2,x\n' + line * (size // len(line))
    with bounded(seconds=20, memory=200 << 20):
        said = check(tmp_path, data)
    assert said[0].startswith("f.csv, line 2: a quote ")


def test_a_label_of_many_digits_and_a_letter_costs_linear_time():
    """It took 20 s for each: the digits could be divided in 20,000 ways."""
    label = "1" * 20_000 + "a"
    with bounded(seconds=3):
        assert not any(map(is_number, [label, f"1.{label}", f"1e{label}"]))
        *_, faults = _read("a,y\n" + f"1,{label}\n" * 3 + "1,u\n")
    assert faults_of(faults)[0] == (2, "y", label[:200], "long")


@pytest.mark.parametrize(("value", "problems"), [("1", 0), ("z", 1)])
def test_many_columns_cost_linear_time(tmp_path: Path, value: str, problems: int):
    names = ",".join(f"c{i}" for i in range(10_000))
    row = ",".join([value] * 10_000)
    with bounded(seconds=6, memory=200 << 20):
        said = check(tmp_path, f"{names},y\n{row},u\n{row},v\n".encode())
    assert len(said) == problems and all(" columns" in one for one in said)


def test_lines_that_are_all_bad_cost_bounded_memory(tmp_path: Path):
    with bounded(seconds=10, memory=200 << 20):
        said = check(tmp_path, b"a,b,y\n" + b"\rx\n" * (1 << 19))
    assert said[0].startswith("f.csv, line 2: a quote ")


def test_too_many_columns_are_refused_with_their_number(tmp_path: Path):
    with bounded(seconds=3, memory=200 << 20):
        (said,) = check(tmp_path, b"a," * 1_000_000 + b"y\n")
    assert "1,000,001" in said and "100,000" in said
    (said,) = check(tmp_path, b"a" * 1001 + b",y\n1,2\n")
    assert " names" in said


def test_preflight_does_not_read_through_empty_lines(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(resolve, "_MOST_LOOKED", 4 << 20)
    with bounded(seconds=2, memory=100 << 20):
        assert check(tmp_path, b"a,b,y\n" + b"\n" * (16 << 20)) == []
        (said,) = check(tmp_path, b"\n" * (18 << 20) + b"a,y\n1,2\n")
    assert "is empty" in said


def test_a_row_that_is_not_utf8_and_too_long_is_a_fault():
    """Arrow cannot decode such a row for its own message, and gave up with an error of its own."""
    *_, faults = _read(b"a,y\n1,u\n\xff0,0,0\n\xff,v\n2,\xff\n3,w\n")
    assert faults_of(faults) == [
        (3, "", "\ufffd0,0,0", "columns"),
        (4, "a", "\ufffd", "encoding"),
        (5, "y", "\ufffd", "encoding"),
    ]


def _rows(path: Path, lacking: int, more: str = "") -> Path:
    """Write a table of 100 rows, of which some have no label, and further ones."""
    rows = (f"{i},{'' if i < lacking else 'uv'[i % 2]}\n" for i in range(100))
    path.write_text(f"a,y\n{''.join(rows)}{more}")
    return path


@pytest.mark.parametrize(
    ("lacking", "most"), [(5, None), (10, None), (30, "0.3"), (50, "0.5"), (60, "0.6")]
)
def test_rows_without_a_label_are_named_with_options_that_drop_them(tmp_path, lacking, most):
    """To drop the label was among the remedies, and above a tenth the other one failed as well."""
    path = _rows(tmp_path / "f.csv", lacking)
    problem, *examples = problems_of(decide, read(path), kind=DataError)
    assert "data_options.drop" not in problem.fix
    given = {"on_bad_row": "drop"} | ({"max_bad_fraction": float(most)} if most else {})
    for name, value in given.items():
        assert f"data_options.{name}={value}" in problem.fix
    assert ("max_bad_fraction" in problem.fix) == bool(most)
    if lacking <= 50:
        # With one option of two, the next run would fail as well.
        alone = ("", "") if most else ("data_options.on_bad_row", "drop")
        assert (problem.path, problem.suggestion) == alone
        assert len(examples) == min(lacking, 10)
    decide(read(path, **given))


def test_rows_without_a_label_are_counted_apart_from_invalid_rows(tmp_path: Path):
    path = _rows(tmp_path / "f.csv", 5, "x,u\ny,\n1,2,3\n")
    missing, invalid = (
        it for it in problems_of(decide, read(path), kind=DataError) if not isinstance(it, Example)
    )
    assert missing.what.startswith("5 of 103 rows") and invalid.what.startswith("3 of 103 rows")
    assert "'y'" not in invalid.received and "data_options.drop" in invalid.fix
    path = _rows(tmp_path / "f.csv", 0, f"1,{'x' * 1001}\n")
    invalid, _ = problems_of(decide, read(path), kind=DataError)
    assert "data_options.drop" not in invalid.fix, "the label cannot be dropped"


def test_a_string_that_often_stands_for_no_value_is_named_with_the_whole_option(tmp_path: Path):
    """The option replaces the usual strings, so the message has these as well."""
    path = tmp_path / "f.csv"
    path.write_text("a,y\n" + "".join(f"{'..' if i % 20 == 3 else i},u\n" for i in range(100)))
    problem, *_ = problems_of(decide, read(path), kind=DataError)
    option = json.loads(problem.fix.partition("null_values=")[2].partition(" if ")[0])
    assert option == [*NULL_VALUES, ".."]
    assert not read(path, null_values=option).faults.bad


def test_a_key_that_comes_later_can_be_ignored_as_the_message_says(tmp_path: Path):
    path = tmp_path / "f.jsonl"
    rows = [f'{{"a": {i}, "y": "{"uv"[i % 2]}"}}\n' for i in range(60_000)]
    path.write_text("".join(rows) + '{"a": 1, "b": 2, "y": "u"}\n')
    problem, _ = problems_of(decide, read(path), kind=DataError)
    assert "data_options.columns" in problem.fix and "data_options.drop" not in problem.fix
    assert not read(path, columns=["a"]).faults.bad


def test_a_label_without_values_in_most_rows_is_not_told_to_be_a_number(tmp_path):
    (said,) = check(tmp_path, b"x,y\n" + b"1,NA\n2,yes\n3,\n" * 9)
    assert "18 of 27 rows" in said and "a value in every row" in said
    assert "data_options.on_bad_row=drop" in said and "category" not in said


@pytest.mark.parametrize("rule", ["a", "*"])
def test_rows_that_the_options_drop_do_not_count_as_invalid_in_preflight(tmp_path, rule):
    """With most values missing, preflight refused the column."""
    path = tmp_path / "f.csv"
    path.write_text("a,b,y\n" + "".join(f"{i if i % 2 else ''},{i},u\n" for i in range(100)))
    assert prepared_files.check(path, missing={rule: "drop"}) == []
    assert read(path, missing={rule: "drop"}).faults.left_out == {"a": 50}


@pytest.mark.parametrize("first", [True, False])
def test_a_column_that_some_files_lack_can_be_dropped(tmp_path: Path, first: bool):
    """Whatever was dropped, a file lacked it, and each of two spellings led to the other one."""
    names = ("a,Fee,y", "a,fee,z,y") if first else ("a,fee,z,y", "a,Fee,y")
    for i, header in enumerate(names):
        row = ",".join(map(str, range(header.count(",")))) + ",u\n"
        (tmp_path / f"{i}.csv").write_text(f"{header}\n" + row * 20)
    problem = problems_of(read, tmp_path, kind=DataError)[0]
    assert "'Fee'" in problem.fix and "'fee'" in problem.fix
    option = json.loads(problem.fix.partition("data_options.drop=")[2])
    assert sorted(option) == ["Fee", "fee", "z"]
    assert prepared_files.check(tmp_path, drop=option) == []
    assert names_of(read(tmp_path, drop=option)) == ["a"]
    (said,) = prepared_files.check(tmp_path, drop=[*option, "none"])
    assert "'none'" in said
