"""How much each row counts: the column that data_options.weight names.

Records have the weight of their row as it was in the table. A loss is a mean over the rows of a
batch, so the weights of a split are divided by their mean: a row of weight 2 then counts like the
same row twice, and the learning rate keeps its meaning. No batch is divided by the sum of its own
weights, so the sum over replicas is the same however a batch is divided.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kfp_tfjob.features.schema import Schema
from kfp_tfjob.features.statistics import StatisticsDocument


@dataclass(frozen=True)
class RowWeights:
    """The weights of a dataset.

    Attributes:
        name: The column.
        means: The mean weight by split; 0 for a split without rows, or with weights of 0 only.
    """

    name: str
    means: Mapping[str, float]

    @classmethod
    def of(cls, schema: Schema, statistics: StatisticsDocument) -> RowWeights | None:
        """Return the weights that schema.json and statistics.json declare, or None."""
        if not schema.weight:
            return None
        if not statistics.weight:
            raise ValueError("no statistics of the weights")
        means = {name: found.mean for name, found in statistics.weight.splits.items()}
        return cls(schema.weight.name, means)

    def scaled(self, split: str, weights: np.ndarray) -> np.ndarray:
        """Return (rows,) float32 weights with a mean of 1 over the split."""
        mean = self.means.get(split, 0.0)
        return weights if not mean else (weights / mean).astype(np.float32)
