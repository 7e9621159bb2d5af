"""Restricts a reader to a range of a file, so that several can read one file.

A record belongs to the range in which its first byte is. Where a range begins, the first record is
looked for after a line end. Inside a long quoted value, what is found may be wrong, so a reader
tells where it really began and ended, and the ranges of a file must follow each other. Called by
the readers of formats that can be split.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO

from kfp_tfjob.common.errors import DataError, Problem

BLOCK = 4 << 20  # bytes of text that are parsed at a time
LONGEST_RECORD = 16 << 20  # bytes; a quote open for longer was opened by mistake
_LONGEST_LINE = 32 << 20  # bytes that are looked through for a line end
_WINDOW = 1 << 18  # bytes by which the first record is found
_FEWEST = 1 << 16  # bytes to read at a time, also shortly before the end


@dataclass(frozen=True)
class Span:
    """The range of a file to read.

    Attributes:
        start: The first byte, or the first row group of a Parquet file.
        end: The end.
        exact: Whether a record begins exactly at `start`.
    """

    start: int
    end: int
    exact: bool = False


def ranges_of(sizes: Sequence[int], most: int, count: int = sys.maxsize) -> list[Span]:
    """Return ranges of units of these sizes, of about `most` bytes and at most `count` units."""
    spans, start, span_bytes = [], 0, 0
    for i, size in enumerate(sizes):
        if i > start and (span_bytes + size > most or i - start == count):
            spans.append(Span(start, i))
            start, span_bytes = i, 0
        span_bytes += size
    return [*spans, Span(start, len(sizes))]


@dataclass
class ByteRange:
    """A range of a file of text, and how far it is read.

    Attributes:
        position: The offset of the next byte that is in no block yet.
        until: Records that begin before this offset are read.
        started: The offset of the first byte that is read.
    """

    position: int = 0
    until: int = sys.maxsize

    def __post_init__(self) -> None:
        self.started = self.position

    @property
    def left(self) -> int:
        """The bytes in which another record may begin."""
        return max(self.until - self.position, 0)

    def wanted(self, unread: int, block: int) -> int:
        """Return how many bytes to read next, with so many that are not in a block yet."""
        return min(block, max(self.left - unread + 1, _FEWEST))

    def cut(self, data: bytes) -> int:
        """Return the length of the lines at the start of `data` that begin within the range."""
        if self.left - 1 >= len(data):
            return len(data)
        return data.find(b"\n", self.left - 1) + 1 or len(data)


def begin(
    stream: IO[bytes], span: Span | None, first_in: Callable[[bytes], int] | None = None
) -> ByteRange:
    """Move a stream to the first record of a range; without one, it stays where it is.

    Args:
        stream: The bytes of the file.
        span: The range.
        first_in: Returns where the first record begins in a piece of the file, 0 if it is not
            there; None if it begins after the next line end in any case.
    """
    if span is None:
        return ByteRange()
    if not span.start:
        return ByteRange(stream.tell(), span.end)
    if span.exact:
        stream.seek(span.start)
        position = span.start
    else:
        position = span.start - 1
        stream.seek(position)
        skipped = first_in(stream.read(_WINDOW)) if first_in else 0
        stream.seek(position + skipped)
        position += skipped or len(stream.readline(_LONGEST_LINE))
    return ByteRange(position, span.end)


def too_long(name: str, position: int) -> DataError:
    """Return the error for a line that begins at an offset of a file and does not end."""
    return DataError(
        Problem(
            f"{name}: the line at byte {position:,} is too long",
            received=f"more than {LONGEST_RECORD >> 20} MiB without a line end",
            expected="one row on each line, ended by a newline",
            fix="end each row with a newline; if a row is that long, write the data as Parquet",
        )
    )
