"""The codec against TensorFlow, which reads what was written without it."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_tfjob.components.prepare_data.tfrecord import MOST_CODES, Encoder


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(1, 9),
    widths=st.tuples(st.integers(0, 40), st.integers(0, 3), st.integers(0, 3)),
    classes=st.sampled_from([2, 128, 129, 10_000, None]),
)
def test_tensorflow_reads_what_was_written(tmp_path_factory, seed, rows, widths, classes):
    import tensorflow as tf

    numbers, codes, dates = widths
    random = np.random.default_rng(seed)
    features = random.normal(scale=1e30, size=(rows, numbers)).astype(np.float32)
    features[random.random(features.shape) < 0.1] = np.nan
    given = {
        "features": features,
        "codes": random.integers(0, MOST_CODES, (rows, codes)),
        "dates": random.integers(-(2**63), 2**63 - 1, (rows, dates)),
    }
    labels = random.integers(0, classes, rows) if classes else np.float32(random.normal(size=rows))
    encoder = Encoder(numbers, classes, codes, dates)
    path = tmp_path_factory.mktemp("codec") / "x.tfrecord"
    path.write_bytes(encoder.encode(given["features"], labels, given["codes"], given["dates"]))
    records = [record.numpy() for record in tf.data.TFRecordDataset(str(path))]
    assert len(records) == rows
    for row, record in enumerate(records):
        assert len(record) + 16 == encoder.record_bytes
        found = tf.train.Example.FromString(record).features.feature
        assert sorted(found) == sorted(
            ["label", *(name for name, values in given.items() if values.shape[1])]
        )
        label = found["label"].float_list if classes is None else found["label"].int64_list
        assert list(label.value) == [labels[row]]
        assert list(found["codes"].int64_list.value) == given["codes"][row].tolist()
        assert list(found["dates"].int64_list.value) == given["dates"][row].tolist()
        values = np.array(found["features"].float_list.value, np.float32)
        assert values.tobytes() == given["features"][row].tobytes()
