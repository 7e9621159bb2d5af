"""Rows out of records, by their places in the bytes."""

import dataclasses
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
from kfp_tfjob.features.records import TFRecords
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


def test_a_record_of_the_same_length_but_other_columns_is_not_taken_for_a_row(
    tmp_path: Path,
) -> None:
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
