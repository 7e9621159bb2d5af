"""Counts sampled requests over the bins of the training data.

The counting is that of prepare_data, so drift means the same here as in its report. A busy minute
has more requests than its sample has rows, so each row counts for as many requests as it stands
for. What is called chance takes that into account: it depends on the effective number of rows
(Kish, "Survey Sampling", 1965).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from heapq import nlargest

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kfp_tfjob.components.prepare_data.columns_to_rows import Converter
from kfp_tfjob.components.prepare_data.distributions import (
    QUANTILE,
    Bins,
    Distributions,
    Drift,
    measure,
)
from kfp_tfjob.components.prepare_data.faults import BlockFaults
from kfp_tfjob.components.prepare_data.kinds import NO_KINDS, Feature
from kfp_tfjob.components.prepare_data.reference import Reference
from kfp_tfjob.components.prepare_data.source.readers.arrow_table import Chunk
from kfp_tfjob.features.cells import LONGEST, Texts
from kfp_tfjob.features.types.base import ColumnType
from kfp_tfjob.options.contract import Contract
from kfp_tfjob.serving.requests_sample import RequestsSample
from kfp_tfjob.storage.champion import Champion
from kfp_tfjob.storage.errors import DataError

_TRAIN = "train"
FEWEST_ROWS = 100  # with fewer, drift is not reported
_MOST_EXAMPLES = 5
_MOST_TEXTS = 10_000  # new categories of a column that are counted one by one, for the examples


@dataclass(frozen=True)
class ColumnDrift:
    """A column in the requests and in train.

    Attributes:
        name: The column.
        kind: number, boolean, date, category or text.
        rows: The sampled rows that have the column, missing values too.
        psi: The population stability index.
        chance: Whether so few rows may differ so much by chance.
        gaps_before: The share of missing values in train.
        gaps_now: The share of missing values in the requests.
        unseen: The share of the requests with a category that train does not have.
        examples: Such categories, the most frequent first.
        beyond: The limits that the column is beyond: `psi`, `gaps`, `unseen`.
    """

    name: str
    kind: str
    rows: int
    psi: float
    chance: bool
    gaps_before: float
    gaps_now: float
    unseen: float = 0.0
    examples: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()


@dataclass(frozen=True)
class Monitored:
    """What the requests say.

    Attributes:
        model_name: The model.
        version: The version that answered the requests.
        run_id: The run that trained it.
        since: The beginning of the time that was looked at, ISO 8601, UTC.
        until: Its end.
        files: The samples that were read.
        rows: Their rows in that time.
        requested: The rows of all requests that they stand for.
        columns: The columns, those that have moved most first.
        left_out: Features that no sample has.
        bad_rows: Rows with values that are not of the kind of their columns.
        unreadable: Samples that could not be read, and why.
        judged: Whether there were rows enough.
    """

    model_name: str
    version: int
    run_id: str
    since: str
    until: str
    files: int
    rows: int
    requested: int
    columns: tuple[ColumnDrift, ...]
    left_out: tuple[str, ...] = ()
    bad_rows: int = 0
    unreadable: tuple[str, ...] = ()
    judged: bool = True

    @property
    def moved(self) -> tuple[ColumnDrift, ...]:
        """The columns that are beyond a limit."""
        return tuple(column for column in self.columns if column.beyond)


@dataclass
class _Column:
    """The counts of one column.

    Attributes:
        bins: The bins of train.
        counts: float64 of shape [1 + bins], requests by bin, missing values first.
        rows: The sampled rows.
        requests: The requests that they stand for.
        squares: The sum over the rows of the square of the requests that each stands for.
        unseen: The requests with a category that train does not have.
        texts: The same by category, of the first ones.
    """

    bins: Bins
    counts: np.ndarray
    rows: int = 0
    requests: float = 0.0
    squares: float = 0.0
    unseen: float = 0.0
    texts: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @classmethod
    def of(cls, bins: Bins) -> _Column:
        return cls(bins, np.zeros(1 + bins.count))

    def add(self, values: np.ndarray, weight: float) -> None:
        """Add values as they are in the shards, each of which stands for `weight` requests."""
        self.counts += weight * self.bins.counted(values)
        self.rows += len(values)
        self.requests += weight * len(values)
        self.squares += weight * weight * len(values)

    def add_unseen(self, text: str, requests: float) -> None:
        """Count requests with a category that train does not have."""
        self.unseen += requests
        if text in self.texts or len(self.texts) < _MOST_TEXTS:
            self.texts[text] += requests

    @property
    def effective(self) -> float:
        """The rows of a sample with equal weights that would say as much."""
        return self.requests**2 / self.squares if self.squares else 0.0

    @property
    def scaled(self) -> list[float]:
        """The counts as if all rows had equal weights."""
        return (self.counts * (self.effective / self.requests)).tolist() if self.rows else []

    def share(self, requests: float) -> float:
        """Return a number of requests as a share of all."""
        return requests / self.requests if self.requests else 0.0

    def at_least(self, share: float) -> float:
        """Return what a share of the requests surely is, however the sample fell."""
        if not self.effective:
            return 0.0
        return share - QUANTILE * math.sqrt(share * (1 - share) / self.effective)


class RequestCounts:
    """Collects the requests.

    Args:
        trained: The training data.
        limits: When a column has moved too far.
    """

    def __init__(self, trained: Reference, limits: Contract) -> None:
        self.trained, self.limits = trained, limits
        self.files = self.rows = self.bad_rows = 0
        self.requested = 0.0
        self.unreadable: list[str] = []
        coding = trained.schema.encoding
        self._features = {it.name: it for it in coding.features}
        assert trained.distributions  # monitor rejects training data without them
        self._trained = trained.distributions
        over = Distributions.of_file(self._trained, coding)
        self._columns = {bins.name: _Column.of(bins) for bins in over.columns}
        self._codes = {
            it.name: {text: code for code, text in enumerate(it.strings, 1)}
            for it in coding.features
            if it.has_dictionary
        }
        self._converter = Converter(NO_KINDS, "")

    def add(self, sample: RequestsSample, since: datetime, until: datetime) -> None:
        """Add the rows of a file that came in the time; a file of other columns is unreadable."""
        about = sample.about
        name = f"the sample of {about.began}"
        if about.schema_digest != self.trained.schema.schema_digest:
            self.unreadable.append(f"{name} has the columns of another schema")
            return
        times = sample.times.cast(pa.int64()).to_numpy(zero_copy_only=False)
        wanted = (times >= _microseconds(since)) & (times < _microseconds(until))
        if not wanted.any():
            return
        mask = pa.array(wanted)
        weight = about.rows / sample.rows
        try:
            self._add_columns(
                {key: column.filter(mask) for key, column in sample.columns.items()},
                int(wanted.sum()),
                weight,
                name,
            )
        except DataError as error:
            self.unreadable.append(str(error))
            return
        self.files += 1
        self.rows += int(wanted.sum())
        self.requested += weight * int(wanted.sum())

    def _add_columns(
        self, columns: Mapping[str, pa.Array], rows: int, weight: float, name: str
    ) -> None:
        found = {}
        there = {key: _read(it) for key, it in columns.items() if key in self._columns}
        chunk = Chunk(there, BlockFaults(name, np.arange(rows)), 0)
        for key in there:
            coded = self._features[key]
            found[key] = self._converter.column(chunk, Feature(key, coded.kind, None, 0))
        good = chunk.faults.good
        self.bad_rows += rows - int(good.sum())
        for key, values in found.items():
            column = self._columns[key]
            if isinstance(values, Texts):
                values = self._coded(self._features[key], values, good, weight)
            else:
                values = values.astype(column.bins.type.field.type)
            column.add(np.ascontiguousarray(values[good]), weight)

    def _coded(
        self, coded: ColumnType, texts: Texts, good: np.ndarray, weight: float
    ) -> np.ndarray:
        """Return strings by the codes of train; a new string has the code after the last one."""
        if not coded.has_dictionary:
            return texts.codes
        known = self._codes[coded.name]
        new = len(known) + 1
        codes = np.array([0, *(known.get(text, new) for text in texts.texts)], np.int64)
        unseen = np.flatnonzero(codes == new)
        if len(unseen):
            rows = np.bincount(texts.codes[good], minlength=len(codes))
            column = self._columns[coded.name]
            for at in unseen[rows[unseen] > 0].tolist():
                column.add_unseen(texts.texts[at - 1], weight * int(rows[at]))
        return codes[texts.codes]

    def result(
        self, model_name: str, champion: Champion, since: datetime, until: datetime
    ) -> Monitored:
        """Return what was found."""
        before = self._trained.by_name
        judged = self.rows >= FEWEST_ROWS
        columns = []
        for name, column in self._columns.items():
            counts = before[name].rows(_TRAIN)
            if (drift := _moved(counts, column)) is not None:
                gaps = counts[0] / max(sum(counts), 1)
                columns.append(self._column(name, drift, column, gaps, judged))
        columns.sort(key=lambda it: (not it.beyond, it.chance, -it.psi))
        return Monitored(
            model_name,
            champion.version,
            champion.run_id,
            shown(since),
            shown(until),
            self.files,
            self.rows,
            round(self.requested),
            tuple(columns),
            tuple(name for name, column in self._columns.items() if not column.rows),
            self.bad_rows,
            tuple(self.unreadable),
            judged,
        )

    def _column(
        self, name: str, drift: Drift, column: _Column, gaps: float, judged: bool
    ) -> ColumnDrift:
        limits, now = self.limits, column.share(float(column.counts[0]))
        unseen = column.share(column.unseen)
        beyond = {
            "psi": limits.max_psi is not None
            and not column.bins.type.moves_on
            and drift.psi > limits.max_psi
            and not drift.is_chance,
            "gaps": limits.max_gap_rise is not None
            and column.at_least(now) - gaps > limits.max_gap_rise,
            "unseen": limits.max_unseen is not None and column.at_least(unseen) > limits.max_unseen,
        }
        if not judged or name in limits.ignore:
            beyond = {}
        return ColumnDrift(
            name,
            column.bins.kind,
            column.rows,
            drift.psi,
            drift.is_chance,
            gaps,
            now,
            unseen,
            tuple(nlargest(_MOST_EXAMPLES, column.texts, key=column.texts.__getitem__)),
            tuple(key for key, is_beyond in beyond.items() if is_beyond),
        )


def _read(column: pa.Array) -> pa.Array:
    """Return a column with the first characters of strings: train has no longer ones."""
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), pa.string())
    if pa.types.is_string(column.type):
        return pc.utf8_slice_codeunits(column, 0, LONGEST)
    return column


def _moved(before: Sequence[float], column: _Column) -> Drift | None:
    return measure(before, column.scaled) if column.rows else None


def _microseconds(time: datetime) -> int:
    return int(time.timestamp() * 1_000_000)


def shown(time: datetime) -> str:
    """Return a time as ISO 8601, UTC."""
    return time.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
