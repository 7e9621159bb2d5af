"""Excel files: cells as the text of a CSV, row numbers, and what is no table."""

import datetime as dt
import io
import re
import zipfile
from pathlib import Path
from typing import Any, cast

import openpyxl
import pandas as pd
import pytest

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.components.prepare_data.source.readers import excel_sheet
from tests.unit.prepared_files import check, faults_of, header_of, names_of, opened, options, read

_HEADER = ["a", "when", "flag", "city", "y"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "f.xlsx"


def rows(count: int = 60) -> list[list]:
    return [
        [
            i,
            dt.datetime(2024, 1, 1) + dt.timedelta(hours=i),
            i % 2 == 0,
            f"Köln {i % 3}\nNord" if i % 3 else "Bonn",
            "uv"[i % 2],
        ]
        for i in range(count)
    ]


def write(path: Path, *sheets: list[list], names: tuple[str, ...] = ()) -> Path:
    """Write a workbook with these sheets."""
    book = openpyxl.Workbook()
    book.remove(cast(Any, book.active))
    for number, sheet in enumerate(sheets):
        page = book.create_sheet(names[number] if names else f"Sheet{number + 1}")
        for row in sheet:
            page.append(row)
    book.save(path)
    return path


def problem_of(path: Path, **given: Any) -> Problem:
    with pytest.raises(DataError) as raised:
        with opened(path, **given):
            pass
    (problem,) = raised.value.as_problems
    return problem


def test_the_cells_are_the_text_of_a_csv(path: Path) -> None:
    write(
        path,
        [
            ["n", "y"],
            [7, "u"],
            [7.5, 0.1],
            [True, dt.date(2024, 12, 31)],
            [dt.datetime(2024, 12, 31, 12, 30), dt.timedelta(hours=30)],
            ["007", '"q", r'],
        ],
    )
    with opened(path) as table:
        columns = {"n": [], "y": []}
        for chunk in table.reader.chunks(excel_sheet.Columns(("n",), "y"), 100):
            for name in columns:
                columns[name] += [value.decode() for value in chunk.columns[name].to_pylist()]
    assert columns == {
        "n": ["7", "7.5", "TRUE", "2024-12-31 12:30:00", "007"],
        "y": ["u", "0.1", "2024-12-31", "30:00:00", '"q", r'],
    }


def test_a_table_has_its_types(path: Path) -> None:
    write(path, [_HEADER, *rows()])
    assert check(path) == [] and header_of(path) == _HEADER
    scan = read(path)
    assert {item.name: item.kind for item in scan.kinds.features} == {
        "a": "number",
        "when": "date",
        "flag": "boolean",
        "city": "category",
    }
    assert scan.faults.seen == 60 and not faults_of(scan.faults)
    assert sorted(scan.dictionaries["city"].codes) == [
        "Bonn",
        "Köln 1\nNord",
        "Köln 2\nNord",
    ]


def test_an_invalid_value_has_the_row_that_excel_shows(path: Path) -> None:
    """Cells with line ends, empty rows, and rows above the header do not shift the numbers."""
    table = [[], [], _HEADER, *rows()]
    table.insert(20, [])
    table[40][0] = "x"
    table[50][4] = None
    write(path, table)
    scan = read(path, on_bad_row="drop", types={"a": "number"})
    assert [(line, column) for line, column, *_ in faults_of(scan.faults)] == [
        (41, "a"),
        (51, "y"),
    ]


def test_pandas_writes_an_index(path: Path) -> None:
    pd.DataFrame.from_records(rows(), columns=_HEADER).to_excel(path)
    assert check(path) == []
    assert names_of(read(path)) == _HEADER[:-1]


def test_a_sheet_without_a_header_is_refused_and_can_be_named(path: Path) -> None:
    write(path, [[i, i / 2, "uv"[i % 2]] for i in range(60)])
    (said,) = check(path, "column3")
    assert "has no header" in said
    assert check(path, names=["a", "b", "y"]) == []
    assert read(path, names=["a", "b", "y"]).faults.seen == 60


def test_a_sheet_is_chosen_by_its_name(path: Path) -> None:
    write(path, [["a", "y"]], [_HEADER, *rows()], names=("Notes", "Messwerte"))
    assert header_of(path) == ["a", "y"], "the first one"
    with opened(path, sheet="Messwerte") as table:
        assert table.names == _HEADER
    problem = problem_of(path, sheet="Messwert")
    assert (problem.path, problem.suggestion) == ("data_options.sheet", "Messwerte")


def test_a_sheet_of_a_csv_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("a,y\n1,u\n")
    assert problem_of(tmp_path / "f.csv", sheet="Sheet1").path == "data_options.sheet"


def test_an_empty_sheet(path: Path) -> None:
    write(path, [])
    assert "is empty" in problem_of(path).what
    write(path, [["a", "y"]])
    (said,) = check(path)
    assert "no rows" in said


def test_merged_cells_are_refused(path: Path) -> None:
    book = openpyxl.load_workbook(write(path, [_HEADER, *rows()]))
    book["Sheet1"].merge_cells("D5:D7")
    book.save(path)
    assert problem_of(path).received == "D5:D7"


def test_formulas_without_values_are_refused(path: Path) -> None:
    table = [_HEADER, *rows()]
    table[4][0], table[9][0] = "=A4+1", "=SUM(A2:A9)"
    write(path, table)
    assert problem_of(path).received == "A5, A10"


def test_formulas_with_values_are_read(path: Path) -> None:
    """Excel stores a value beside each formula, which may be the empty string."""
    table = [_HEADER, *rows()]
    table[4][0], table[9][3] = "=A4+1", '=IF(A1=1,"x","")'
    write(path, table)
    data = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(data, "w") as new:
        for item in old.infolist():
            content = old.read(item)
            if item.filename.endswith("sheet1.xml"):
                content, count = re.subn(
                    rb"<f>A4\+1</f><v ?/?>(</v>)?", b"<f>A4+1</f><v>3</v>", content
                )
                content, other = re.subn(
                    rb'<c r="D10"([^>]*)>(<f>.*?</f>)<v ?/?>(?:</v>)?',
                    rb'<c r="D10" t="str">\2<v></v>',
                    content,
                )
                assert (count, other) == (1, 1)
            new.writestr(item, content)
    path.write_bytes(data.getvalue())
    assert check(path) == []
    assert read(path).faults.seen == 60


def test_a_formula_at_the_border_of_two_pieces_is_found(path: Path, monkeypatch) -> None:
    table = [_HEADER, *rows()]
    table[30][0] = "=A4+1"
    write(path, table)
    for piece in range(1000, 1100, 7):
        monkeypatch.setattr(excel_sheet, "_PIECE", piece)
        assert problem_of(path).received == "A31"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xd0\xcf\x11\xe0" + b"\0" * 600, "an old Excel or Office file"),
        (
            b"\xd0\xcf\x11\xe0" + "EncryptedPackage".encode("utf-16-le"),
            "an Excel file with a password",
        ),
        ({"a.csv": b"a,y\n1,u\n"}, "a zip or npz file"),
        ({"mimetype": b"application/vnd.oasis.opendocument.spreadsheet"}, "a LibreOffice file"),
    ],
)
def test_other_files_are_named(path: Path, content: bytes | dict, words: str) -> None:
    if isinstance(content, dict):
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in content.items():
                archive.writestr(name, data)
    else:
        path.write_bytes(content)
    problem = problem_of(path)
    assert words in str(problem.received) and "data_options.reader" in problem.fix


def test_a_damaged_file_is_named(path: Path) -> None:
    write(path, [_HEADER, *rows()])
    path.write_bytes(path.read_bytes()[:-200])
    assert "is damaged" in problem_of(path).what


def test_a_large_file_is_refused_before_it_is_read(path: Path, monkeypatch) -> None:
    write(path, [_HEADER, *rows()])
    monkeypatch.setattr(excel_sheet, "_MOST_XML", 1000)
    assert "too large" in problem_of(path).what
    monkeypatch.setattr(excel_sheet, "_MOST_BYTES", 1000)
    assert "too large" in problem_of(path).what


def test_the_file_that_excel_writes_beside_an_open_one_is_not_read(tmp_path: Path) -> None:
    write(tmp_path / "f.xlsx", [_HEADER, *rows()])
    (tmp_path / "~$f.xlsx").write_bytes(b"\x04Owner" + b" " * 159)
    assert check(tmp_path) == []


def test_null_values_and_formats_apply(path: Path) -> None:
    table = [["a", "b", "y"], *([f"{i},5" if i % 7 else "k.A.", i, "uv"[i % 2]] for i in range(60))]
    write(path, table)
    given = {"null_values": ["k.A."], "types": {"a": {"number": {"decimal": ","}}}}
    scan = read(path, **given)
    assert scan.kinds.features[0].kind == "number" and not faults_of(scan.faults)
    assert options(sheet="x").dataset_digest("s", "y") != options().dataset_digest("s", "y")
