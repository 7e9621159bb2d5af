"""TFRecord files of tf.train.Example, and the codec against TensorFlow."""

import gzip
import io
import struct
import zlib
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from kfp_tfjob.common.errors import DataError
from kfp_tfjob.components.prepare_data.source.column_names import Columns
from kfp_tfjob.components.prepare_data.source.readers import tfrecord_table
from kfp_tfjob.components.prepare_data.source.readers.tfrecord_table import masked
from kfp_tfjob.options.data import DataOptions
from tests import tfrecords
from tests.fuzz.bounds import bounded
from tests.problems import problem_of
from tests.unit.prepared_files import (
    check,
    data_of,
    faults_of,
    header_of,
    names_of,
    opened,
    read,
)


def record(**features: list) -> bytes:
    example = tfrecord_table._example()()
    for name, values in features.items():
        feature = example.features.feature[name]
        kind = {str: "bytes_list", bytes: "bytes_list", float: "float_list", int: "int64_list"}
        found = getattr(feature, kind[type(values[0])] if values else "float_list").value
        found.extend(value.encode() if isinstance(value, str) else value for value in values)
    return tfrecords.framed(example.SerializeToString())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "f.tfrecord"


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_features_are_columns(path: Path, pack) -> None:
    rows = [record(a=[i], b=[i / 2, -1.0], y=["uv"[i % 2]]) for i in range(2_500)]
    path.write_bytes(pack(b"".join(rows)))
    assert check(path) == []
    assert header_of(path) == ["a", "b[0]", "b[1]", "y"]
    features, labels, faults = data_of(path, columns=["a", "b"])
    assert features[5].tolist() == [5, 2.5, -1]
    assert len(features) == 2_500 and labels[:2] == ["u", "v"] and not faults.bad


def test_columns_are_in_the_order_of_their_names(path: Path) -> None:
    """Every process drew another order: new data was of another schema, and rows changed splits."""
    names = list("abcdefgh")
    path.write_bytes(record(**{name: [1.0] for name in names[::-1]}) * 2)
    assert header_of(path) == names


def test_rows_of_one_list_are_columns(path: Path) -> None:
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    path.write_bytes(tfrecords.rows(values, np.array([0, 1, 1, 0])))
    with opened(path) as table:
        names = tuple(sorted(set(table.names) - {"label"}))
        (chunk,) = table.chunks(Columns(names, "label"))
    assert [chunk.columns[name].to_pylist() for name in names] == values.T.tolist()
    assert chunk.columns["label"].to_pylist() == [0, 1, 1, 0]


def test_faults_are_named_with_their_record(path: Path) -> None:
    path.write_bytes(
        record(a=[1.0, 2.0], y=["u"])
        + record(y=["u"])
        + record(a=[1.0], y=["u"])
        + record(a=[1, 2], y=["u"])
        + record(a=[], y=["u"])
        + record(a=[3.0, 4.0], y=["v"])
    )
    features, labels, faults = data_of(path)
    assert features.tolist() == [[1, 2], [3, 4]] and labels == ["u", "v"]
    found = faults_of(faults)
    assert (3, "a", "float_list of 1", "list") in found
    assert (4, "a", "int64_list of 2", "list") in found
    assert {line for line, _, _, rule in found if rule == "missing"} == {2, 5}


def test_damage_is_named_with_its_record(path: Path) -> None:
    whole = b"".join(record(a=[float(i)], y=[i % 2]) for i in range(50))
    size = len(whole) // 50
    for harmed, words in (
        (whole[:-3], "record 50 ends early"),
        (whole[: size * 20 + 5], "record 21 has no valid length"),
        (
            whole[: size * 7 + 20] + b"\xff" + whole[size * 7 + 21 :],
            "record 8 has a wrong checksum",
        ),
        (whole[: size * 7] + b"\xff" + whole[size * 7 + 1 :], "record 8 has no valid length"),
        (
            whole + tfrecords.framed(b"\xff\xff"),
            "record 51 of f.tfrecord is not a tf.train.Example",
        ),
    ):
        path.write_bytes(harmed)
        with pytest.raises(DataError, match=words):
            data_of(path)


def _message(*fields: tuple[int, bytes]) -> bytes:
    """Return a message with fields of bytes."""
    return b"".join(bytes([number << 3 | 2, len(body)]) + body for number, body in fields)


_LISTED = _message((1, b"\x00\x00\x80?"))  # a list with the number 1.0
_EXAMPLE = _message((1, _message((1, _message((1, b"y"), (2, _message((2, _LISTED))))))))
_SERIES = _message((1, _message((1, b"steps"), (2, _message((1, _message((2, _LISTED))))))))


@pytest.mark.parametrize(
    "other",
    [
        _EXAMPLE + _message((2, _SERIES)),  # a tf.train.SequenceExample
        _message((2, _SERIES)),  # one without a context
        _EXAMPLE + _message((3, b"x")),
        _message((1, _message((2, b"x")))),  # in Features
        _message((1, _message((1, _message((1, b"y"), (2, _message((4, b"x")))))))),  # in a Feature
        b"\x09" + bytes(8) + _message((3, b"brain.Event:2")),  # an event of TensorBoard
        b"\x89PNG",
    ],
)
@pytest.mark.parametrize("before", [0, 1, tfrecord_table._LOOKED + 1])
def test_a_record_of_another_message_is_refused_with_its_number(path, other, before) -> None:
    """Protobuf skips what it does not know: the series that decided the label were dropped."""
    path.write_bytes(record(y=[1.0], a=[2.0]) * before + tfrecords.framed(other))
    number = f"record {before + 1:,} of f.tfrecord"
    problem = problem_of(read, path, kind=DataError)
    assert number in problem.what and "data_options.reader" in problem.fix
    if b"steps" in other:
        assert "SequenceExample" in problem.what and "'steps'" in problem.received


def test_a_series_as_a_list_of_numbers_is_read(path: Path) -> None:
    """What the refusal of a tf.train.SequenceExample recommends."""
    path.write_bytes(b"".join(record(y=[i % 2], steps=[i / 2, 1.0]) for i in range(40)))
    assert names_of(read(path)) == ["steps[0]", "steps[1]"]


def test_a_feature_that_comes_later_is_a_fault_unless_it_is_left_out(path: Path) -> None:
    first = [record(a=[i], y=["uv"[i % 2]]) for i in range(tfrecord_table._LOOKED)]
    later = [record(a=[1], y=["u"], z=[]), record(a=[1], y=["u"], z=[2.0])]
    path.write_bytes(b"".join([*first, *later]))
    features, _, faults = data_of(path)
    assert faults_of(faults) == [(1002, "", "z", "keys")] and len(features) == 1001
    assert not data_of(path, columns=["a"])[2].bad


@pytest.mark.parametrize("level", [1, 6, 9])
def test_a_file_that_is_packed_with_zlib_is_refused_by_name(path: Path, level: int) -> None:
    path.write_bytes(zlib.compress(record(a=[1], y=[1]) * 20, level))
    (said,) = check(path)
    assert "zlib" in said


def test_a_record_that_is_too_long_is_refused(path: Path) -> None:
    length = struct.pack("<Q", 1 << 40)
    head = length + struct.pack("<I", masked(google_crc32c.value(length)))
    path.write_bytes(record(a=[1], y=[1]) + head)
    with pytest.raises(DataError, match="record 2 of f.tfrecord"):
        data_of(path)


def test_a_record_with_millions_of_numbers_is_refused_in_bounded_memory(path: Path) -> None:
    path.write_bytes(record(a=[0] * 2_000_000, y=[1]))
    with bounded(seconds=5, memory=150 << 20), pytest.raises(DataError, match="columns"):
        data_of(path)


def test_lists_of_texts_are_refused_by_name(path: Path) -> None:
    path.write_bytes(b"".join(record(a=[i], t=["x", "y"], y=[i % 2]) for i in range(9)))
    (said,) = check(path)
    assert "'t'" in said
    assert check(path, drop=["t"]) == []


def test_an_empty_file_and_other_bytes(path: Path) -> None:
    assert not tfrecord_table.TFRecordTable.recognise(b"a,b\n1,2\n3,4\n")
    with pytest.raises(DataError, match="record 1 "):
        list(tfrecord_table.TFRecordTable(io.BytesIO(b"abc"), "f", DataOptions(), 0, None).schema)
