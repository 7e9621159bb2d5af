"""Columns of lists of numbers in Parquet, and the types that no column may have."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.fuzz.bounds import bounded
from tests.unit.prepared_files import check, data_of, faults_of, header_of, names_of, read


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "f.parquet"


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
