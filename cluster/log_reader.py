"""Reads the stored log lines of an attempt, in the order of their times."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kfp_tfjob.cluster.log_parts import LONGEST, Count, StoredLine, read
from kfp_tfjob.storage.errors import DataError, ObjectNotFoundError
from kfp_tfjob.storage.layout import RunLayout, log_part
from kfp_tfjob.storage.store import Store
from kfp_tfjob.storage.text import line as safe
from kfp_tfjob.storage.words import counted, sized


@dataclass
class LogReader:
    """Reads the log of one attempt; reading again returns what is new.

    Attributes:
        store: The store.
        run: The run.
        attempt: The number of the attempt.
        wanted: Tells for a name in brackets, for instance `chief-0/uploader`, whether to read it.
    """

    store: Store
    run: RunLayout
    attempt: int
    wanted: Callable[[str], bool] = field(default=lambda where: True, repr=False)
    _read: dict[str, int] = field(default_factory=dict)
    _end: dict[str, Count] = field(default_factory=lambda: defaultdict(Count))

    def parts(self) -> dict[str, list[int]]:
        """Return the numbers of the stored parts of each replica."""
        found: dict[str, list[int]] = defaultdict(list)
        prefix = self.run.attempt_logs(self.attempt)
        for item in self.store.list(prefix):
            replica, _, name = item.address.key[len(prefix.key) + 1 :].partition("/")
            if number := log_part(name):
                found[replica].append(number)
        return {replica: sorted(numbers) for replica, numbers in sorted(found.items())}

    def new_lines(self) -> Iterator[StoredLine]:
        """Yield the lines that were stored since the last call, merged by time."""
        parts = self.parts()
        yield from heapq.merge(
            *(self._lines_of(replica, numbers) for replica, numbers in parts.items()),
            key=lambda line: line.stamp,
        )

    def last_lines(self, number: int) -> list[StoredLine]:
        """Return the last lines; afterwards, new_lines returns only newer ones."""
        found = [
            line
            for replica, numbers in self.parts().items()
            for line in self._last_of(replica, numbers, number)
        ]
        return sorted(found, key=lambda line: line.stamp)[-number:] if number else []

    def _lines_of(self, replica: str, numbers: list[int]) -> Iterator[StoredLine]:
        for number in numbers:
            if number > self._read.get(replica, 0):
                lines = self._part(replica, number)
                self._read[replica] = number
                yield from lines

    def _last_of(self, replica: str, numbers: list[int], wanted: int) -> list[StoredLine]:
        found: list[StoredLine] = []
        for number in reversed(numbers):
            if number <= self._read.get(replica, 0) or len(found) >= wanted:
                break
            found = [*self._part(replica, number, jump=True), *found]
        if numbers:
            self._read[replica] = numbers[-1]
            self._part(replica, numbers[-1], jump=True)
        return found[-wanted:] if wanted else []

    def _part(self, replica: str, number: int, jump: bool = False) -> list[StoredLine]:
        """Return the wanted lines of a part, after a note about missing ones."""
        address = self.run.log_part(self.attempt, replica, number)
        try:
            lines, place = read(self.store.read(address, LONGEST), address)
        except ObjectNotFoundError:
            return []  # the middle of a long log was deleted in the meantime
        except DataError as error:
            return [StoredLine("", replica, f"({safe(error)})")]
        missing = Count() if jump else place.begin.minus(self._end[replica])
        self._end[replica] = place.end
        shown = sorted((it for it in lines if self.wanted(it.where)), key=lambda line: line.stamp)
        if missing.lines > 0:
            size = sized(missing.bytes)
            note = f"({counted(missing.lines, 'line')} are missing here, {size} of text)"
            stamp = lines[0].stamp if lines else ""
            shown.insert(0, StoredLine(stamp, replica, note))
        return shown


def attempts(store: Store, run: RunLayout) -> list[int]:
    """Return the numbers of the attempts with stored lines."""
    return store.numbers(run.replica_logs)
