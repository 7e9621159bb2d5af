"""What a dataset in the store holds: its objects, and its rows."""

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
    """Return the lists of a split's rows as prepare_data reads them, and the labels."""
    entry, base = done.schema.splits[name], S3Address.parse(done.dataset_uri)
    rows = sample.read(store, base, done.schema, name)
    assert len(rows.labels) == entry.rows
    return {key: rows.rows[key] for key in rows.rows.dtype.names} | {"label": rows.labels}
