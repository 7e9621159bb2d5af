"""Counts sampled requests over the bins of the training data.

The code of prepare_data counts them, so drift means the same here as in its report. A busy minute
has more requests than its sample has rows, so each row's weight is the number of requests that it
represents. Whether drift may be chance depends on the effective sample size (Kish, "Survey
Sampling", 1965). Called by monitor.py.
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

from kfp_tfjob.common.errors import DataError
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
from kfp_tfjob.options.data_contract import Contract
from kfp_tfjob.registry.champion import Champion

from .requests_sample import RequestsSample

_TRAIN = "train"
FEWEST_ROWS = 100  # with fewer, chance alone exceeds the limits, so none is checked
_MOST_EXAMPLES = 5  # new categories of a column that the report shows
_MOST_TEXTS = 10_000  # new categories of a column that are counted one by one, for the examples


@dataclass(frozen=True)
class ColumnDrift:
    """The drift of a column between train and the requests.

    Attributes:
        name: The column.
        kind: The column type: number, boolean, date, category, text or words.
        rows: The sampled rows with the column, including missing values.
        psi: The population stability index.
        chance: Whether so few rows may differ so much by chance.
        gaps_before: The share of missing values in train.
        gaps_now: The share of missing values in the requests.
        unseen: The share of the requests with a category that train does not have.
        examples: Such categories, the most frequent first.
        beyond: The limits that the column exceeds: `psi`, `gaps`, `unseen`.
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
    """The drift of all columns in a period.

    Attributes:
        model_name: The model.
        version: The version that answered the requests.
        run_id: The run that trained the version.
        since: The beginning of the period, ISO 8601, UTC.
        until: The end of the period.
        files: The number of samples.
        rows: The number of sampled rows in the period.
        requested: The number of requested rows that the sampled rows represent.
        columns: The columns, the largest drift first.
        left_out: Features that are missing in every sample.
        bad_rows: Rows with values that are invalid for their column types.
        unreadable: For each sample that could not be read, the reason.
        judged: Whether there were enough rows to check the limits.
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
        """The columns that exceed a limit."""
        return tuple(column for column in self.columns if column.beyond)


@dataclass
class _ColumnCounts:
    """The counts of one column.

    Attributes:
        bins: The bins of train.
        counts: (1 + bins,) float64, requests by bin, missing values first.
        rows: The number of sampled rows.
        requests: The number of requests that the rows represent: the sum of their weights.
        squares: The sum of the rows' squared weights.
        unseen: The requests with a category that train does not have.
        texts: Requests by such category, for the first _MOST_TEXTS of them.
    """

    bins: Bins
    counts: np.ndarray
    rows: int = 0
    requests: float = 0.0
    squares: float = 0.0
    unseen: float = 0.0
    texts: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @classmethod
    def of(cls, bins: Bins) -> _ColumnCounts:
        return cls(bins, np.zeros(1 + bins.count))

    def add(self, values: np.ndarray, weight: float) -> None:
        """Add encoded values; each one represents `weight` requests."""
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
    def effective_sample_size(self) -> float:
        """The number of equally weighted rows with as much information."""
        return self.requests**2 / self.squares if self.squares else 0.0

    @property
    def scaled_counts(self) -> list[float]:
        """The counts, scaled so that their sum is the effective sample size."""
        return (
            (self.counts * (self.effective_sample_size / self.requests)).tolist()
            if self.rows
            else []
        )

    def share(self, requests: float) -> float:
        """Return a number of requests as a share of all requests; 0 without requests."""
        return requests / self.requests if self.requests else 0.0

    def at_least(self, share: float) -> float:
        """Return the lower confidence bound of a share of the requests."""
        if not self.effective_sample_size:
            return 0.0
        return share - QUANTILE * math.sqrt(share * (1 - share) / self.effective_sample_size)


class RequestCounts:
    """Counts samples, and compares the counts with train.

    Args:
        training: The training data.
        limits: The limits beyond which a column has drifted.
    """

    def __init__(self, training: Reference, limits: Contract) -> None:
        self.training, self.limits = training, limits
        self.files = self.rows = self.bad_rows = 0
        self.requested = 0.0
        self.unreadable: list[str] = []
        coding = training.schema.encoding
        self._features = {feature.name: feature for feature in coding.features}
        assert training.distributions  # monitor rejects training data without them
        self._training_distributions = training.distributions
        distributions = Distributions.of_file(self._training_distributions, coding)
        self._columns = {bins.name: _ColumnCounts.of(bins) for bins in distributions.columns}
        self._code_of_string = {
            feature.name: {text: code for code, text in enumerate(feature.strings, 1)}
            for feature in coding.features
            if feature.has_dictionary
        }
        self._converter = Converter(NO_KINDS, "")

    def add(self, sample: RequestsSample, since: datetime, until: datetime) -> None:
        """Add a sample's rows from `since` to `until`; a sample of another schema is unreadable."""
        metadata = sample.about
        name = f"the sample of {metadata.began}"
        if metadata.schema_digest != self.training.schema.schema_digest:
            self.unreadable.append(f"{name} has the columns of another schema")
            return
        times = sample.times.cast(pa.int64()).to_numpy(zero_copy_only=False)
        in_time = (times >= _microseconds(since)) & (times < _microseconds(until))
        if not in_time.any():
            return
        mask = pa.array(in_time)
        weight = metadata.rows / sample.rows
        try:
            self._add_columns(
                {key: column.filter(mask) for key, column in sample.columns.items()},
                int(in_time.sum()),
                weight,
                name,
            )
        except DataError as error:
            self.unreadable.append(str(error))
            return
        self.files += 1
        self.rows += int(in_time.sum())
        self.requested += weight * int(in_time.sum())

    def _add_columns(
        self, columns: Mapping[str, pa.Array], rows: int, weight: float, name: str
    ) -> None:
        converted = {}
        known_columns = {
            key: _truncate_strings(column, bool(self._features[key].most_bytes))
            for key, column in columns.items()
            if key in self._columns
        }
        chunk = Chunk(known_columns, BlockFaults(name, np.arange(rows)), 0)
        for key in known_columns:
            feature_type = self._features[key]
            converted[key] = self._converter.column(chunk, Feature(key, feature_type.kind, None, 0))
        is_valid = chunk.faults.good
        self.bad_rows += rows - int(is_valid.sum())
        for key, values in converted.items():
            column = self._columns[key]
            if isinstance(values, Texts):
                values = self._encode_strings(self._features[key], values, is_valid, weight)
            else:
                values = values.astype(column.bins.type.field.type)
            column.add(np.ascontiguousarray(values[is_valid]), weight)

    def _encode_strings(
        self, feature_type: ColumnType, texts: Texts, is_valid: np.ndarray, weight: float
    ) -> np.ndarray:
        """Return train's code of each string; a string that is not in train has the next code."""
        if not feature_type.has_dictionary:
            if not feature_type.drift_bins:
                return texts.codes
            return np.append(np.int32(0), feature_type.codes_of(texts.texts))[texts.codes]
        code_of_string = self._code_of_string[feature_type.name]
        unseen_code = len(code_of_string) + 1
        codes = np.array(
            [0, *(code_of_string.get(text, unseen_code) for text in texts.texts)], np.int64
        )
        unseen = np.flatnonzero(codes == unseen_code)
        if len(unseen):
            rows = np.bincount(texts.codes[is_valid], minlength=len(codes))
            column = self._columns[feature_type.name]
            for code in unseen[rows[unseen] > 0].tolist():
                column.add_unseen(texts.texts[code - 1], weight * int(rows[code]))
        return codes[texts.codes]

    def result(
        self, model_name: str, champion: Champion, since: datetime, until: datetime
    ) -> Monitored:
        """Return the drift of every column with rows."""
        before = self._training_distributions.by_name
        judged = self.rows >= FEWEST_ROWS
        columns = []
        for name, column in self._columns.items():
            counts = before[name].rows(_TRAIN)
            if (drift := _measure_drift(counts, column)) is not None:
                gaps = counts[0] / max(sum(counts), 1)
                columns.append(self._drift_of(name, drift, column, gaps, judged))
        columns.sort(key=lambda drift: (not drift.beyond, drift.chance, -drift.psi))
        return Monitored(
            model_name,
            champion.version,
            champion.run_id,
            iso_utc(since),
            iso_utc(until),
            self.files,
            self.rows,
            round(self.requested),
            tuple(columns),
            tuple(name for name, column in self._columns.items() if not column.rows),
            self.bad_rows,
            tuple(self.unreadable),
            judged,
        )

    def _drift_of(
        self, name: str, drift: Drift, column: _ColumnCounts, gaps: float, judged: bool
    ) -> ColumnDrift:
        limits, now = self.limits, column.share(float(column.counts[0]))
        unseen = column.share(column.unseen)
        exceeded = {
            "psi": limits.max_psi is not None
            and not column.bins.type.moves_on
            and drift.psi > limits.max_psi
            and not drift.is_chance,
            "gaps": limits.max_gap_rise is not None
            and column.at_least(now) - gaps > limits.max_gap_rise,
            "unseen": limits.max_unseen is not None and column.at_least(unseen) > limits.max_unseen,
        }
        if not judged or name in limits.ignore:
            exceeded = {}
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
            tuple(key for key, is_exceeded in exceeded.items() if is_exceeded),
        )


def _truncate_strings(column: pa.Array, is_long: bool) -> pa.Array:
    """Return a column with strings truncated to the length that prepare_data accepts.

    Strings of a type that allows longer ones are not truncated in the sample either.
    """
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), pa.string())
    if pa.types.is_string(column.type) and not is_long:
        return pc.utf8_slice_codeunits(column, 0, LONGEST)
    return column


def _measure_drift(before: Sequence[float], column: _ColumnCounts) -> Drift | None:
    return measure(before, column.scaled_counts) if column.rows else None


def _microseconds(time: datetime) -> int:
    return int(time.timestamp() * 1_000_000)


def iso_utc(time: datetime) -> str:
    """Return a time as ISO 8601, UTC."""
    return time.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
