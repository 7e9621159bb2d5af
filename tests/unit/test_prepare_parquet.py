"""Parquet that was made to hurt: what is refused, and what it costs."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kfp_tfjob.components.prepare_data.source import header
from kfp_tfjob.components.prepare_data.source.header import Columns
from kfp_tfjob.components.prepare_data.source.readers import parquet_table
from kfp_tfjob.components.prepare_data.source.readers.open_table import open_table
from kfp_tfjob.components.prepare_data.source.resolve import list_source
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.parse import parse
from kfp_tfjob.storage.errors import DataError
from kfp_tfjob.storage.store import Store
from tests.fuzz.bounds import bounded
from tests.unit.prepared_files import check, read

OPTIONS = parse(DataOptions, "data_options", {})


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
        source = list_source(Store("http://127.0.0.1:1"), str(path), OPTIONS)
        with open_table(source, source.files[0], OPTIONS) as table:
            sizes = [chunk.size for chunk in table.chunks(Columns(("a",), "y"))]
    assert len(sizes) > 3 and max(sizes) < 40 << 20


def test_too_many_columns_are_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"a": [1.0], "b": [1.0], "y": ["x"]}), path)
    monkeypatch.setattr(parquet_table, "MOST_COLUMNS", 2)
    (said,) = check(path)
    assert "Received: 3" in said
    assert header.MOST_COLUMNS == 100_000


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
    source = list_source(Store("http://127.0.0.1:1"), str(path))
    with open_table(source, source.files[0], OPTIONS) as opened:
        with pytest.raises(DataError, match="damaged"):
            list(opened.chunks(Columns(("a",), "y")))


def test_timestamps_of_spark_reach_beyond_2262(path: Path) -> None:
    """As nanoseconds, 9999-12-31 was 1816-03-29."""
    times = pa.array(["9999-12-31T00:00:00", "1066-10-14T00:00:00"]).cast(pa.timestamp("us"))
    table = pa.table({"a": times, "y": [0, 1]})
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)
    source = list_source(Store("http://127.0.0.1:1"), str(path))
    with open_table(source, source.files[0], OPTIONS) as opened:
        (chunk,) = opened.chunks(Columns(("a",), "y"))
    assert chunk.columns["a"].cast(pa.timestamp("us")).equals(times)


def test_a_column_without_a_type_has_only_gaps(path: Path) -> None:
    """pandas writes it if every value of one file is None."""
    table = pa.table({"a": pa.nulls(30), "b": np.arange(30.0), "y": ["u", "v", "v"] * 10})
    pq.write_table(table, path)
    assert not check(path)
    source = list_source(Store("http://127.0.0.1:1"), str(path))
    with open_table(source, source.files[0], OPTIONS) as opened:
        (chunk,) = opened.chunks(Columns(("a", "b"), "y"))
    assert chunk.columns["a"].type == pa.string() and chunk.columns["a"].null_count == 30
    pq.write_table(table.rename_columns(["y", "b", "a"]), path)
    assert "label 'y' of f.parquet" in check(path)[0]
