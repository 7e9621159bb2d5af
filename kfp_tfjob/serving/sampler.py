"""Stores a random sample of the requests, for `kfp-tfjob monitor`.

All rows of one interval and one version are equally likely to be sampled (algorithm R). A separate
thread writes a file when the interval or the server ends, so that no request waits for the store.
If the store is unreachable, that sample is lost.

Strings are truncated to 1,000 characters, except those of a type that allows longer ones. A sample
has at most as many rows as fit into MOST_BYTES if all truncated strings are that long. Longer ones
are counted; if there are too many bytes, random rows are removed, and the sample stays that small.
So memory does not depend on the requests. Called by protocol.py for every answered request.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from kfp_tfjob.common.errors import StepError
from kfp_tfjob.common.formatting import counted
from kfp_tfjob.features.cells import LONGEST
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store

if TYPE_CHECKING:
    from .loaded_model import LoadedModel
    from .metrics import Metrics
    from .request_columns import Rows

INTERVAL = 60.0  # seconds that a file covers, and the most that a killed server loses
MOST_BYTES = 32 << 20  # of a champion's rows in memory; while it is replaced, there are two
_BYTES_OF_OBJECT = 40  # a Python object in memory, without the characters of a string

log = logging.getLogger(__name__)


class Sampler:
    """Collects rows of requests and stores them.

    Args:
        store: The store.
        layout: The addresses of models.
        rows: The most rows in one interval.
        left_out: Columns that are not stored; images are never stored.
        metrics: Counts the stored rows.
        interval: The time between two files, in seconds.
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
        self._store, self._layout, self._most_rows = store, layout, rows
        self._left_out, self._metrics, self._interval = frozenset(left_out), metrics, interval
        self._lock = threading.Lock()
        self._reservoirs: dict[int, _Reservoir] = {}  # by the number of the champion
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="sample", daemon=True)

    def start(self) -> None:
        """Start the thread that stores a sample after each interval."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and store the last sample."""
        self._end.set()
        if self._thread.ident:
            self._thread.join()
        self.flush()

    def add(self, loaded: LoadedModel, rows: Rows, predictions: np.ndarray) -> None:
        """Offer the rows of an answered request to the sample."""
        now = datetime.now(UTC)
        number = loaded.champion.number
        with self._lock:
            if number not in self._reservoirs:
                self._reservoirs[number] = _Reservoir(
                    loaded, self._most_rows, now, self._sampled_columns(loaded)
                )
            for index in range(rows.count):
                self._reservoirs[number].add(rows, index, predictions[index], now)

    def flush(self) -> None:
        """Store the collected rows, one file for each champion."""
        with self._lock:
            full, self._reservoirs = self._reservoirs, {}
        for reservoir in filter(lambda reservoir: reservoir.rows, full.values()):
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
        from . import requests_sample

        loaded, types = reservoir.loaded, reservoir.loaded.columns.types
        sampled_rows = sorted(reservoir.rows, key=lambda row: row.time)
        columns = {
            name: types[name].sample_column([row.values[index] for row in sampled_rows])
            for index, name in enumerate(reservoir.columns)
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
            [row.time for row in sampled_rows],
            [np.atleast_1d(row.prediction).tolist() for row in sampled_rows],
            about,
        )
        self._metrics.sampled(len(sampled_rows))

    def _sampled_columns(self, loaded: LoadedModel) -> list[str]:
        """Return the columns of a champion that are stored."""
        types = loaded.columns.types
        return [name for name in types if name not in self._left_out and types[name].is_sampled]

    def _loop(self) -> None:
        while not self._end.wait(self._interval):
            self.flush()


class _SampledRow(NamedTuple):
    """The time of a row's request, the row's values in the order of the columns, the prediction."""

    time: datetime
    values: list[Any]
    prediction: np.ndarray


class _Reservoir:
    """The sampled rows of one interval and one champion."""

    def __init__(
        self, loaded: LoadedModel, most_rows: int, began: datetime, columns: list[str]
    ) -> None:
        self.loaded, self.began, self.columns = loaded, began, columns
        types = loaded.columns.types
        index_of_column = {name: index for index, name in enumerate(types)}
        self._column_indices = [index_of_column[name] for name in columns]
        self._long_columns = [
            position for position, name in enumerate(columns) if types[name].most_bytes
        ]
        string_columns = sum(
            pa.types.is_string(types[name].sample_type) and not types[name].most_bytes
            for name in columns
        )
        row_bytes = (
            _BYTES_OF_OBJECT * (len(columns) + 4) + 4 * LONGEST * string_columns
        )  # a character has at most 4 bytes
        self._most_rows = max(1, min(most_rows, MOST_BYTES // row_bytes))
        self.seen = 0
        self._long_bytes = 0  # of the strings that are not truncated
        self.rows: list[_SampledRow] = []

    def add(self, rows: Rows, index: int, prediction: np.ndarray, now: datetime) -> None:
        """Offer one row of a request to the sample."""
        self.seen += 1
        slot = len(self.rows) if len(self.rows) < self._most_rows else random.randrange(self.seen)
        if slot >= self._most_rows:
            return
        all_values = rows.values(index)
        values = [
            value if position in self._long_columns else _truncate_string(value)
            for position, value in enumerate(map(all_values.__getitem__, self._column_indices))
        ]
        self._long_bytes += self._size(values) - sum(
            self._size(row.values) for row in self.rows[slot : slot + 1]
        )
        # A copy, because the prediction may be a view of a whole batch, which would stay in memory.
        self.rows[slot : slot + 1] = [_SampledRow(now, values, prediction.copy())]
        while self._long_bytes > MOST_BYTES and len(self.rows) > 1:
            removed = self.rows.pop(random.randrange(len(self.rows)))
            self._long_bytes -= self._size(removed.values)
            self._most_rows = len(self.rows)

    def _size(self, values: list[Any]) -> int:
        """Return the bytes of a row's strings that are not truncated."""
        return sum(len(values[position]) for position in self._long_columns)


def _truncate_string(value: Any) -> Any:
    """Return a value; UTF-8 strings are truncated to LONGEST characters."""
    if not isinstance(value, bytes) or len(value) <= LONGEST:
        return value
    return value[: 4 * LONGEST].decode(errors="ignore")[:LONGEST].encode()
