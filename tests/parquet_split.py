"""A split of a prepared dataset, written without prepare_data."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet


def write_split(
    folder: Path,
    split: str,
    features: Mapping[str, Any],
    labels: np.ndarray,
    label: str = "label",
    classes: Sequence[str] | None = None,
    weights: Mapping[str, np.ndarray] | None = None,
    shards: int = 1,
) -> dict[str, Any]:
    """Write the shards of a split; return its entry in schema.json.

    Args:
        folder: The dataset.
        split: Its name.
        features: The columns.
        labels: The number of each row's class, or of its label.
        label: The label column.
        classes: Their names; None if the label is a number.
        weights: The column of the weights.
        shards: How many.
    """
    names = labels if classes is None else np.array([*classes, "?"], object)[labels]
    table = pa.table({**features, **(weights or {}), label: pa.array(names)})
    (folder / split).mkdir(parents=True, exist_ok=True)
    keys, digests = [], []
    for shard in range(shards):
        start, end = (len(table) * at // shards for at in (shard, shard + 1))
        keys.append(f"{split}/{shard:05d}.parquet")
        part = table.slice(start, end - start)
        parquet.write_table(part, folder / keys[-1])
        digests.append(sha256(repr(part.to_pydict()).encode()).hexdigest())
    return {"rows": len(table), "shards": keys, "digests": digests}
