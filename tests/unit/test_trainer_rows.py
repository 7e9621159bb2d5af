"""Which rows a step reads."""

import itertools

import numpy as np
import pytest

from kfp_tfjob.common.errors import DataError
from kfp_tfjob.features.records import (
    epoch_order,
    evaluation_slices,
    train_batch_size,
    train_slices,
)
from tests.problems import problem_of


def test_every_epoch_has_another_order_of_all_rows() -> None:
    orders = [epoch_order(100, 5, epoch) for epoch in range(3)]
    assert all(sorted(order) == list(range(100)) for order in orders)
    assert not np.array_equal(orders[0], orders[1])
    assert not np.array_equal(orders[0], epoch_order(100, 6, 0))
    assert np.array_equal(orders[2], epoch_order(100, 5, 2))


@pytest.mark.parametrize("processes", [1, 2, 3, 6])
def test_the_batches_do_not_depend_on_the_replicas(processes: int) -> None:
    rows, batch, steps = 50, 12, 10
    alone = list(itertools.islice(train_slices(rows, batch, 1, (0, 0), range(1), 1), steps))
    parts = [
        itertools.islice(train_slices(rows, batch, 1, (0, 0), range(at, at + 1), processes), steps)
        for at in range(processes)
    ]
    together = [np.concatenate(step) for step in zip(*parts, strict=True)]
    assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))


def test_reading_can_start_anywhere() -> None:
    whole = list(itertools.islice(train_slices(50, 12, 1, (0, 0), range(1), 1), 12))
    rest = list(itertools.islice(train_slices(50, 12, 1, (1, 3), range(1), 1), 5))
    assert all(np.array_equal(a, b) for a, b in zip(whole[7:], rest, strict=True))
    at_the_end = list(itertools.islice(train_slices(50, 12, 1, (0, 4), range(1), 1), 8))
    assert all(np.array_equal(a, b) for a, b in zip(whole[4:], at_the_end, strict=True))


@pytest.mark.parametrize(
    ("rows", "batch", "replicas"),
    [(37, 12, 1), (37, 12, 2), (37, 12, 3), (10, 4, 4), (7, 100, 7), (1, 8, 1), (96, 32, 2)],
)
def test_evaluation_sees_every_row_once_and_no_slice_is_empty(
    rows: int, batch: int, replicas: int
) -> None:
    slices = evaluation_slices(rows, batch, replicas)
    flat = [part for step in slices for part in step]
    assert all(len(step) == replicas for step in slices)
    assert np.concatenate(flat).tolist() == list(range(rows))
    sizes = [len(part) for part in flat]
    assert min(sizes) > 0
    assert max(sizes) - min(sizes) <= 1


def test_evaluation_without_rows_has_no_steps() -> None:
    assert evaluation_slices(0, 8, 2) == []
    problem = problem_of(evaluation_slices, 1, 8, 2, kind=DataError)
    assert "validation" in problem.what
    assert problem.expected == "at least 2 rows, one for each replica"


def test_a_batch_larger_than_the_data_is_reduced_to_what_the_replicas_can_share() -> None:
    assert train_batch_size(100, 32, 2) == 32
    assert train_batch_size(31, 32, 2) == 30
    assert train_batch_size(3, 32, 3) == 3
    with pytest.raises(DataError, match="train"):
        train_batch_size(1, 32, 2)
