"""Keeps a bounded sample of the requests in the store, for `kfp-tfjob monitor`.

All rows of one interval and one version are equally likely to be kept (algorithm R). A separate
thread writes a file when the interval or the server ends, so no request waits for the store. If the
store is unreachable, that sample is lost.

Strings are truncated to 1,000 characters, and at most as many rows are kept as fit into MOST_BYTES
if all strings are that long.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from kfp_tfjob.features.cells import LONGEST
from kfp_tfjob.storage.errors import StepError
from kfp_tfjob.storage.formatting import counted
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store

if TYPE_CHECKING:
    from kfp_tfjob.serving.loaded_model import LoadedModel
    from kfp_tfjob.serving.metrics import Metrics
    from kfp_tfjob.serving.request_columns import Rows

INTERVAL = 60.0  # seconds
MOST_BYTES = 32 << 20  # of the rows in memory, by champion: two while one takes over
_OBJECT = 40  # bytes of a value in memory, without the characters of a string

log = logging.getLogger(__name__)


class Sampler:
    """Collects rows of requests and stores them.

    Args:
        store: The store.
        layout: Where the models are.
        rows: The most rows of an interval.
        left_out: Columns that are not stored; images never are.
        metrics: Counts the rows that were stored.
        interval: In seconds.
    """

    def __init__(
        self,
        store: Store,
        layout: Layout,
        rows: int,
        left_out: Sequence[str],
        metrics: Metrics,
        interval: float = INTERVAL,
    ) -> None:
        self._store, self._layout, self._most = store, layout, rows
        self._left_out, self._metrics, self._interval = frozenset(left_out), metrics, interval
        self._lock = threading.Lock()
        self._reservoirs: dict[int, _Reservoir] = {}  # by the number of the champion
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="sample", daemon=True)

    def start(self) -> None:
        """Store samples from now on, in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Store what is left."""
        self._end.set()
        if self._thread.ident:
            self._thread.join()
        self.flush()

    def add(self, loaded: LoadedModel, rows: Rows, predictions: np.ndarray) -> None:
        """Give the rows of an answered request their chance."""
        now = datetime.now(UTC)
        number = loaded.champion.number
        with self._lock:
            if number not in self._reservoirs:
                self._reservoirs[number] = _Reservoir(loaded, self._most, now, self._kept(loaded))
            for at in range(rows.count):
                self._reservoirs[number].add(rows, at, predictions[at], now)

    def flush(self) -> None:
        """Store what was collected, a file by champion."""
        with self._lock:
            full, self._reservoirs = self._reservoirs, {}
        for reservoir in filter(lambda it: it.rows, full.values()):
            try:
                self._put(reservoir)
            except StepError as error:
                log.warning(
                    "a sample of %s is lost, because %s cannot be written; --sample-rows needs"
                    " permission to write there. %s",
                    counted(len(reservoir.rows), "row"),
                    self._layout.model(reservoir.loaded.model_name).requests,
                    error,
                )
            except Exception:
                log.exception("a sample of requests could not be written")

    def _put(self, reservoir: _Reservoir) -> None:
        from kfp_tfjob.serving import requests_sample

        loaded, types = reservoir.loaded, reservoir.loaded.columns.types
        kept = sorted(reservoir.rows, key=lambda row: row[0])
        columns = {
            name: types[name].sample_column([row[1][at] for row in kept])
            for at, name in enumerate(reservoir.columns)
        }
        champion = loaded.champion
        about = requests_sample.About(
            model=loaded.model_name,
            version=champion.version,
            champion=champion.number,
            schema_digest=champion.schema_digest,
            began=reservoir.began.isoformat(),
            ended=datetime.now(UTC).isoformat(),
            rows=reservoir.seen,
            left_out=tuple(name for name in types if name not in columns),
        )
        requests_sample.put(
            self._store,
            self._layout.model(loaded.model_name),
            columns,
            [row[0] for row in kept],
            [np.atleast_1d(row[2]).tolist() for row in kept],
            about,
        )
        self._metrics.sampled(len(kept))

    def _kept(self, loaded: LoadedModel) -> list[str]:
        """Return the columns to keep of a champion."""
        types = loaded.columns.types
        return [it for it in types if it not in self._left_out and types[it].is_sampled]

    def _loop(self) -> None:
        while not self._end.wait(self._interval):
            self.flush()


class _Reservoir:
    """The rows of one interval and one champion that were kept so far."""

    def __init__(self, loaded: LoadedModel, most: int, began: datetime, columns: list[str]) -> None:
        self.loaded, self.began, self.columns = loaded, began, columns
        places = {name: at for at, name in enumerate(loaded.columns.types)}
        self._places = [places[name] for name in columns]
        texts = sum(pa.types.is_string(loaded.columns.types[it].sample_type) for it in columns)
        row = _OBJECT * (len(columns) + 4) + 4 * LONGEST * texts  # a character has at most 4 bytes
        self._most = max(1, min(most, MOST_BYTES // row))
        self.seen = 0
        # When it came, its values in the order of the columns, and its prediction.
        self.rows: list[tuple[datetime, list[Any], np.ndarray]] = []

    def add(self, rows: Rows, at: int, prediction: np.ndarray, now: datetime) -> None:
        """Give one row of a request its chance."""
        self.seen += 1
        place = len(self.rows) if len(self.rows) < self._most else random.randrange(self.seen)
        if place >= self._most:
            return
        all_values = rows.values(at)
        values = [_shortened(all_values[it]) for it in self._places]
        self.rows[place : place + 1] = [(now, values, prediction.copy())]


def _shortened(value: Any) -> Any:
    """Return a value; of a string, its first characters."""
    if not isinstance(value, bytes) or len(value) <= LONGEST:
        return value
    return value[: 4 * LONGEST].decode(errors="ignore")[:LONGEST].encode()
