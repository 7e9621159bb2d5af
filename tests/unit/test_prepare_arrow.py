"""Arrow and Feather files, and columns of lists in them and in Parquet."""

from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from kfp_tfjob.storage.errors import DataError
from tests.fuzz.bounds import bounded
from tests.unit.prepared_files import check, data_of, faults_of, header_of, names_of, read

ROWS = 5_000


def table() -> pa.Table:
    return pa.table(
        {
            "a": np.arange(ROWS) % 7,
            "b": pa.array([Decimal(i) / 4 for i in range(ROWS)], pa.decimal128(12, 2)),
            "c": np.arange(ROWS) % 2 == 0,
            "y": pa.array([f"l{i % 3}" for i in range(ROWS)]).dictionary_encode(),
        }
    )


def write(rows: pa.Table, path: Path, kind: str) -> Path:
    """Write a table as parquet, as an Arrow file or stream, or as Feather with a codec."""
    if kind == "parquet":
        pq.write_table(rows, path, row_group_size=1_500)
    elif kind in ("lz4", "zstd", "uncompressed"):
        pyarrow.feather.write_feather(rows, path, compression=kind, chunksize=1_500)
    else:
        new = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
        with new(path, rows.schema) as file:
            file.write_table(rows, max_chunksize=1_500)
    return path


KINDS = ["parquet", "stream", "lz4", "uncompressed"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "f.arrow"


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_holds_the_same_rows(path: Path, kind: str) -> None:
    write(table(), path, kind)
    assert check(path) == []
    features, labels, faults = data_of(path)
    index = np.arange(ROWS)
    wanted = np.stack([index % 7, index / 4, index % 2 == 0], axis=1)
    assert (features == wanted.astype(np.float32)).all()
    assert labels == [f"l{i % 3}" for i in range(ROWS)]
    assert faults.seen == ROWS and not faults.bad


@pytest.mark.parametrize("kind", ["file", "stream", "zstd"])
def test_a_file_that_is_cut_or_changed_is_damaged(path: Path, kind: str) -> None:
    data = write(table(), path, kind).read_bytes()
    for size in (len(data) // 3, len(data) // 2, 20, 9):
        path.write_bytes(data[:size])
        with pytest.raises(DataError, match=r"f\.arrow is damaged|is empty"):
            data_of(path)
    for place in range(8, len(data), len(data) // 40):
        path.write_bytes(data[:place] + bytes([data[place] ^ 255]) + data[place + 1 :])
        with bounded(seconds=5, memory=300 << 20):
            try:
                data_of(path)
            except DataError:
                continue


def test_a_stream_that_is_cut_between_two_batches_is_damaged(path: Path) -> None:
    """Arrow takes the end of the bytes for the end of the stream."""
    write(table(), path, "stream")
    whole = path.read_bytes()
    assert whole.endswith(b"\xff\xff\xff\xff\0\0\0\0")
    path.write_bytes(whole[:-8])
    with pytest.raises(DataError, match=r"f\.arrow is damaged"):
        data_of(path)


OUTSIDE = {
    # A column, the bytes of its offsets, indices or length to find, and those to put there.
    "text": (pa.array(["x"] * 99), [40, 41], [40, 1 << 30], "<i4"),
    "dictionary": (
        pa.array(["x", "y", "z"] * 33).dictionary_encode(),
        [0, 1, 2],
        [0, 99, 2],
        "<i4",
    ),
    "list": (pa.array([[1.0]] * 99), [40, 41], [40, 1 << 28], "<i4"),
    "length": (pa.array([1.0] * 99), [99], [1 << 24], "<i8"),
}


@pytest.mark.parametrize("name", list(OUTSIDE))
def test_a_column_that_points_outside_its_buffers_is_damaged(path: Path, name: str) -> None:
    """Arrow would read the memory there, or crash."""
    column, found, put, kind = OUTSIDE[name]
    data = write(pa.table({"a": column, "y": [1, 2, 3] * 33}), path, "file").read_bytes()
    old, new = (np.array(values, kind).tobytes() for values in (found, put))
    assert old in data
    path.write_bytes(data.replace(old, new))
    for reading in (check, read):
        with pytest.raises(DataError, match=r"f\.arrow is damaged"):
            DataError.raise_if(reading(path))


def test_a_type_that_claims_a_long_list_costs_nothing(path: Path) -> None:
    kind = pa.list_(pa.float32(), 500_000_000)
    write(pa.schema({"a": kind, "y": pa.int64()}).empty_table(), path, "file")
    with bounded(seconds=3, memory=100 << 20), pytest.raises(DataError, match="too many columns"):
        header_of(path)


@pytest.mark.parametrize("kind", ["file", "zstd"])
def test_a_batch_that_may_not_fit_in_memory_is_refused(path: Path, kind: str) -> None:
    rows = pa.table({"a": np.zeros(40 << 20), "y": np.zeros(40 << 20)})
    if kind == "zstd":
        pyarrow.feather.write_feather(rows, path, compression=kind, chunksize=len(rows))
        assert path.stat().st_size < 1 << 20
    else:
        with pa.ipc.new_file(path, rows.schema) as file:
            file.write_table(rows)
    del rows
    memory = (300 if kind == "file" else 1500) << 20  # only Arrow knows the unpacked size
    with (
        bounded(seconds=10, memory=memory),
        pytest.raises(DataError, match="640 MiB"),
    ):
        data_of(path)


LISTS = {
    "fixed": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(12.0)), 3),
    "list": pa.array([[0.0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]),
    "large": pa.array([[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]], pa.large_list(pa.int32())),
}


@pytest.mark.parametrize("kind", ["parquet", "zstd"])
@pytest.mark.parametrize("name", list(LISTS))
def test_a_list_of_numbers_is_one_column_for_each_element(path: Path, kind: str, name: str) -> None:
    rows = pa.table({"a": [0.5] * 4, "p": LISTS[name], "y": [1, 2, 3, 4]})
    write(rows, path, kind)
    assert check(path) == [] and header_of(path) == ["a", "p[0]", "p[1]", "p[2]", "y"]
    features, labels, faults = data_of(path)
    assert features.tolist() == [[0.5, *range(i, i + 3)] for i in (0, 3, 6, 9)]
    assert labels == ["1", "2", "3", "4"] and not faults.bad
    assert names_of(read(path, columns=["p[2]", "a"])) == ["p[2]", "a"]
    assert names_of(read(path, drop=["p"])) == ["a"]


@pytest.mark.parametrize("kind", ["parquet", "file"])
def test_a_list_of_another_length_or_with_a_gap_is_a_fault(path: Path, kind: str) -> None:
    lists = pa.array([None, [1.0, 2], [1, 2, 3], [], [1, None], [3, 4]])
    write(pa.table({"p": lists, "y": ["u"] * 6}), path, kind)
    features, _, faults = data_of(path)
    assert features.tolist() == [[1, 2], [3, 4]]
    assert faults_of(faults) == [
        (1, "p[0]", "", "missing"),
        (3, "p", "3 elements", "list"),
        (4, "p", "0 elements", "list"),
        (5, "p[1]", "", "missing"),
    ]


@pytest.mark.parametrize("kind", ["parquet", "file"])
@pytest.mark.parametrize(
    "column",
    [[["x"]], [[[1]]], [{"b": 1}], [[]]],
    ids=["texts", "nested", "struct", "empty"],
)
def test_other_types_are_refused_by_name(path: Path, kind: str, column: list) -> None:
    write(pa.table({"a": [1.0], "b": column, "y": ["u"]}), path, kind)
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
    write(pa.table({"a": np.arange(9), "g": pairs, "y": np.arange(9) % 2}), path, "file")
    (problem,) = check(path, split={"group": "g"})
    assert "'g'" in problem and "struct" in problem


@pytest.mark.parametrize("kind", ["file", "parquet"])
def test_lists_of_the_same_name_are_refused(path: Path, kind: str) -> None:
    lists = pa.array([[1.0, 2.0]] * 3)
    rows = pa.table([lists, lists, pa.array([0, 1, 1])], names=["a", "a", "y"])
    (problem,) = check(write(rows, path, kind))
    assert "same name" in problem
