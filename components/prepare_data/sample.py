"""Reads some rows of a finished dataset back, to compare datasets and to look for leaks.

The rows of a split are in the order of their hashes, so its first rows are a random sample. It is
the same in each run, whatever process wrote the shards.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kfp_tfjob.components.prepare_data.tfrecord import Encoder
from kfp_tfjob.features.record_layout import DamagedRecordError
from kfp_tfjob.features.records import prepare_again
from kfp_tfjob.features.schema import Schema
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import DataError, Problem
from kfp_tfjob.storage.store import Store

MOST_ROWS = 50_000
_MOST_BYTES = 32 << 20


@dataclass(frozen=True)
class Sample:
    """Rows of one split, with the fields of the runs, and their class indices or numbers."""

    rows: np.ndarray
    labels: np.ndarray


def read(
    store: Store, base: S3Address, schema: Schema, split: str, most: int = MOST_ROWS
) -> Sample:
    """Return the first rows of a split of a table, `most` or 32 MiB of them.

    Raises:
        ObjectNotFoundError: A shard is not there.
        DataError: A shard is damaged.
    """
    floats, codes, dates = schema.encoding.lengths
    classes = schema.label.classes
    count = None if classes is None else len(classes)
    encoder = Encoder(floats, count, codes, dates, schema.weight is not None)
    size = encoder.record_bytes
    wanted = size * max(1, min(most, _MOST_BYTES // size))
    data = b""
    for name in schema.splits[split].shards:
        if len(data) < wanted:
            data += store.read_range(base / name, 0, wanted - len(data))
    try:
        found = encoder.decode(data)
    except DamagedRecordError as error:
        raise DataError(
            Problem(
                f"the shards of {base} do not match its schema",
                received=str(error),
                expected=f"records of {size:,} bytes",
                fix=prepare_again(str(base)),
            )
        ) from error
    kind = [("features", "<f4", (floats,)), ("codes", "<i4", (codes,)), ("dates", "<i8", (dates,))]
    rows = np.zeros(len(found["label"]), np.dtype(kind))
    for name in found.keys() & set(rows.dtype.names or ()):
        rows[name] = found[name]
    return Sample(rows, found["label"][:, 0])
