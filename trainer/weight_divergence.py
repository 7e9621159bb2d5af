"""Finds weights that differ between replicas because a layer changes them itself.

Gradients are summed, so trained weights stay equal. Values that a layer computes from its own rows
and keeps do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from kfp_tfjob.storage.errors import ConfigurationError, Problem
from kfp_tfjob.storage.formatting import listed
from kfp_tfjob.trainer.replicas import Replicas, parts_of

_DIFFERENT = 0  # instead of the sum of a weight that differs between the GPUs of a process


def compare_weights(replicas: Replicas, weights: Sequence[keras.Variable]) -> None:
    """Check that all replicas have the same weights; every process must call this.

    Raises:
        ConfigurationError: They differ. Every process raises it.
    """
    if replicas.count == 1 or not weights:
        return
    mine = np.array([_sum(item) for item in weights], np.uint64)
    everyone = np.array([np.frombuffer(it, np.uint64) for it in replicas.gather(mine.tobytes())])
    different = (everyone != everyone[0]).any(axis=0) | (everyone[0] == _DIFFERENT)
    paths = [it.path for it, differs in zip(weights, different, strict=True) if differs]
    if paths:
        raise ConfigurationError(_problem(paths))


def _sum(weight: Any) -> int:
    """Return the sum of the bits of a weight, never 0. A hash takes four times as long."""
    sums = {_sum_of_bits(part.numpy()) for part in parts_of(weight)}
    return 1 + sums.pop() if len(sums) == 1 else _DIFFERENT


def _sum_of_bits(values: np.ndarray) -> int:
    words = np.uint32 if values.nbytes % 4 == 0 else np.uint8
    return int(np.ravel(values).view(words).sum(dtype=np.uint64))


def _problem(paths: Sequence[str], most: int = 3) -> Problem:
    return Problem(
        "the weights of the replicas differ",
        received=f"different values of {listed(paths, most)}",
        expected="every weight equal on all replicas after every step",
        fix="combine values that a layer computes from its rows over all replicas: create the"
        ' weight with add_weight(..., aggregation="mean"), or use all_reduce of'
        " tf.distribute.get_replica_context(); a BatchNormalization must get no mask; or"
        " train with one replica",
    )
