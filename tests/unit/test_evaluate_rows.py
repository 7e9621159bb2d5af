"""The test rows that evaluate reads, and those that the model was trained on.

Copies of rows fail a model; rows that are equal by nature do not.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfp_tfjob.common.errors import DataError
from kfp_tfjob.features.statistics import StatisticsDocument
from kfp_tfjob.judging import rows
from kfp_tfjob.judging.rows import TestData as Split
from kfp_tfjob.judging.train_test_overlap import leaked_rows, overlap_checks
from tests.parquet_split import write_split
from tests.typed_schema import typed

COLUMNS = ("x", "y", "z")


def _classes(classes: int | None) -> list[str]:
    return [f"c{at}" for at in range(classes or 0)]


def _split(paths: Sequence[Path], count: int, classes: int | None, weighted: bool) -> Split:
    names = _classes(classes)
    schema = {
        "task": "classification" if classes else "regression",
        "features": dict.fromkeys(COLUMNS, "float32"),
        "label": {"name": "label", "classes": names} if classes else {"name": "label"},
    }
    schema |= {"weight": {"name": "counts"}} if weighted else {}
    return Split("d", typed(schema), StatisticsDocument(), tuple(paths), count)


@pytest.mark.parametrize(("classes", "weighted"), [(2, False), (300, True), (None, True)])
def test_every_row_is_read_once_and_in_order(tmp_path, classes: int | None, weighted: bool) -> None:
    random = np.random.default_rng(1)
    features = random.integers(0, 2**32, (40, len(COLUMNS)), np.uint32).view(np.float32)
    labels = random.integers(0, classes, 40) if classes else random.normal(size=40)
    weights = random.random(40).astype(np.float32)
    entry = write_split(
        tmp_path,
        "test",
        dict(zip(COLUMNS, features.T, strict=True)),
        labels,
        classes=_classes(classes) or None,
        weights={"counts": weights} if weighted else None,
        shards=2,
    )
    paths = [tmp_path / shard for shard in entry["shards"]]
    found = list(_split(paths, 40, classes, weighted).batches(4))
    rows = [np.stack([it.features[name] for name in COLUMNS], axis=1) for it in found]
    np.testing.assert_array_equal(np.concatenate(rows).astype(np.float32), features)
    kind = np.int64 if classes else np.float32
    assert np.concatenate([it.labels for it in found]).tolist() == labels.astype(kind).tolist()
    if weighted:
        assert np.concatenate([it.weights for it in found]).tolist() == weights.tolist()
    else:
        assert {it.weights for it in found} == {None}


def test_damaged_test_rows_are_named(tmp_path: Path) -> None:
    path = _zeros(tmp_path)
    content = path.read_bytes()
    wrong = bytearray(content)
    wrong[-9] ^= 0xFF  # the length of the metadata
    for damaged, count in ((content[:-3], 9), (bytes(wrong), 9), (content, 8), (b"", 9)):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="match its schema"):
            list(_split([path], count, 2, False).batches(4))
    unknown = write_split(tmp_path, "test", _columns(9), np.full(9, 2), classes=["c0", "c1"])
    with pytest.raises(DataError, match=r"the label '\?'.*the classes c0, c1"):
        list(_split([tmp_path / unknown["shards"][0]], 9, 2, False).batches(4))


def _columns(rows: int) -> dict[str, np.ndarray]:
    return dict.fromkeys(COLUMNS, np.zeros(rows, np.float32))


def _zeros(folder: Path) -> Path:
    """Write nine rows of zeros."""
    (shard,) = write_split(folder, "test", _columns(9), np.ones(9, int), classes=_classes(2))[
        "shards"
    ]
    return folder / shard


def test_a_batch_of_a_wide_table_has_fewer_rows(tmp_path, monkeypatch) -> None:
    path = _zeros(tmp_path)
    for values, sizes in ((12, [4, 4, 1]), (2, [1] * 9), (1000, [5, 4])):
        monkeypatch.setattr(rows, "_VALUES", values)
        found = _split([path], 9, 2, False).batches(5)
        assert [len(it.labels) for it in found] == sizes


ROWS = 2000


def known(
    features: np.ndarray, folder: Path, train: int = 4 * ROWS, share: float = 1.0
) -> list[Any]:
    """Return the failed checks of packed test rows, of which a share is also in train."""
    rows, columns = features.shape
    named = {f"x{at}": features[:, at].astype(np.float32) for at in range(columns)}
    entry = write_split(folder, "test", named, np.zeros(rows, int), "y", ["a", "b"])
    path = folder / entry["shards"][0]
    schema = {
        "features": {f"x{at}": "float32" for at in range(columns)},
        "label": {"name": "y", "classes": ["a", "b"]},
        "splits": {"train": {"rows": train}},
    }
    counted = StatisticsDocument(also_in_train={"validation": 0, "test": int(share * rows)})
    return overlap_checks(Split("d", typed(schema), counted, (path,), rows))


def test_copies_of_rows_that_differ_fail_the_model(tmp_path: Path) -> None:
    features = np.random.default_rng(1).normal(size=(ROWS, 2))
    (check,) = known(features, tmp_path)
    assert (check.name, check.passed) == ("trained_on", False)
    assert "2,000 of 2,000" in check.explanation
    assert known(features, tmp_path, share=0.995)
    assert not known(features, tmp_path, share=0.98)
    # Of 50 times as many rows of train, these may be a day of a table that repeats each day.
    assert not known(features, tmp_path, train=50 * ROWS)
    # So few rows tell nothing.
    assert not known(features[:20], tmp_path, train=80)


@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize("share", [0.1, 0.25, 1])
def test_rows_that_are_equal_by_nature_pass(tmp_path: Path, share: float, skewed: bool) -> None:
    """As many different rows as leave 1 % of the test rows unseen in train."""
    rng = np.random.default_rng(2)
    train = int(ROWS / share)
    kinds = train / (6.5 if skewed else 4.6)
    drawn = rng.random((2, train)) ** (1.5 if skewed else 1) * kinds
    of_train, of_test = drawn.astype(int)
    of_test = of_test[:ROWS]
    found = np.isin(of_test, of_train).mean()
    assert found > 0.98
    assert not known(of_test[:, None], tmp_path, train, max(found, 0.99))


def test_gaps_and_texts_of_tables_are_equal_to_each_other(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    schema = {
        "task": "regression",
        "features": {"age": "float32", "city": "category", "since": "date"},
        "label": {"name": "y"},
        "splits": {"train": {"rows": 4 * ROWS}},
    }
    counted = StatisticsDocument(also_in_train={"test": ROWS})
    for different in (False, True):
        columns = {
            "age": pa.array([None] * ROWS, pa.float64()),
            "city": pa.array(["Rome", None] * (ROWS // 2)),
            "since": pa.array(
                np.arange(ROWS), pa.timestamp("us", "UTC"), mask=np.full(ROWS, not different)
            ),
            "y": np.zeros(ROWS),
        }
        parquet.write_table(pa.table(columns), tmp_path / "test.parquet")
        data = Split("d", typed(schema), counted, (tmp_path / "test.parquet",), ROWS)
        assert bool(overlap_checks(data)) is different


def test_pictures_that_were_copied_fail_the_model() -> None:
    picture = {"height": 8, "width": 8, "channels": 1, "resize": "stretch", "interpolation": "area"}
    schema = {"picture": picture, "splits": {"train": {"rows": 900}}}
    for count, failed in ((50, False), (51, True)):
        counted = StatisticsDocument(also_in_train={"test": count})
        data = Split("d", typed(schema), counted, (), 100)
        assert bool(overlap_checks(data)) is failed


def test_data_without_the_number_is_as_before() -> None:
    data = Split("d", typed({"splits": {"train": {"rows": 9}}}), StatisticsDocument(), (), 100)
    assert leaked_rows(data) is None and overlap_checks(data) == []
