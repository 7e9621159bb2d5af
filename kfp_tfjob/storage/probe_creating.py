"""Tests whether a store lets only one of several conditional creates win."""

from __future__ import annotations

import enum
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.body import Body
from kfp_tfjob.storage.errors import ObjectExistsError
from kfp_tfjob.storage.store import Store

# Stores that check first and write later are found by two creates that overlap for certain. A
# store behind a proxy that collects whole requests may be found only by chance, in a race.
_RACES, _RUNNERS = 4, 6
_SIZE = 64 << 10  # bytes; the first half must leave this machine before the second
_MOMENT = 0.05  # seconds in which a store reads the head of a request that has arrived
# Seconds for the create in between, beside those of a race. A store may be right to make it wait.
_TURN = 0.2
_LONGEST = 10.0  # seconds until the second half is sent in any case


class Creating(enum.Enum):
    """What a store does with several conditional creates of one object."""

    ONE_WINS = "one wins"
    RACES = "several win if they arrive at the same moment"
    OVERWRITES = "all win: an existing object is overwritten"


class _Held(Body):
    """A body whose second half waits until it may be sent."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data, len(data))
        self.halfway, self.released = Event(), Event()

    def chunks(self, buffer: bytearray) -> Iterator[bytes | memoryview]:
        """Yield the first half, and when it may be sent the second."""
        for chunk in super().chunks(buffer):
            middle = len(chunk) // 2
            yield chunk[:middle]
            self._wait()
            yield chunk[middle:]

    def readinto(self, buffer: memoryview) -> int:
        """Read the next bytes, for boto3; those of the second half when they may be sent."""
        if 0 < self.tell() >= self.size // 2:
            self._wait()
        return super().readinto(memoryview(buffer)[: self.size // 2])

    def _wait(self) -> None:
        self.halfway.set()
        self.released.wait(_LONGEST)


def probe_creating(store: Store, prefix: S3Address) -> Creating:
    """Create some objects, each several times at once, then one again, and delete them.

    Args:
        store: The store.
        prefix: Where to write.

    Raises:
        StepError: See `Store.create` and `Store.delete`.
    """
    name = f".probe-{uuid.uuid4().hex[:8]}"

    def wins(number: int, runner: int) -> bool:
        try:
            store.create(prefix / f"{name}-{number}", f"{runner}\n".encode())
        except ObjectExistsError:
            return False
        return True

    with ThreadPoolExecutor(_RUNNERS) as pool:
        began, winners = time.monotonic(), []
        for number in range(_RACES):
            winners.append(sum(pool.map(wins, [number] * _RUNNERS, range(_RUNNERS))))
        turn = _TURN + (time.monotonic() - began) / _RACES
        winners.append(_overlapping(store, prefix / f"{name}-{_RACES}", pool, turn))
        again = wins(0, _RUNNERS)
        made = (prefix / f"{name}-{number}" for number in range(_RACES + 1))
        list(pool.map(store.delete, made))
    if again:
        return Creating.OVERWRITES
    return Creating.RACES if max(winners) > 1 else Creating.ONE_WINS


def _overlapping(store: Store, address: S3Address, pool: ThreadPoolExecutor, turn: float) -> int:
    """Create an object while another create of it is on its way; return how many succeed."""
    held, between = _Held(b"1" * _SIZE), Body(b"2", 1)
    first = pool.submit(_wins, store, address, held)
    held.halfway.wait(_LONGEST)
    time.sleep(_MOMENT)
    second = pool.submit(_wins, store, address, between)
    wait([second], turn)
    held.released.set()
    return sum(found.result() for found in (first, second))


def _wins(store: Store, address: S3Address, body: Body) -> bool:
    parameters = {**store.session.options.parameters_for(address), "IfNoneMatch": "*"}
    try:
        store.session.put(f"write {address}", address, body, parameters)
    except ObjectExistsError:
        return False
    return True
