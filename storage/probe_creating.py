"""Tests whether a store lets only one of several conditional creates win."""

from __future__ import annotations

import enum
import uuid
from concurrent.futures import ThreadPoolExecutor

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import ObjectExistsError
from kfp_tfjob.storage.store import Store

# Some stores check first and write later. One of them lets several creates win in half of such
# races, a second in a quarter. More races would cost every run more than the warning is worth.
_RACES, _RUNNERS = 4, 6


class Creating(enum.Enum):
    """What a store does with several conditional creates of one object."""

    ONE_WINS = "one wins"
    RACES = "several win if they arrive at the same moment"
    OVERWRITES = "all win: an existing object is overwritten"


def probe_creating(store: Store, prefix: S3Address) -> Creating:
    """Create some objects from several threads at once, then one again, and delete them.

    The test detects a store that checks first and writes later most of the time, not always.

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

    winners = []
    with ThreadPoolExecutor(_RUNNERS) as pool:
        for number in range(_RACES):
            winners.append(sum(pool.map(wins, [number] * _RUNNERS, range(_RUNNERS))))
        again = wins(0, _RUNNERS)
        list(pool.map(lambda number: store.delete(prefix / f"{name}-{number}"), range(_RACES)))
    if again:
        return Creating.OVERWRITES
    return Creating.RACES if max(winners) > 1 else Creating.ONE_WINS
