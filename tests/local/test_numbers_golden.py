"""A table of numbers without a missing value: every stored byte is as in the version before.

Champions and earlier datasets stay comparable only while these bytes do not change.
"""

import json
import os
import random
import re
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from examples import digits
from kfp_tfjob.components.prepare_data.engine import run
from tests.local.prepared import objects

GOLDEN = Path(__file__).parent.parent / "golden" / "datasets-of-numbers.json"


def _classes(folder: Path) -> None:
    choose = random.Random(5)
    rows = [
        f'{choose.gauss(0, 1)},{i % 9},"n{i}",{choose.choice(["cat", "dog", "ünic"])}'
        for i in range(900)
    ]
    (folder / "pets.csv").write_text("\n".join(["height,weight,name,species", *rows, ""]))


def _bad_rows(folder: Path) -> None:
    choose = random.Random(6)
    rows = [f"{choose.gauss(0, 9):.4f};{i * 7 % 1000};{choose.random()}" for i in range(700)]
    rows[30], rows[300], rows[500] = "x;3;0.25", "1;2", "inf;1;0.5"
    (folder / "a.csv").write_text("\r\n".join(["a;b;y", *rows[:400], ""]))
    turned = [re.sub("([^;]*);(.*)", r"\2;\1", row) for row in rows[400:]]
    (folder / "b.csv").write_text("\n".join(["b;y;a", *turned, ""]))


def _parquet(folder: Path) -> None:
    random = np.random.default_rng(7)
    table = pa.table(
        {
            "f": random.normal(size=800),
            "i": pa.array(np.arange(800) % 37, pa.int16()),
            "d": pa.array([f"{i}.25" for i in range(800)]).cast(pa.decimal128(9, 2)),
            "y": pa.array(["yes", "no"] * 400).dictionary_encode(),
        }
    )
    pa.parquet.write_table(table, folder / "t.parquet", row_group_size=300)


CASES: dict[str, tuple[Callable[[Path], None], str, dict]] = {
    "classes": (_classes, "species", {"drop": ["name"]}),
    "bad rows": (_bad_rows, "y", {"delimiter": ";", "on_bad_row": "drop"}),
    "parquet": (_parquet, "y", {}),
    "digits": (
        lambda folder: digits.write(folder / "digits.csv"),
        "digit",
        {"split": {"salt": "7"}},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_every_byte_is_as_before(name, step, store, tmp_path):
    make, label, options = CASES[name]
    make(tmp_path)
    done = run(step, str(tmp_path), label, options)
    found = {name: sha256(data).hexdigest() for name, data in objects(store, done).items()}
    # Later versions describe more, in an object of its own, which the manifest lists.
    assert found.pop("distributions.json") and found.pop("manifest.json")
    found["dataset_digest"] = done.dataset_digest
    found["schema_digest"] = done.schema.schema_digest
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if os.environ.get("WRITE_GOLDEN"):
        golden[name] = found
        GOLDEN.write_text(json.dumps(golden, indent=1, sort_keys=True) + "\n")
    assert found == golden[name]
