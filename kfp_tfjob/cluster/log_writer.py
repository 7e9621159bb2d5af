"""Stores the log lines of an attempt, while the store may be unreachable.

The end of the log of each replica is one gzip file of lines `<stamp> [<where>] <text>`, which is
written again when it has new lines. Each launcher writes its own file: a successor reads the pods
from the start, and log_reader.py shows a line once that several files contain. No caller waits for
the store.
"""

from __future__ import annotations

import gzip
import logging
import secrets
import threading
import time
from collections import deque
from typing import NamedTuple

from kfp_tfjob.cluster.log_lines import LogLine
from kfp_tfjob.storage.errors import StepError
from kfp_tfjob.storage.formatting import counted
from kfp_tfjob.storage.layout import RunLayout
from kfp_tfjob.storage.store import Store

log = logging.getLogger(__name__)

STORE_SECONDS = 30.0
LIMIT = 8 << 20  # bytes of a file
TEXT_LIMIT = 64 << 20  # bytes of its text
MEMORY = 64 << 20  # bytes of all files of an attempt
CLOSING_SECONDS = 10.0  # for the lines that are left when an attempt has ended
_PIECE = 256 << 10  # bytes of text that are compressed at once
_LEVEL = 1  # of gzip: the launcher shares its core with the steps of other runs
_LAST_LINES_SECONDS = 2.0
_SENDERS = 4
_HURRY_SECONDS = 0.5


class _Piece(NamedTuple):
    data: bytes
    lines: int
    text: int


class _Tail:
    """The end of the log of one replica, and whether the store has it.

    Attributes:
        changed: Whether it has lines that the store does not.
        busy: Whether a thread is storing it.
        due: When to store it, on the monotonic clock.
        unstored: Lines that are not in the store.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.changed = self.busy = False
        self.due = 0.0
        self.unstored = self.bytes = 0
        self._pieces: deque[_Piece] = deque()
        self._open: list[str] = []
        self._open_text = self._text = self._dropped = 0

    def add(self, line: LogLine) -> bool:
        """Add a line; return whether there is a new piece."""
        text = f"{line.stamp} [{line.where}] {line.text}\n"
        self._open.append(text)
        self._open_text += len(text)
        self.unstored += 1
        full = self._open_text >= _PIECE
        if full:
            self._compress()
        return full

    def file(self) -> bytes:
        """Return the file with all lines up to now."""
        self._compress()
        pieces = [piece.data for piece in self._pieces]
        if self._dropped:
            note = f"# {counted(self._dropped, 'earlier line')} not kept\n"
            pieces.insert(0, gzip.compress(note.encode(), mtime=0))
        return b"".join(pieces)

    def drop_oldest(self) -> None:
        piece = self._pieces.popleft()
        self.bytes -= len(piece.data)
        self._text -= piece.text
        self._dropped += piece.lines

    def _compress(self) -> None:
        if not self._open:
            return
        text = "".join(self._open).encode(errors="replace")
        piece = _Piece(gzip.compress(text, _LEVEL, mtime=0), len(self._open), len(text))
        self._pieces.append(piece)
        self._open, self._open_text = [], 0
        self.bytes += len(piece.data)
        self._text += piece.text
        while len(self._pieces) > 1 and (self.bytes > LIMIT or self._text > TEXT_LIMIT):
            self.drop_oldest()


class LogWriter:
    """Stores the lines of one attempt until it is closed."""

    def __init__(self, store: Store, run: RunLayout, attempt: int) -> None:
        self._store = store.within(0)  # a sender repeats a call itself, after those of others
        self._run, self._attempt = run, attempt
        self._launcher = secrets.token_hex(4)
        self._tails: dict[str, _Tail] = {}
        self._change = threading.Condition()
        self._seconds = STORE_SECONDS
        self._closed = self._told = False
        self._ended = threading.Event()

    def put(self, line: LogLine) -> None:
        """Store a line soon; messages of the kubelet are not stored."""
        if not line.stamp:
            return
        with self._change:
            if self._closed:
                return
            tail = self._tails.get(line.replica) or self._new(line.replica)
            new_piece = tail.add(line)
            while new_piece and sum(it.bytes for it in self._tails.values()) > MEMORY:
                max(self._tails.values(), key=lambda it: it.bytes).drop_oldest()
            if not tail.changed:
                tail.changed, tail.due = True, time.monotonic() + self._seconds
                self._change.notify()

    def _new(self, replica: str) -> _Tail:
        if not self._tails:
            for _ in range(_SENDERS):
                threading.Thread(target=self._send, name="store logs", daemon=True).start()
        return self._tails.setdefault(replica, _Tail(replica))

    def end(self) -> None:
        """Say that no more lines come."""
        self._ended.set()

    def flush(self, seconds: float) -> bool:
        """Store all lines now, and later ones at once; return whether it took at most `seconds`."""
        with self._change:
            self._seconds = _HURRY_SECONDS  # the process is about to end
            for tail in self._tails.values():
                tail.due = 0.0
            self._change.notify_all()
            return self._change.wait_for(lambda: not self._unstored(), seconds)

    def close(self, seconds: float) -> None:
        """Store what is left, at most for `seconds`; never raises."""
        if self._tails:
            self._ended.wait(_LAST_LINES_SECONDS)
        stored = self.flush(seconds)
        with self._change:
            self._closed = True
            self._change.notify_all()
        if not stored:
            log.warning(
                "the end of the log of attempt %d is not stored, %s: the store did not accept it"
                " within %.0f s",
                self._attempt,
                counted(self._unstored(), "line"),
                seconds,
            )

    def _unstored(self) -> int:
        return sum(tail.unstored for tail in self._tails.values())

    def _send(self) -> None:
        while tail := self._next():
            with self._change:
                data, lines = tail.file(), tail.unstored
            try:
                address = self._run.replica_log(self._attempt, tail.name, self._launcher)
                self._store.write(address, data, "application/gzip")
                stored = True
            except StepError as error:
                stored = False
                if not self._told:
                    self._told = True
                    log.warning("the log of %s will be stored later: %s", tail.name, error)
            with self._change:
                tail.busy = False
                if stored:
                    tail.unstored -= lines
                tail.changed, tail.due = tail.unstored > 0, time.monotonic() + self._seconds
                self._change.notify_all()

    def _next(self) -> _Tail | None:
        """Wait for a log that is due; None when the writer is closed."""
        with self._change:
            while not self._closed:
                waiting = [it for it in self._tails.values() if it.changed and not it.busy]
                first = min(waiting, key=lambda tail: tail.due, default=None)
                left = first.due - time.monotonic() if first else None
                if first and left is not None and left <= 0:
                    first.busy = True
                    return first
                self._change.wait(left)
        return None


class RunLogs:
    """Stores the log lines of the attempts of a run, one attempt after the other."""

    def __init__(self, store: Store, run: RunLayout) -> None:
        self._store, self._run = store, run
        self._writer: LogWriter | None = None

    def attempt(self, number: int) -> LogWriter:
        """Return the writer for an attempt; the one before it is closed."""
        self.close()
        self._writer = LogWriter(self._store, self._run, number)
        return self._writer

    def flush(self, seconds: float) -> None:
        """Store all lines now, at most for `seconds`, and later ones at once."""
        if writer := self._writer:
            writer.flush(seconds)

    def close(self) -> None:
        """Store what is left, at most for CLOSING_SECONDS; never raises."""
        if writer := self._writer:
            self._writer = None
            writer.close(CLOSING_SECONDS)

    def __enter__(self) -> RunLogs:
        """Return the logs."""
        return self

    def __exit__(self, *_: object) -> None:
        """Store what is left."""
        self.close()
