"""Reads the stored log lines of an attempt, in the order of their times."""

from __future__ import annotations

import gzip
import heapq
import io
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from kfp_tfjob.cluster.log_lines import LogLine
from kfp_tfjob.storage.errors import DataError, ObjectNotFoundError
from kfp_tfjob.storage.escaping import line as safe
from kfp_tfjob.storage.layout import RunLayout
from kfp_tfjob.storage.store import Listed, Store

_LINE = re.compile(r"(\S+) \[([^\]]+)\] (.*)", re.DOTALL)
_NOTE = re.compile(r"# (\d.*)")
_STAMP = 30  # characters
_MOST, _MOST_TEXT = (
    16 << 20,
    128 << 20,
)  # bytes of a file and of its text; none has more


@dataclass
class LogReader:
    """Reads the wanted lines of one attempt's log; reading again returns what is new."""

    store: Store
    run: RunLayout
    attempt: int
    wanted: Callable[[str], bool] = field(default=lambda where: True, repr=False)
    _read: dict[str, list[Listed]] = field(default_factory=dict)
    _shown: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def files(self) -> dict[str, list[Listed]]:
        """Return each replica's files: one from each launcher."""
        found: dict[str, list[Listed]] = defaultdict(list)
        prefix = self.run.attempt_logs(self.attempt)
        for item in self.store.list(prefix):
            found[item.address.key[len(prefix.key) + 1 :].partition("/")[0]].append(item)
        return dict(sorted(found.items()))

    def new_lines(self) -> Iterator[LogLine]:
        """Yield the lines that were stored since the last call, merged by time."""
        new = (self._new_of(replica, files) for replica, files in self.files().items())
        return heapq.merge(*new, key=lambda line: line.stamp)

    def _new_of(self, replica: str, files: list[Listed]) -> Sequence[LogLine]:
        """Return the wanted lines of a replica that are new, each once, after notes."""
        if files == self._read.get(replica):
            return []
        notes: list[LogLine] = []
        stored: Counter[str] = Counter()
        for file in files:
            try:
                lines = Counter(self._lines(file))
            except ObjectNotFoundError:
                continue
            except (DataError, EOFError, OSError, zlib.error) as error:
                notes.append(LogLine("", replica, f"({file.address}: {safe(error)})"))
                continue
            # A line has its time in nanoseconds: in two files, it is the same one.
            stored |= lines
        if replica not in self._read:
            found = filter(None, map(_NOTE.fullmatch, stored))
            notes += [LogLine("", replica, f"({match[1]})") for match in found]
        new = stored - self._shown[replica]
        self._shown[replica] |= stored
        self._read[replica] = files
        parsed = map(_LINE.fullmatch, sorted(new.elements(), key=lambda line: line[:_STAMP]))
        return notes + [
            LogLine(*match.groups()) for match in parsed if match and self.wanted(match[2])
        ]

    def _lines(self, file: Listed) -> list[str]:
        packed = io.BytesIO(self.store.read(file.address, _MOST))
        with gzip.GzipFile(fileobj=packed) as unpacked:
            text = unpacked.read(_MOST_TEXT)
        return text.decode(errors="replace").removesuffix("\n").split("\n")
