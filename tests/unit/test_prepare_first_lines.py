"""CSV files whose first lines are not one header: none, several, one that is short, or aligned."""

import gzip
import random
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.components.prepare_data import row_requirements
from kfp_tfjob.components.prepare_data.kinds import INDEX
from kfp_tfjob.components.prepare_data.source.resolve import check_header, list_source
from kfp_tfjob.storage.store import Store
from tests.problems import problems_of
from tests.unit.picture_files import animals, tree
from tests.unit.prepared_files import check, faults_of, names_of, options, read, rows_of
from tests.unit.test_prepare_records import record

RANDOM = random.Random(5)
ROWS = [
    (RANDOM.choice("FMI"), f"{RANDOM.uniform(0.2, 0.9):.3f}", str(RANDOM.randint(1, 9)))
    for _ in range(200)
]
NAMES = ["sex", "length", "y"]


def text_of(rows: list[tuple[str, ...]], delimiter: str = ",") -> str:
    return "".join(f"{delimiter.join(row)}\n" for row in rows)


def problem(path: Path, label: str = "y", **given: object) -> Problem | None:
    """Return the only problem that preflight finds, None if there is none."""
    source = list_source(Store("http://127.0.0.1:1"), str(path), options(**given))
    found = check_header(source, label, options(**given))
    assert len(found) < 2, found
    return found[0] if found else None


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "f.csv"


def hashes(path: Path, block: int = 1 << 20, **given: object) -> list[int]:
    """Return the hashes of all rows of a source, sorted."""
    with tempfile.TemporaryDirectory() as folder:
        return sorted(rows_of(read(path, block, Path(folder) / "runs", **given))["hash"].tolist())


# Files that were joined


WORDS = [("red", "big", "yes"), ("blue", "small", "no")] * 20
TEXT = text_of(WORDS)


@pytest.mark.parametrize(("block", "part"), [(20, 1 << 20), (1 << 20, 64), (1 << 20, 1 << 20)])
@pytest.mark.parametrize(
    ("again", "rule"),
    [
        ("color,size,y\n", "header"),
        ("color,size,y\r\n", "header"),
        ("\ufeffcolor,size,y\n", "header"),
        ('"color","size","y"\n', "header"),
        ("color, size, y\n", "header"),
        ('\ufeff"color","size","y"\n', "header"),
        ("\ufeffred,big,yes\n", "mark"),
    ],
)
def test_a_header_in_the_middle_is_an_invalid_row(path: Path, again, rule, block, part) -> None:
    """It was a row: a third class, and a category named like its column."""
    path.write_text(f"color,size,y\n{TEXT}{again}{TEXT}")
    assert problem(path) is None  # the rows say it, also by their line
    found = read(path, block, part=part)
    assert faults_of(found.faults) == [(42, "", again.rstrip(), rule)]
    assert found.faults.seen == 81 and sorted(found.labels.codes) == ["no", "yes"]
    refused = problems_of(row_requirements.decide, found, kind=DataError)
    assert "data_options.on_bad_row=drop" in refused[0].fix
    dropped = read(path, block, part=part, on_bad_row="drop")
    assert dropped.labels.decide("auto").classes == ("no", "yes")


def test_a_header_of_numbers_in_the_middle_is_an_invalid_row(path: Path) -> None:
    """Its columns are parsed as numbers, so all but the label could be values."""
    rows = "".join(f"{i},{i / 2},{'uv'[i % 2]}\n" for i in range(50))
    path.write_text(f"0,1,y\n{rows}0,1,y\n{rows}")
    found = read(path)
    assert faults_of(found.faults) == [(52, "", "0,1,y", "header")]
    assert sorted(found.labels.codes) == ["u", "v"] and found.faults.seen == 101


@pytest.mark.parametrize("part", [64, 1 << 20])
@pytest.mark.parametrize("rows", [WORDS, [(f"{i}", f"{i / 7}", "uv"[i % 2]) for i in range(40)]])
def test_another_header_in_another_order_is_refused(path: Path, rows, part: int) -> None:
    """The rows below it would be read into the wrong columns, whatever becomes of bad rows."""
    turned = [(y, a, b) for a, b, y in rows]
    path.write_text(f"color,size,y\n{text_of(rows)}y,color,size\n{text_of(turned)}")
    found = read(path, part=part, on_bad_row="drop", max_bad_fraction=1)
    (refused,) = problems_of(row_requirements.decide, found, kind=DataError)
    assert refused.path == "data_uri" and ", line 42" in refused.what
    seen = problem(path)
    assert seen and seen.path == "data_uri"
    folder = path.parent / "in"  # as the message says
    folder.mkdir()
    (folder / "1.csv").write_text(f"color,size,y\n{text_of(rows)}")
    (folder / "2.csv").write_text(f"y,color,size\n{text_of(turned)}")
    assert len(read(folder).labels.codes) == 2


def test_a_row_that_only_begins_like_the_header_is_a_row(path: Path) -> None:
    path.write_text(f"color,size,y\n{TEXT}color,size,yes\nmulticolor,size,yes\n{TEXT}")
    found = read(path)
    assert not found.faults.bad and sorted(found.labels.codes) == ["no", "yes"]


# No header


@pytest.mark.parametrize("block", [64, 1 << 20])
@pytest.mark.parametrize("label", ["y", ROWS[0][2]])
def test_a_file_without_a_header_is_refused_until_its_columns_are_named(path, label, block) -> None:
    """Its first row was the names, and the table had one row less."""
    path.write_text(text_of(ROWS))
    found = problem(path, label)
    assert found and found.path == "data_options.names" and "data_options.header" in found.fix
    named = read(path, block, names=NAMES)
    assert (named.faults.seen, named.faults.bad) == (200, 0) and names_of(named) == NAMES[:2]
    insisted = read(path, block, header=True, columns=[ROWS[0][1]], **_label_of(path))
    assert insisted.faults.seen == 199


def _label_of(path: Path) -> dict[str, object]:
    """Name the last column y, as `read` expects it."""
    first, _, rest = path.read_text().partition("\n")
    path.write_text(f"{first.rpartition(',')[0]},y\n{rest}")
    return {}


HEADLESS = {
    "numbers": [(f"{i / 7:.2f}", f"{i * i % 17}", str(i % 3)) for i in range(60)],
    "words": [("pqs"[i % 3], "xy"[i % 2], "ep"[i % 5 > 2]) for i in range(60)],
    "a missing value": [("?", "", "1"), *((f"{i}", f"{i / 3:.1f}", "12"[i % 2]) for i in range(9))]
    + [("?", "2.5", "1")],
    "dates": [(f"2024-01-{i:02}", f"{i / 3:.1f}", "uv"[i % 2]) for i in range(1, 28)],
    "equal names": [("0.5", "0.5", "1"), *((f"{i / 3:.1f}", "0.5", str(i % 2)) for i in range(30))],
    "decimal commas": [(f"{i},5", f"{i},25", "uv"[i % 2]) for i in range(30)],
}
WITH_HEADER = {
    "words beside numbers": [
        ("land", "2013", "2015"),
        *((f"l{i}", f"{i}", "1") for i in range(30)),
    ],
    "an array of pandas": [("0", "1", "2"), *((f"{i}", f"{i / 2}", str(i % 2)) for i in range(30))],
    "years": [("2013", "2014", "2015"), *((f"{i}", f"{i}", str(i % 2)) for i in range(30))],
    "an index": [("", "0", "1"), *((str(i), f"{i / 7:.2f}", str(i % 3)) for i in range(30))],
    "a name like a value": [
        ("a", "b", "y"),
        *(("ab"[i % 2], f"{i}", "yn"[i % 2]) for i in range(30)),
    ],
    "no row": [("1.5", "2.5", "3.5")],
    "strings of one column": [("m", "f", "d"), *(("mf"[i % 2], "f", "x") for i in range(30))],
}


@pytest.mark.parametrize("rows", HEADLESS.values(), ids=HEADLESS)
def test_first_lines_that_are_rows(path: Path, rows) -> None:
    path.write_text(text_of(rows, ";"))
    found = problem(path, delimiter=";")
    assert found and found.path == "data_options.names"
    insisted = check(path, delimiter=";", header=True)
    assert all("data_options.header" not in said for said in insisted)
    given = {"types": {name: "category" for name in "ab"}} if "," in rows[0][0] else {}
    assert read(path, delimiter=";", names=list("aby"), **given).faults.seen == len(rows)


@pytest.mark.parametrize("rows", WITH_HEADER.values(), ids=WITH_HEADER)
def test_first_lines_that_are_headers(path: Path, rows) -> None:
    path.write_text(text_of(rows))
    found = problem(path, rows[0][-1])
    assert found is None or found.path == "data_uri"  # without rows


def test_a_joined_file_has_a_header(path: Path) -> None:
    """Each of its names is a value of its column, as the header occurs again."""
    path.write_text(f"color,size,y\n{TEXT}color,size,y\n{TEXT}")
    assert problem(path) is None


def test_the_first_line_of_many_numeric_columns_costs_bounded_time(path: Path) -> None:
    rows = [[f"{RANDOM.random():.3f}" for _ in range(2_000)] for _ in range(4)]
    path.write_text(text_of(rows))  # pyright: ignore[reportArgumentType]
    found = problem(path)
    assert found and found.path == "data_options.names" and len(found.fix) < 1_000


# Names


@pytest.mark.parametrize("part", [200, 1 << 20])
def test_names_are_those_of_all_files_and_parts(tmp_path: Path, part: int) -> None:
    whole, folder = tmp_path / "whole.csv", tmp_path / "in"
    folder.mkdir()
    whole.write_text(f"{','.join(NAMES)}\n{text_of(ROWS)}")
    (folder / "1.csv").write_text(text_of(ROWS[:70]))
    (folder / "2.csv").write_bytes(b"\xef\xbb\xbf" + text_of(ROWS[70:]).encode())
    found = read(folder, 128, part=part, names=NAMES)
    assert found.faults.seen == 200 and not found.faults.bad
    assert hashes(folder, 128, part=part, names=NAMES) == hashes(whole)


def test_lines_are_counted_from_the_first_row(path: Path) -> None:
    path.write_text(text_of([*ROWS, ("F", "x", "3")]))
    for part in (200, 1 << 20):
        found = read(path, 64, part=part, names=NAMES)
        assert faults_of(found.faults) == [(201, "length", "x", "text")]


def test_split_time_reads_a_file_without_a_header(path: Path) -> None:
    path.write_text(text_of([(f"2024-01-{i:02}", "1", "uv"[i % 2]) for i in range(1, 21)]))
    found = read(path, names=["day", "a", "y"], split={"time": "day"})
    assert len(found.job.limits) == 2 and found.faults.seen == 20


@pytest.mark.parametrize(
    ("names", "key"),
    [
        (["a", "y"], "data_options.names"),
        (["a", "b", "c", "y"], "data_options.names"),
        (["a", "b", "x"], "data_label"),
    ],
)
def test_names_that_do_not_fit(path: Path, names: list[str], key: str) -> None:
    path.write_text(text_of(ROWS))
    found = problem(path, names=names)
    assert found and found.path == key
    with pytest.raises(DataError):
        read(path, names=names)


@pytest.mark.parametrize("first", ["sex,length,y", "SEX,Length,Y", "kind,size,class"])
def test_names_for_a_file_with_a_header_are_refused(path: Path, first: str) -> None:
    """Its header would be a row: among strings, a category and a class."""
    path.write_text(f"{first}\n{text_of(WORDS)}")
    found = problem(path, names=NAMES)
    assert found and found.path == "data_options.names"
    if first.startswith("kind"):
        assert problem(path, names=NAMES, header=False) is None


def test_a_first_row_with_new_values_is_a_row(path: Path) -> None:
    """The name of a car, and a number."""
    rows = [(f"car {i}", f"{i / 3:.1f}", "uv"[i % 2]) for i in range(30)]
    path.write_text(text_of(rows))
    assert problem(path, names=NAMES) is None
    assert read(path, names=NAMES).faults.seen == 30


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "tfrecord", "pictures", "own"])
def test_names_are_refused_for_files_that_have_names(tmp_path: Path, ending: str) -> None:
    path, given = tmp_path / f"f.{ending}", {}
    if ending == "jsonl":
        path.write_text('{"sex": "F", "length": 1, "y": 1}\n')
    elif ending == "parquet":
        pa.parquet.write_table(pa.table({"sex": ["F"], "length": [1], "y": [1]}), path)
    elif ending == "tfrecord":
        path.write_bytes(record(sex=["F"], length=[1], y=[1]))
    elif ending == "pictures":
        tree(path, animals(2))
    else:
        path.write_text("x")
        (tmp_path / "reader.py").write_text("def read(stream, name):\n    yield None\n")
        given = {"reader": f"{tmp_path}/reader.py:read"}
    found = problem(path, names=NAMES, **given)
    assert found and found.path == "data_options.names"


# A column without a name


def frame(path: Path, firsts: list[object], header: str, cells: str = ",x,{}") -> Path:
    rows = [f"{first}{cells.format('uv'[i % 2])}\n" for i, first in enumerate(firsts)]
    path.write_text(f"{header}\n{''.join(rows)}")
    return path


@pytest.mark.parametrize("block", [16, 1 << 20])
@pytest.mark.parametrize("start", [0, 1])
def test_the_index_of_pandas_is_left_out_with_a_line(path: Path, start: int, block: int) -> None:
    frame(path, list(range(start, start + 40)), ",b,y", ",x,{}")
    assert problem(path) is None
    found = read(path, block, part=100)
    assert names_of(found) == ["b"]
    assert [(it.name, it.reason) for it in found.kinds.left_out] == [("", INDEX)]
    dropped = read(path, drop=[""])
    assert names_of(dropped) == ["b"] and not dropped.kinds.left_out
    assert hashes(path, block, part=100) == hashes(path, drop=[""])


@pytest.mark.parametrize("firsts", [[5, 3, 9, 1] * 9, [f"{i}.5" for i in range(9)], ["u", "v"] * 9])
def test_another_column_without_a_name_is_refused_and_can_be_dropped(path: Path, firsts) -> None:
    frame(path, firsts, ",b,y")
    found = problem(path)
    assert found and 'data_options.drop=[""]' in found.fix
    assert problem(path, drop=[""]) is None


@pytest.mark.parametrize("block", [16, 1 << 20])
@pytest.mark.parametrize(
    "firsts",
    [[f'"{i}"' for i in range(1, 41)], [f'"car {i}"' for i in range(40)], list(range(3, 120, 3))],
)
def test_row_names_of_r_are_left_out_with_a_line(path: Path, firsts, block: int) -> None:
    """The header that R writes is one field short, so every row had a value too many."""
    frame(path, firsts, '"b","y"', ',"x","{}"')
    assert problem(path) is None
    found = read(path, block, part=100)
    assert names_of(found) == ["b"] and not found.faults.bad
    assert found.faults.seen == len(firsts)
    assert [(it.name, it.reason) for it in found.kinds.left_out] == [("", INDEX)]


@pytest.mark.parametrize(
    ("header", "line"),
    [("a,b,y", "{},x,u,"), ("b,y", "7,{},u"), ("b,y", "{},x,z,u")],
    ids=["a delimiter at the end of rows", "equal first values", "two fields short"],
)
def test_rows_that_are_longer_for_another_reason_are_refused(path: Path, header, line) -> None:
    """With the names moved by one, each value would be in the column before its own."""
    path.write_text(f"{header}\n" + "".join(f"{line.format(i)}\n" for i in range(30)))
    found = problem(path)
    assert found and "do not have one value for each column" in found.what


def test_a_delimiter_at_the_end_of_each_row_is_named(path: Path) -> None:
    path.write_text("a,b,y\n" + "".join(f"{i},x,{'uv'[i % 2]},\n" for i in range(30)))
    found = problem(path)
    assert found and 'data_options.drop=[""]' in found.fix
    path.write_text(path.read_text().replace("a,b,y\n", "a,b,y,\n"))
    assert problem(path, drop=[""]) is None


@pytest.mark.parametrize("above", ["Report 2024\n", "Report,,\n\n", "# a\n# b c\n"])
def test_a_header_below_a_title_is_found(path: Path, above: str) -> None:
    """The words of the title were taken for columns, and space was recommended as delimiter."""
    path.write_text(f"{above}color,size,y\n{TEXT}")
    said = check(path)
    assert "the lines above the header" in said[0] and "data_options.delimiter" not in said[0]


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("sep=;\n" + f"color,size,y\n{TEXT}".replace(",", ";"), {"delimiter": ";"}),
        ("sep=,\n" + f"color,size,y\n{TEXT}", {"delimiter": ","}),
    ],
)
def test_the_line_for_excel_is_to_be_deleted(path: Path, text: str, given) -> None:
    path.write_text(text)
    found = problem(path)
    assert found and (found.path, found.suggestion) == (
        "data_options.delimiter",
        given["delimiter"],
    )
    assert "delete the first line" in found.fix
    path.write_text(text.partition("\n")[2])
    assert problem(path, **given) is None


def test_lines_in_quotes_as_a_whole_are_named(path: Path) -> None:
    lines = f"color,size,y\n{TEXT}".splitlines()
    path.write_text("".join(f'"{line}"\n' for line in lines))
    found = problem(path)
    assert found and "quotes" in found.fix and not found.path


@pytest.mark.parametrize("end", ["\r", "\r\r\n"])
def test_line_ends_of_carriage_returns_are_named(path: Path, end: str) -> None:
    path.write_bytes(f"color,size,y\n{TEXT}".replace("\n", end).encode())
    found = problem(path)
    assert found and "CR" in found.fix and "delimiter" not in found.fix


# Blanks


ALIGNED = "".join(f"  {a:<8} {b:>9}\t{y}  \n" for a, b, y in ROWS)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("block", [32, 1 << 20])
def test_runs_of_blanks_are_one_delimiter(tmp_path: Path, block: int, pack) -> None:
    plain, path = tmp_path / "plain.csv", tmp_path / "f.csv"
    plain.write_text(text_of(ROWS))
    path.write_bytes(pack(ALIGNED.encode()))
    given = {"names": NAMES, "delimiter": "blanks"}
    assert not read(path, block, **given).faults.bad
    assert hashes(path, block, part=100, **given) == hashes(plain, names=NAMES)
    path.write_bytes(pack(f"sex  length\ty\n{ALIGNED}".encode()))
    assert read(path, block, delimiter="blanks").faults.seen == 200


def test_blanks_in_quotes_stay(path: Path) -> None:
    path.write_text('"a  b"  y\n"x  y" u\n""  v\nz\tw\n  \n5"  u\n1 2 3\n')
    found = read(path, delimiter="blanks", types={"a  b": "category"})
    assert names_of(found) == ["a  b"]
    assert list(found.dictionaries["a  b"].codes)[:3] == ["x  y", "z", '5"']
    assert faults_of(found.faults) == [(7, "", "1 2 3", "columns")]


@pytest.mark.parametrize(
    ("text", "given"),
    [
        (f"sex length y\n{ALIGNED}", {"delimiter": ","}),
        (f"sex    length y\n{ALIGNED}", {"delimiter": ","}),
        (f"sex length y\n{ALIGNED}", {"delimiter": "space"}),
        (ALIGNED, {"delimiter": "space"}),
        (ALIGNED, {"names": NAMES, "delimiter": ","}),
        (ALIGNED, {"names": NAMES, "delimiter": "space"}),
    ],
)
def test_blanks_are_recommended_where_space_cannot_work(path: Path, text: str, given) -> None:
    path.write_text(text.replace("\t", " "))
    found = problem(path, **given)
    assert found and (found.path, found.suggestion) == ("data_options.delimiter", "blanks")
    last = problem(path, **(given | {found.path.rpartition(".")[2]: found.suggestion}))
    assert last is None or last.path == "data_options.names"  # it has no header


def test_one_space_between_values_is_the_delimiter_space(path: Path) -> None:
    """Two in a row are a missing value."""
    path.write_text("a b y\n" + "1 2 u\n1  v\n" * 20)
    found = problem(path)
    assert found and found.suggestion == "space"
    assert problem(path, delimiter="space") is None
