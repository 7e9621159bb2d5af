"""The progress line: counts, speed, share and time left."""

from __future__ import annotations

import logging
import time

import pytest

from kfp_tfjob.components.prepare_data.executors import executor
from kfp_tfjob.components.prepare_data.executors.executor import ProgressLog


@pytest.mark.parametrize(
    ("total", "seconds", "end"),
    [
        (0, 2.0, "50.0 MB, 100,000 rows/s, 25.0 MB/s"),
        (200_000_000, 2.0, "50.0 MB (25%), 100,000 rows/s, 25.0 MB/s, about 6 s left"),
        (200_000_000, 100.0, "50.0 MB (25%), 2,000 rows/s, 0.5 MB/s, about 5 min left"),
        (5_000_000_000, 50.0, "50.0 MB (1%), 4,000 rows/s, 1.0 MB/s, about 1 h 22 min left"),
        # A compressed source is larger once it is read.
        (40_000_000, 2.0, "50.0 MB (100%), 100,000 rows/s, 25.0 MB/s"),
    ],
)
def test_a_line(monkeypatch, caplog, total: int, seconds: float, end: str) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    counted = ProgressLog("read", total)
    with caplog.at_level(logging.INFO, executor.__name__):
        counted.add(50_000, 10_000_000)
        assert not caplog.messages  # not yet five seconds
        counted.add(150_000, 40_000_000)
        clock[0] += seconds
        counted.log()
    assert caplog.messages == [f"read 200,000 rows, {end}"]


def test_a_line_every_five_seconds(monkeypatch, caplog) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    counted = ProgressLog("wrote", 1000)
    with caplog.at_level(logging.INFO, executor.__name__):
        for _ in range(100):
            clock[0] += 0.5
            counted.add(1, 10)
    assert len(caplog.messages) == 10
