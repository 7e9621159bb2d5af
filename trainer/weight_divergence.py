"""Finds weights that differ between replicas because a layer changes them itself.

Gradients are summed, so trained weights stay equal. Values that a layer computes from its own rows
and keeps do not. Called by `loop.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.common.formatting import listed

from .replicas import Replicas, parts_of

_DIFFERENT = 0  # the checksum of a weight that differs between the GPUs of a process


def compare_weights(replicas: Replicas, weights: Sequence[keras.Variable]) -> None:
    """Check that all replicas have the same weights; every process must call this.

    Raises:
        ConfigurationError: They differ. Every process raises it.
    """
    if replicas.count == 1 or not weights:
        return
    bit_sums = np.array([_sum(weight) for weight in weights], np.uint64)
    sums_by_process = np.array(
        [np.frombuffer(sums, np.uint64) for sums in replicas.gather(bit_sums.tobytes())]
    )
    different = (sums_by_process != sums_by_process[0]).any(axis=0) | (
        sums_by_process[0] == _DIFFERENT
    )
    paths = [weight.path for weight, differs in zip(weights, different, strict=True) if differs]
    if paths:
        raise ConfigurationError(_problem(paths))


def _sum(weight: Any) -> int:
    """Return a checksum of a weight's bits, never 0. A hash takes four times as long."""
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
        name="replicas-differ",
    )
