"""Fourteen datasets, and what a step gets of each, are byte for byte those of the version before.

Champions and earlier datasets stay comparable only while these do not change. A case pins the
shards, schema, statistics and distributions, the digests, the warnings, the report, and of each
split the rows, labels and weights that a step gets.

Write the golden file again, and read the difference before it is committed:

    WRITE_GOLDEN=1 .venv/bin/python -m pytest tests/local/test_golden_datasets.py
"""

import csv
import json
import os
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import date, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from examples import digits, people, pictures
from kfp_tfjob.components.prepare_data import shards
from kfp_tfjob.components.prepare_data.data_validation import validate
from kfp_tfjob.components.prepare_data.engine import run
from kfp_tfjob.components.prepare_data.report import page_of
from kfp_tfjob.components.step import Step
from kfp_tfjob.storage.store import Store
from kfp_tfjob.trainer.dataset import Dataset
from kfp_tfjob.trainer.inputs import first_rows
from tests.local.prepared import objects

GOLDEN = Path(__file__).parent.parent / "golden" / "datasets.json"


@dataclass(frozen=True)
class Case:
    """A source and how it is prepared.

    Attributes:
        write: Writes the source into a folder.
        label: The label column.
        options: data_options.
        engine: The size of parts and blocks, and the number of workers.
        shard_bytes: The size of a shard, if not the product's.
    """

    write: Callable[[Path], Any]
    label: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    shard_bytes: int = 0


def _table(path: Path, header: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(header)
        table.writerows(rows)


def _people(path: Path, rows: int = 900, seed: int = 0, **columns: Callable[[int], object]) -> None:
    """Write people, with more columns whose values are those of a function of the row's number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    people.write(path, rows, seed)
    with open(path, newline="", encoding="utf-8") as file:
        header, *records = csv.reader(file)
    values = [[str(value(row)) for value in columns.values()] for row in range(rows)]
    _table(path, [*header, *columns], map(list.__add__, records, values))


def _day(row: int) -> date:
    return date(2020, 1, 1) + timedelta(days=row * 7 % 1000)


def _folders(folder: Path) -> None:
    for seed, (name, rows) in enumerate({"train": 600, "validation": 150, "test": 150}.items()):
        _people(folder / name / "people.csv", rows, seed)


def _text(folder: Path) -> None:
    choose = random.Random(8)
    words = ["rain", "sun", "wind", "Ünwetter", "storm 7", "a,b", 'say "no"', "\U0001f327 now", ""]
    rows = [
        [f"{choose.choice(words)} {choose.randrange(400)}", choose.choice(words), row % 3]
        for row in range(800)
    ]
    _table(folder / "notes.csv", ["note", "short", "kind"], rows)


def _booleans(folder: Path) -> None:
    choose = random.Random(9)
    booleans = [["true", "false"], ["yes", "no"], ["T", "F"], ["1", "0"]]
    rows = [
        [
            *(choose.choice([*pair, "", "NA"]) for pair in booleans),
            choose.choice(["", "nan", f"{choose.gauss(3, 2):.3f}"]),
            choose.choice(["", "N/A", "red", "green", "blue", "rare" if row == 77 else "red"]),
            choose.choice(["2024-02-29", "1969-12-31", "", "null"]),
            choose.gauss(0, 1),
        ]
        for row in range(800)
    ]
    _table(folder / "gaps.csv", ["a", "b", "c", "d", "number", "color", "day", "y"], rows)


def _formats(folder: Path) -> None:
    choose = random.Random(10)
    rows = [
        [
            f"{choose.randrange(1000, 9_000_000):,}".replace(",", ".") + f",{row % 100:02d}",
            f"{choose.randrange(1, 90)},{row % 10}%",
            _day(row).strftime("%d.%m.%Y"),
            f"${choose.randrange(1, 99_000):,}.25",
            _day(row).strftime("%d/%m/%y"),
            choose.choice(["on", "off"]),
        ]
        for row in range(700)
    ]
    _table(folder / "formats.csv", ["price", "share", "signed", "net", "due", "state"], rows)


def _images(folder: Path) -> None:
    pictures.write(folder)
    for name in pictures.PHOTOGRAPHS:
        for path in sorted((folder / name).iterdir())[60:]:
            path.unlink()


def _parts(folder: Path) -> None:
    for number in range(3):
        _people(folder / f"part-{number}.csv", 500, number, site=lambda row: f"s{row % 7}")


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


CASES = {
    "classes": Case(_classes, "species", {"drop": ["name"]}),
    "bad rows": Case(_bad_rows, "y", {"delimiter": ";", "on_bad_row": "drop"}),
    "parquet": Case(_parquet, "y"),
    "digits": Case(
        lambda folder: digits.write(folder / "digits.csv"), "digit", {"split": {"salt": "7"}}
    ),
    "people by group": Case(
        lambda folder: _people(folder / "people.csv", team=lambda row: f"team {row * 31 % 97}"),
        people.LABEL,
        {"split": {"group": "team"}},
    ),
    "people by time": Case(
        lambda folder: _people(folder / "people.csv", joined=_day),
        people.LABEL,
        {"split": {"time": "joined"}},
    ),
    "people by folder": Case(_folders, people.LABEL),
    "people with weights": Case(
        lambda folder: _people(folder / "people.csv", counts=lambda row: row % 4 / 2),
        people.LABEL,
        {"weight": "counts"},
    ),
    "hashed text": Case(
        _text, "kind", {"types": {"note": "text", "short": "text"}, "hash_bins": 64}
    ),
    "booleans and missing values": Case(_booleans, "y", {"missing": {"number": "mean"}}),
    "formats": Case(
        _formats,
        "state",
        {
            "types": {
                "price": {"number": {"decimal": ",", "thousands": "."}},
                "share": {"number": {"decimal": ","}},
                "net": {"number": {"decimal": ".", "thousands": ","}},
                "due": {"date": "%d/%m/%y"},
            }
        },
    ),
    "images": Case(_images),
    "several parts": Case(
        _parts, people.LABEL, engine={"part": 9_000, "block": 2_000, "workers": 2}
    ),
    "several shards": Case(
        lambda folder: _people(folder / "people.csv", 1500), people.LABEL, shard_bytes=12_000
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_every_byte_is_as_before(
    name: str, step: Step, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    source = tmp_path / "source"
    source.mkdir()
    case.write(source)
    if case.shard_bytes:
        monkeypatch.setattr(shards, "SHARD_BYTES", case.shard_bytes)
    done = run(step, str(source), case.label, case.options, **case.engine)
    stored = objects(store, done)
    page = page_of(step, done, validate(step, done, "", case.options))
    written: dict[str, Any] = {
        "dataset_digest": done.dataset_digest,
        "objects": {name: _hash(data) for name, data in stored.items() if name != "manifest.json"},
        "packed": _packed(stored, tmp_path / "dataset"),
        "report": _hash(page.encode()),
        "schema_digest": done.schema.schema_digest,
        "warnings": list(done.statistics.warnings),
    }
    if case.shard_bytes:
        assert len(done.schema.splits["train"].shards) >= 3
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if os.environ.get("WRITE_GOLDEN"):
        golden[name] = written
        GOLDEN.write_text(json.dumps(golden, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    assert written == golden[name]


def _hash(data: bytes) -> str:
    return sha256(data).hexdigest()


def _packed(stored: dict[str, bytes], folder: Path) -> dict[str, dict[str, Any]]:
    """Return the shape and the hash of what a step gets of each split that a replica may read."""
    folder.mkdir()
    for name, data in stored.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    dataset, packed = Dataset.load(folder), {}
    for split, rows in dataset.rows.items():
        if split == "test":
            continue  # they are not encoded
        x, y, weights = first_rows(dataset, rows, split)
        arrays = {"x": x, "labels": y, "weights": weights}
        packed[split] = {
            name: [str(array.dtype), list(array.shape), _hash(array.tobytes())]
            for name, array in arrays.items()
        }
    return packed
