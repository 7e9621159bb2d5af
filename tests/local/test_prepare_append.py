"""data_options.append: added files change a dataset into the one that is made from all files."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from uuid import uuid4

import pyarrow.parquet
import pytest

from kfp_tfjob.components.prepare_data.dataset import Prepared
from kfp_tfjob.components.prepare_data.engine import run
from kfp_tfjob.components.prepare_data.executors.distributed import Distributed
from kfp_tfjob.components.prepare_data.executors.local_workers import LocalWorkers
from kfp_tfjob.components.step import Step
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.credentials import SecretVolume
from kfp_tfjob.storage.errors import ConfigurationError, DataError, StepError
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
)
from tests.local.prepare_attempts import attempts

KILLS = 6


@pytest.fixture
def world(store: Store, base: S3Address, tmp_path: Path) -> World:
    return World(store, base, tmp_path)


def test_an_added_file_is_the_only_one_that_is_read(world):
    first = world.prepare(THREE)
    assert not first.appended
    done = world.prove(THREE | ADDED)
    assert f"appended to {first.dataset_uri}: 3 of 4 files, with 180 rows" in done.appended
    again = world.prepare(THREE | ADDED)
    assert again.reused and again.dataset_digest == done.dataset_digest
    assert kept(world.prove(THREE | ADDED | named({4: mixed(4), 5: mixed(5)}))) == 4


def test_everything_said_of_the_rows_is_as_without_append(world):
    world.prepare(THREE)
    done = world.prepare(THREE | ADDED)
    plain = world.prepare(THREE | ADDED, {"append": False}, "plain")
    shards = {"splits": 0, "test_raw": 0}  # only these differ
    assert done.schema | shards == plain.schema | shards
    assert done.rows == plain.rows
    assert_close(done.statistics, plain.statistics)
    found, expected = (
        json.loads(world.store.read(S3Address.parse(it.dataset_uri) / "distributions.json"))
        for it in (done, plain)
    )
    assert found == expected
    assert sorted(rows_of_test(world, done)) == sorted(rows_of_test(world, plain))


def rows_of_test(world: World, done: Prepared) -> list[str]:
    """Return the raw rows of test."""
    base = S3Address.parse(done.dataset_uri)
    tables = [
        pyarrow.parquet.read_table(io.BytesIO(world.store.read(base / name)))
        for name in done.schema["test_raw"]
    ]
    return [str(row) for table in tables for row in table.to_pylist()]


def row(*cells: object) -> str:
    return "\n".join([HEADER, ",".join(map(str, cells)), ""])


# Files after the first three, or in place of them; options; how many files are not read again.
CASES: dict[str, tuple[dict[str, str], dict, int]] = {
    "a new text of a category": (THREE | named({3: mixed(3, cities=["Oslo", "Rome"])}), {}, 3),
    "a new class in front": (THREE | named({3: mixed(3, classes="auv")}), {}, 0),
    "a gap in every row": (THREE | named({3: row("", "", "", "", "u") * 1}), {}, 3),
    "the same rows again": (THREE | {"again.csv": THREE["part-00.csv"]}, {}, 3),
    "a file in front": (named({0: mixed(9)}) | {f"x{k}": v for k, v in THREE.items()}, {}, 0),
    "a changed file": (THREE | named({1: mixed(11)}), {}, 2),
    "a removed file": (named({0: mixed(0), 2: mixed(2)}), {}, 2),
    "a column of another kind": (
        THREE | named({3: "\n".join([HEADER, *["high,2,Rome,2024-01-01,u"] * 99, ""])}),
        {},
        0,
    ),
    "another order of columns": (
        THREE | named({3: "y,day,city,b,a\nu,2024-01-01,Rome,1,2\n"}),
        {},
        3,
    ),
    "bad rows": (
        THREE | named({3: mixed(3) + "x,1,Rome,2024-01-01,u\n"}),
        {"on_bad_row": "drop"},
        3,
    ),
    "rules for gaps": (
        THREE | ADDED,
        {"missing": {"a": {"rule": "mean", "indicator": True}, "city": "drop"}, "min_count": 30},
        3,
    ),
    "hashed texts and weights": (
        THREE | ADDED,
        {"types": {"city": "text"}, "hash_bins": 8, "weight": "b"},
        3,
    ),
    "a split by groups": (THREE | ADDED, {"split": {"group": "day"}}, 3),
    "some columns": (THREE | ADDED, {"columns": ["a", "city"], "drop": ["day"]}, 3),
}


QUICK = ("a new class in front", "a split by groups")


@pytest.mark.parametrize(
    "case",
    [case if case in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in CASES],
)
def test_the_dataset_is_the_one_of_all_files(world, case):
    files, options, unread = CASES[case]
    first = THREE if case != "bad rows" else THREE | named({0: mixed(0) + "x,1,Rome,today,u\n"})
    world.prepare(first, options)
    done = world.prove({**files, **(first if case == "bad rows" else {})}, options)
    assert kept(done) == unread


def folders(number: int) -> dict[str, str]:
    return {
        f"{split}/{number}.csv": mixed(10 * number + i) for i, split in enumerate(("train", "test"))
    }


@pytest.mark.slow
def test_folders_are_splits(world):
    first = folders(0) | folders(1)
    world.prepare(first)
    assert kept(world.prove(first | {"train/9.csv": mixed(9)})) == 4
    # With a folder for validation, no row of train is in it any more.
    assert kept(world.prove(first | {"validation/0.csv": mixed(7)})) == 0


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"processes": 3}, {"part": 700}, {"part": 700, "processes": 2}])
def test_any_number_of_processes_and_parts(world, how):
    world.prepare(THREE)
    done = world.prove(THREE | ADDED, part=how.pop("part", 1 << 25), **how)
    other = world.prepare(THREE | ADDED, out="alone", processes=1)
    assert world.objects(done) == world.objects(other)


@pytest.mark.slow
def test_workers(world):
    def workers(recipe, store):
        return Distributed(recipe, LocalWorkers(2), store)

    world.prepare(THREE)
    done = world.prove(THREE | ADDED, workers=workers)
    other = world.prepare(THREE | ADDED, out="alone")
    assert world.objects(done) == world.objects(other)


@pytest.mark.slow
@pytest.mark.parametrize("server", ["swift", "versitygw"])
def test_files_in_the_store(world, server, request):
    if server == "versitygw":  # it keeps no checksum that could be asked for
        world.store = Store(secret=SecretVolume(request.getfixturevalue(server).secret))
        world.base = S3Address("test") / uuid4().hex
    world.in_store = True
    first = world.prepare(THREE)
    assert kept(world.prove(THREE | ADDED)) == 3
    world.store.read_manifest(S3Address.parse(first.dataset_uri) / "manifest.json")


@pytest.mark.slow
def test_a_store_that_cannot_copy(world, monkeypatch):
    world.prepare(THREE)

    def refuse(*given):
        raise StepError("not implemented")

    monkeypatch.setattr(Store, "copy", refuse)
    assert kept(world.prove(THREE | ADDED)) == 3


@pytest.mark.slow
@pytest.mark.parametrize("what", ["train-00000.tfrecord", "groups/00001.json"])
def test_a_damaged_dataset_is_not_appended_to(world, what):
    first = world.prepare(THREE)
    address = S3Address.parse(first.dataset_uri) / what
    data = bytearray(world.store.read(address))
    data[len(data) // 2] ^= 1
    world.store.write(address, bytes(data))
    assert kept(world.prove(THREE | ADDED)) == 0


@pytest.mark.slow
def test_a_step_that_is_killed_while_it_appends(store, base, tmp_path, monkeypatch):
    world = World(store, base, tmp_path, in_store=True)
    files = named({number: mixed(number, 300) for number in range(4)})
    more = files | named({4: mixed(4, 300), 5: mixed(5, 300)})
    how, options = {"part": 4_000, "processes": 1}, {"append": True}
    world.prepare(files, out="first")
    begin = time.monotonic()
    expected = world.objects(world.prepare(more, out="whole", **how))
    within = time.monotonic() - begin
    uri = world.write(more)
    with attempts(tmp_path / "scratch", 3) as tries:
        number = 0
        while len(tries.killed) < KILLS:
            out = base / f"killed{number}"
            for item in store.list(base / "first"):
                target = S3Address.parse(str(item.address).replace("/first/", f"/killed{number}/"))
                store.write(target, store.read(item.address))
            for _ in range(3):
                tries.kill(out, uri, options, how, within)
            tries.finish(out, uri, options, how)
            done = world.prepare(more, out=f"killed{number}", **how)
            assert done.reused
            assert world.objects(done) == expected
            number += 1


def test_what_cannot_be_appended_to(world, tmp_path):
    with pytest.raises(ConfigurationError, match="append without split.time"):
        world.prepare(THREE, {"split": {"time": "day"}})
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        (tmp_path / "pets" / name / "1.png").write_bytes(b"\x89PNG")
    step = Step("prepare_data", "r1", Layout(world.base / "out"), world.store)
    with pytest.raises(DataError, match="append does not work with pictures"):
        run(step, str(tmp_path / "pets"), "", {"append": True})
