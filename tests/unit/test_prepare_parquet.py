"""Parquet: columns of lists, types that no column may have, and files that were made to hurt."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kfp_tfjob.common.errors import DataError
from kfp_tfjob.components.prepare_data.source import column_names
from kfp_tfjob.components.prepare_data.source.column_names import Columns
from kfp_tfjob.components.prepare_data.source.readers import parquet_table
from tests.fuzz.bounds import bounded
from tests.unit.prepared_files import check, data_of, faults_of, header_of, names_of, opened, read


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "f.parquet"


def test_a_row_group_of_long_texts_comes_in_small_chunks(path: Path) -> None:
    """A million rows at a time would be gigabytes; other programs write such groups."""
    rows = 100_000
    texts = pa.array([f"{i:01000d}" for i in range(rows)])
    pq.write_table(pa.table({"a": np.arange(rows) * 1.0, "y": texts}), path, row_group_size=rows)
    del texts
    with bounded(seconds=8, memory=300 << 20):
        with opened(path) as table:
            sizes = [chunk.size for chunk in table.chunks(Columns(("a",), "y"))]
    assert len(sizes) > 3 and max(sizes) < 40 << 20


def test_too_many_columns_are_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"a": [1.0], "b": [1.0], "y": ["x"]}), path)
    monkeypatch.setattr(parquet_table, "MOST_COLUMNS", 2)
    (said,) = check(path)
    assert "Received: 3" in said
    assert column_names.MOST_COLUMNS == 100_000


@pytest.mark.parametrize("store_schema", [True, False])
def test_a_text_that_is_repeated_a_million_times_is_in_memory_once(
    path: Path, store_schema: bool
) -> None:
    """A file of a few KB asked for 52 GB."""
    rows = 800_000
    indices = pa.array(np.zeros(rows, np.int32))
    label = pa.DictionaryArray.from_arrays(indices, pa.array(["z" * 65_000]))
    table = pa.table({"a": np.zeros(rows), "y": label})
    pq.write_table(table, path, row_group_size=rows, store_schema=store_schema)
    with bounded(seconds=8, memory=300 << 20):
        (said,) = check(path)
        assert "'y'" in said and "1,000 characters" in said
        found = read(path)
    assert found.faults.counts() == {"long": rows}


@pytest.mark.parametrize("dictionary", [True, False])
def test_a_label_that_is_not_utf8_is_a_fault(path: Path, dictionary: bool) -> None:
    label = pa.array([b"yes", b"\xff\xfe", None, b" no ", b"yes"])
    label = pa.Array.from_buffers(pa.string(), 5, label.buffers(), label.null_count)
    pq.write_table(pa.table({"a": [1.0] * 5, "y": label}), path, use_dictionary=dictionary)
    found = read(path)
    assert found.faults.counts() == {"missing": 1, "encoding": 1}
    assert found.labels.counts.sum() == 3 and list(found.labels.codes) == ["yes", "no"]


def test_a_column_name_that_is_not_utf8_is_damage(path: Path) -> None:
    pq.write_table(pa.table({"aaaa": [1.0], "y": ["x"]}), path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"aaaa", b"\xff\xfe\xff\xfe"))
    (said,) = check(path)
    assert "f.parquet" in said


def test_a_year_that_python_does_not_have_is_a_fault(path: Path) -> None:
    """It ended the step with an OverflowError."""
    times = pa.array([-62_167_219_200_000_001, *range(59)], pa.timestamp("us"))
    pq.write_table(pa.table({"a": times, "y": [0, 1] * 30}), path)
    (fault,) = read(path).faults.examples
    assert (fault.rule, fault.value) == ("date", "-0001-12-31 23:59:59.999999")
    assert read(path, split={"time": "a"}).faults.bad == 1


def test_labels_of_a_dictionary_that_no_row_has_are_no_classes(path: Path, tmp_path: Path) -> None:
    label = pa.DictionaryArray.from_arrays(pa.array([2, 0, None, 0]), pa.array(["a", "b", "c"]))
    pq.write_table(pa.table({"a": [1.0] * 4, "y": label}), path)
    found = read(path)
    assert sorted(found.labels.codes) == ["a", "c"] and found.faults.bad == 1


def test_a_page_that_was_altered_is_damage(path: Path) -> None:
    """Where a file has checksums of its pages, they are compared."""
    table = pa.table({"a": np.arange(1000.0), "y": ["u", "v"] * 500})
    pq.write_table(table, path, compression="none", use_dictionary=False, write_page_checksum=True)
    data = bytearray(path.read_bytes())
    at = data.index(np.float64(777).tobytes())
    data[at + 3] ^= 1
    path.write_bytes(data)
    with opened(path) as altered, pytest.raises(DataError, match="damaged"):
        list(altered.chunks(Columns(("a",), "y")))


def test_timestamps_of_spark_reach_beyond_2262(path: Path) -> None:
    """As nanoseconds, 9999-12-31 was 1816-03-29."""
    times = pa.array(["9999-12-31T00:00:00", "1066-10-14T00:00:00"]).cast(pa.timestamp("us"))
    table = pa.table({"a": times, "y": [0, 1]})
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)
    with opened(path) as written:
        (chunk,) = written.chunks(Columns(("a",), "y"))
    assert chunk.columns["a"].cast(pa.timestamp("us")).equals(times)


def test_a_column_without_a_type_has_only_gaps(path: Path) -> None:
    """pandas writes it if every value of one file is None."""
    table = pa.table({"a": pa.nulls(30), "b": np.arange(30.0), "y": ["u", "v", "v"] * 10})
    pq.write_table(table, path)
    assert not check(path)
    with opened(path) as written:
        (chunk,) = written.chunks(Columns(("a", "b"), "y"))
    assert chunk.columns["a"].type == pa.string() and chunk.columns["a"].null_count == 30
    pq.write_table(table.rename_columns(["y", "b", "a"]), path)
    assert "label 'y' of f.parquet" in check(path)[0]


LISTS = {
    "fixed": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(12.0)), 3),
    "list": pa.array([[0.0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]),
    "large": pa.array([[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]], pa.large_list(pa.int32())),
}


@pytest.mark.parametrize("name", list(LISTS))
def test_a_list_of_numbers_is_one_column_for_each_element(path: Path, name: str) -> None:
    rows = pa.table({"a": [0.5] * 4, "p": LISTS[name], "y": [1, 2, 3, 4]})
    pq.write_table(rows, path)
    assert check(path) == [] and header_of(path) == ["a", "p[0]", "p[1]", "p[2]", "y"]
    features, labels, faults = data_of(path)
    assert features.tolist() == [[0.5, *range(i, i + 3)] for i in (0, 3, 6, 9)]
    assert labels == ["1", "2", "3", "4"] and not faults.bad
    assert names_of(read(path, columns=["p[2]", "a"])) == ["p[2]", "a"]
    assert names_of(read(path, drop=["p"])) == ["a"]


def test_a_list_of_another_length_or_with_a_gap_is_a_fault(path: Path) -> None:
    lists = pa.array([None, [1.0, 2], [1, 2, 3], [], [1, None], [3, 4]])
    pq.write_table(pa.table({"p": lists, "y": ["u"] * 6}), path)
    features, _, faults = data_of(path)
    assert features.tolist() == [[1, 2], [3, 4]]
    assert faults_of(faults) == [
        (1, "p[0]", "", "missing"),
        (3, "p", "3 elements", "list"),
        (4, "p", "0 elements", "list"),
        (5, "p[1]", "", "missing"),
    ]


@pytest.mark.parametrize(
    "column", [[["x"]], [[[1]]], [{"b": 1}], [[]]], ids=["texts", "nested", "struct", "empty"]
)
def test_other_types_are_refused_by_name(path: Path, column: list) -> None:
    pq.write_table(pa.table({"a": [1.0], "b": column, "y": ["u"]}), path)
    (said,) = check(path)
    assert "'b'" in said and "Fix:" in said
    assert check(path, drop=["b"]) == []


def test_wide_lists_come_in_small_chunks(path: Path) -> None:
    rows = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(40_000_000, np.uint8)), 10_000)
    pq.write_table(pa.table({"p": rows, "y": np.arange(len(rows)) % 2}), path)
    del rows
    with bounded(seconds=30, memory=400 << 20):
        assert check(path) == []


def test_a_column_that_cannot_divide_the_rows_is_named(path: Path) -> None:
    pairs = pa.array([{"x": i} for i in range(9)])
    pq.write_table(pa.table({"a": np.arange(9), "g": pairs, "y": np.arange(9) % 2}), path)
    (problem,) = check(path, split={"group": "g"})
    assert "'g'" in problem and "struct" in problem


def test_lists_of_the_same_name_are_refused(path: Path) -> None:
    lists = pa.array([[1.0, 2.0]] * 3)
    rows = pa.table([lists, lists, pa.array([0, 1, 1])], names=["a", "a", "y"])
    pq.write_table(rows, path)
    (problem,) = check(path)
    assert "same name" in problem
