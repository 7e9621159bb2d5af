"""The bytes of a dataset of numbers, which no new kind of column and no new format may change."""

import gzip
import json
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest

from kfp_tfjob.components.prepare_data.engine import run
from kfp_tfjob.components.step import Step
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store

# Of all shards, made with version 0.2.0, and of schema.json with codec 3; sums in statistics.json
# vary with the CPU.
DIGESTS = {
    "classes": "8f4712d0c7e819678a4b43f74c439d0fdcfe70878d0bfd67c2a0501863579d61",
    "numbers": "3cc859376a47856a801202b3158f720c05230034df8383dd8d1954f5d277dbd3",
}


def table(label: str) -> pa.Table:
    """2,000 rows with whole numbers, tiny, huge and repeated ones."""
    random = np.random.default_rng(13)
    columns = {f"f{i}": random.normal(size=2_000) * 10.0**i for i in range(-3, 6)}
    columns["whole"] = random.integers(-1_000, 1_000, 2_000)
    columns["few"] = random.integers(0, 3, 2_000)
    target = random.integers(0, 4, 2_000) if label == "classes" else random.normal(size=2_000)
    columns["y"] = np.array(["a", "b", "ü", "d, e"])[target] if label == "classes" else target
    return pa.table(columns)


def write(rows: pa.Table, kind: str, folder: Path) -> Path:
    path = folder / f"rows.{kind}"
    if kind == "parquet":
        pa.parquet.write_table(rows, path, row_group_size=700)
    elif kind == "arrow":
        with pa.ipc.new_file(path, rows.schema) as file:
            file.write_table(rows, max_chunksize=700)
    elif kind == "feather":
        pyarrow.feather.write_feather(rows, path, compression="zstd")
    elif kind == "jsonl.gz":
        text = "".join(json.dumps(row) + "\n" for row in rows.to_pylist())
        path.write_bytes(gzip.compress(text.encode()))
    else:
        pa.csv.write_csv(rows, path)
        if kind == "csv.gz":
            path.write_bytes(gzip.compress(path.read_bytes()))
    return path


FORMATS = ["csv", "csv.gz", "parquet", "arrow", "feather", "jsonl.gz"]


@pytest.mark.parametrize(
    ("label", "kind"), [("numbers", "csv"), *(("classes", kind) for kind in FORMATS)]
)
def test_the_bytes_are_those_of_the_first_version(
    store: Store, base: S3Address, tmp_path: Path, label: str, kind: str
) -> None:
    path = write(table(label), kind, tmp_path)
    step = Step("prepare_data", "r1", Layout(base / "out"), store)
    done = run(step, str(path), "y", {}, block=1 << 16)
    digest = sha256()
    for item in store.read_manifest(S3Address.parse(done.dataset_uri) / "manifest.json").objects:
        if item.key not in ("statistics.json", "distributions.json"):
            digest.update(store.read(S3Address.parse(done.dataset_uri) / item.key))
    assert digest.hexdigest() == DIGESTS[label]
