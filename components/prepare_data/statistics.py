"""Computes statistics of the written rows: moments, class counts, duplicates, histograms."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from kfp_tfjob.components.prepare_data.label_copies import LabelCopies
from kfp_tfjob.components.prepare_data.plain import array_of, plain_of
from kfp_tfjob.components.prepare_data.vocabulary import Label
from kfp_tfjob.storage.words import listed

SPLITS = ("train", "validation", "test")
HISTOGRAM_BARS = 20
_SAMPLE_ROWS = 10_000
_SAMPLE_BYTES = 64 << 20
_CHUNK_VALUES = 1 << 20
_EXACT = 2**24  # from here on float32 skips whole numbers
_MOST_WARNED = 10  # names in one warning
# With this many rows, whole numbers are hardly all different by chance. The first limit is for a
# sequence or a name like that of an identifier, the second for any column.
_ROWS_OF_A_SEQUENCE, _ROWS_OF_ANY = 20, 1000
_DENSE = 3  # a sequence's range may be this many times its rows: train has only some of them
_IDENTIFIER = re.compile(r"(?i:(^|[\W_])(id|idx|index|key|no|nr|number))$|[a-z]I[dD]$")


class Moments:
    """Mean, deviation and range of columns, in float64, merged as in Chan et al. (1979).

    Args:
        columns: The number of columns.
    """

    def __init__(self, columns: int) -> None:
        self.count = 0
        self.mean = np.zeros(columns)
        self._squares = np.zeros(columns)
        self.minimum = np.full(columns, np.inf)
        self.maximum = np.full(columns, -np.inf)
        self.zeros = np.zeros(columns, np.int64)

    def add(self, values: np.ndarray) -> None:
        """Add float32 of shape [rows, columns]."""
        step = max(1, _CHUNK_VALUES // values.shape[1])
        for start in range(0, len(values), step):
            given = values[start : start + step]
            part = given.astype(np.float64)
            mean = part.mean(0)
            total = self.count + len(part)
            delta = mean - self.mean
            part -= mean
            part *= part
            self._squares += part.sum(0)
            self._squares += delta**2 * (self.count * len(part) / total)
            self.mean = self.mean + delta * (len(part) / total)
            self.count = total
            self.minimum = np.minimum(self.minimum, given.min(0))
            self.maximum = np.maximum(self.maximum, given.max(0))
            zeros = given == 0
            if zeros.any():
                self.zeros += zeros.sum(0)

    def merge(self, later: Moments) -> None:
        """Add the moments of later rows."""
        if not later.count:
            return
        total = self.count + later.count
        delta = later.mean - self.mean
        self._squares += later._squares
        self._squares += delta**2 * (self.count * later.count / total)
        self.mean = self.mean + delta * (later.count / total)
        self.count = total
        self.minimum = np.minimum(self.minimum, later.minimum)
        self.maximum = np.maximum(self.maximum, later.maximum)
        self.zeros += later.zeros

    def to_plain(self) -> list[Any]:
        """Return them as JSON values."""
        arrays = (self.mean, self._squares, self.minimum, self.maximum, self.zeros)
        return [self.count, *map(plain_of, arrays)]

    @classmethod
    def from_plain(cls, plain: list[Any]) -> Moments:
        """Return what `to_plain` has written."""
        found = cls(0)
        found.count, arrays = plain[0], [array_of(item) for item in plain[1:]]
        found.mean, found._squares, found.minimum, found.maximum, found.zeros = arrays
        return found

    def column(self, i: int) -> dict[str, float | int]:
        """Return the statistics of one column; `std` is the population standard deviation."""
        return {
            "count": self.count,
            "mean": float(self.mean[i]),
            "std": float(np.sqrt(self._squares[i] / self.count)),
            "min": float(self.minimum[i]),
            "max": float(self.maximum[i]),
            "zeros": int(self.zeros[i]),
        }


class Sample:
    """The first rows of train in the order of their hashes: a random but reproducible sample.

    Args:
        columns: Values in a row.
        before: Rows of train that come before the first one.
    """

    def __init__(self, columns: int, before: int = 0) -> None:
        wanted = max(1, min(_SAMPLE_ROWS, _SAMPLE_BYTES // (4 * columns)))
        self._wanted = max(wanted - before, 0)
        self._parts: list[np.ndarray] = [np.empty((0, columns), np.float32)]

    def add(self, values: np.ndarray) -> None:
        """Add float32 of shape [rows, columns] while rows are wanted."""
        if self._wanted:
            part = values[: self._wanted].astype(np.float32)
            self._wanted -= len(part)
            self._parts.append(part)

    def merge(self, later: Sample) -> None:
        """Add the sample of the rows that follow."""
        self._parts += later._parts

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return plain_of(np.concatenate(self._parts))

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Sample:
        """Return what `to_plain` has written."""
        found = cls(1)
        found._parts = [array_of(plain)]
        return found

    def column(self, column: int) -> np.ndarray:
        """Return the values of a column: float64 of shape [rows]."""
        return np.concatenate([part[:, column] for part in self._parts]).astype(np.float64)

    def histogram(self, column: int, low: float, high: float) -> list[int]:
        """Return the rows in each of HISTOGRAM_BARS bars of equal width between two values."""
        return bars_of(self.column(column), low, high)


def bars_of(values: np.ndarray, low: float, high: float) -> list[int]:
    """Return the values in each of HISTOGRAM_BARS bars of equal width between two values."""
    if high <= low:
        return [len(values)]
    bar = ((values - low) / (high - low) * HISTOGRAM_BARS).astype(np.int64)
    counts = np.bincount(np.clip(bar, 0, HISTOGRAM_BARS - 1), minlength=HISTOGRAM_BARS)
    return counts.tolist()


class Described(Protocol):
    """Describes the features over train."""

    def add(self, rows: np.ndarray) -> None:
        """Add rows of train, as they are in the runs."""

    def merge(self, later: Any) -> None:
        """Add the description of the rows that follow."""

    def to_plain(self) -> Any:
        """Return what `restore` needs, as JSON values."""

    def restore(self, plain: Any) -> None:
        """Become what `to_plain` has written."""

    def described(self) -> dict[str, Any]:
        """Return keys of statistics.json, `features` among them."""
        ...

    def warnings(self, features: dict[str, dict[str, Any]]) -> list[str]:
        """Return what a person should look at."""
        ...


class Numbers(Described):
    """The columns of a table of numbers.

    Args:
        names: The features.
        left_out: What to say about columns that are left out.
        before: Rows of train that come before the first one.
    """

    def __init__(
        self, names: tuple[str, ...], left_out: Sequence[str] = (), before: int = 0
    ) -> None:
        self._names, self._left_out = names, left_out
        self._moments, self._sample = Moments(len(names)), Sample(len(names), before)

    def add(self, rows: np.ndarray) -> None:
        """Add rows of train, as they are in the runs."""
        self._moments.add(rows["features"])
        self._sample.add(rows["features"])

    def merge(self, later: Numbers) -> None:
        """Add the description of the rows that follow."""
        self._moments.merge(later._moments)
        self._sample.merge(later._sample)

    def to_plain(self) -> Any:
        """Return what `restore` needs, as JSON values."""
        return [self._moments.to_plain(), self._sample.to_plain()]

    def restore(self, plain: Any) -> None:
        """Become what `to_plain` has written."""
        self._moments, self._sample = Moments.from_plain(plain[0]), Sample.from_plain(plain[1])

    def described(self) -> dict[str, Any]:
        """Return the key `features` of statistics.json."""
        found = {}
        for i, name in enumerate(self._names):
            column = self._moments.column(i)
            bars = self._sample.histogram(i, column["min"], column["max"])
            found[name] = column | {"histogram": bars}
        return {"features": found}

    def warnings(self, features: dict[str, dict[str, Any]]) -> list[str]:
        """Return what a person should look at."""
        constant = [name for name, column in features.items() if column["min"] == column["max"]]
        values = {name: self._sample.column(i) for i, name in enumerate(self._names)}
        return [*self._left_out, *number_warnings(features, constant, values)]


class Statistics:
    """The content of statistics.json.

    Args:
        features: Describes the features.
        places: For each feature its name, its array in a row and its column there.
        label: The label.
        before: Rows of train that come before the first one.
    """

    def __init__(
        self,
        features: Described,
        places: Mapping[str, tuple[str, int]],
        label: Label,
        before: int = 0,
    ) -> None:
        self._features, self._label, self._places = features, label, places
        self._copies = LabelCopies(tuple(places), label)
        self._label_sample = Sample(1, before)
        self._ends: list[tuple[int, float]] = []  # hash and label of the first and last row
        self._labels = [Moments(1) for _ in SPLITS]
        self._classes = np.zeros((3, len(label.classes or ())), np.int64)
        self._duplicates = self._conflicts = 0

    def add(self, rows: np.ndarray, split: int, labels: np.ndarray) -> None:
        """Add rows of a split in the order of hash and label, with their labels."""
        if not len(rows):
            return
        hashes = rows["hash"]
        same = hashes[1:] == hashes[:-1]
        self._duplicates += int(same.sum())
        self._conflicts += int((same & (labels[1:] != labels[:-1])).sum())
        self._follow([(int(hashes[i]), labels[i].item()) for i in (0, -1)])
        if self._label.classes is None:
            self._labels[split].add(labels[:, None])
        else:
            self._classes[split] += np.bincount(labels, minlength=len(self._label.classes))
        if split == 0:
            self._features.add(rows)
            columns = {name: rows[key][:, j] for name, (key, j) in self._places.items()}
            self._copies.add(columns, labels)
            self._label_sample.add(labels[:, None])

    def merge(self, later: Statistics) -> None:
        """Add the statistics of the rows that follow."""
        self._features.merge(later._features)
        self._copies.merge(later._copies)
        self._label_sample.merge(later._label_sample)
        for mine, others in zip(self._labels, later._labels, strict=True):
            mine.merge(others)
        self._classes += later._classes
        self._duplicates += later._duplicates
        self._conflicts += later._conflicts
        self._follow(later._ends)

    def to_plain(self) -> dict[str, Any]:
        """Return what `restore` needs, as JSON values."""
        return {
            "features": self._features.to_plain(),
            "copies": self._copies.to_plain(),
            "label_sample": self._label_sample.to_plain(),
            "labels": [moments.to_plain() for moments in self._labels],
            "classes": plain_of(self._classes),
            "equal": [self._duplicates, self._conflicts],
            "ends": [list(end) for end in self._ends],
        }

    def restore(self, plain: Mapping[str, Any]) -> None:
        """Become what `to_plain` has written."""
        self._features.restore(plain["features"])
        self._copies.restore(plain["copies"])
        self._label_sample = Sample.from_plain(plain["label_sample"])
        self._labels = [Moments.from_plain(item) for item in plain["labels"]]
        self._classes = array_of(plain["classes"])
        self._duplicates, self._conflicts = plain["equal"]
        self._ends = [(end[0], end[1]) for end in plain["ends"]]

    def _follow(self, ends: list[tuple[int, float]]) -> None:
        """Compare the last row so far with the first one of those that follow."""
        if self._ends and ends:
            (before, label), (after, other) = self._ends[1], ends[0]
            self._duplicates += before == after
            self._conflicts += before == after and label != other
        if ends:
            self._ends = [(self._ends or ends)[0], ends[1]]

    def to_dict(
        self,
        read: int,
        bad: dict[str, int],
        rows: dict[str, int],
        left_out: Mapping[str, int] | None = None,
    ) -> dict[str, Any]:
        """Return the content of statistics.json.

        Args:
            read: Rows of the source, good or bad.
            bad: Bad rows by rule.
            rows: Rows by split.
            left_out: Rows that a gap leaves out, by column.

        Returns:
            Plain values, all finite. Features and a numeric label are described over train,
            because normalisation uses these values. The label is also described by split.
        """
        described = self._features.described()
        body = {
            **described,
            "label": self._label_dict(),
            "rows": {"read": read, **rows},
            "duplicates": self._duplicates,
            "conflicts": self._conflicts,
            "bad_rows": {"dropped": sum(bad.values()), "rules": bad},
            "warnings": self._warnings(described["features"]),
        }
        if left_out:
            body["rows_left_out"] = dict(sorted(left_out.items()))
        if self._copies.names:
            body["label_copies"] = list(self._copies.names)
        return body

    def _label_dict(self) -> dict[str, Any]:
        body: dict[str, Any] = {"name": self._label.name}
        if self._label.classes is not None:
            body["counts"] = {
                split: dict(zip(self._label.classes, self._classes[i].tolist(), strict=True))
                for i, split in enumerate(SPLITS)
            }
            return body
        train = self._labels[0].column(0)
        body |= train | {"histogram": self._label_sample.histogram(0, train["min"], train["max"])}
        for moments, split in zip(self._labels, SPLITS, strict=True):
            body[split] = moments.column(0)
        return body

    def _warnings(self, features: dict[str, dict[str, Any]]) -> list[str]:
        found = []
        if copies := self._copies.names:
            found.append(
                f"TELLS THE LABEL: each value of {_some(list(copies))} goes with one value of the"
                f" label {self._label.name!r}, and the other way round; if such a column is written"
                " together with the label, leave it out with data_options.drop="
                + json.dumps(list(copies[:_MOST_WARNED]), ensure_ascii=False)
            )
        found += self._features.warnings(features)
        for i, split in enumerate(SPLITS[1:], 1):
            lacking = [
                name
                for name, count in zip(self._label.classes or (), self._classes[i], strict=True)
                if not count
            ]
            if lacking:
                found.append(f"{split} has no row of these classes: {_some(lacking)}")
        if self._conflicts:
            found.append(
                "rows with the features of an earlier row and a different label:"
                f" {self._conflicts:,}"
            )
        return found


def number_warnings(
    features: Mapping[str, Mapping[str, Any]],
    constant: list[str],
    samples: Mapping[str, np.ndarray],
) -> list[str]:
    """Return what is odd about columns.

    Args:
        features: The numbers, as in statistics.json.
        constant: The columns with one value.
        samples: Values of the numbers in some rows of train: float64, NaN for a gap.
    """
    found = []
    if constant:
        found.append(f"the same value in every row of train: {_some(constant)}")
    large = [
        name for name, column in features.items() if max(-column["min"], column["max"]) > _EXACT
    ]
    if large:
        found.append(
            f"values above {_EXACT:,} are rounded to float32 (7 digits); an identifier is not a"
            f" feature: {_some(large)}; leave it out with data_options.drop"
        )
    alike = [
        name
        for name, values in samples.items()
        if not np.isnan(values).any() and _identifies(name, values)
    ]
    if alike:
        found.append(
            "a different whole number in every row, like an identifier or a row number:"
            f" {_some(alike)}; if it says nothing about new rows, leave it out with"
            f" data_options.drop={json.dumps(alike[:_MOST_WARNED], ensure_ascii=False)}"
        )
    return found


def _identifies(name: str, values: np.ndarray) -> bool:
    """Tell whether a feature looks like an identifier of the row and not like a property.

    Args:
        name: The name of the feature.
        values: float64 of shape [rows], a sample.
    """
    rows = len(values)
    if rows < _ROWS_OF_A_SEQUENCE or (values != np.floor(values)).any():
        return False
    width = values.max() - values.min()
    if width < rows - 1:
        return False  # not all of them can differ
    if rows < _ROWS_OF_ANY and width >= _DENSE * rows and not _IDENTIFIER.search(name):
        return False
    return len(np.unique(values)) == rows


def _some(names: list[str]) -> str:
    return listed(names, _MOST_WARNED)
