"""One value of `split.group` is one group, and one integer one text, however a file writes it."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pytest

from kfp_tfjob.components.prepare_data.hashes import split_of
from kfp_tfjob.components.prepare_data.scan import Scan
from tests.unit.prepared_files import read, rows_of, write_table

FIRST = datetime(2024, 1, 1)
DAYS = [FIRST + timedelta(days=i) for i in range(60)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def scanned(folder: Path, **given: object) -> Scan:
    return read(folder, 4096, folder.parent / "runs", **given)


def in_two_splits(folder: Path, groups: int) -> tuple[int, int]:
    """Return how many groups are in more than one split, and how many rows are invalid.

    The rows, whose numbers are in `a`, are in the groups in turn.
    """
    found = scanned(folder, split={"group": "g"}, columns=["a"], on_bad_row="drop")
    rows = rows_of(found)
    splits: dict[int, set[int]] = {}
    for row, split in zip(
        rows["features"][:, 0].astype(int).tolist(),
        split_of(rows["hash"], found.job.fractions).tolist(),
        strict=True,
    ):
        splits.setdefault(row % groups, set()).add(split)
    return sum(len(item) > 1 for item in splits.values()), found.faults.bad


def write_json(folder: Path, groups: list[str], others: list[str] | None = None) -> None:
    rows = [f'{{"a": {i}, "g": {text}, "y": {i % 2}}}' for i, text in enumerate(groups)]
    (folder / "f.jsonl").write_text("\n".join([*rows, *(others or []), ""]))


def write(path: Path, groups: Sequence | pa.Array) -> None:
    rows = np.arange(len(groups))
    write_table(path, {"a": rows, "g": groups, "y": rows % 2})


@pytest.mark.parametrize("mixed", [False, True], ids=["integers", "and a float"])
def test_integers_of_json_keep_their_text(folder: Path, mixed: bool) -> None:
    """As float64, these 16 are 6."""
    ids = [10**17 + 5 * i for i in range(16)]
    texts = [str(ids[i % 16]) for i in range(320)]
    write_json(folder, texts, ['{"a": 1, "g": 0.5, "y": 0}'] * mixed)
    found = scanned(folder, types={"g": "category"}, columns=["a", "g"])
    wanted = [*map(str, ids), *["0.5"] * mixed]
    assert sorted(found.dictionaries["g"].texts) == sorted(wanted)


def test_integers_of_json_are_one_group_whatever_else_is_in_the_block(folder: Path) -> None:
    """With one invalid row after the first MiB, half of these groups were in two splits."""
    texts = [str(2**60 + i % 37) for i in range(30_000)]
    write_json(folder, texts, ['{"a": "x", "g": 1, "y": 0}'])
    assert in_two_splits(folder, 37) == (0, 1)


@pytest.mark.parametrize(
    "forms",
    [
        [pa.timestamp("s"), pa.timestamp("us")],
        [pa.timestamp("us", "UTC"), pa.timestamp("us", "Europe/Berlin")],
        [pa.date32(), pa.timestamp("ms")],
        [pa.date64(), "{:%Y-%m-%d}"],
        ["{:%Y-%m-%d}", "{:%Y-%m-%dT%H:%M:%SZ}"],
        ["{:%Y-%m-%d}", "{:%d.%m.%Y}"],
        ["{:%Y-%m-%d}", pa.timestamp("s"), pa.timestamp("us", "UTC")],
    ],
    ids=str,
)
def test_a_day_is_one_group_in_every_unit_and_zone(folder: Path, forms: list) -> None:
    """28 to 37 of 60 days were in two splits."""
    for i, form in enumerate(forms):
        days = [DAYS[row % 60] for row in range(240)]
        if isinstance(form, str):
            write(folder / f"{i}.csv", [form.format(day) for day in days])
        else:
            zone = "UTC" if pa.types.is_timestamp(form) and form.tz else None
            write(folder / f"{i}.parquet", pa.array(days, pa.timestamp("us", zone)).cast(form))
    assert in_two_splits(folder, 60) == (0, 0)


@pytest.mark.parametrize(
    "forms",
    [
        ["{}", "+{}", "0{}", "{}.", "{}.00", "{}e0", " {} "],
        ["{}.0", pa.int32(), pa.float32(), pa.decimal128(22, 2)],
        ["{}.50", pa.float64(), pa.decimal128(22, 4)],
        ["{}.10", pa.float64(), pa.float32()],
    ],
    ids=str,
)
def test_a_number_is_one_group_in_every_spelling(folder: Path, forms: list) -> None:
    """In CSV, `7` and `7.0` were two groups: 36 of 60 in two splits."""
    ids = [i % 60 for i in range(240)]
    fraction = pa.array([float(forms[0].format(0)) if "." in forms[0] else 0.0] * 240)
    for i, form in enumerate(forms):
        if isinstance(form, str):
            write(folder / f"{i}.csv", [form.format(text) for text in ids])
        else:
            exact = pa.compute.add(pa.array(ids, pa.float64()), fraction)
            write(folder / f"{i}.parquet", exact.cast(form))
    assert in_two_splits(folder, 60) == (0, 0)


@pytest.mark.parametrize(
    "texts",
    [
        ["true", "True", "TRUE"],
        ["-0", "0", "0.0", "-0.0", "00"],
        ["1e3", "1000", "1000.000", "+1E+3"],
        ["18446744073709551617", "18446744073709551617.0", "018446744073709551617"],
        ["0.1", "1e-1", ".1", "0.10"],
        ["1" + "0" * 400, "1" + "0" * 400],
        ["1e999999999999", "1e999999999999"],
        ["2024-01-01T01:00+01:00", "2024-01-01", "2023-12-31T19:00:00-0500", "01.01.2024"],
    ],
    ids=lambda texts: texts[0][:20],
)
def test_spellings_of_one_group(folder: Path, texts: list[str]) -> None:
    """One group is in one split whatever the salt, which decides in which."""
    write(folder / "f.csv", texts * 20)
    every: set[int] = set()
    for salt in "abcdefgh":
        found = scanned(folder, split={"group": "g", "salt": salt}, columns=["a"])
        splits = {*split_of(rows_of(found)["hash"], found.job.fractions).tolist()}
        assert len(splits) == 1
        every |= splits
    assert len(every) > 1


def test_the_revision_of_the_hash_that_decides_is_in_the_split_rule(folder: Path) -> None:
    """So a champion of an earlier version is not evaluated on rows that it was trained on."""
    write(folder / "f.csv", ["p1", "p2"] * 100)
    assert scanned(folder, columns=["a"]).job.split_rules.comparable == {"row_revision": 2}
    found = scanned(folder, split={"group": "g"}, columns=["a"])
    assert found.job.split_rules.comparable == {"group": "g", "group_revision": 2}


@pytest.mark.parametrize("split", [{"group": "g"}, {"time": "t"}, {"column": "s"}], ids=str)
def test_texts_that_are_views(folder: Path, split: dict[str, str]) -> None:
    """Polars writes its texts so; as a label they were `damaged`, and a split was a traceback."""
    words = {
        "g": [f"g{i % 40}" for i in range(200)],
        "t": [f"2024-01-{1 + i % 28:02d}" for i in range(200)],
        "s": [("train", "val", "test")[i % 3] for i in range(200)],
        "y": [f"l{i % 2}" for i in range(200)],
    }

    def rows(of: Callable[[list[str]], pa.Array]) -> bytes:
        columns = {"a": range(200), **{key: of(it) for key, it in words.items()}}
        write_table(folder / "f.parquet", columns)
        return rows_of(scanned(folder, split=split)).tobytes()

    assert rows(lambda it: pa.array(it, pa.string_view())) == rows(pa.array)


@pytest.mark.parametrize(
    "kind",
    [pa.duration("ms"), pa.time32("s"), pa.decimal32(4), pa.decimal64(12, 2), pa.binary_view()],
    ids=str,
)
def test_a_group_of_a_rare_type(folder: Path, kind: pa.DataType) -> None:
    """Each ended the step with an error of Python or Arrow."""
    ids = [i % 60 for i in range(240)]
    made = pa.array(map(str, ids), kind) if kind == pa.binary_view() else pa.array(ids, kind)
    write(folder / "f.parquet", made)
    if kind == pa.decimal64(12, 2):  # written as 7.00, it is the group of a 7 in another file
        write(folder / "f.csv", ids)
    assert in_two_splits(folder, 60) == (0, 0)


@pytest.mark.parametrize("kind", [pa.decimal32(4), pa.decimal64(12, 2)], ids=str)
def test_a_label_of_small_decimals(folder: Path, kind: pa.DataType) -> None:
    """It was `damaged`."""
    labels = pa.array([i % 2 for i in range(240)], kind)
    write_table(folder / "f.parquet", {"a": range(240), "y": labels})
    assert len(rows_of(scanned(folder))) == 240
