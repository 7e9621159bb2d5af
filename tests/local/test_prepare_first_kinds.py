"""The kinds of the first block are a guess; the result is that of the kinds of all rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.components.prepare_data import column_profile, dictionary, engine, scan
from kfp_tfjob.components.prepare_data.kinds import NO_KINDS, Kinds
from kfp_tfjob.components.prepare_data.source import resolve as source
from kfp_tfjob.components.prepare_data.source.column_names import Columns
from kfp_tfjob.components.step import Step
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.local.prepared import objects

ROWS, FIRST = 600, 40  # FIRST rows are in the first block
WORDS = ("red", "green", "blue")

# A column that begins like another kind, and limits that are smaller than usual.
WRONG: dict[str, tuple[Callable[[int], str], dict[str, int]]] = {
    "no value at first": (lambda i: "" if i < FIRST else WORDS[i % 3], {}),
    "other texts at first": (lambda i: f"t{i}" if i < FIRST else WORDS[i % 3], {}),
    "booleans at first": (lambda i: ("yes", "no")[i % 2] if i < FIRST else WORDS[i % 3], {}),
    "words at first": (lambda i: "none" if 9 < i < 15 else str(i % 5), {}),
    "too many texts": (lambda i: f"t{i // 2 if i < FIRST else i}", {"MOST_TEXTS": 100}),
    "too long texts": (
        lambda i: WORDS[i % 3] if i < FIRST else str(i),  # in the end, numbers
        {"_MOST_BYTES": 10_000},
    ),
}


def written(path: Path, b: Callable[[int], str]) -> Path:
    rows = [f"{i % 97},{WORDS[i % 2]},{b(i)},{'uv'[i * i % 3 % 2]}" for i in range(ROWS)]
    path.write_text("\n".join(["a,c,b,y", *rows]) + "\n")
    return path


def without_kinds(*given: Any) -> tuple[Columns | None, Kinds, list[Problem]]:
    columns, _, problems = source.first_block(*given)
    return columns, NO_KINDS, problems


@pytest.fixture
def prepared(store: Store, base: S3Address, monkeypatch) -> Callable[[Path, str], dict[str, bytes]]:
    """Return the objects of a dataset, made in parts and with a small first block."""
    monkeypatch.setattr(source, "_FIRST_BLOCK", 600)
    options = {"on_bad_row": "drop", "max_bad_fraction": 0.5}

    def prepare(path: Path, name: str) -> dict[str, bytes]:
        step = Step("prepare_data", "r1", Layout(base / name), store)
        done = engine.run(step, str(path), "y", options, block=900, part=3000, workers=1)
        return objects(store, done)

    return prepare


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_guess_changes_nothing(prepared, tmp_path, monkeypatch, name) -> None:
    column, limits = WRONG[name]
    path = written(tmp_path / "f.csv", column)
    for module in (dictionary, column_profile):
        for limit, most in limits.items():
            monkeypatch.setattr(module, limit, most, raising=False)
    found = prepared(path, "guessed")
    monkeypatch.setattr(scan, "first_block", without_kinds)
    assert found == prepared(path, "known")


def test_a_kind_that_only_all_rows_make_unclear_is_refused(prepared, tmp_path) -> None:
    path = written(tmp_path / "f.csv", lambda i: "2024-01-02" if i < FIRST else "31/12/2024")
    with pytest.raises(DataError, match="f.csv, line 42"):
        prepared(path, "unclear")
