"""The lines of replicas with the time that Kubernetes gave them, and where a stream was left.

A stream is the log of one container of one pod. Its times are almost ordered: a container writes
its two outputs at the same moment. So a stream that is read again continues after a number of lines
and not after a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

_SECOND = 19  # characters of a stamp up to its second


class LogLine(NamedTuple):
    """One line.

    Attributes:
        where: The name in brackets before it: `chief-0`, `worker-1/uploader`.
        pod: The id of the pod.
        stamp: Its time in UTC with nanoseconds, `2026-01-01T10:00:00.000000000Z`; empty for a
            message of the kubelet, which is not part of the log.
        text: The line.
    """

    where: str
    pod: str
    stamp: str
    text: str

    @property
    def replica(self) -> str:
        """The replica, for instance `chief-0`."""
        return self.where.partition("/")[0]


@dataclass
class Position:
    """How far a stream was read.

    It counts the lines of the newest second and of the one before it in which there were lines.

    Attributes:
        before: The second before; empty until there is one.
        second: The newest second.
        earlier: Lines since `before` that are older than `second`.
        latest: Lines of the newest second.
        newest: The newest stamp.
    """

    before: str = ""
    second: str = ""
    earlier: int = 0
    latest: int = 0
    newest: str = ""

    def add(self, stamp: str) -> None:
        """Count a line."""
        second = stamp[:_SECOND]
        if second == self.second:
            self.latest += 1
        elif second > self.second:
            self.before, self.second = self.second, second
            self.earlier, self.latest = self.latest, 1
        elif second >= self.before:
            self.earlier += 1
        if stamp > self.newest:
            self.newest = stamp

    @property
    def since(self) -> str:
        """The second from which to read the stream again, as RFC 3339; empty for its start."""
        start = self.before or self.second
        return f"{start}Z" if start else ""


class Continued:
    """Tells which lines of a stream that is read again are new.

    Args:
        left: Where the stream was left; later changes of it do not count.
    """

    def __init__(self, left: Position) -> None:
        self._start = left.before or left.second
        self._newest = left.newest
        self._old = left.earlier + left.latest

    def is_new(self, stamp: str) -> bool:
        """Tell whether a line is new; call it for every line, in the order of the stream."""
        if self._old <= 0:
            return True
        if stamp[:_SECOND] < self._start:
            return False
        if stamp > self._newest:
            self._old = 0  # the node has removed the older lines
            return True
        self._old -= 1
        return False


def cut(line: bytes) -> tuple[str, str]:
    """Return the stamp and the text of a line as the kubelet sends it.

    The stamp is empty for a message of the kubelet itself.
    """
    if line[29:31] == b"Z " and line[10:11] == b"T":
        return line[:30].decode(errors="replace"), _text(line[31:])
    stamp, _, rest = line.partition(b" ")
    stamp = _in_utc(stamp.decode(errors="replace"))
    return (stamp, _text(rest)) if stamp else ("", _text(line))


def stamp_of(seconds: float) -> str:
    """Return seconds since 1970 as a stamp."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S.%f}000Z"


def _text(data: bytes) -> str:
    return data.decode(errors="replace").rstrip("\r")


def _in_utc(stamp: str) -> str:
    """Return a stamp of any zone and length in the form of LogLine; empty if it is none."""
    if stamp[10:11] != "T":
        return ""
    rest = stamp[_SECOND:]
    fraction = ""
    if rest.startswith("."):
        digits = len(rest) - len(rest[1:].lstrip("0123456789"))
        fraction, rest = rest[1:digits], rest[digits:]
    try:
        second = datetime.fromisoformat(stamp[:_SECOND] + rest)
    except ValueError:
        return ""
    if second.tzinfo is None:
        return ""
    return f"{second.astimezone(UTC):%Y-%m-%dT%H:%M:%S}.{fraction[:9]:0<9}Z"
