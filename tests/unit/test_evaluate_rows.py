"""The packed test rows that evaluate reads, by their places in the bytes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from kfp_tfjob.components.prepare_data.tfrecord import Encoder
from kfp_tfjob.features.statistics import StatisticsDocument
from kfp_tfjob.judging import rows
from kfp_tfjob.judging.rows import TestData as Split
from kfp_tfjob.storage.errors import DataError
from tests.typed_schema import typed

COLUMNS = ("x", "y", "z")


def _split(paths: Sequence[Path], count: int, classes: int | None, weighted: bool) -> Split:
    names = [f"c{at}" for at in range(classes or 0)]
    schema = {
        "task": "classification" if classes else "regression",
        "features": [{"name": name, "type": "float32"} for name in COLUMNS],
        "label": {"name": "label", "classes": names} if classes else {"name": "label"},
    }
    schema |= {"weight": {"name": "counts"}} if weighted else {}
    return Split("d", typed(schema), StatisticsDocument(), tuple(paths), count)


@pytest.mark.parametrize(("classes", "weighted"), [(2, False), (300, True), (None, True)])
def test_every_row_is_read_once_and_in_order(
    tmp_path: Path, classes: int | None, weighted: bool
) -> None:
    random = np.random.default_rng(1)
    features = random.integers(0, 2**32, (40, len(COLUMNS)), np.uint32).view(np.float32)
    labels = random.integers(0, classes, 40) if classes else random.normal(size=40)
    weights = random.random(40).astype(np.float32)
    encoder = Encoder(len(COLUMNS), classes, weighted=weighted)
    paths = []
    for shard, part in enumerate((slice(0, 23), slice(23, 40))):
        content = encoder.encode(features[part], labels[part], weights=weights[part])
        paths.append(tmp_path / f"test-{shard:05d}.tfrecord")
        paths[-1].write_bytes(content)
    found = list(_split(paths, 40, classes, weighted).batches(4))
    rows = [np.stack([it.features[name] for name in COLUMNS], axis=1) for it in found]
    assert np.concatenate(rows).tobytes() == features.tobytes()
    kind = np.int64 if classes else np.float32
    assert np.concatenate([it.labels for it in found]).tolist() == labels.astype(kind).tolist()
    if weighted:
        assert np.concatenate([it.weights for it in found]).tolist() == weights.tolist()
    else:
        assert {it.weights for it in found} == {None}


def test_damaged_test_rows_are_named(tmp_path: Path) -> None:
    encoder = Encoder(len(COLUMNS), 2)
    content = bytes(encoder.encode(np.zeros((9, len(COLUMNS)), np.float32), np.ones(9, int)))
    path = tmp_path / "test-00000.tfrecord"
    wrong = bytearray(content)
    wrong[30] ^= 0xFF  # within the names of the first record
    for damaged, count in ((content[:-3], 9), (bytes(wrong), 9), (content, 8), (b"", 9)):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="match its schema|truncated"):
            list(_split([path], count, 2, False).batches(4))


def test_a_batch_of_a_wide_table_has_fewer_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "test-00000.tfrecord"
    path.write_bytes(Encoder(len(COLUMNS), 2).encode(np.zeros((9, 3), np.float32), np.ones(9, int)))
    for values, sizes in ((12, [4, 4, 1]), (2, [1] * 9), (1000, [5, 4])):
        monkeypatch.setattr(rows, "_VALUES", values)
        found = _split([path], 9, 2, False).batches(5)
        assert [len(it.labels) for it in found] == sizes
