"""Defines the order in which training and evaluation read a split's rows.

The order depends only on the seed and the epoch. It is the same for any number of replicas, and a
resumed training finds its place without reading earlier rows. Called by the trainer, by evaluate,
and where a dataset is converted to `.npy` files.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kfp_tfjob.common.errors import DataError, Problem


def prepare_again(dataset: str) -> str:
    """Return the remedy for a damaged dataset, given its address or nothing.

    Another run would reuse a dataset whose objects have their sizes.
    """
    which = f"the dataset {dataset}" if dataset else "the dataset"
    return f"delete {which} from the store; prepare_data then writes it again"


def train_batch_size(rows: int, batch_size: int, replicas: int) -> int:
    """Return a step's rows: the batch, or fewer for a small split.

    Args:
        rows: Rows of the training split.
        batch_size: The configured batch over all replicas.
        replicas: Number of replicas; they share a batch evenly.

    Raises:
        DataError: There is not even one row for each replica.
    """
    if rows < replicas:
        raise DataError(
            Problem(
                "the train split is too small",
                received=f"{rows} rows",
                expected=f"a row for each of {replicas} replicas",
                fix="use more data or fewer workers",
            )
        )
    return batch_size if rows >= batch_size else rows // replicas * replicas


def epoch_order(rows: int, seed: int, epoch: int) -> np.ndarray:
    """Return (rows,) int64, the order in which an epoch reads the rows."""
    return np.random.default_rng([seed, epoch]).permutation(rows)


def split_evenly(rows: int, parts: int) -> list[tuple[int, int]]:
    """Return [start, end) of `parts` slices with sizes that differ by at most one."""
    bounds = [rows * part // parts for part in range(parts + 1)]
    return list(zip(bounds[:-1], bounds[1:], strict=True))


def train_slices(
    rows: int, batch: int, seed: int, start: tuple[int, int], local_replicas: range, replicas: int
) -> Iterator[np.ndarray]:
    """Yield the rows of each step for the replicas of this process, one by one, without end.

    Rows that do not fill a batch at the end of an epoch are omitted. The order of the next epoch
    differs, so it omits different rows.

    Args:
        rows: Rows of the training split.
        batch: Rows of a step, a multiple of `replicas`.
        seed: Seed of the order.
        start: Epoch and step within it to begin with.
        local_replicas: The numbers of this process's replicas.
        replicas: Number of replicas of the job.
    """
    size = batch // replicas
    epoch, step = start
    while True:
        order = epoch_order(rows, seed, epoch)
        for first in range(step * batch, rows - batch + 1, batch):
            for replica in local_replicas:
                yield order[first + replica * size : first + (replica + 1) * size]
        epoch, step = epoch + 1, 0


def evaluation_slices(rows: int, batch: int, replicas: int) -> list[list[np.ndarray]]:
    """Return the rows of each evaluation step for each replica: every row exactly once.

    The steps have nearly equal sizes, and so do the slices of one step. No slice is empty, because
    metrics over zero rows are undefined.

    Args:
        rows: Rows of the split.
        batch: Maximum rows of a step, at least `replicas`.
        replicas: Number of replicas of the job.

    Raises:
        DataError: There are rows, but not one for each replica.
    """
    if 0 < rows < replicas:
        raise DataError(
            Problem(
                "the validation split is too small",
                received=f"{rows} rows",
                expected=f"at least {replicas} rows, one for each replica",
                fix="use more data, a larger validation split (data_options.split) or fewer"
                " replicas",
            )
        )
    if not rows:
        return []
    steps = min(-(-rows // batch), rows // replicas)
    return [
        [np.arange(first + low, first + high) for low, high in split_evenly(last - first, replicas)]
        for first, last in split_evenly(rows, steps)
    ]
