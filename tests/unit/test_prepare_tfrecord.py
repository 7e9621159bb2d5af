"""The codec against TensorFlow, which reads what was written without it."""

from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from kfp_tfjob.components.prepare_data.tfrecord import MOST_CODES, Encoder


def _read_back(path: Path, features: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Parse a file with tf.data and tf.io.parse_example, which check both checksums."""
    import tensorflow as tf

    spec = {
        "features": tf.io.FixedLenFeature([features], tf.float32),
        "label": tf.io.FixedLenFeature([], getattr(tf, kind)),
    }
    parts = [
        tf.io.parse_example(batch, spec) for batch in tf.data.TFRecordDataset(str(path)).batch(64)
    ]
    return (
        np.concatenate([part["features"] for part in parts]),
        np.concatenate([part["label"] for part in parts]),
    )


_floats = st.floats(allow_nan=False, allow_infinity=False, width=32)


@settings(max_examples=20, deadline=None)
@given(data=st.data(), shape=st.tuples(st.integers(1, 9), st.integers(1, 40)))
def test_tensorflow_reads_what_was_written(tmp_path_factory, data, shape):
    rows, columns = shape
    features = data.draw(arrays.arrays(np.float32, shape, elements=_floats))
    classes = data.draw(st.sampled_from([2, 128, 129, 10_000, None]))
    if classes is None:
        labels = data.draw(arrays.arrays(np.float32, rows, elements=_floats))
    else:
        labels = data.draw(arrays.arrays(np.int32, rows, elements=st.integers(0, classes - 1)))
    encoder = Encoder(columns, classes)
    encoded = encoder.encode(features, labels)
    assert len(encoded) == rows * encoder.record_bytes
    path = tmp_path_factory.mktemp("codec") / "x.tfrecord"
    path.write_bytes(encoded)
    found, found_labels = _read_back(path, columns, "float32" if classes is None else "int64")
    assert found.tobytes() == features.tobytes()
    assert found_labels.tolist() == labels.tolist()


@settings(max_examples=20, deadline=None)
@given(
    data=st.data(),
    rows=st.integers(1, 9),
    widths=st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)),
)
def test_codes_and_dates_are_lists_of_one_length(tmp_path_factory, data, rows, widths):
    import tensorflow as tf

    numbers, codes, dates = widths
    gaps = st.floats(allow_infinity=False, allow_nan=False, width=32) | st.just(np.nan)
    given = {
        "features": data.draw(arrays.arrays(np.float32, (rows, numbers), elements=gaps)),
        "codes": data.draw(
            arrays.arrays(np.int64, (rows, codes), elements=st.integers(0, MOST_CODES - 1))
        ),
        "dates": data.draw(
            arrays.arrays(np.int64, (rows, dates), elements=st.integers(-(2**63), 2**63 - 1))
        ),
    }
    labels = data.draw(arrays.arrays(np.int32, rows, elements=st.integers(0, 2)))
    encoder = Encoder(numbers, 3, codes, dates)
    path = tmp_path_factory.mktemp("codec") / "x.tfrecord"
    path.write_bytes(encoder.encode(given["features"], labels, given["codes"], given["dates"]))
    for row, record in enumerate(tf.data.TFRecordDataset(str(path))):
        assert len(record.numpy()) + 16 == encoder.record_bytes
        found = tf.train.Example.FromString(record.numpy()).features.feature
        assert sorted(found) == sorted(
            ["label", *(name for name, values in given.items() if values.shape[1])]
        )
        assert list(found["label"].int64_list.value) == [labels[row]]
        assert list(found["codes"].int64_list.value) == given["codes"][row].tolist()
        assert list(found["dates"].int64_list.value) == given["dates"][row].tolist()
        values = np.array(found["features"].float_list.value, np.float32)
        assert values.tobytes() == given["features"][row].tobytes()
