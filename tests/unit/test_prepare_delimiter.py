"""The delimiter `auto`: what spreadsheets, databases, R and instruments write."""

import gzip
from pathlib import Path

import pytest

from kfp_tfjob.common.errors import DataError
from kfp_tfjob.components.prepare_data.source.delimiter import with_delimiter
from kfp_tfjob.components.prepare_data.source.resolve import list_source
from kfp_tfjob.options.data import BLANKS
from kfp_tfjob.storage.store import Store
from tests.problems import problem_of
from tests.unit.prepared_files import check, faults_of, names_of, options, read

_STORE = Store("http://127.0.0.1:1")


def delimiter_of(path: Path, **given: object) -> str:
    """Return the delimiter with which prepare_data reads a file."""
    return with_delimiter(list_source(_STORE, str(path)), options(**given)).delimiter


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("a,b,y\n1,2,u\n", ",", id="comma"),
        pytest.param('"a";"b";"y"\r\n1,5;2,25;"u;v"\r\n', ";", id="German Excel"),
        pytest.param("a\tb\ty\n1\t\tu v\n", "\t", id="psql with tabs"),
        pytest.param("a|b|y\n1|2|u;v\n", "|", id="bcp"),
        pytest.param("  a    b  y\n 1.5  2  u\n10.5 22  v\n", BLANKS, id="aligned"),
        pytest.param('"a" "y"\n"1" 1.5 "u"\n"2" 2.5 "v"\n', BLANKS, id="R's write.table"),
        pytest.param('"a";"y"\n"1";1,5;"u"\n"2";2,5;"v"\n', ";", id="R's write.csv2, named rows"),
        pytest.param("a;b,c;y\n1;2;u\n", ",", id="a comma in the header"),
        pytest.param('a;"b,c";y\n1;2;u\n', ";", id="a comma in quotes in the header"),
        pytest.param("a,b,y\n1;2;3,u\n4,5,v\n", ",", id="a ragged comma table"),
        pytest.param("a;b;y\n1;2;u\n1;2\n", ",", id="a ragged table"),
        pytest.param("a;y\n1;u\n2;v\n3\n", ",", id="the last row is short"),
        pytest.param("y\nu\nv\n", ",", id="one column"),
        pytest.param("the label\nu v\nw x\n", BLANKS, id="two words in each row"),
        pytest.param("a\tb\ty\n1\t2\tu\n", "\t", id="tabs are no blanks"),
    ],
)
def test_a_delimiter_that_divides_all_rows_alike_is_taken(
    tmp_path: Path, text: str, expected: str
) -> None:
    path = tmp_path / "f.csv"
    path.write_text(text, newline="")
    assert delimiter_of(path) == expected


def test_a_row_far_below_counts(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_text("a;y\n" + "1;u\n" * 1000 + "1;2;u\n")
    assert delimiter_of(path) == ","


def test_two_delimiters_that_fit_are_named(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_text("a;b|y\n1;2|u\n")
    with pytest.raises(DataError) as raised:
        delimiter_of(path)
    (problem,) = raised.value.as_problems
    assert problem.path == "data_options.delimiter" and problem.suggestion == ";"
    assert "';' and '|'" in str(problem.received)
    assert delimiter_of(path, delimiter="|") == "|"
    (said,) = check(path)
    assert "data_options.delimiter" in said


@pytest.mark.parametrize("delimiter", [" ", "\t", ";", ","])
def test_quotes_escaped_with_a_backslash_are_named(tmp_path: Path, delimiter: str) -> None:
    """R's write.table writes them so; preflight advised another delimiter, which does not help."""
    lines = ['"a" "b" "y"', '"1" 1.5 "p" "u"', '"2" 2.5 "the \\"p\\"" "v"', '"3" 3.5 "q" "u"']
    path = tmp_path / ("f.tsv" if delimiter == "\t" else "f.csv")
    text = "\n".join(lines).replace(" ", delimiter).replace(f"the{delimiter}", "the ") + "\n"
    path.write_text(text)
    problem = problem_of(delimiter_of, path, kind=DataError)
    assert "line 3: a quote is escaped" in problem.what and "write.csv" in problem.fix
    path.write_text(text.replace('\\"', '""'))
    assert check(path) == []
    path.write_text(text.replace('the \\"p\\"', "C:\\"))
    assert check(path) == [], "a backslash before the closing quote"


def test_a_stated_delimiter_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_text("a;b;y\n1;2;u\n")
    assert delimiter_of(path, delimiter=",") == ","
    assert delimiter_of(path, delimiter="blanks") == BLANKS


def test_names_count_as_the_header(tmp_path: Path) -> None:
    path = tmp_path / "f.data"
    path.write_text("1;2;u\n3;4;v\n")
    assert delimiter_of(path, names=["a", "b", "y"]) == ";"
    assert delimiter_of(path, names=["a", "y"]) == ","


@pytest.mark.parametrize("packed", [False, True])
def test_a_tsv_has_tabs_whatever_its_names_contain(tmp_path: Path, packed: bool) -> None:
    text = b"a, in mm\ty\n1\tu, v\n2\tv\n"
    path = tmp_path / ("f.tsv.gz" if packed else "f.tsv")
    path.write_bytes(gzip.compress(text) if packed else text)
    assert delimiter_of(tmp_path) == "\t", "a folder with such files is a table"
    assert check(tmp_path) == []


def test_the_first_file_decides_for_all_parts(tmp_path: Path) -> None:
    for number in range(3):
        rows = "".join(f"{number}{i};{i};{'uv'[i % 2]}\n" for i in range(2000))
        (tmp_path / f"{number}.csv").write_text(f"a;b;y\n{rows}")
    scan = read(tmp_path, part=8000)
    assert names_of(scan) == ["a", "b"] and scan.faults.seen == 6000
    assert not faults_of(scan.faults)
