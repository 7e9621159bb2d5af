"""Whether a store really lets only one of several conditional creates win."""

from __future__ import annotations

import enum
import uuid
from concurrent.futures import ThreadPoolExecutor

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import ObjectExistsError
from kfp_tfjob.storage.store import Store

# Of stores that look first and write later one lets several win in every second of such races, one
# in every fourth; more races would cost every run more than the warning is worth.
_RACES, _RUNNERS = 4, 6


class Creating(enum.Enum):
    """What a store makes of several conditional creates of one object."""

    ONE_WINS = "one wins"
    RACES = "of those that come at the same moment several win"
    OVERWRITES = "all win: what is there is overwritten"


def probe_creating(store: Store, prefix: S3Address) -> Creating:
    """Create some objects from several threads at once, then once more, and delete them.

    A store that looks whether the object is there, and writes it later, is found out most of
    the time, not always.

    Args:
        store: The store.
        prefix: Where to write.

    Raises:
        StepError: As of `Store.create` and `Store.delete`.
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
