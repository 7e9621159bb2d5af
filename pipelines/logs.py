"""Selects and follows the stored log lines of a run.

The launcher stores them, so they can be read during training and after the pods are gone. Called by
`kfp-tfjob logs`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kfp_tfjob.cluster.log_lines import LogLine, last_state
from kfp_tfjob.cluster.log_reader import LogReader
from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.common.formatting import did_you_mean, nearest

from .stored_run import StoredRun

_POLL_SECONDS = 3.0  # a person waits, but the launcher stores new lines only every 30 seconds


class RunLogLine(NamedTuple):
    """A line of a run's log, and the number of its attempt."""

    attempt: int
    line: LogLine


def read(stored: StoredRun, replicas: Sequence[str], follow: bool) -> Iterator[RunLogLine]:
    """Yield the log lines of a run, sorted by attempt and then by time.

    Args:
        stored: The run.
        replicas: Names such as `chief-0`, or roles such as `worker`; empty for all replicas.
        follow: Whether to wait for more lines until the run is over.

    Raises:
        DataError: The run does not have a log.
        ConfigurationError: No attempt has one of the replicas.
    """

    def is_selected(source: str) -> bool:
        replica = source.partition("/")[0]
        return not replicas or replica in replicas or replica.rpartition("-")[0] in replicas

    readers: dict[int, LogReader] = {}
    is_log_missing = True
    while True:
        # Read before the lines, so that the last lines of a run that ends now are not missed.
        over = not follow or stored.is_over()
        if is_log_missing:
            stored = stored.located()
        numbers = stored.store.numbers(stored.run.replica_logs)
        for number in numbers:
            readers.setdefault(number, LogReader(stored.store, stored.run, number, is_selected))
        if is_log_missing and numbers:
            _check_replicas(replicas, readers)
        # A launcher writes the end of one attempt's log while the next one starts. So after the
        # first pass, only the last two attempts can have new lines.
        for number in numbers if is_log_missing else numbers[-2:]:
            for line in readers[number].new_lines():
                # Earlier releases stored every state of a progress bar.
                yield RunLogLine(number, line._replace(text=last_state(line.text)))
        is_log_missing = is_log_missing and not numbers
        if over:
            break
        time.sleep(_POLL_SECONDS)  # the store cannot notify a reader
    if is_log_missing:
        raise stored.lacks(
            Problem(
                f"the run {stored.run.base} has no log of a training job yet",
                received=f"nothing below {stored.run.replica_logs}",
                expected="log lines, half a minute after the first pod has started",
                fix="add --follow to wait for them",
            )
        )


def _check_replicas(replicas: Sequence[str], readers: dict[int, LogReader]) -> None:
    """Raise a ConfigurationError for replicas that no attempt has.

    It is called once there are log lines, because the replicas' names are not known before.
    """
    existing = {replica for reader in readers.values() for replica in reader.files()}
    names = existing | {replica.rpartition("-")[0] for replica in existing}
    ConfigurationError.raise_if(
        Problem(
            f"no attempt has a replica {name}",
            received=name,
            expected=f"one of {', '.join(sorted(existing))}",
            fix=did_you_mean(nearest(name, names), "correct the name, or show all replicas"),
        )
        for name in replicas
        if name not in names
    )
