"""Appending after changes that a folder goes through, and while others write or the store fails."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest

from kfp_tfjob.components.prepare_data import enough
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import DataError, ObjectNotFoundError, StepError
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.local.append_world import (
    ADDED,
    HEADER,
    THREE,
    World,
    assert_close,
    kept,
    mixed,
    named,
    numbers,
)

pytestmark = pytest.mark.slow

READER = """
import pyarrow as pa

def read(stream, name):
    lines = stream.read().decode().split()
    cells = [line.split(";") for line in lines]
    yield pa.RecordBatch.from_pydict({
        "a": [float(cell[0]) for cell in cells],
        "city": [cell[1] or None for cell in cells],
        "y": [cell[2] for cell in cells],
    })
"""


@pytest.fixture
def world(store: Store, base: S3Address, tmp_path: Path) -> World:
    return World(store, base, tmp_path)


def price(draw: random.Random) -> str:
    return f"{draw.gauss(100, 20):.3f}"


def priced(number: int) -> str:
    """Return a mixed table whose label is a number."""
    draw = random.Random(number)
    head, *lines = mixed(number).split()
    return "\n".join([head, *(f"{line[:-1]}{price(draw)}" for line in lines), ""])


@pytest.mark.parametrize("table", ["numbers", "mixed"])
def test_a_label_that_is_a_number(world, table):
    files = named(
        {i: numbers(i, 150, price) if table == "numbers" else priced(i) for i in range(4)}
    )
    added = {name: files.pop(name) for name in list(files)[3:]}
    world.prepare(files)
    done = world.prove(files | added)
    assert done.schema["task"] == "regression"
    assert kept(done) == 3
    plain = world.prepare(files | added, {"append": False}, "plain")
    assert done.rows == plain.rows
    assert_close(done.statistics["label"], plain.statistics["label"])


def test_a_label_that_becomes_a_number(world):
    """The classes 0 to 8 of the first files are numbers once a file has fractions."""
    first = named({i: numbers(i, 60, lambda draw: str(draw.randrange(9))) for i in range(3)})
    assert world.prepare(first).schema["task"] == "classification"
    done = world.prove(first | named({3: numbers(3, 60, price)}))
    assert done.schema["task"] == "regression"
    assert kept(done) == 0


def test_a_label_with_a_text_among_numbers_fails_as_without_append(world):
    first = named({i: numbers(i, 150, price) for i in range(3)})
    world.prepare(first)
    wrong = first | named({3: numbers(3, 60, lambda draw: "high")})
    with pytest.raises(DataError) as appended:
        world.prepare(wrong)
    with pytest.raises(DataError) as whole:
        world.prepare(wrong, out="whole")
    assert str(appended.value) == str(whole.value)


def lines(number: int) -> str:
    draw = random.Random(number)
    cells = ([f"{draw.gauss(0, 1):.5f}", draw.choice(["Rome", "Oslo", ""])] for _ in range(60))
    return "\n".join([*(";".join([*cell, draw.choice("uv")]) for cell in cells), ""])


def test_a_reader_of_ones_own(world, tmp_path):
    code = tmp_path / "mine.py"
    code.write_text(READER)
    options = {"reader": f"{code}:read"}
    files = {f"{i}.dat": lines(i) for i in range(4)}
    first = {name: files[name] for name in list(files)[:3]}
    world.prepare(first, options)
    assert kept(world.prove(files, options)) == 3
    code.write_text(READER.replace("float(cell[0])", "float(cell[0]) * 2"))
    more = files | {"4.dat": lines(4)}
    assert kept(world.prove(more, options)) == 0  # other code may read anything else


@pytest.mark.parametrize(
    "options",
    [
        {"weight": "b", "split": {"group": "day"}},
        {"weight": "b", "missing": {"a": "drop"}, "types": {"city": "text"}},
        {"weight": "b", "drop": ["city", "day"]},
        {"split": {"column": "city"}},
    ],
)
def test_weights_and_splits_by_a_column(world, options):
    cities = ("train", "validation", "test") if "column" in options.get("split", {}) else None
    files = named({i: mixed(i, 90, *([cities] if cities else [])) for i in range(4)})
    first = {name: files[name] for name in list(files)[:3]}
    world.prepare(first, options)
    done = world.prove(files, options)
    assert kept(done) == 3
    plain = world.prepare(files, options | {"append": False}, "plain")
    assert done.rows == plain.rows
    assert_close(done.statistics.get("weight"), plain.statistics.get("weight"))
    assert done.statistics.get("also_in_train") == plain.statistics.get("also_in_train")


TEXT = THREE["part-01.csv"]
CHANGES = {
    "replaced": (THREE | {"part-01.csv": mixed(21)}, 2),
    "replaced by one of the same size": (THREE | {"part-01.csv": TEXT[:-2] + "u\n"}, 2),
    "shrunk": (THREE | {"part-01.csv": TEXT[: TEXT.index("\n", 900) + 1]}, 2),
    "without a row": (THREE | {"part-01.csv": HEADER + "\n"}, 2),
    "grown": (THREE | {"part-01.csv": TEXT + mixed(21).partition("\n")[2]}, 2),
    "deleted": ({name: text for name, text in THREE.items() if "01" not in name}, 2),
    "deleted, the first": ({name: text for name, text in THREE.items() if "00" not in name}, 2),
    "renamed": (
        {("part-09.csv" if "01" in name else name): text for name, text in THREE.items()},
        2,
    ),
    "two that exchange their names": (
        THREE | {"part-01.csv": THREE["part-02.csv"], "part-02.csv": TEXT},
        1,
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_was(world, change):
    world.in_store = "replaced" in change
    files, most = CHANGES[change]
    world.prepare(THREE)
    assert kept(world.prove(files)) <= most
    assert world.prepare(THREE).reused  # going back finds what was there


@pytest.mark.parametrize(
    "options",
    [
        {"split": {"salt": "other"}},
        {"types": {"b": "category"}},
        {"drop": ["city"]},
        {"missing": {"a": "mean"}},
    ],
)
def test_other_options_append_to_nothing(world, caplog, options):
    world.prepare(THREE)
    with caplog.at_level(logging.INFO):
        assert kept(world.prove(THREE | ADDED, options)) == 0
    assert "this version has prepared none of" in caplog.text


def test_a_contract_appends_to_a_dataset_without_one(world):
    world.prepare(THREE)
    assert kept(world.prove(THREE | ADDED, {"contract": {"changes": "fail"}})) == 3


def test_two_runs_append_at_once(world, monkeypatch):
    world.prepare(THREE)
    whole, others = enough.decide, []

    def decide(*given):
        monkeypatch.undo()
        others.append(world.prepare(THREE | ADDED))  # it begins later and is done earlier
        return whole(*given)

    monkeypatch.setattr(enough, "decide", decide)
    done = world.prepare(THREE | ADDED)
    assert kept(done) == kept(others[0]) == 3
    assert world.objects(done) == world.objects(world.prepare(THREE | ADDED, out="whole"))


FAULTS = {
    "the earlier dataset is deleted": ObjectNotFoundError("gone"),
    "a copy differs": DataError("differs"),
    "the store refuses": StepError("not now"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_store_fails_in_the_middle_of_copying(world, monkeypatch, fault):
    first = world.prepare(THREE)
    copy, copies = Store.copy, []

    def fail(self, source, *given):
        copies.append(source)
        if len(copies) == 5:
            if "deleted" in fault:
                for item in list(self.list(S3Address.parse(first.dataset_uri))):
                    self.delete(item.address)
            raise FAULTS[fault]
        return copy(self, source, *given)

    monkeypatch.setattr(Store, "copy", fail)
    done = world.prove(THREE | ADDED)
    assert len(copies) >= 5
    assert kept(done) == (3 if fault == "the store refuses" else 0)
    there = Layout(world.base / "appended").dataset(done.dataset_digest)
    manifest = world.store.read_manifest(there / "manifest.json")
    for item in manifest.objects:
        world.store.prove(there / item.key, item)
