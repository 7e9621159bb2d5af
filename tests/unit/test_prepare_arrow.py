"""Arrow files, Feather files and Arrow streams."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather, ipc

from kfp_tfjob.common.errors import DataError
from tests.unit.prepared_files import check, data_of, faults_of, names_of, read

_ROWS = 5000


def table() -> pa.Table:
    labels = pa.array(np.where(np.arange(_ROWS) % 3 == 0, "u", "v")).dictionary_encode()
    return pa.table({"a": np.arange(_ROWS) / 2, "b": np.arange(_ROWS), "y": labels})


def write(path: Path, kind: str) -> Path:
    """Write the table as a program does, in record batches of 1,000 rows."""
    if kind == "feather":
        feather.write_feather(table(), path, compression="zstd", chunksize=1000)
    elif kind == "pandas":
        table().to_pandas().to_feather(path)
    else:
        new = ipc.new_stream if kind == "stream" else ipc.new_file
        with path.open("wb") as stream, new(stream, table().schema) as writer:
            writer.write_table(table(), max_chunksize=1000)
    return path


@pytest.mark.parametrize("kind", ["feather", "pandas", "file", "stream"])
def test_all_rows_are_read(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / "f.arrow", kind)
    features, labels, faults = data_of(path)
    assert features.tolist() == np.stack([np.arange(_ROWS) / 2, np.arange(_ROWS)], 1).tolist()
    assert labels == table()["y"].to_pylist() and faults.seen == _ROWS
    assert check(tmp_path) == [], "a folder with such a file is a table"


@pytest.mark.parametrize("kind", ["file", "stream"])
def test_an_invalid_value_has_the_number_of_its_row(tmp_path: Path, kind: str) -> None:
    values = np.arange(_ROWS) / 2
    values[3210] = np.inf
    wrong = table().set_column(0, "a", pa.array(values))
    new = ipc.new_stream if kind == "stream" else ipc.new_file
    with (tmp_path / "f.arrow").open("wb") as stream, new(stream, wrong.schema) as writer:
        writer.write_table(wrong, max_chunksize=1000)
    scan = read(tmp_path / "f.arrow")
    assert [(line, column) for line, column, *_ in faults_of(scan.faults)] == [(3211, "a")]


@pytest.mark.parametrize("kind", ["file", "stream"])
def test_lists_are_columns(tmp_path: Path, kind: str) -> None:
    """The length of a list is read from the first rows, which a stream gives once."""
    rows = (
        table()
        .drop_columns("y")
        .append_column("y", pa.array(["u", "v"] * (_ROWS // 2)))
        .append_column("v", pa.array([[i, i + 1] for i in range(_ROWS)]))
    )
    new = ipc.new_stream if kind == "stream" else ipc.new_file
    with (tmp_path / "f.arrow").open("wb") as stream, new(stream, rows.schema) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist([], rows.schema))
        writer.write_table(rows, max_chunksize=1000)
    scan = read(tmp_path / "f.arrow")
    assert names_of(scan) == ["a", "b", "v[0]", "v[1]"] and scan.faults.seen == _ROWS


@pytest.mark.parametrize("kind", ["file", "stream"])
def test_a_damaged_file_is_named(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / "f.arrow", kind)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError) as raised:
        read(path)
    assert "f.arrow is damaged" in str(raised.value)
