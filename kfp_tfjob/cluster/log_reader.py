"""Reads an attempt's stored log lines, in the order of their times.

Each launcher of an attempt stores its own file per replica (`log_writer.py`), and these files
overlap. So a line that is in several files is yielded once. Called by `kfp-tfjob logs`.
"""

from __future__ import annotations

import gzip
import heapq
import io
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from kfp_tfjob.common.errors import DataError, ObjectNotFoundError
from kfp_tfjob.common.escaping import line as safe
from kfp_tfjob.storage.layout import RunLayout
from kfp_tfjob.storage.store import Listed, Store

from .log_lines import LogLine

_LINE = re.compile(r"(\S+) \[([^\]]+)\] (.*)", re.DOTALL)
_NOTE = re.compile(r"# (\d.*)")
_STAMP = 30  # characters of a line's time: RFC 3339 with nanoseconds and Z
# Bytes of a file, and of its decompressed content. The writer's limits are lower, so a larger file
# is damaged or was not written by it.
_MOST_COMPRESSED, _MOST_DECOMPRESSED = 16 << 20, 128 << 20


@dataclass
class LogReader:
    """Reads one attempt's log; each call of `new_lines` continues after the previous one.

    Attributes:
        store: The store.
        run: The run's folder.
        attempt: The attempt.
        includes: Selects lines by their source, for example `worker-1/uploader`.
    """

    store: Store
    run: RunLayout
    attempt: int
    includes: Callable[[str], bool] = field(default=lambda where: True, repr=False)
    _read: dict[str, list[Listed]] = field(default_factory=dict)
    _yielded: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def files(self) -> dict[str, list[Listed]]:
        """Return the stored files by replica; each launcher has written one file per replica."""
        files: dict[str, list[Listed]] = defaultdict(list)
        prefix = self.run.attempt_logs(self.attempt)
        for file in self.store.list(prefix):
            files[file.address.key[len(prefix.key) + 1 :].partition("/")[0]].append(file)
        return dict(sorted(files.items()))

    def new_lines(self) -> Iterator[LogLine]:
        """Yield the lines that were stored since the last call, merged by time."""
        new = (self._new_lines_of(replica, files) for replica, files in self.files().items())
        return heapq.merge(*new, key=lambda line: line.stamp)

    def _new_lines_of(self, replica: str, files: list[Listed]) -> Sequence[LogLine]:
        """Return a replica's new lines, each once; notes about lost or damaged lines come first."""
        if files == self._read.get(replica):
            return []
        notes: list[LogLine] = []
        stored: Counter[str] = Counter()
        for file in files:
            try:
                lines = Counter(self._lines(file))
            except ObjectNotFoundError:  # deleted since it was listed
                continue
            except (DataError, EOFError, OSError, zlib.error) as error:
                notes.append(LogLine("", replica, f"({file.address}: {safe(error)})"))
                continue
            # A line starts with its time in nanoseconds, so equal lines of two files are one line.
            stored |= lines
        if replica not in self._read:
            matches = filter(None, map(_NOTE.fullmatch, stored))
            notes += [LogLine("", replica, f"({match[1]})") for match in matches]
        new = stored - self._yielded[replica]
        self._yielded[replica] |= stored
        self._read[replica] = files
        parsed = map(_LINE.fullmatch, sorted(new.elements(), key=lambda line: line[:_STAMP]))
        return notes + [
            LogLine(*match.groups()) for match in parsed if match and self.includes(match[2])
        ]

    def _lines(self, file: Listed) -> list[str]:
        compressed = io.BytesIO(self.store.read(file.address, _MOST_COMPRESSED))
        with gzip.GzipFile(fileobj=compressed) as decompressed:
            content = decompressed.read(_MOST_DECOMPRESSED)
        return content.decode(errors="replace").removesuffix("\n").split("\n")
