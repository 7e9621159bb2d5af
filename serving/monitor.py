"""Compares sampled requests with the data that the model was trained on.

The requests are counted over the bins of the training data, by the code of prepare_data, so drift
means the same here as in its report. A busy minute has more requests than its sample has rows, so
each row counts for as many requests as it stands for. What is called chance takes that into
account: it depends on the effective number of rows (Kish, "Survey Sampling", 1965).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kfp_tfjob.components.prepare_data import reference
from kfp_tfjob.components.prepare_data.convert import Converter
from kfp_tfjob.components.prepare_data.distributions import Bins, Edges
from kfp_tfjob.components.prepare_data.drift import Drift, measure
from kfp_tfjob.components.prepare_data.faults import BlockFaults
from kfp_tfjob.components.prepare_data.kinds import NO_KINDS, Feature
from kfp_tfjob.components.prepare_data.readers.arrow_table import Chunk, undamaged
from kfp_tfjob.components.prepare_data.reference import Reference
from kfp_tfjob.components.prepare_data.rows import Texts
from kfp_tfjob.components.prepare_data.sample import has_columns
from kfp_tfjob.serving import requests_sample
from kfp_tfjob.serving.requests_sample import RequestsSample
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.champion import Champion, read_champion
from kfp_tfjob.storage.errors import ConfigurationError, DataError, Problem
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.model_names import check_model_name
from kfp_tfjob.storage.store import Store
from kfp_tfjob.storage.words import counted, listed
from kfp_tfjob.trainer.coding import CATEGORY, DATE, NUMBER, Coded, Coding

_TRAIN = "train"
_AT_ONCE, _FILES = 8, 32  # files that are read at once, and that are in memory at once
_MOST_EXAMPLES = 5
_QUANTILE = 3.29  # of the normal distribution, 99.95 %, as in drift.py
_NO_GAPS = pa.array([""])  # the server stores a gap as null


@dataclass(frozen=True)
class Limits:
    """When a column has moved too far; None for no limit. The words are those of prepare_data.

    Attributes:
        psi: Largest population stability index.
        unseen: Largest share of the rows with a category that train does not have.
        gap_rise: Largest rise of the share of gaps.
        fewest_rows: Below so many rows, nothing is judged.
        ignore: Columns without limits.
    """

    psi: float | None = 0.25
    unseen: float | None = 0.05
    gap_rise: float | None = 0.05
    fewest_rows: int = 100
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True)
class ColumnDrift:
    """A column in the requests and in train.

    Attributes:
        name: The column.
        kind: number, boolean, date, category or text.
        rows: The sampled rows that have the column, gaps too.
        psi: The population stability index.
        js: The Jensen-Shannon divergence, in bits.
        chance: Whether so few rows may differ so much by chance.
        gaps_before: The share of gaps in train.
        gaps_now: The share of gaps in the requests.
        unseen: The share of the requests with a category that train does not have.
        examples: Such categories, the most frequent first.
        beyond: The limits that the column is beyond: `psi`, `gaps`, `unseen`.
    """

    name: str
    kind: str
    rows: int
    psi: float
    js: float
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
        predictions: How far the predictions are from the labels of train; None if unknown. A model
            that prefers a class is apart from them without any drift, so this has no limit.
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
    predictions: ColumnDrift | None = None
    left_out: tuple[str, ...] = ()
    bad_rows: int = 0
    unreadable: tuple[str, ...] = ()
    judged: bool = True

    @property
    def moved(self) -> tuple[ColumnDrift, ...]:
        """The columns that are beyond a limit."""
        return tuple(column for column in self.columns if column.beyond)


def monitor(
    store: Store,
    layout: Layout,
    model_name: str,
    until: datetime,
    days: float = 7,
    version: int = 0,
    limits: Limits | None = None,
) -> Monitored:
    """Compare the sampled requests of a version with the data it was trained on.

    Args:
        store: The store.
        layout: Where the models are.
        model_name: The model.
        until: The end of the time to look at, UTC.
        days: Its length.
        version: A version that is or was the champion; 0 for the champion.
        limits: When a column has moved too far.

    Raises:
        ConfigurationError: There is no such champion.
        DataError: There is no sample in that time, or no training data to compare with.
    """
    ConfigurationError.raise_if(check_model_name(model_name))
    champion = _champion(store, layout, model_name, version)
    trained = _trained_on(store, layout, model_name, champion)
    since = until - timedelta(days=days)
    found = _Found(trained, limits or Limits())
    for sample in _samples(store, layout, found, champion, since, until):
        found.add(sample, since, until)
    if not found.rows:
        raise DataError(_no_samples(store, layout, champion, found, model_name, since, until))
    return found.result(model_name, champion, since, until)


def _champion(store: Store, layout: Layout, model_name: str, version: int) -> Champion:
    """Return the champion, or the newest record of a version."""
    champion = read_champion(store, layout, model_name)
    place = layout.model(model_name)
    if champion is None:
        raise ConfigurationError(
            Problem(
                f"{model_name} has no champion",
                received=f"no record below {place.champions}",
                expected="a model that a run has published",
                fix="correct the name, or output_uri",
            )
        )
    if version in (0, champion.version):
        return champion
    versions = [champion.version]
    for number in reversed(store.numbers(place.champions)[:-1]):
        record = Champion.from_bytes(number, store.read(place.champion(number)))
        if record.version == version:
            return record
        versions.append(record.version)
    known = sorted(set(versions))
    raise ConfigurationError(
        Problem(
            f"version {version} of {model_name} was never the champion, so no server has loaded it",
            received=str(version),
            expected=f"one of {listed(map(str, known), 20)}",
            fix="name one of these versions",
        )
    )


def _trained_on(store: Store, layout: Layout, model_name: str, champion: Champion) -> Reference:
    """Return the training data of a champion."""
    what = f"the training data of version {champion.version} of {model_name}"
    try:
        found = reference.of_version(store, layout, model_name, champion)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            Problem(
                f"{what} cannot be read",
                received=f"{type(error).__name__}: {error}",
                expected="schema, statistics and distributions as publish copies them",
                fix="publish a model again",
            )
        ) from error
    if found and has_columns(found.schema) and found.distributions:
        return found
    obstacle = f"nothing below {layout.model(model_name).version(champion.version)}"
    if found:
        obstacle = (
            "pictures" if not has_columns(found.schema) else "no distributions of its columns"
        )
    raise DataError(
        Problem(
            f"{what} cannot be compared with requests",
            received=obstacle,
            expected="the distributions of the columns of a table",
            fix="publish a model that is trained on a table with the present version of this"
            " project",
        )
    )


def _samples(
    store: Store,
    layout: Layout,
    found: _Found,
    champion: Champion,
    since: datetime,
    until: datetime,
) -> Iterator[RequestsSample]:
    """Yield the samples of the days from `since` to `until`; note those that cannot be read."""
    place = layout.model(found.trained.model_name)
    # A file has the day of its first row, and ends within an interval of it.
    first = (since - timedelta(hours=1)).date()
    days = (until.date() - first).days
    files = (
        item
        for day in range(days + 1)
        for item in store.list(place.requests_of_day(champion.version, first + timedelta(days=day)))
    )

    def read(address: S3Address) -> RequestsSample | str:
        try:
            return requests_sample.get(store, address)
        except DataError as error:
            return str(error)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        while some := [it.address for it in islice(files, _FILES)]:
            for item in pool.map(read, some):
                if isinstance(item, str):
                    found.unreadable.append(item)
                else:
                    yield item


def _no_samples(
    store: Store,
    layout: Layout,
    champion: Champion,
    found: _Found,
    model_name: str,
    since: datetime,
    until: datetime,
) -> Problem:
    others = [
        name
        for name in store.folders(layout.model(model_name).requests)
        if name != str(champion.version)
    ]
    received = f"no row from {_shown(since)} to {_shown(until)}"
    if found.unreadable:
        received += (
            f"; {counted(len(found.unreadable), 'sample')} cannot be read, the first because"
            f" {found.unreadable[0]}"
        )
    if others:
        received += f"; there are samples of version {listed(others, 5)}"
    return Problem(
        f"there is no sample of the requests that version {champion.version} of {model_name}"
        " answered",
        received=received,
        expected=f"files below {layout.model(model_name).requests_of(champion.version)}",
        fix="serve the model with sampling on (docs/serving.md), look further back with --days, or"
        " at another version with --version",
    )


@dataclass
class _Column:
    """The counts of one column.

    Attributes:
        bins: The bins of train.
        counts: float64 of shape [1 + bins], requests by bin, gaps first.
        rows: The sampled rows.
        requests: The requests that they stand for.
        squares: The sum over the rows of the square of the requests that each stands for.
        unseen: Requests by category that train does not have.
    """

    bins: Bins
    counts: np.ndarray
    rows: int = 0
    requests: float = 0.0
    squares: float = 0.0
    unseen: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, bins: Bins) -> _Column:
        return cls(bins, np.zeros(1 + bins.count))

    def add(self, values: np.ndarray, weight: float) -> None:
        """Add values as they are in the shards, each of which stands for `weight` requests."""
        self.counts += weight * self.bins.counted(values)
        self.rows += len(values)
        self.requests += weight * len(values)
        self.squares += weight * weight * len(values)

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
        return share - _QUANTILE * math.sqrt(share * (1 - share) / self.effective)


class _Found:
    """Collects the requests.

    Args:
        trained: The training data.
        limits: When a column has moved too far.
    """

    def __init__(self, trained: Reference, limits: Limits) -> None:
        self.trained, self.limits = trained, limits
        self.files = self.rows = self.bad_rows = 0
        self.requested = 0.0
        self.unreadable: list[str] = []
        coding = Coding.of_schema(trained.schema)
        self._features = {it.name: it for it in coding.features}
        edges = Edges.of_file(trained.distributions or {}, coding)
        self._columns = {bins.name: _Column.of(bins) for bins in edges.columns}
        self._codes = {
            it.name: {text: code for code, text in enumerate(it.dictionary, 1)}
            for it in coding.features
            if it.kind == CATEGORY
        }
        self._classes = trained.schema["label"]["classes"]
        self._predicted = _labels_of(trained, edges)
        self._converter = Converter(NO_KINDS, "", _NO_GAPS)

    def add(self, sample: RequestsSample, since: datetime, until: datetime) -> None:
        """Add the rows of a file that came in the time; a file of other columns is unreadable."""
        about = sample.about
        name = f"the sample of {about.began}"
        if about.schema_digest != self.trained.schema["schema_digest"]:
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
        self._add_predictions(sample.predictions.filter(mask), weight)
        self.files += 1
        self.rows += int(wanted.sum())
        self.requested += weight * int(wanted.sum())

    def _add_columns(
        self, columns: Mapping[str, pa.Array], rows: int, weight: float, name: str
    ) -> None:
        there = {
            key: pa.nulls(rows, pa.string()) if pa.types.is_null(column.type) else column
            for key, column in columns.items()
            if key in self._columns
        }
        chunk = Chunk(there, BlockFaults(name, np.arange(rows)), 0)
        found = {}
        with undamaged(name):
            for key in there:
                coded = self._features[key]
                found[key] = self._converter.column(chunk, Feature(key, coded.kind, None, 0))
        good = chunk.faults.good
        self.bad_rows += rows - int(good.sum())
        for key, values in found.items():
            column = self._columns[key]
            if isinstance(values, Texts):
                values = self._coded(self._features[key], values, good, weight)
            elif self._features[key].kind != DATE:
                values = values.astype(np.float32)
            column.add(np.ascontiguousarray(values[good]), weight)

    def _coded(self, coded: Coded, texts: Texts, good: np.ndarray, weight: float) -> np.ndarray:
        """Return texts by the codes of train; a new text has the code after the last one."""
        if coded.kind != CATEGORY:
            return texts.codes
        known = self._codes[coded.name]
        new = len(known) + 1
        codes = np.array([0, *(known.get(text, new) for text in texts.texts)], np.int64)
        unseen = np.flatnonzero(codes == new)
        if len(unseen):
            rows = np.bincount(texts.codes[good], minlength=len(codes))
            counts = self._columns[coded.name].unseen
            for at in unseen[rows[unseen] > 0].tolist():
                counts[texts.texts[at - 1]] += weight * int(rows[at])
        return codes[texts.codes]

    def _add_predictions(self, predictions: pa.Array, weight: float) -> None:
        if self._predicted is None:
            return
        present = predictions.drop_null()
        width = 1 if self._classes is None else len(self._classes)
        lengths = pc.list_value_length(present).to_numpy(zero_copy_only=False)
        one = bool(len(lengths)) and bool((lengths == 1).all()) and width <= 2
        if not len(lengths) or not (one or (lengths == width).all()):
            return
        values = present.flatten().to_numpy(zero_copy_only=False).reshape(len(lengths), -1)
        values = values[np.isfinite(values).all(axis=1)].astype(np.float32)
        if self._classes is None:
            self._predicted[0].add(values[:, 0], weight)
            return
        chosen = (values[:, 0] >= 0.5) if one else values.argmax(axis=1)
        self._predicted[0].add(chosen.astype(np.int64) + 1, weight)

    def result(
        self, model_name: str, champion: Champion, since: datetime, until: datetime
    ) -> Monitored:
        """Return what was found."""
        before = {entry["name"]: entry for entry in self.trained.distributions["columns"]}
        judged = self.rows >= self.limits.fewest_rows
        columns = []
        for name, column in self._columns.items():
            kind = self._features[name].kind
            counts = [before[name]["gaps"][_TRAIN], *before[name]["counts"][_TRAIN]]
            if (drift := _moved(counts, column)) is not None:
                gaps = counts[0] / max(sum(counts), 1)
                columns.append(self._column(name, kind, drift, column, gaps, judged))
        columns.sort(key=lambda it: (not it.beyond, it.chance, -it.psi))
        predictions = None
        if self._predicted and (drift := _moved(self._predicted[1], self._predicted[0])):
            kind = NUMBER if self._classes is None else CATEGORY
            predictions = self._column("", kind, drift, self._predicted[0], 0.0, False)
        return Monitored(
            model_name,
            champion.version,
            champion.run_id,
            _shown(since),
            _shown(until),
            self.files,
            self.rows,
            round(self.requested),
            tuple(columns),
            predictions,
            tuple(name for name, column in self._columns.items() if not column.rows),
            self.bad_rows,
            tuple(self.unreadable),
            judged,
        )

    def _column(
        self, name: str, kind: str, drift: Drift, column: _Column, gaps: float, judged: bool
    ) -> ColumnDrift:
        limits, now = self.limits, column.share(float(column.counts[0]))
        unseen = column.share(sum(column.unseen.values()))
        beyond = {
            "psi": limits.psi is not None
            and kind != DATE  # dates move on with time
            and drift.psi > limits.psi
            and not drift.is_chance,
            "gaps": limits.gap_rise is not None and column.at_least(now) - gaps > limits.gap_rise,
            "unseen": limits.unseen is not None and column.at_least(unseen) > limits.unseen,
        }
        if not judged or name in limits.ignore:
            beyond = {}
        return ColumnDrift(
            name,
            kind,
            column.rows,
            drift.psi,
            drift.js,
            drift.is_chance,
            gaps,
            now,
            unseen,
            tuple(text for text, _ in column.unseen.most_common(_MOST_EXAMPLES)),
            tuple(key for key, is_beyond in beyond.items() if is_beyond),
        )


def _labels_of(trained: Reference, edges: Edges) -> tuple[_Column, Sequence[float]] | None:
    """Return the bins of the label and the rows of train in them, gaps first; None if unknown."""
    label = trained.schema["label"]
    if label["classes"] is None:
        entry = (trained.distributions or {}).get("label")
        if edges.label is None or entry is None:
            return None
        return _Column.of(edges.label), [0, *entry["counts"][_TRAIN]]
    by_class = ((trained.statistics["label"].get("counts") or {}).get(_TRAIN)) or {}
    classes = tuple(map(str, label["classes"]))
    bins = Bins(label["name"], CATEGORY, -1, (), classes, tuple(range(1, 1 + len(classes))))
    return _Column.of(bins), [0, *(by_class.get(name, 0) for name in classes), 0]


def _moved(before: Sequence[float], column: _Column) -> Drift | None:
    return measure(before, column.scaled) if column.rows else None


def _microseconds(time: datetime) -> int:
    return int(time.timestamp() * 1_000_000)


def _shown(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
