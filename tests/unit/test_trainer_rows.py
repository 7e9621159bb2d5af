"""Which rows a step reads, and the records of TFRecord files."""

import itertools
import struct
from pathlib import Path

import numpy as np
import pytest

from kfp_tfjob.common.errors import DataError
from kfp_tfjob.features.records import (
    TFRecords,
    epoch_order,
    evaluation_slices,
    train_batch_size,
    train_slices,
)


def _framed(*records: bytes) -> bytes:
    return b"".join(struct.pack("<QI", len(item), 0) + item + bytes(4) for item in records)


def _shard(path: Path, records: list[bytes]) -> Path:
    path.write_bytes(_framed(*records))
    return path


def test_records_are_found_across_shards_in_any_order(tmp_path: Path) -> None:
    first = _shard(tmp_path / "0", [b"a", b"", b"ccc"])
    empty = _shard(tmp_path / "1", [])
    last = _shard(tmp_path / "2", [b"dddd"])
    records = TFRecords([first, empty, last])
    assert len(records) == 4
    assert records.take(np.array([3, 0, 2, 1])) == [b"dddd", b"a", b"ccc", b""]


@pytest.mark.parametrize(
    "names",
    [
        [b"abcd"] * 5,  # all as long as the first
        [b"abcd", b"efgh", b"ij", b"klmnop"],  # not, though the size would fit
        [b"", b""],
        [b"abcd"],
        [b"", b"0123456789abcdef"],
    ],
)
def test_records_of_one_length_are_found_as_others_are(tmp_path: Path, names: list[bytes]) -> None:
    records = TFRecords([_shard(tmp_path / "0", names)])
    assert records.take(np.arange(len(records))) == names


@pytest.mark.parametrize("missing", [1, 4, 17])
def test_a_shard_that_is_cut_off_is_refused(tmp_path: Path, missing: int) -> None:
    path = _shard(tmp_path / "train-00000.tfrecord", [b"abcdefg", b"hijklmn"])
    path.write_bytes(path.read_bytes()[:-missing])
    with pytest.raises(DataError, match="train-00000.tfrecord"):
        TFRecords([path])


def test_every_epoch_has_another_order_of_all_rows() -> None:
    orders = [epoch_order(100, 5, epoch) for epoch in range(3)]
    assert all(sorted(order) == list(range(100)) for order in orders)
    assert not np.array_equal(orders[0], orders[1])
    assert not np.array_equal(orders[0], epoch_order(100, 6, 0))
    assert np.array_equal(orders[2], epoch_order(100, 5, 2))


@pytest.mark.parametrize("processes", [1, 2, 3, 6])
def test_the_batches_do_not_depend_on_the_replicas(processes: int) -> None:
    rows, batch, steps = 50, 12, 10
    alone = list(itertools.islice(train_slices(rows, batch, 1, (0, 0), range(1), 1), steps))
    parts = [
        itertools.islice(train_slices(rows, batch, 1, (0, 0), range(at, at + 1), processes), steps)
        for at in range(processes)
    ]
    together = [np.concatenate(step) for step in zip(*parts, strict=True)]
    assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))


def test_reading_can_start_anywhere() -> None:
    whole = list(itertools.islice(train_slices(50, 12, 1, (0, 0), range(1), 1), 12))
    rest = list(itertools.islice(train_slices(50, 12, 1, (1, 3), range(1), 1), 5))
    assert all(np.array_equal(a, b) for a, b in zip(whole[7:], rest, strict=True))
    at_the_end = list(itertools.islice(train_slices(50, 12, 1, (0, 4), range(1), 1), 8))
    assert all(np.array_equal(a, b) for a, b in zip(whole[4:], at_the_end, strict=True))


@pytest.mark.parametrize(
    ("rows", "batch", "replicas"),
    [(37, 12, 1), (37, 12, 2), (37, 12, 3), (10, 4, 4), (7, 100, 7), (1, 8, 1), (96, 32, 2)],
)
def test_evaluation_sees_every_row_once_and_no_slice_is_empty(
    rows: int, batch: int, replicas: int
) -> None:
    slices = evaluation_slices(rows, batch, replicas)
    flat = [part for step in slices for part in step]
    assert all(len(step) == replicas for step in slices)
    assert np.concatenate(flat).tolist() == list(range(rows))
    sizes = [len(part) for part in flat]
    assert min(sizes) > 0
    assert max(sizes) - min(sizes) <= 1


def test_evaluation_without_rows_has_no_steps() -> None:
    assert evaluation_slices(0, 8, 2) == []
    with pytest.raises(DataError, match="validation"):
        evaluation_slices(1, 8, 2)


def test_a_batch_larger_than_the_data_is_reduced_to_what_the_replicas_can_share() -> None:
    assert train_batch_size(100, 32, 2) == 32
    assert train_batch_size(31, 32, 2) == 30
    assert train_batch_size(3, 32, 3) == 3
    with pytest.raises(DataError, match="train"):
        train_batch_size(1, 32, 2)
