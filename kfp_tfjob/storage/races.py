"""Lets several clients create one object at once, and counts how many succeed.

Exactly one should. A store that looks for the object first and writes later passes a test with one
create after the other, and loses some of these races: versitygw 1.2.0 about one in six. A race
usually takes milliseconds, so there are several. In SeaweedFS 4.48 it takes seconds, because its
clients wait for each other in steps of a second, so there is only one. Called by the check of a
store.
"""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from kfp_tfjob.common.errors import ObjectExistsError

from .address import S3Address
from .body import Body
from .store import Store

CREATORS = 8  # at once; each is a thread, and fewer meet less often
# No race starts later than this many seconds after the first: the user waits for the test.
_SECONDS = 0.2
_MOST_RACES = 24  # a store that loses one race in six passes all of these once in 80 times


def most_winners(store: Store, prefix: S3Address) -> int:
    """Return the highest number of successful creates of one object, over several races.

    A correct store has 1. Zero is possible if the reply to the successful create was lost.

    Args:
        store: The store.
        prefix: The folder of the test objects, which are deleted again.

    Raises:
        StoreUnavailableError: The store does not respond.
    """
    start = Barrier(CREATORS)

    def create(address: S3Address, creator: int) -> bool:
        data = b"%d" % creator
        parameters = {**store.session.settings.parameters, "IfNoneMatch": "*"}
        start.wait()  # the requests must meet in the store, so no thread may begin early
        try:
            store.session.put(f"write {address}", address, Body(data, len(data)), parameters)
        except ObjectExistsError:
            return False  # the expected reply to all but one
        return True

    addresses: list[S3Address] = []
    most = 0
    with ThreadPoolExecutor(CREATORS) as pool:
        try:
            end = time.monotonic() + _SECONDS
            while most < 2 and len(addresses) < _MOST_RACES:
                addresses.append(prefix / f".probe-{uuid.uuid4().hex[:8]}")
                winners = pool.map(create, addresses[-1:] * CREATORS, range(CREATORS))
                most = max(most, sum(winners))
                if time.monotonic() > end:
                    break
        finally:
            list(pool.map(store.delete, addresses))
    return most
