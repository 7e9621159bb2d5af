"""Packs the lines of a replica into parts, which wait here for the store."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence

from kfp_tfjob.cluster.log_lines import Continued, LogLine
from kfp_tfjob.cluster.log_parts import Count, Part, Place, Stream

PART_BYTES = 1 << 20  # of a part, compressed
PART_TEXT = 4 << 20  # of its text
CHUNK, _CHUNK_BYTES = 2000, 256 << 10  # compressed at once
_FULL_BYTES, _FULL_TEXT = PART_BYTES // 2, PART_TEXT - (1 << 20)  # the last chunk comes on top
FIRST_PAUSE = 0.5  # seconds before the store is asked again


class ReplicaLog:
    """The lines of one replica.

    `raw` and `busy` belong to the lock of the writer, the packed lines to `packing`, and the place
    in the store to the sender that made it busy.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.raw: list[LogLine] = []
        self.unpacked = 0
        self.packing = threading.Lock()
        self.open: Part | None = None
        self.ready: deque[Part] = deque()
        self.sending: Part | None = None  # the first one that is ready
        self.streams: dict[str, Stream] = {}
        self._left: dict[str, tuple[str, Continued]] = {}
        self._began = 0.0
        self._gap = Count()
        # In the store.
        self.busy, self.deletes = False, True
        self.retry_at, self.pause = 0.0, FIRST_PAUSE
        self.number, self.end = 1, Count()
        self.head = (0, 0)
        self.tail: deque[tuple[int, int | None]] = deque()
        self.stored: dict[str, Stream] = {}

    @property
    def unstored(self) -> int:
        """Lines that are not in the store."""
        packed = sum(part.count.lines for part in [*self.ready, *filter(None, [self.open])])
        return len(self.raw) + self.unpacked + packed

    @property
    def held(self) -> int:
        """Bytes of memory, without lines that are not packed."""
        return sum(len(part.data) for part in [*self.ready, *filter(None, [self.open])])

    @property
    def age(self) -> float:
        """Seconds since the first line of the open part."""
        return time.monotonic() - self._began

    def pack(self, lines: Sequence[LogLine]) -> None:
        """Pack the lines that are not stored yet."""
        new: list[LogLine] = []
        size = 0
        for line in lines:
            where, pod, stamp, text = line
            stream = self.streams.get(where)
            if stream is None or stream.pod != pod:
                self._compress(new)
                new, size = [], 0
                if stream:
                    self.cut()  # in one part, a name has lines of one pod
                stream = self.streams[where] = Stream(pod)
            if self._left and not self._is_new(line):
                continue
            stream.position.add(stamp)
            new.append(line)
            size += len(text)
            if len(new) >= CHUNK or size >= _CHUNK_BYTES:
                self._compress(new)
                new, size = [], 0
        self._compress(new)

    def _is_new(self, line: LogLine) -> bool:
        """Tell whether a different launcher has not stored a line."""
        pod, left = self._left.get(line.where, ("", None))
        return left is None or pod != line.pod or left.is_new(line.stamp)

    def _compress(self, lines: Sequence[LogLine]) -> None:
        if not lines:
            return
        if self.open is None:
            self.open, self._gap = Part(self._gap), Count()
            self._began = time.monotonic()
        self.open.add(lines)
        if len(self.open.data) >= _FULL_BYTES or self.open.count.bytes >= _FULL_TEXT:
            self.cut()

    def cut(self) -> None:
        """Close the open part."""
        if self.open:
            self.open.close(self.streams)
            self.ready.append(self.open)
            self.open = None

    def lose_oldest(self) -> bool:
        """Drop the oldest part that is not being sent; return whether there is one."""
        first = 1 if self.sending else 0
        if len(self.ready) <= first:
            return False
        lost = self.ready[first]
        del self.ready[first]
        gap = lost.gap.plus(lost.count)
        if len(self.ready) > first:
            self.ready[first].gap = self.ready[first].gap.plus(gap)
        elif self.open:
            self.open.gap = self.open.gap.plus(gap)
        else:
            self._gap = self._gap.plus(gap)
        return True

    def continue_after(self, place: Place) -> None:
        """Pack all lines again that are not stored up to a place."""
        self.cut()
        pending, self.ready, self.sending = list(self.ready), deque(), None
        self._left = {}
        self.streams = {}
        for where, stream in place.streams.items():
            mine = self.stored.get(where)
            known = mine.position if mine and mine.pod == stream.pod else None
            self._left[where] = (stream.pod, Continued(stream.position, known))
            self.streams[where] = Stream(stream.pod, stream.position.copy())
        self.stored = dict(place.streams)
        for part in pending:
            self._gap = self._gap.plus(part.gap)
            self.pack(list(part.lines()))
