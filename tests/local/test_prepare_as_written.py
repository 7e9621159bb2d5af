"""Ways to write the same rows, one in each small table: they give the same bytes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from kfp_tfjob.components.prepare_data.engine import run
from kfp_tfjob.components.step import Step
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from tests.local.planted import NUMBERS, ROWS, parquet, small, table, write
from tests.local.prepared import objects

MOMENTS = [-62_135_596_800 + 2_200_000_000 * i for i in range(ROWS)]  # seconds, years 1 to 9691
TIMES = ("2024-01-31 10:00", "2024-01-31T12:00:00+02:00", "2024-01-31T10Z")
TIMES += ("2024-01-31T04:30:00.000000000-0530",)

# The files, the options, and the files with which they are the same dataset.
SAME: dict[str, tuple[bytes | dict[str, bytes], dict, bytes | dict[str, bytes]]] = {
    "a byte order mark before quotes": (b"\xef\xbb\xbf" + table(small, '"a","b","y"'), {}, NUMBERS),
    "a byte order mark in the second file, and its columns in another order": (
        {"1.csv": NUMBERS, "2.csv": b"\xef\xbb\xbfy,b,a\nu,0,700\n"},
        {},
        NUMBERS + b"700,0,u\n",
    ),
    "latin-1 in a column that is dropped": (
        table(lambda i: "äöü"[i % 3]).decode().encode("latin-1"),
        {"drop": ["b"]},
        NUMBERS,
    ),
    "dates before 1970 and beyond 2262": (
        {"f.parquet": parquet(lambda i: MOMENTS[i], pa.timestamp("s"))},
        {},
        table(lambda i: str(np.datetime64(MOMENTS[i], "s"))),
    ),
    "Parquet with the name of a CSV": ({"f.csv": parquet(small)}, {}, NUMBERS),
    "a column without a type in one file": (
        {"1.parquet": parquet(lambda i: None), "2.csv": NUMBERS},
        {},
        NUMBERS + table(lambda i: "").removeprefix(b"a,b,y\n"),
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_the_same_dataset(step, store, tmp_path, name):
    files, options, plain = SAME[name]
    shared = Step(step.name, step.run_id, Layout(S3Address("test", "as-written")), store)
    found = run(step, write(tmp_path / "a", files), "y", options)
    dropped = {key: options[key] for key in options if key == "drop"}
    expected = run(shared, write(tmp_path / "b", plain), "y", dropped)
    assert objects(store, found) == objects(store, expected)
