"""What a dataset in the store holds: its objects, and its rows as TensorFlow reads them."""

import numpy as np

from kfp_tfjob.components.prepare_data import sample
from kfp_tfjob.components.prepare_data.dataset import Prepared
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.store import Store


def objects(store: Store, done: Prepared) -> dict[str, bytes]:
    """Return every object of a dataset by its name; the manifest has all the others."""
    base = S3Address.parse(done.dataset_uri)
    found = {
        str(item.address).removeprefix(f"{base}/"): store.read(item.address)
        for item in store.list(base)
    }
    manifest = store.read_manifest(base / "manifest.json")
    assert found.keys() == {"manifest.json", *(item.key for item in manifest.objects)}
    return found


def split(store: Store, done: Prepared, name: str) -> dict[str, np.ndarray]:
    """Return the lists of the encoded rows of a split, and the labels.

    The test rows are not encoded, so they are those that prepare_data reads back.
    """
    entry, base = done.schema.splits[name], S3Address.parse(done.dataset_uri)
    if not entry.records and not done.schema.picture:
        rows = sample.read(store, base, done.schema, name)
        assert len(rows.labels) == entry.rows
        return {key: rows.rows[key] for key in rows.rows.dtype.names} | {"label": rows.labels}
    import tensorflow as tf

    kind = tf.int64 if done.schema.classes else tf.float32
    spec = {"label": tf.io.FixedLenFeature([], kind)}
    floats, codes, dates = done.schema.encoding.lengths
    for key, count, kind in (
        ("features", floats, tf.float32),
        ("codes", codes, tf.int64),
        ("dates", dates, tf.int64),
    ):
        if count:
            spec[key] = tf.io.FixedLenFeature([count], kind)
    records = []
    for shard in entry.records or entry.shards:
        data, at = store.read(base / shard), 0
        while at < len(data):
            length = int.from_bytes(data[at : at + 8], "little")
            records.append(data[at + 12 : at + 12 + length])
            at += length + 16
    return {key: value.numpy() for key, value in tf.io.parse_example(records, spec).items()}
