"""The lines of replicas with the time that Kubernetes gave them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import NamedTuple

_STAMP = re.compile(r"(.{10}T.{8})(?:\.(\d*))?(Z|[+-].+)")


class LogLine(NamedTuple):
    """One line.

    Attributes:
        stamp: Its time in UTC with nanoseconds, `2026-01-01T10:00:00.000000000Z`; empty for a
            message of the kubelet, which is not part of the log.
        where: The name in brackets before it: `chief-0`, `worker-1/uploader`.
        text: The line.
    """

    stamp: str
    where: str
    text: str

    @property
    def replica(self) -> str:
        """The replica, for example `chief-0`."""
        return self.where.partition("/")[0]


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
    if not (parts := _STAMP.fullmatch(stamp)):
        return ""
    try:
        second = datetime.fromisoformat(parts[1] + parts[3])
    except ValueError:
        return ""
    return f"{second.astimezone(UTC):%Y-%m-%dT%H:%M:%S}.{(parts[2] or '')[:9]:0<9}Z"
