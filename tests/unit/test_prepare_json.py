"""JSON Lines: what becomes of its values, and every fault with its line."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_tfjob.common.errors import DataError
from kfp_tfjob.components.prepare_data.source.readers import json_table
from tests.fuzz.bounds import bounded
from tests.problems import problem_of
from tests.unit.prepared_files import check, data_of, faults_of, header_of, names_of, read

ROWS = [{"a": i, "b": i / 3, "c": i % 2 == 0, "y": f"l{i % 3}"} for i in range(300)]


def write(path: Path, rows: list[object]) -> Path:
    """Write rows; a text is written as it is."""
    path.parent.mkdir(exist_ok=True)
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "f.jsonl"


@pytest.mark.parametrize("block", [100, 1 << 20])
def test_values_of_each_kind(path: Path, block: int) -> None:
    write(path, ROWS)
    assert check(path) == []
    features, labels, faults = data_of(path, block)
    assert header_of(path) == ["a", "b", "c", "y"]
    wanted = [[row["a"], np.float32(row["b"]), row["c"]] for row in ROWS]
    assert features.tolist() == np.array(wanted, np.float32).tolist()
    assert labels == [row["y"] for row in ROWS] and not faults.bad


@pytest.mark.parametrize("block", [64, 1 << 20])
def test_faults_are_named_with_line_column_value_and_rule(path: Path, block: int) -> None:
    write(
        path,
        [
            {"a": 1, "b": [1, 2], "y": "u"},
            {"a": "x", "b": [1, 2], "y": "u"},
            {"b": [1, 2], "y": "u"},
            {"a": None, "b": [1, 2], "y": "u"},
            {"a": 1, "b": [1, 2, 3], "y": "u"},
            {"a": 1, "b": 7, "y": "u"},
            {"a": {"n": 1}, "b": [1, 2], "y": "u"},
            {"a": 1, "b": [1, "x"], "y": "u"},
            '{"a": 1, "b": [1, 2], "y": "u"',
            '{"a": 1, "a": 2, "b": [1, 2], "y": "u"}',
            "[1]",
            '{"a": 1, "b": [1, 2], "y": "u"} {"a": 1}',
            '{"a": 1e39, "b": [1, 2], "y": "u"}',
            '{"a": 1, "b": [1, 2], "y": "u\\u0000"}',
            '{"a": NaN, "b": [1, 2], "y": "u"}',
            {"a": 4, "b": [5, 6], "y": "v"},
        ],
    )
    features, labels, faults = data_of(path, block)
    assert features.tolist() == [[1, 1, 2], [4, 5, 6]] and labels == ["u", "v"]
    assert faults.seen == 16
    counts = {"text": 1, "missing": 3, "not finite": 1, "nul": 1, "json": 4, "nested": 1, "list": 3}
    assert faults.counts() == counts
    found = faults_of(faults)
    assert (2, "a", "x", "text") in found and (7, "a", '{"n": "1"}', "nested") in found
    assert (5, "b", "3 elements", "list") in found and (6, "b", '"7"', "list") in found


def test_a_key_that_comes_later_is_a_fault_unless_it_is_left_out(path: Path, monkeypatch) -> None:
    monkeypatch.setattr(json_table, "_LOOKED", 200)
    write(path, [{"a": i, "y": i % 2} for i in range(50)] + [{"a": 1, "z": 2, "y": 0}])
    *_, faults = data_of(path, 64)
    assert faults_of(faults) == [(51, "", "z", "keys")]
    assert not data_of(path, 64, columns=["a"])[2].bad


def test_nested_columns_are_refused_by_name(path: Path) -> None:
    write(path, [{"a": 1, "b": {"c": 1}, "d": ["x"], "y": 1}, {"a": 2, "b": None, "y": 0}])
    said = check(path)
    assert len(said) == 2 and "'b'" in said[0] and "'d'" in said[1]
    assert check(path, drop=["b", "d"]) == []


def test_labels_are_the_same_text_however_a_block_is_parsed(path: Path) -> None:
    """0.10 and 0.1 are one label, and long whole numbers stay different."""
    rows = ['{"a": 1, "y": 0.10}', '{"a": 1, "y": 3.0}', '{"a": 1, "y": 9007199254740993}']
    write(path, rows)
    quick = data_of(path)[1]
    write(path, [*rows, '{"a": "x", "y": 1}'])
    assert quick == data_of(path)[1] == ["0.1", "3", "9007199254740993"]


def test_columns_do_not_depend_on_the_keys_that_the_first_rows_lack(path: Path) -> None:
    """Other rows first were another schema, and the same rows were in other splits."""
    rows = [{"b": 1, "y": "u"}, {"a": 2, "b": 3, "y": "v"}]
    for order in (rows, rows[::-1]):
        write(path, order)
        assert header_of(path) == ["a", "b", "y"]
    write(path, [{"b": 1, "a": 2, "y": "u"}, {"b": None, "a": 4, "y": "v"}])
    assert header_of(path) == ["b", "a", "y"], "as in the file"


def test_elements_of_a_list_are_dropped_and_chosen_by_its_name(path: Path) -> None:
    write(path, [{"p": [1, 2], "a": 3, "y": "u"}, {"p": [4, 5], "a": 6, "y": "v"}])
    assert header_of(path) == ["p[0]", "p[1]", "a", "y"]
    assert names_of(read(path, drop=["p"])) == ["a"]
    assert names_of(read(path, columns=["a", "p"])) == ["a", "p[0]", "p[1]"]
    assert names_of(read(path, columns=["p[1]"])) == ["p[1]"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{\n "a": 1,\n "y": 2\n}\n', "objects that continue"),
        ('{"a": 1, "y": 2', "no JSON object"),
        ("\n\n", "is empty"),
        ('{"x": 1}\n', "no column 'y'"),
    ],
)
def test_other_json_is_refused_with_a_fix(path: Path, text: str, words: str) -> None:
    path.write_text(text)
    (said,) = check(path)
    assert words in said and "Fix:" in said


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ('{"a": ' + "[" * 1_000_000, "json"),
        ('{"a": 1, "y": "' + "x" * (2 << 20) + '"}', "long"),
        ('{"a": ' + "1" * 100_000 + ', "y": "u"}', "not finite"),
    ],
    ids=["deep", "wide", "digits"],
)
def test_lines_made_to_hurt_cost_bounded_memory(path: Path, line: str, rule: str) -> None:
    write(path, [{"a": 1, "y": "u"}, line, {"a": 1, "y": "u"}])
    with bounded(seconds=10, memory=300 << 20):
        *_, faults = data_of(path)
    assert faults.counts() == {rule: 1} and faults_of(faults)[0][0] == 2


@pytest.mark.parametrize("empty", [0, 70_000], ids=["", "after empty lines"])
@pytest.mark.parametrize(("start", "end"), [("[", "]"), ('{"b":', "}")], ids=["list", "object"])
def test_a_value_that_is_nested_very_deeply_is_a_fault(
    path: Path, start: str, end: str, empty: int
) -> None:
    """Arrow's parser would overflow the stack, also if many lines open no bracket."""
    deep = '{"a": 1, "y": "u", "z": ' + start * 50_000 + "1" + end * 50_000 + "}"
    first = [{"a": 1, "y": "u"}] * 60_000  # the lines in which keys are found
    write(path, [*first, *[""] * empty, deep])
    *_, faults = data_of(path)
    assert faults.counts() == {"json": 1} and faults_of(faults)[0][0] == 60_001 + empty


def test_many_objects_in_a_dropped_key_are_no_fault(path: Path) -> None:
    many = {"a": 1, "y": "u", "z": [{"b": 1}] * 2_000}
    write(path, [many] * 3)
    features, _, faults = data_of(path, drop=["z"])
    assert features.tolist() == [[1.0]] * 3 and not faults.bad


def test_a_line_without_an_end_is_refused(path: Path) -> None:
    write(path, [{"a": 1, "y": "u"}, '{"a": "' + "x" * (20 << 20)])
    with bounded(seconds=10, memory=300 << 20), pytest.raises(DataError, match="too long"):
        data_of(path)


_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(0, 5), max_size=2),
    st.dictionaries(st.text(max_size=1), st.none(), max_size=1),
)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.fixed_dictionaries({}, optional={"a": _values, "b": _values, "y": _values})),
    data=st.data(),
)
def test_nothing_depends_on_where_blocks_are_cut(tmp_path_factory, rows, data) -> None:
    path = tmp_path_factory.mktemp("json") / "f.jsonl"
    write(path, [{"a": 1, "b": [1, 2], "y": "u"}, *rows])
    whole, pieces = data_of(path), data_of(path, data.draw(st.integers(10, 200)))
    assert whole[0].tolist() == pieces[0].tolist() and whole[1] == pieces[1]
    assert faults_of(whole[2]) == faults_of(pieces[2])
    assert whole[2].seen == pieces[2].seen == 1 + len(rows)


DATA = [{"age": i, "size": i / 4, "y": "uv"[i % 2]} for i in range(40)]
LINES = "".join(f"{json.dumps(row)}\n" for row in DATA)
COLUMNS = {key: [row[key] for row in DATA] for key in DATA[0]}
SHAPES = {
    "an array": (json.dumps(DATA), "one JSON array"),
    "an indented array": (json.dumps(DATA, indent=1), "one JSON array"),
    "an array with a row on each line": (
        "[\n\t" + LINES.replace("}\n", "},\n\t").removesuffix(",\n\t") + "\n]\n",
        "one JSON array",
    ),
    "an array of arrays": (json.dumps([list(row.values()) for row in DATA]), "one JSON array"),
    "arrays": ("".join(f"{json.dumps([i, 1, 'u'])}\n" for i in range(9)), "an array on each line"),
    "nested arrays": ("[[1, 2], 3]\n[[1, 2], 4]\n", "an array on each line"),
    "by column and row": (
        json.dumps({key: dict(enumerate(column)) for key, column in COLUMNS.items()}),
        "one JSON object",
    ),
    "by row": (json.dumps(dict(enumerate(DATA))), "one JSON object"),
    "by column": (json.dumps(COLUMNS), "one JSON object"),
    "indented": (json.dumps(COLUMNS, indent=2), "one JSON object"),
    "split": (
        json.dumps({"columns": [*COLUMNS], "data": [list(row.values()) for row in DATA]}),
        "one JSON object",
    ),
    "an answer": (json.dumps({"count": 40, "results": DATA}), "one JSON object"),
    "a large table": (
        json.dumps({"age": dict.fromkeys(range(200_000), 1.5), "y": {}}),
        "one JSON object",
    ),
    "indented rows": (
        "\n".join(json.dumps(row, indent=2) for row in DATA),
        "objects that continue",
    ),
    "Python": ("".join(f"{row}\n" for row in DATA), "objects as Python prints them"),
    "literals of Python": (
        "".join(f'{{"age": {i or None}, "y": True, "z": nan}}\n' for i in range(9)),
        "objects as Python prints them",
    ),
    "commas": (LINES.replace("}\n", "},\n"), "objects with a comma"),
    "commas between rows": (
        LINES.replace("}\n", "},\n").removesuffix(",\n") + "\n",
        "objects with a comma",
    ),
    "comments": ("".join(f"{line} // a row\n" for line in LINES.splitlines()), "comments"),
    "keys twice": (LINES.replace('"size"', '"age"'), "the key 'age' twice"),
    "a CSV": ("age,size,y\n1,2,u\n", "no JSON object"),
    "XML": ("<rows/>\n", "no JSON object"),
}


@pytest.mark.parametrize("name", ["f.json", "f.jsonl", "f.ndjson"])
@pytest.mark.parametrize("shape", SHAPES)
def test_json_of_another_shape_is_refused_by_its_shape(tmp_path: Path, shape: str, name) -> None:
    """It was taken for a CSV, or for a table with structs of a thousand strings."""
    text, words = SHAPES[shape]
    path = tmp_path / name
    path.write_text(text)
    problem = problem_of(read, path, kind=DataError)
    assert words in problem.received and len(str(problem)) < 800 and problem.fix
    if shape == "a CSV":
        assert (problem.path, problem.suggestion) == ("data_options.format", "csv")
        assert read(path, format="csv").faults.seen == 1


@pytest.mark.parametrize(
    "shape", ["an array", "by column and row", "by column", "Python", "arrays"]
)
def test_shapes_that_no_csv_has_are_known_by_their_first_bytes(tmp_path: Path, shape) -> None:
    path = tmp_path / "f.txt"
    path.write_text(SHAPES[shape][0])
    if shape == "arrays":
        assert "data_label" in check(path)[0], "the first line may be a header"
    else:
        assert SHAPES[shape][1] in problem_of(read, path, kind=DataError).received


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"\x1e{line}\n" for line in LINES.splitlines()),  # RFC 7464
        "\ufeff" + LINES,
        LINES.replace("\n", "\r\n"),
        LINES.replace("\n", "\n\n"),
        LINES.replace("{", "  { ").replace("}", " }\t"),
    ],
)
def test_lines_of_json_in_other_dress_are_read(path: Path, text: str) -> None:
    path.write_text(text, newline="")
    found = read(path)
    assert found.faults.seen == 40 and not found.faults.bad
    assert names_of(found) == ["age", "size"]


def test_a_comment_and_a_key_twice_are_faults_of_their_rows(path: Path) -> None:
    path.write_text(f"// exported\n{LINES}" + '{"age": 1, "age": 2, "size": 1, "y": "u"}\n')
    found = read(path)
    assert found.faults.seen == 42 and found.faults.counts() == {"json": 2}
    first, last = faults_of(found.faults)
    assert first == (1, "", "// exported", "json")
    assert last[0] == 42 and last[2].startswith("the key 'age' twice")


def test_a_file_with_one_row_may_be_one_of_several(tmp_path: Path) -> None:
    rows = [{"p": [i, 2], "y": "uv"[i % 2]} for i in range(9)]
    for i, row in enumerate(rows):
        write(tmp_path / "in" / f"{i}.jsonl", [row])
    assert read(tmp_path / "in").faults.seen == 9


def test_types_are_shown_in_short(path: Path) -> None:
    write(path, [{"a": dict.fromkeys(map(str, range(2_000)), 1), "b": i, "y": i} for i in range(9)])
    (said,) = check(path)
    assert len(said) < 600
