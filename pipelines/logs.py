"""Selects and follows the stored log lines of a run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kfp_tfjob.cluster.log_lines import LogLine
from kfp_tfjob.cluster.log_reader import LogReader
from kfp_tfjob.pipelines.stored_run import StoredRun
from kfp_tfjob.storage.errors import ConfigurationError, Problem
from kfp_tfjob.storage.formatting import did_you_mean, nearest

_POLL_SECONDS = 3.0


class Said(NamedTuple):
    """A line of a run's log: the attempt and the line."""

    attempt: int
    line: LogLine


def read(found: StoredRun, replicas: Sequence[str], follow: bool) -> Iterator[Said]:
    """Yield the lines, attempt by attempt, each in the order of time.

    Raises:
        DataError: The run has no log.
        ConfigurationError: It has no such replica.
    """

    def is_wanted(where: str) -> bool:
        replica = where.partition("/")[0]
        return not replicas or replica in replicas or replica.rpartition("-")[0] in replicas

    readers: dict[int, LogReader] = {}
    first = True
    while True:
        over = not follow or found.is_over()  # before the last look
        numbers = found.store.numbers(found.run.replica_logs)
        for number in numbers:
            readers.setdefault(number, LogReader(found.store, found.run, number, is_wanted))
        if first and numbers:
            _check(replicas, readers)
        for number in numbers[-2:] if not first else numbers:
            for line in readers[number].new_lines():
                yield Said(number, line)
        first = first and not numbers
        if over:
            break
        time.sleep(_POLL_SECONDS)
    if first:
        raise found.lacks(
            Problem(
                f"the run {found.run.base} has no log of a training job yet",
                received=f"nothing below {found.run.replica_logs}",
                expected="log lines, half a minute after the first pod has started",
                fix="add --follow to wait for them",
            )
        )


def _check(replicas: Sequence[str], readers: dict[int, LogReader]) -> None:
    """Reject replicas that no attempt has, if the training has begun."""
    known = {replica for reader in readers.values() for replica in reader.files()}
    names = known | {replica.rpartition("-")[0] for replica in known}
    ConfigurationError.raise_if(
        Problem(
            f"no attempt has a replica {name}",
            received=name,
            expected=f"one of {', '.join(sorted(known))}",
            fix=did_you_mean(nearest(name, names)),
        )
        for name in replicas
        if name not in names
    )
