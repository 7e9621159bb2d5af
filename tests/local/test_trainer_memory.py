"""The memory of a replica, from its first epochs to its last."""

from __future__ import annotations

import json
import time

import psutil
import pytest

from tests.local.trainer_jobs import SECONDS, Start

EPOCHS, FIRST = 20, 3
GROWTH = 1.02


@pytest.mark.slow
def test_the_memory_of_a_replica_does_not_grow(jobs: Start) -> None:
    """With evaluation, checkpoints all the time, the best of them, and early stopping's copy."""
    options = {
        "checkpoint_seconds": 0.5,
        "early_stopping": {"patience": EPOCHS, "restore_best_weights": True},
    }
    hyperparameters = {"hidden": [512, 512], "dropout": 0.1, "learning_rate": 1e-5}
    job = jobs(
        "memory",
        2,
        EPOCHS=str(EPOCHS),
        TRAIN_OPTIONS=json.dumps(options),
        HYPERPARAMETERS=json.dumps(hyperparameters),
    )
    progress = job.output / "progress.jsonl"
    job.until(lambda: progress.exists() and len(job.events("epoch")) >= FIRST)
    trainers = [psutil.Process(job.trainer(replica)) for replica in range(2)]
    first = [process.memory_info().rss for process in trainers]
    last, seen, deadline = first, first, time.monotonic() + 3 * SECONDS
    # The export that follows the last epoch needs memory of its own: only what was read before the
    # last epoch was over counts.
    while len(job.events("epoch")) < EPOCHS and time.monotonic() < deadline:
        last, seen = seen, [process.memory_info().rss for process in trainers]
        time.sleep(0.05)
    assert job.end() == [0, 0], job.log()
    growth = [after / before for before, after in zip(first, last, strict=True)]
    assert max(growth) <= GROWTH, (first, last)
