"""TFRecord files that TensorFlow wrote."""

from pathlib import Path

import numpy as np
import pytest

from tests.unit.prepared_files import check, data_of


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_a_file_of_tensorflow_is_read(tmp_path: Path, compression: str) -> None:
    import tensorflow as tf

    path = tmp_path / "f.tfrecord"
    train = tf.train
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for i in range(1_200):
            feature = {
                "age": train.Feature(int64_list=train.Int64List(value=[-i])),
                "x": train.Feature(float_list=train.FloatList(value=[i / 3, i])),
                "y": train.Feature(bytes_list=train.BytesList(value=["jä".encode()])),
            }
            feature["y"].bytes_list.value[0] += b"ab"[i % 2 : i % 2 + 1]
            example = train.Example(features=train.Features(feature=feature))
            writer.write(example.SerializeToString())
    assert check(path) == []
    features, labels, faults = data_of(path, columns=["age", "x"])
    index = np.arange(1_200)
    wanted = np.stack([-index, index / 3, index], 1).astype(np.float32)
    assert (features == wanted).all() and not faults.bad
    assert labels == ["jäa", "jäb"] * 600
