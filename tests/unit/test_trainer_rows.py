"""Which rows a step reads, and rows out of records, by their places in the bytes."""

import dataclasses
import itertools
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_tfjob.components.prepare_data.tfrecord import Encoder
from kfp_tfjob.features.coding import Coding
from kfp_tfjob.features.records import (
    TFRecords,
    epoch_order,
    evaluation_slices,
    train_batch_size,
    train_slices,
)
from kfp_tfjob.features.types.number import Number
from kfp_tfjob.storage.errors import DataError
from kfp_tfjob.trainer.dataset import Dataset
from kfp_tfjob.trainer.rows import Rows


def _dataset(columns: int, classes: int | None) -> Dataset:
    names = tuple(f"x{at}" for at in range(columns))
    classes_names = tuple(f"c{at}" for at in range(classes or 0))
    values = dict.fromkeys(item.name for item in dataclasses.fields(Dataset) if item.init)
    coding = Coding(tuple(Number(name) for name in names))
    values |= {"feature_names": names, "class_names": classes_names, "coding": coding}
    values["shard_names"] = {}
    return Dataset(**values | {"task": "regression" if classes is None else "classification"})


def _rows(folder: Path, columns: int, classes: int | None, shards: Sequence[bytes]) -> Rows:
    paths = []
    for shard in shards:
        paths.append(folder / f"train-{len(paths):05d}.tfrecord")
        paths[-1].write_bytes(shard)
    return Rows(_dataset(columns, classes), TFRecords(paths))


def _framed(*records: bytes) -> bytes:
    return b"".join(struct.pack("<QI", len(item), 0) + item + bytes(4) for item in records)


def _example(features: Sequence[float], label: int | float, **more: list[int]) -> bytes:
    import tensorflow as tf

    kinds = {"features": ("float_list", features)} | {
        name: ("int64_list" if isinstance(value[0], int) else "float_list", value)
        for name, value in ({"label": [label]} | more).items()
    }
    example = tf.train.Example()
    for name, (kind, values) in kinds.items():
        getattr(example.features.feature[name], kind).value.extend(values)
    return example.SerializeToString(deterministic=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rows")


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 5),
    st.sampled_from([None, 1, 2, 128, 129, 40_000]),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_what_prepare_data_writes_is_read_in_any_order(
    folder: Path, columns: int, classes: int | None, seed: int, two_shards: bool
) -> None:
    random = np.random.default_rng(seed)
    features = random.integers(0, 2**32, (7, columns), np.uint32).view(np.float32)
    values = random.normal(size=7).astype(np.float32)
    labels = values if classes is None else random.integers(0, classes, 7)
    encode = Encoder(columns, classes).encode
    cut = 3 if two_shards else 7
    shards = [bytes(encode(features[a:b], labels[a:b])) for a, b in ((0, cut), (cut, 7))]
    rows = _rows(folder, columns, classes, shards)
    order = random.permutation(7)
    found, found_labels = rows.take(order)
    assert found.tobytes() == features[order].tobytes()
    assert found_labels.tolist() == labels[order].tolist()
    assert (found.dtype, found_labels.dtype) == (np.float32, rows.label_type)
    assert rows.labels().tolist() == labels.tolist()


def test_a_record_of_the_same_length_but_other_columns_is_not_taken_for_a_row(tmp_path) -> None:
    other = _example([3, 4], 1).replace(b"features", b"Features")
    rows = _rows(tmp_path, 2, 3, [_framed(_example([1, 2], 0), other)])
    assert rows.take(np.array([0]))[0].tolist() == [[1, 2]]
    with pytest.raises(DataError, match="bytes 0 to "):
        rows.take(np.array([0, 1]))


@pytest.mark.parametrize(
    ("features", "label", "words"),
    [
        (b"nonsense", None, "8 bytes"),
        (b"", None, "44"),
        ([1, 2, 3], 0, "44"),
        ([1, 2], 1.0, "44"),
        ([1, 2], -1, "44"),
        ([1, 2], 3, "is 3"),
    ],
)
def test_what_is_no_row_of_a_class_is_refused(
    tmp_path: Path, features: Any, label: float | None, words: str
) -> None:
    record = features if label is None else _example(features, label)
    rows = _rows(tmp_path, 2, 3, [_framed(record, record)])
    with pytest.raises(DataError, match=words):
        rows.take(np.array([0]))
        rows.labels()


def test_a_split_without_rows_has_no_labels(tmp_path: Path) -> None:
    assert _rows(tmp_path, 2, 3, [b""]).labels().tolist() == []


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
