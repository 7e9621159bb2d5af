"""Stores an attempt's log lines, while the store may be unreachable.

Each replica's log has one gzip file of lines `<stamp> [<where>] <text>`, limited to its end. The
file is written again when there are new lines. Each launcher writes its own file, because a
successor reads the pods' logs from their start; log_reader.py yields a line once even if several
files contain it. Threads store the files, so no caller waits for the store. Called by the launcher.
"""

from __future__ import annotations

import gzip
import logging
import secrets
import threading
import time
from collections import deque

from kfp_tfjob.common.errors import StepError
from kfp_tfjob.common.formatting import counted
from kfp_tfjob.storage.layout import RunLayout
from kfp_tfjob.storage.store import Store

from .log_lines import LogLine

log = logging.getLogger(__name__)

STORE_SECONDS = 30.0  # between two writes of a file, which stores the whole file again
LIMIT = 8 << 20  # bytes of a file's uncompressed lines: about 100,000 lines
MEMORY = 128 << 20  # bytes of all uncompressed lines of an attempt
CLOSING_SECONDS = 10.0  # for the remaining lines when an attempt has ended
_LEVEL = 1  # of gzip; the launcher shares its core with other runs' steps
_LAST_LINES_SECONDS = 2.0  # for lines that are still on the way from the pods
_SENDERS = 4  # threads, so that one slow write does not delay all replicas
_HURRY_SECONDS = 0.5  # between two writes while the process is about to end


class _Tail:
    """The end of one replica's log, which is kept in memory."""

    def __init__(self) -> None:
        self.lines: deque[bytes] = deque()
        self.size = self.dropped = 0
        self.unstored = 0  # the number of lines that are not in the store yet

    def add(self, line: bytes) -> None:
        self.lines.append(line)
        self.size += len(line)
        self.unstored += 1

    def drop_oldest(self) -> int:
        """Drop the oldest line and return its size in bytes."""
        size = len(self.lines.popleft())
        self.size -= size
        self.dropped += 1
        return size

    def text(self) -> bytes:
        note = f"# {counted(self.dropped, 'earlier line')} not kept\n" if self.dropped else ""
        return b"".join([note.encode(), *self.lines])


class LogWriter:
    """Stores one attempt's lines until it is closed."""

    def __init__(self, store: Store, run: RunLayout, attempt: int) -> None:
        self._store = store.with_patience(0)  # a failed call is repeated in the next round
        self._run, self._attempt = run, attempt
        self._launcher = secrets.token_hex(4)
        self._tails: dict[str, _Tail] = {}
        self._size = 0
        self._change = threading.Condition()
        self._hurry = threading.Event()  # set when the process is about to end, so lines are urgent
        self._ended = threading.Event()
        self._closed = False
        self._failures: dict[type[Exception], Exception] = {}  # the first of each type is logged

    def put(self, line: LogLine) -> None:
        """Store a line soon, without waiting; messages of the kubelet are not stored."""
        if not line.stamp:
            return
        text = f"{line.stamp} [{line.where}] {line.text}\n".encode(errors="replace")
        with self._change:
            if self._closed:
                return
            tail = self._tails.get(line.replica) or self._add_tail(line.replica)
            tail.add(text)
            self._size += len(text)
            while tail.size > LIMIT and len(tail.lines) > 1:
                self._size -= tail.drop_oldest()
            while self._size > MEMORY:
                longest = max(self._tails.values(), key=lambda tail: tail.size)
                self._size -= longest.drop_oldest()

    def _add_tail(self, replica: str) -> _Tail:
        """Add a replica's log; the first one starts the threads."""
        if not self._tails:
            for number in range(_SENDERS):
                threading.Thread(
                    target=self._send, args=(number,), name="store logs", daemon=True
                ).start()
        return self._tails.setdefault(replica, _Tail())

    def end(self) -> None:
        """Signal that `put` is not called any more."""
        self._ended.set()

    def flush(self, seconds: float) -> bool:
        """Store all lines now and later ones at once; return False if `seconds` did not suffice."""
        self._hurry.set()
        with self._change:
            return self._change.wait_for(lambda: not self._unstored(), seconds)

    def close(self, seconds: float) -> None:
        """Store the remaining lines, for at most `seconds`; never raises."""
        if self._tails:
            self._ended.wait(_LAST_LINES_SECONDS)
        stored = self.flush(seconds)
        with self._change:
            self._closed = True
        if not stored:
            log.warning(
                "the end of attempt %d's log was not stored within %.0f s (%s): %s",
                self._attempt,
                seconds,
                counted(self._unstored(), "line"),
                "; ".join(map(str, self._failures.values())) or "the store is slow",
            )

    def _unstored(self) -> int:
        return sum(tail.unstored for tail in self._tails.values())

    def _send(self, number: int) -> None:
        """Store the new lines of every _SENDERS-th replica until the writer is closed.

        An error is logged and does not end this thread, because no caller would notice its end.
        """
        while not self._closed:
            hurries = self._hurry.wait(STORE_SECONDS)
            with self._change:
                tails = list(self._tails.items())[number::_SENDERS]
            for replica, tail in tails:
                try:
                    self._store_tail(replica, tail)
                except Exception as error:
                    self._warn(replica, error)
            if hurries:
                time.sleep(_HURRY_SECONDS)

    def _store_tail(self, replica: str, tail: _Tail) -> None:
        with self._change:
            content, lines = tail.text(), tail.unstored
        if not lines:
            return
        address = self._run.replica_log(self._attempt, replica, self._launcher)
        compressed = gzip.compress(content, _LEVEL, mtime=0)
        self._store.write(address, compressed, "application/gzip")
        with self._change:
            tail.unstored -= lines  # not 0, because lines may have been added meanwhile
            self._change.notify_all()

    def _warn(self, replica: str, error: Exception) -> None:
        if type(error) in self._failures:
            return
        self._failures[type(error)] = error
        is_bug = not isinstance(error, StepError)
        log.warning("the log of %s will be stored later: %s", replica, error, exc_info=is_bug)


class RunLogs:
    """Stores the log lines of a run's attempts, one attempt after the other."""

    def __init__(self, store: Store, run: RunLayout) -> None:
        self._store, self._run = store, run
        self._writer: LogWriter | None = None

    def attempt(self, number: int) -> LogWriter:
        """Return the writer for an attempt, after closing the previous attempt's."""
        self.close()
        self._writer = LogWriter(self._store, self._run, number)
        return self._writer

    def flush(self, seconds: float) -> None:
        """Store all lines now, for at most `seconds`, and later ones at once."""
        if writer := self._writer:
            writer.flush(seconds)

    def close(self) -> None:
        """Store the remaining lines, for at most CLOSING_SECONDS; never raises."""
        if writer := self._writer:
            self._writer = None
            writer.close(CLOSING_SECONDS)

    def __enter__(self) -> RunLogs:
        """Return the logs."""
        return self

    def __exit__(self, *_: object) -> None:
        """Store the remaining lines."""
        self.close()
