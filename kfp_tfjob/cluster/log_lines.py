"""Log lines of replicas, each with the time that Kubernetes gave it.

The time in nanoseconds orders the lines of all replicas, and identifies a line that is read twice.
Called by both back ends, and by the programs that store and show logs.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import NamedTuple

from kfp_tfjob.common.escaping import uncolored

_STAMP = re.compile(r"(.{10}T.{8})(?:\.(\d*))?(Z|[+-].+)")


class LogLine(NamedTuple):
    """One line.

    Attributes:
        stamp: Its time in UTC with nanoseconds, `2026-01-01T10:00:00.000000000Z`; empty for a
            message of the kubelet, which is not part of the log.
        where: The line's source, printed in brackets: `chief-0`, `worker-1/uploader`.
        text: The line without its time.
    """

    stamp: str
    where: str
    text: str

    @property
    def replica(self) -> str:
        """The replica, for example `chief-0`."""
        return self.where.partition("/")[0]


def cut(line: bytes) -> tuple[str, str]:
    """Split a line from the kubelet into its time and its text.

    The time is empty for a message of the kubelet itself.
    """
    # Nearly all lines have nine digits and UTC, so they need no parsing.
    if line[29:31] == b"Z " and line[10:11] == b"T":
        return line[:30].decode(errors="replace"), _text(line[31:])
    time, _, content = line.partition(b" ")
    stamp = _in_utc(time.decode(errors="replace"))
    return (stamp, _text(content)) if stamp else ("", _text(line))


def last_state(text: str) -> str:
    r"""Return the last state of a progress bar; any other line stays as it is.

    A bar returns to its line's start with `\r` and is written again, so the line of one epoch may
    contain thousands of states. A terminal shows only the last one.
    """
    if "\r" not in text:
        return text
    # Keras also deletes each state with backspaces, and tqdm overwrites its last one with spaces.
    return next((part for part in reversed(text.split("\r")) if uncolored(part).strip()), "")


def stamp_of(seconds: float) -> str:
    """Return seconds since 1970 in the form of `LogLine.stamp`."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S.%f}000Z"


def _text(data: bytes) -> str:
    return last_state(data.decode(errors="replace"))


def _in_utc(stamp: str) -> str:
    """Return a time of any zone and precision in the form of `LogLine.stamp`; empty if invalid."""
    if not (parts := _STAMP.fullmatch(stamp)):
        return ""
    try:
        second = datetime.fromisoformat(parts[1] + parts[3])
    except ValueError:
        return ""
    return f"{second.astimezone(UTC):%Y-%m-%dT%H:%M:%S}.{(parts[2] or '')[:9]:0<9}Z"
