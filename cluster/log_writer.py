"""Stores the log lines of an attempt in parts, while the store may be unreachable.

The lines of a replica are packed into parts (log_buffer.py), at most every PART_SECONDS unless a
part is full before. One thread packs; others send. No caller waits for the store: what it has not
taken yet stays in memory, up to MEMORY_BYTES, and then the oldest parts are lost.

A part is only created, never changed. If its number is taken, a different launcher has stored it.
Then the last stored part tells how far every stream was read, and this launcher continues there
with the lines that are new. So a launcher need not know whether it is the first: a successor, and
one whose predecessor still writes, store every line once.

A replica keeps at most LIMIT bytes of text: the first half, and the end. Of a longer log, parts
from the middle are deleted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence

from kfp_tfjob.cluster.log_buffer import CHUNK, FIRST_PAUSE, ReplicaLog
from kfp_tfjob.cluster.log_lines import LogLine
from kfp_tfjob.cluster.log_parts import LONGEST, Place, read
from kfp_tfjob.storage.errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    StepError,
    StoreUnavailableError,
)
from kfp_tfjob.storage.layout import RunLayout, log_part
from kfp_tfjob.storage.store import Store
from kfp_tfjob.storage.words import counted, sized

log = logging.getLogger(__name__)

PART_SECONDS = 30.0
LIMIT = 50 << 20  # bytes of text that a replica keeps
HEAD = LIMIT // 2
CLOSING_SECONDS = 10.0  # for the lines that are left when an attempt has ended
MEMORY_BYTES = 64 << 20  # compressed lines that the store has not taken yet
_WAITING_LINES = 100_000  # not packed yet; a caller who is faster waits for the processor
_LAST_LINES_SECONDS = 2.0
_TICK = 0.5
_SENDERS = 4
_LONGEST_PAUSE = 30.0


class LogWriter:
    """Stores the lines of one attempt until it is closed.

    Args:
        store: The store.
        run: The run.
        attempt: The number of the attempt.
    """

    def __init__(self, store: Store, run: RunLayout, attempt: int) -> None:
        # A sender repeats a call itself, and lets other replicas go first.
        self._store, self._run, self._attempt = store.within(0), run, attempt
        self._replicas: dict[str, ReplicaLog] = {}
        self._by_name: dict[str, ReplicaLog] = {}  # by the name in brackets
        self._change = threading.Condition()
        self._waiting = 0
        self._flushing = 0
        self._closed = self._told = False
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    def put(self, line: LogLine) -> None:
        """Store a line soon; messages of the kubelet are not stored."""
        if not line.stamp:
            return
        with self._change:
            replica = self._by_name.get(line.where)
            if replica is None:
                replica = self._new(line)
            if self._waiting >= _WAITING_LINES:
                self._change.wait_for(lambda: self._waiting < _WAITING_LINES or self._closed)
            if not self._closed:
                replica.raw.append(line)
                self._waiting += 1

    def _new(self, line: LogLine) -> ReplicaLog:
        if not self._threads and not self._closed:
            self._start()
        replica = self._replicas.setdefault(line.replica, ReplicaLog(line.replica))
        self._by_name[line.where] = replica
        return replica

    def end(self) -> None:
        """Say that no more lines come."""
        self._ended.set()

    def hurry(self) -> None:
        """Store every line at once from now on: the process is about to be killed."""
        with self._change:
            self._flushing += 1
            self._change.notify_all()

    def flush(self, seconds: float) -> bool:
        """Store all lines now; return whether that took less than `seconds`."""
        with self._change:
            self._flushing += 1
            for replica in self._replicas.values():
                replica.retry_at = 0.0
            self._change.notify_all()
            stored = self._change.wait_for(lambda: not any(self._unstored()), seconds)
            self._flushing -= 1
            return stored

    def close(self, seconds: float) -> None:
        """Store what is left, at most for `seconds`; never raises."""
        if self._threads:
            self._ended.wait(_LAST_LINES_SECONDS)
        stored = self.flush(seconds)
        with self._change:
            self._closed = True
            self._change.notify_all()
            lost = sum(self._unstored())
        if not stored:
            log.warning(
                "the end of the log of attempt %d is not stored, %s: the store did not take it"
                " within %.0f s",
                self._attempt,
                counted(lost, "line"),
                seconds,
            )

    def _start(self) -> None:
        self._threads = [threading.Thread(target=self._pack, name="pack logs", daemon=True)]
        self._threads += [
            threading.Thread(target=self._send, name="store logs", daemon=True)
            for _ in range(_SENDERS)
        ]
        for thread in self._threads:
            thread.start()

    def _unstored(self) -> list[int]:
        """Return the number of lines that each replica has not stored."""
        return [replica.unstored for replica in self._replicas.values()]

    def _has_to_cut(self) -> bool:
        """Tell whether lines have to go to the store before their part is full."""
        replicas = self._replicas.values()
        return self._flushing > 0 and any(
            not replica.ready and (replica.raw or replica.open) for replica in replicas
        )

    def _pack(self) -> None:
        try:
            self._pack_until_closed()
        except Exception:
            log.exception("stopped storing the log of attempt %d", self._attempt)
            with self._change:
                self._closed = True  # the training and its launcher do not depend on it
                self._change.notify_all()

    def _pack_until_closed(self) -> None:
        """Pack the lines that have arrived, every now and then."""
        while not self._closed:
            with self._change:
                self._change.wait_for(
                    lambda: self._closed or self._waiting > CHUNK or self._has_to_cut(), _TICK
                )
                replicas = list(self._replicas.values())
            for replica in replicas:
                with replica.packing:
                    with self._change:
                        lines, replica.raw = replica.raw, []
                        replica.unpacked = len(lines)
                        self._waiting -= len(lines)
                        self._change.notify_all()
                    replica.pack(lines)
                    replica.unpacked = 0
                    idle = self._flushing > 0 and not replica.ready
                    if replica.open and (idle or replica.age >= PART_SECONDS):
                        replica.cut()
            self._lose_the_oldest(replicas)
            with self._change:
                self._change.notify_all()

    def _lose_the_oldest(self, replicas: Sequence[ReplicaLog]) -> None:
        """Keep the memory within its limit while the store is unreachable."""
        while sum(replica.held for replica in replicas) > MEMORY_BYTES:
            most = max(replicas, key=lambda replica: replica.held)
            with most.packing:
                if not most.lose_oldest():
                    return
            if not self._told:
                self._told = True
                log.warning(
                    "the store has been unreachable for too long: log lines of %s that do not fit"
                    " into %s of memory are lost",
                    most.name,
                    sized(MEMORY_BYTES),
                )

    def _send(self) -> None:
        while replica := self._next():
            try:
                self._send_part(replica)
                replica.pause = FIRST_PAUSE
            except StepError as error:
                longest = FIRST_PAUSE if self._flushing else _LONGEST_PAUSE
                replica.retry_at = time.monotonic() + min(replica.pause, longest)
                replica.pause = min(2 * replica.pause, _LONGEST_PAUSE)
                if not self._told or not isinstance(error, StoreUnavailableError):
                    self._told = True
                    log.warning("the log of %s will be stored later: %s", replica.name, error)
            finally:
                with self._change:
                    replica.busy = False
                    self._change.notify_all()

    def _next(self) -> ReplicaLog | None:
        """Wait for a replica with a part to send; None when the writer is closed."""
        with self._change:
            while not self._closed:
                now = time.monotonic()
                due = [r for r in self._replicas.values() if r.ready and not r.busy]
                found = min(due, key=lambda replica: replica.retry_at, default=None)
                if found and found.retry_at <= now:
                    found.busy = True
                    return found
                self._change.wait(found.retry_at - now if found else None)
        return None

    def _send_part(self, replica: ReplicaLog) -> None:
        with replica.packing:
            if not replica.ready:
                return  # it was lost in this moment
            part = replica.sending = replica.ready[0]
        begin = replica.end.plus(part.gap)
        end = begin.plus(part.count)
        in_head = not replica.tail and end.bytes <= HEAD
        head = (replica.number, end.bytes) if in_head else replica.head
        address = self._run.log_part(self._attempt, replica.name, replica.number)
        try:
            self._store.create(address, part.at(begin, head), "application/gzip")
        except ObjectExistsError:
            self._continue(replica)
            return
        with replica.packing:
            replica.ready.popleft()
            replica.sending, replica.stored = None, part.streams
        if not in_head:
            replica.tail.append((replica.number, begin.bytes))
        replica.head, replica.end = head, end
        replica.number += 1
        self._delete_the_middle(replica)

    def _continue(self, replica: ReplicaLog) -> None:
        """Continue after the last part that a different launcher has stored."""
        parts = self._run.replica_log(self._attempt, replica.name)
        listed = (log_part(it.address.name) for it in self._store.list(parts))
        # The part with this number exists, even if the listing of a busy store lacks it still.
        numbers = sorted({replica.number, *filter(None, listed)})
        place = self._place(replica, numbers[-1])
        log.info("the log of %s is already stored up to part %d", replica.name, numbers[-1])
        with replica.packing:
            replica.continue_after(place)
        with self._change:
            self._change.notify_all()
        replica.number, replica.end, replica.head = numbers[-1] + 1, place.end, place.head
        replica.tail = deque((number, None) for number in numbers if number > place.head[0])

    def _place(self, replica: ReplicaLog, number: int) -> Place:
        address = self._run.log_part(self._attempt, replica.name, number)
        return read(self._store.read(address, LONGEST), address)[1]

    def _delete_the_middle(self, replica: ReplicaLog) -> None:
        while replica.deletes and len(replica.tail) > 1:
            number, begin = replica.tail[0]
            try:
                if begin is None:
                    begin = self._place(replica, number).begin.bytes
                    replica.tail[0] = (number, begin)
                if replica.head[1] + replica.end.bytes - begin <= LIMIT:
                    return
                self._store.delete(self._run.log_part(self._attempt, replica.name, number))
            except ObjectNotFoundError:
                pass  # a different launcher was faster
            except StoreUnavailableError:
                return  # after the next part
            except StepError as error:
                replica.deletes = False
                log.warning("the log of %s is kept whole: %s", replica.name, error)
                return
            replica.tail.popleft()


class RunLogs:
    """Stores the log lines of the attempts of a run, one attempt after the other.

    Args:
        store: The store.
        run: The run.
    """

    def __init__(self, store: Store, run: RunLayout) -> None:
        self._store, self._run = store, run
        self._writer: LogWriter | None = None

    def attempt(self, number: int) -> LogWriter:
        """Return the writer for an attempt; the one before it is closed."""
        self.close()
        self._writer = LogWriter(self._store, self._run, number)
        return self._writer

    def hurry(self) -> None:
        """Store every line at once from now on: the process is about to be killed."""
        if writer := self._writer:
            writer.hurry()

    def flush(self, seconds: float) -> None:
        """Store all lines now, at most for `seconds`."""
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
