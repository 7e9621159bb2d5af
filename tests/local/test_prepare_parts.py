"""The same bytes come out of any number of workers and any cut, and after kills."""

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet
import pytest

from kfp_tfjob.common.errors import DataError
from kfp_tfjob.components.prepare_data import engine
from kfp_tfjob.components.prepare_data.executors.executor import Executor
from kfp_tfjob.components.prepare_data.source.readers import csv_records
from kfp_tfjob.components.step import Step
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.local.prepared import objects
from tests.unit.prepared_files import read

ROWS = 1_500


def numbers() -> dict[str, list]:
    draw = random.Random(1)
    rows = range(ROWS)
    return {
        "a": [draw.gauss(0, 1) for _ in rows],
        "b": [draw.randrange(9) + 0.5 for _ in rows],
        "y": [draw.choice(["yes", "no"]) for _ in rows],
    }


def people() -> dict[str, list]:
    """Columns of every type with missing values; a text may have line ends and quotes in it."""
    draw = random.Random(2)
    rows = range(ROWS)
    towns = [f"town {i}" for i in range(60)] + ['old "town"', "new\ntown", "a,b\n\n,c"]
    return {
        "age": [draw.choice([None, draw.randrange(90) / 2]) for _ in rows],
        "town": [draw.choice([None, *towns]) for _ in rows],
        "since": [f"20{draw.randrange(10, 30)}-0{draw.randrange(1, 10)}-17" for _ in rows],
        "member": [draw.choice(["yes", "no", None]) for _ in rows],
        "note": [f"{draw.randrange(500)} \n words" for _ in rows],
        "y": [draw.gauss(5, 2) for _ in rows],
    }


def csv(table: dict[str, list], path: Path) -> None:
    pa.csv.write_csv(pa.table(table), path)


def jsonl(table: dict[str, list], path: Path) -> None:
    rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def parquet(table: dict[str, list], path: Path) -> None:
    pa.parquet.write_table(pa.table(table), path, row_group_size=217)


CASES: dict[str, tuple[Callable[[], dict[str, list]], Callable, str, dict[str, Any]]] = {
    "numbers": (numbers, csv, "data.csv", {}),
    "people": (people, csv, "data.csv", {"types": {"note": "text"}, "missing": {"age": "mean"}}),
    "people by group": (people, csv, "data.csv", {"split": {"group": "since"}}),
    "people by time": (people, jsonl, "data.jsonl", {"split": {"time": "since"}}),
    "people in groups": (people, parquet, "data.parquet", {}),
}


@pytest.mark.parametrize("name", CASES)
def test_any_cut_and_any_number_of_workers_give_the_same_bytes(
    store: Store, base: S3Address, tmp_path: Path, name: str
) -> None:
    make, write, file, given = CASES[name]
    write(make(), tmp_path / file)
    size = (tmp_path / file).stat().st_size
    found = []
    several = (2, 4) if name == "people" else (1, 1)  # starting processes takes a second
    cuts = zip((size, size // 7, size // 11), (1, *several), strict=True)
    for i, (part, workers) in enumerate(cuts):
        step = Step("prepare_data", "r1", Layout(base / f"out{i}"), store)
        data = (str(tmp_path), "y", given)
        done = engine.run(step, *data, block=1 << 12, part=part, workers=workers)
        found.append(objects(store, done))
    assert all(item == found[0] for item in found)
    assert len(found[0]) > 6


def test_a_fault_has_the_line_of_the_file_in_every_part(tmp_path: Path) -> None:
    lines = ["a,t,y"] + [f"{i},{'x' * 9}{i % 3},{i % 2}" for i in range(400)]
    lines[17] = "soon,x,1"
    lines[200] = '7,"first\nsecond",0'
    lines[301] = "later,x,1"
    (tmp_path / "data.csv").write_text("\n".join(lines) + "\n")
    given = {"on_bad_row": "drop", "types": {"a": "number", "t": "category"}}
    found = read(tmp_path / "data.csv", 1 << 12, part=500, **given)
    assert [(item.line, item.column, item.value) for item in found.faults.examples] == [
        (18, "a", "soon"),
        (303, "a", "later"),
    ]
    assert found.faults.seen == 400


def test_a_quoted_value_over_many_parts_is_one_value(tmp_path: Path) -> None:
    long = "\n".join(f"{i},1,0" for i in range(300))  # looks like rows
    rows = [f'{i},"{long if i == 40 else "a"}",{i % 2}' for i in range(100)]
    (tmp_path / "data.csv").write_text("a,t,y\n" + "\n".join(rows) + "\n")
    given = {"types": {"t": "text"}, "on_bad_row": "drop"}
    found = read(tmp_path / "data.csv", 1 << 12, part=300, **given)
    assert (found.faults.seen, found.faults.rows) == (100, Counter(long=1, quotes=0))
    assert [item.line for item in found.faults.examples] == [42]


def test_a_part_that_begins_within_a_value_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = 'first "" line\nsecond, with a comma\n\n'
    rows = [f'{i},"{text * (i % 4)}",{i % 2}' for i in range(400)]
    (tmp_path / "data.csv").write_text("a,t,y\n" + "\n".join(rows) + "\n")
    reads, run = [], Executor.map

    def counted(executor, task, job, items):
        reads.extend(part.number for part in items)
        return run(executor, task, job, items)

    monkeypatch.setattr(Executor, "map", counted)
    given = {"types": {"a": "number", "t": "text"}, "on_bad_row": "drop"}
    found = read(tmp_path / "data.csv", 1 << 12, part=300, **given)
    assert found.faults.seen == 400 and not found.faults.bad
    assert len(reads) > 20 and len(set(reads)) == len(reads)


def test_a_line_that_never_ends_is_named_by_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_records, "LONGEST_RECORD", 1 << 20)
    rows = [f"{i},{i % 2}" for i in range(2_000)]
    rows[1_500] = "1" * (2 << 20)
    (tmp_path / "data.csv").write_text("a,y\n" + "\n".join(rows) + "\n")
    with pytest.raises(DataError, match=" byte 9,394 "):
        read(tmp_path / "data.csv", 1 << 16, part=300 << 10)
