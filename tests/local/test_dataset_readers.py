"""pandas and DuckDB read a prepared dataset: the values, types and missing values of the table."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from kfp_tfjob.components.prepare_data.engine import run
from kfp_tfjob.components.step import Step
from kfp_tfjob.features.schema import Schema
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader import pull

ROWS = {"train": 400, "validation": 50, "test": 60}
CITIES = ("Zürich", "São Paulo", "New York, NY", 'the "Hague"', "NA")
KEY = "key"  # distinct numbers, by which the tests sort


def table_of(
    random: np.random.Generator, rows: int, columns: dict[str, Any], part: str
) -> pa.Table:
    """Return a split of a source: a key, columns, and the name of the split."""
    keys = random.permutation(rows) + random.random(rows)
    return pa.table({KEY: keys, **columns, "part": pa.array([part] * rows, pa.string())})


def mixed(random: np.random.Generator, rows: int, part: str) -> pa.Table:
    """Return rows of every column type, a tenth of whose values are missing."""

    def some(values: Any, kind: pa.DataType) -> pa.Array:
        return pa.array(values, kind, mask=random.random(rows) < 0.1)

    first = datetime(1969, 1, 1, tzinfo=UTC)
    dates = [first + timedelta(microseconds=int(at)) for at in random.integers(0, 2**51, rows)]
    cities = np.array(CITIES, object)[random.integers(0, len(CITIES), rows)]
    notes = np.array([f"note {number}" for number in random.integers(0, 90, rows)], object)
    columns = {
        "price": some(random.normal(0, 1e6, rows), pa.float64()),
        "paid": some(random.random(rows) < 0.5, pa.bool_()),
        "day": some(dates, pa.timestamp("us", "UTC")),
        "city": some(cities, pa.string()),
        "a.b": some(notes, pa.string()),
        "count": pa.array(random.integers(0, 9, rows), pa.float32()),
        "grade": pa.array(np.array(["low", "high"], object)[random.integers(0, 2, rows)]),
    }
    return table_of(random, rows, columns, part)


def numbers(random: np.random.Generator, rows: int, part: str) -> pa.Table:
    """Return rows of numbers, some of which are missing, and a label that is a number."""
    columns = {
        "x": pa.array(random.normal(size=rows), pa.float32(), mask=random.random(rows) < 0.1),
        "y": random.normal(size=rows),
    }
    return table_of(random, rows, columns, part)


DATASETS: dict[str, tuple[Callable[..., pa.Table], str, dict[str, Any], dict[str, str]]] = {
    "mixed": (
        mixed,
        "grade",
        {"types": {"a.b": "text"}, "weight": "count"},
        {
            KEY: "DOUBLE",
            "price": "DOUBLE",
            "paid": "BOOLEAN",
            "day": "TIMESTAMP WITH TIME ZONE",
            "city": "VARCHAR",
            "a.b": "VARCHAR",
            "count": "FLOAT",
            "grade": "VARCHAR",
        },
    ),
    "numbers": (numbers, "y", {}, {KEY: "FLOAT", "x": "FLOAT", "y": "DOUBLE"}),
}


@pytest.fixture(params=DATASETS)
def prepared(
    request: pytest.FixtureRequest, step: Step, store: Store, tmp_path: Path
) -> tuple[Path, dict[str, pa.Table], dict[str, str]]:
    """A dataset's folder, the rows of its source by split, and the types of its columns."""
    make, label, options, types = DATASETS[request.param]
    random = np.random.default_rng(5)
    parts = {split: make(random, rows, split) for split, rows in ROWS.items()}
    source = tmp_path / "source.parquet"
    parquet.write_table(pa.concat_tables(parts.values()), source)
    done = run(step, str(source), label, {"split": {"column": "part"}, **options})
    pull(store, S3Address.parse(done.dataset_uri), tmp_path / "data")
    # A table of plain numbers is float32 throughout, as the model takes it.
    narrow = [pa.float32() if kind == "FLOAT" else None for kind in types.values()]
    expected = {}
    for split, part in parts.items():
        columns = {
            name: part[name] if kind is None else part[name].cast(kind, safe=False)
            for name, kind in zip(types, narrow, strict=True)
        }
        expected[split] = pa.table(columns).sort_by(KEY)
    return tmp_path / "data", expected, types


def test_pandas_reads_the_table(prepared) -> None:
    folder, expected, _ = prepared
    schema = Schema.from_bytes((folder / "schema.json").read_bytes())
    assert schema.rows == ROWS
    for split, rows in expected.items():
        frame = pd.read_parquet(folder / split).sort_values(KEY, ignore_index=True)
        pd.testing.assert_frame_equal(frame, rows.to_pandas())
        assert frame.isna().sum().to_dict() == {
            name: rows[name].null_count for name in rows.column_names
        }


def test_duckdb_reads_the_table(prepared) -> None:
    folder, expected, types = prepared
    for split, rows in expected.items():
        files = duckdb.read_parquet(f"{folder}/{split}/*.parquet")
        assert dict(zip(files.columns, map(str, files.types), strict=True)) == types
        assert files.order(KEY).fetchall() == [tuple(row.values()) for row in rows.to_pylist()]
