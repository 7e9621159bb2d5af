"""The parts in which the lines of a replica are stored.

A part is a gzip file of lines `<stamp> [<where>] <text>`. Its last line begins with `#` and tells
where the part belongs: the lines and bytes of the replica before and after it, and how far each
stream was read. So a part that is missing between two others shows, with its size. `zcat` reads a
part, or several one after the other.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, field
from typing import NamedTuple

from kfp_tfjob.cluster.log_lines import LogLine, Position
from kfp_tfjob.storage.errors import DataError, Problem

LONGEST = 2 << 20  # bytes of a part that is read
_LONGEST_TEXT = 16 << 20  # bytes of its text
_LEVEL = 1  # of gzip: the launcher shares its core with the steps of other runs
_LINE = re.compile(r"(\S+) \[([^\]]+)\] (.*)", re.DOTALL)


class Count(NamedTuple):
    """Lines of a replica and their bytes, with stamp and name, not compressed."""

    lines: int = 0
    bytes: int = 0

    def plus(self, other: Count) -> Count:
        """Return the sum."""
        return Count(self.lines + other.lines, self.bytes + other.bytes)

    def minus(self, other: Count) -> Count:
        """Return the difference."""
        return Count(self.lines - other.lines, self.bytes - other.bytes)


@dataclass
class Stream:
    """One stream and how far it was read: its pod and the position."""

    pod: str
    position: Position = field(default_factory=Position)


@dataclass(frozen=True)
class Place:
    """The last line of a part.

    Attributes:
        begin: What the replica had written before this part.
        end: The same, with this part.
        head: The number of the last part of the head, and the bytes up to its end.
        streams: The streams of the replica by their name in brackets.
    """

    begin: Count
    end: Count
    head: tuple[int, int]
    streams: Mapping[str, Stream]

    def to_line(self) -> bytes:
        """Return the line."""
        values = {
            "begin": self.begin,
            "end": self.end,
            "head": self.head,
            "streams": {
                where: [stream.pod, *astuple(stream.position)]
                for where, stream in self.streams.items()
            },
        }
        return f"# {json.dumps(values)}\n".encode()

    @classmethod
    def from_line(cls, line: str) -> Place:
        """Read the line back."""
        values = json.loads(line[1:])
        streams = {
            where: Stream(pod, Position(*position))
            for where, (pod, *position) in values["streams"].items()
        }
        head = (int(values["head"][0]), int(values["head"][1]))
        return cls(Count(*values["begin"]), Count(*values["end"]), head, streams)


class Part:
    """Lines on their way to the store.

    Args:
        gap: Lines before this part that are lost.
    """

    def __init__(self, gap: Count) -> None:
        self.gap, self.count = gap, Count()
        self.streams: dict[str, Stream] = {}
        self.data = bytearray()
        self._file = zlib.compressobj(_LEVEL, wbits=31)

    def add(self, lines: Iterable[LogLine]) -> None:
        """Add lines of one replica; one name has lines of one pod."""
        text = [f"{stamp} [{where}] {text}" for where, _, stamp, text in lines]
        if text:
            data = ("\n".join(text) + "\n").encode(errors="replace")
            self.count = self.count.plus(Count(len(text), len(data)))
            self.data += self._file.compress(data)

    def close(self, streams: Mapping[str, Stream]) -> None:
        """Add no more lines.

        Args:
            streams: How far the streams were read.
        """
        self.data += self._file.flush()
        self.streams = {
            where: Stream(stream.pod, stream.position.copy()) for where, stream in streams.items()
        }

    def lines(self) -> Iterator[LogLine]:
        """Yield the lines of a closed part."""
        for line in _text(bytes(self.data)).split("\n"):
            if found := _parse(line):
                yield LogLine(found[1], self.streams[found[1]].pod, found[0], found[2])

    def at(self, begin: Count, head: tuple[int, int]) -> bytes:
        """Return the file for a place in the log."""
        place = Place(begin, begin.plus(self.count), head, self.streams)
        return bytes(self.data) + gzip.compress(place.to_line(), _LEVEL, mtime=0)


class StoredLine(NamedTuple):
    """A line as it was stored: its time, the name in brackets, and the text."""

    stamp: str
    where: str
    text: str


def read(data: bytes, name: object) -> tuple[list[StoredLine], Place]:
    """Return the lines of a stored part and its place.

    Args:
        data: The file.
        name: Its address, for the error.

    Raises:
        DataError: It is not a part.
    """
    try:
        *lines, last = _text(data).removesuffix("\n").split("\n")
        place = Place.from_line(last)
    except (ValueError, KeyError, TypeError, zlib.error, EOFError, OSError) as error:
        raise DataError(
            Problem(
                f"{name} is not a part of a log",
                received=f"{type(error).__name__}: {error}",
                expected="a gzip file that the launcher wrote",
                fix="remove it: the other parts of the log can still be read",
            )
        ) from error
    return [StoredLine(*found) for line in lines if (found := _parse(line))], place


def _parse(line: str) -> tuple[str, ...] | None:
    match = _LINE.fullmatch(line)
    return match.groups() if match else None


def _text(data: bytes) -> str:
    """Return the text of a gzip file with several members, within a limit."""
    found: list[bytes] = []
    left = _LONGEST_TEXT
    while data and left > 0:
        file = zlib.decompressobj(wbits=31)
        text = file.decompress(data, left)
        left -= len(text)
        if not file.eof:
            raise ValueError("it is cut off, or larger than a part")
        found.append(text)
        data = file.unused_data
    if data:
        raise ValueError("it is larger than a part")
    return b"".join(found).decode(errors="replace")
