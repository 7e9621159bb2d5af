"""A folder of files that grows, and the datasets that data_options.append makes of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path

import pytest

from kfp_tfjob.components.prepare_data.dataset import Prepared
from kfp_tfjob.components.prepare_data.engine import run
from kfp_tfjob.components.step import Step
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store

HEADER = "a,b,city,day,y"
CITIES = ("Rome", "Zürich", "Lagos", "")


def mixed(number: int, rows: int = 60, cities=CITIES, classes="uv") -> str:
    """Return a CSV with gaps, categories and dates."""
    draw = random.Random(number)
    lines = [HEADER]
    for i in range(rows):
        gap = draw.random() < 0.1
        cells = ["" if gap else f"{draw.gauss(0, 1):.6f}", str(draw.randrange(9))]
        cells += [draw.choice(cities), f"20{number + 10}-{i % 12 + 1:02d}-{i % 28 + 1:02d}"]
        lines.append(",".join([*cells, draw.choice(classes)]))
    return "\n".join([*lines, ""])


def numbers(
    number: int, rows: int = 60, label: Callable[[random.Random], str] | None = None
) -> str:
    """Return a CSV of numbers."""
    draw = random.Random(number)
    label = label or (lambda draw: draw.choice("uv"))
    lines = [f"{draw.gauss(0, 1):.6f},{draw.randrange(9)},{label(draw)}" for _ in range(rows)]
    return "\n".join(["a,b,y", *lines, ""])


def named(files: Mapping[int, str]) -> dict[str, str]:
    return {f"part-{number:02d}.csv": text for number, text in files.items()}


class World:
    """A folder of files, and datasets of it in two places of a store."""

    def __init__(self, store: Store, base: S3Address, folder: Path, in_store: bool = False) -> None:
        self.store, self.base, self.folder, self.in_store = store, base, folder, in_store
        self.places = 0

    def write(self, files: Mapping[str, str]) -> str:
        """Write the files, and nothing else; return their address."""
        if self.in_store:
            top = self.base / "data"
            for item in self.store.list(top):
                self.store.delete(item.address)
            for name, text in files.items():
                self.store.write(top / name, text.encode())
            return str(top)
        top = self.folder / "data"
        for path in [*top.rglob("*.*")]:
            path.unlink()
        for name, text in files.items():
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            (top / name).write_text(text)
        return str(top)

    def prepare(self, files: Mapping[str, str], options=None, out="appended", **how) -> Prepared:
        step = Step("prepare_data", "r1", Layout(self.base / out), self.store)
        return run(step, self.write(files), "y", {"append": True, **(options or {})}, **how)

    def objects(self, done: Prepared) -> dict[str, str]:
        """Return the SHA-256 of every object of a dataset, by key."""
        base = S3Address.parse(done.dataset_uri)
        start = len(base.key) + 1
        return {
            item.address.key[start:]: sha256(self.store.read(item.address, 1 << 28)).hexdigest()
            for item in self.store.list(base)
        }

    def prove(self, files: Mapping[str, str], options=None, **how) -> Prepared:
        """Append, and compare with a dataset that is prepared from all of the files at once."""
        done = self.prepare(files, options, **how)
        self.places += 1
        whole = self.prepare(files, options, f"whole{self.places}", **how)
        assert not whole.appended
        assert self.objects(done) == self.objects(whole)
        assert done.dataset_digest == whole.dataset_digest
        return done


THREE = named({number: mixed(number) for number in range(3)})
ADDED = named({3: mixed(3)})


def kept(done: Prepared) -> int:
    """Return how many files were not read."""
    if not done.appended:
        return 0
    return int(done.appended.partition(": ")[2].partition(" of ")[0])


def assert_close(found, expected) -> None:
    """Compare JSON values; sums are taken in another order."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_close(found[key], value)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for pair in zip(found, expected, strict=True):
            assert_close(*pair)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-6)
    else:
        assert found == expected
