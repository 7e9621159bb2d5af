"""Computes statistics of the written rows: features, class counts, duplicates, conflicts.

Those of parts merge in the order of the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kfp_tfjob.components.prepare_data.executors.exchange import array_of, plain_of
from kfp_tfjob.components.prepare_data.kinds import NO_VALUE, Kinds
from kfp_tfjob.components.prepare_data.vocabulary import Label
from kfp_tfjob.features.coding import Coding
from kfp_tfjob.features.types import TYPES
from kfp_tfjob.features.types.base import (
    CODES,
    FLOATS,
    NO_DATE,
    Field,
    Summary,
    bars_of,
    missing_in,
)
from kfp_tfjob.storage.formatting import listed

_SAMPLE_ROWS = 10_000
_SAMPLE_BYTES = 64 << 20
_CHUNK_VALUES = 1 << 20
_LATEST = 2**63 - 1


class Moments:
    """Mean, deviation and range of columns, in float64, merged as in Chan et al. (1979).

    Whole numbers keep their range exactly.

    Args:
        columns: The number of columns.

    Attributes:
        count: The values of each column that are no gaps.
        zeros: How many of them are 0.
        minimum: The smallest value of each column; None without a row.
        maximum: The largest value.
    """

    def __init__(self, columns: int) -> None:
        self.count = np.zeros(columns, np.int64)
        self.zeros = np.zeros(columns, np.int64)
        self._mean, self._squares = np.zeros(columns), np.zeros(columns)
        self.minimum: Any = None
        self.maximum: Any = None

    def add(self, values: np.ndarray) -> None:
        """Add values of shape [rows, columns]: floats, NaN for a gap, or int64, NO_DATE for one."""
        if not values.shape[1]:
            return
        step = max(1, _CHUNK_VALUES // values.shape[1])
        for start in range(0, len(values), step):
            self._add(values[start : start + step])

    def _add(self, values: np.ndarray) -> None:
        whole = values.dtype.kind == "i"
        gaps = values == NO_DATE if whole else np.isnan(values)
        part = values.astype(np.float64)
        low = high = values
        some = gaps.any()
        count = np.full(values.shape[1], len(values))
        if some:
            count -= gaps.sum(0)
            part[gaps] = 0
            least, most = (NO_DATE, _LATEST) if whole else (-np.inf, np.inf)
            low, high = np.where(gaps, most, values), np.where(gaps, least, values)
        zeros = part == 0
        if zeros.any():
            zeros = (zeros & ~gaps if some else zeros).sum(0)
        else:
            zeros = np.zeros_like(count)
        mean = part.sum(0) / np.maximum(count, 1)
        part -= mean
        part *= part
        if some:
            part[gaps] = 0
        self._join(count, zeros, mean, part.sum(0), low.min(0), high.max(0))

    def merge(self, later: Moments) -> None:
        """Add the moments of later rows."""
        if later.minimum is not None:
            moments = later._mean, later._squares
            self._join(later.count, later.zeros, *moments, later.minimum, later.maximum)

    def _join(
        self,
        count: np.ndarray,
        zeros: np.ndarray,
        mean: np.ndarray,
        squares: np.ndarray,
        minimum: np.ndarray,
        maximum: np.ndarray,
    ) -> None:
        both = np.maximum(self.count + count, 1)
        delta = np.where(count > 0, mean - self._mean, 0)
        self._squares += squares
        self._squares += delta**2 * (self.count * count / both)
        self._mean = self._mean + delta * (count / both)
        self.zeros += zeros
        self.count = self.count + count
        first = self.minimum is None
        self.minimum = minimum if first else np.minimum(self.minimum, minimum)
        self.maximum = maximum if first else np.maximum(self.maximum, maximum)

    def to_plain(self) -> list[Any]:
        """Return them as JSON values."""
        if self.minimum is None:
            return [len(self.count)]
        arrays = (self.count, self.zeros, self._mean, self._squares, self.minimum, self.maximum)
        return [len(self.count), *map(plain_of, arrays)]

    @classmethod
    def from_plain(cls, plain: Sequence[Any]) -> Moments:
        """Return what `to_plain` has written."""
        found = cls(plain[0])
        if arrays := [array_of(item) for item in plain[1:]]:
            found.count, found.zeros, found._mean, found._squares = arrays[:4]
            found.minimum, found.maximum = arrays[4:]
        return found

    def column(self, i: int) -> dict[str, float | int]:
        """Return the statistics of one column, zeros if it has no value.

        `std` is the population standard deviation.
        """
        count = int(self.count[i])
        if not count:
            return {"count": 0, "mean": 0.0, "std": 0.0, "min": 0.0, "max": 0.0, "zeros": 0}
        return {
            "count": count,
            "mean": float(self._mean[i]),
            "std": float(np.sqrt(self._squares[i] / count)),
            "min": float(self.minimum[i]),
            "max": float(self.maximum[i]),
            "zeros": int(self.zeros[i]),
        }


class Sample:
    """The first rows of train in the order of their hashes: a random but reproducible sample.

    Args:
        kinds: The type and the number of the columns of each array.
        before: Rows of train that come before the first one.
    """

    def __init__(self, kinds: Sequence[tuple[type[np.generic], int]], before: int = 0) -> None:
        size = sum(np.dtype(kind).itemsize * columns for kind, columns in kinds)
        wanted = max(1, min(_SAMPLE_ROWS, _SAMPLE_BYTES // max(size, 1)))
        self._wanted = max(wanted - before, 0)
        self._parts = [[np.empty((0, columns), kind)] for kind, columns in kinds]

    def add(self, *arrays: np.ndarray) -> None:
        """Add rows while they are wanted; the arrays have the shape [rows, columns]."""
        if self._wanted:
            for parts, array in zip(self._parts, arrays, strict=True):
                parts.append(array[: self._wanted].astype(parts[0].dtype))
            self._wanted = max(self._wanted - len(arrays[0]), 0)

    def merge(self, later: Sample) -> None:
        """Add the sample of the rows that follow."""
        for parts, more in zip(self._parts, later._parts, strict=True):
            parts += more

    def to_plain(self) -> list[Any]:
        """Return it as JSON values."""
        return list(map(plain_of, self.arrays()))

    def restore(self, plain: Sequence[Any]) -> None:
        """Become what `to_plain` has written."""
        self._parts = [[array_of(item)] for item in plain]

    def arrays(self) -> list[np.ndarray]:
        """Return the rows of each array."""
        return [np.concatenate(parts) for parts in self._parts]


_MOST_WARNED = 10  # names in one warning


class FeatureStatistics:
    """Describes the features over train.

    Args:
        coding: What was learned from train.
        kinds: The kinds of the columns.
        before: Rows of train that come before the first one.
    """

    def __init__(self, coding: Coding, kinds: Kinds, before: int = 0) -> None:
        self._coding, self._kinds, self._places = coding, kinds, coding.places
        floats, codes, dates = coding.lengths
        self._rows = 0
        self._floats, self._dates = Moments(floats), Moments(dates)
        self._codes = [np.zeros(0, np.int64) for _ in range(codes)]
        self._packed = None if coding.is_identity else Moments(coding.width)
        self._sample = Sample([(np.float32, floats), (np.int64, dates)], before)

    def add(self, rows: np.ndarray) -> None:
        """Add rows of train, as they are in the runs."""
        self._rows += len(rows)
        floats, codes, moments = rows["features"], rows["codes"], rows["dates"]
        self._floats.add(floats)
        self._dates.add(moments)
        for j, counts in enumerate(self._codes):
            self._codes[j] = _added(counts, np.bincount(codes[:, j]))
        if self._packed:
            self._packed.add(self._coding.pack(floats, codes.astype(np.int64), moments))
        self._sample.add(floats, moments)

    def merge(self, later: FeatureStatistics) -> None:
        """Add the description of the rows that follow."""
        self._rows += later._rows
        self._floats.merge(later._floats)
        self._dates.merge(later._dates)
        if self._packed and later._packed:
            self._packed.merge(later._packed)
        self._codes = [_added(*pair) for pair in zip(self._codes, later._codes, strict=True)]
        self._sample.merge(later._sample)

    def to_plain(self) -> Any:
        """Return what `restore` needs, as JSON values."""
        return {
            "rows": self._rows,
            "floats": self._floats.to_plain(),
            "dates": self._dates.to_plain(),
            "codes": list(map(plain_of, self._codes)),
            "packed": self._packed and self._packed.to_plain(),
            "sample": self._sample.to_plain(),
        }

    def restore(self, plain: Any) -> None:
        """Become what `to_plain` has written."""
        self._rows = plain["rows"]
        self._floats = Moments.from_plain(plain["floats"])
        self._dates = Moments.from_plain(plain["dates"])
        self._codes = list(map(array_of, plain["codes"]))
        self._packed = plain["packed"] and Moments.from_plain(plain["packed"])
        self._sample.restore(plain["sample"])

    def described(self) -> dict[str, Any]:
        """Return the keys `features` and `packed` of statistics.json."""
        found = {}
        for coded, place in zip(self._coding.features, self._places, strict=True):
            summary = self._summary(place)
            head = {"kind": coded.kind, "count": summary.count}
            head["missing"] = self._rows - summary.count
            found[coded.name] = head | coded.describe(summary)
        packed, moments = [], self._packed or self._floats
        for i, name in enumerate(self._coding.names):
            column = moments.column(i)
            is_code = i >= self._coding.numbers
            mean, std = (0.0, 1.0) if is_code else (column["mean"], column["std"])
            packed.append({"name": name, "mean": mean, "std": std})
        return {"features": found, "packed": packed}

    def _summary(self, at: tuple[Field, int]) -> Summary:
        """Return the values of the column at a place of a row."""
        field, j = at
        if field is CODES:
            counts = self._codes[j]
            gaps = int(counts[0]) if len(counts) else 0
            return Summary(self._rows - gaps, {}, None, None, np.zeros(0), counts[1:])
        moments = self._floats if field is FLOATS else self._dates
        count, sample = int(moments.count[j]), self._sampled(at)
        ends = (None, None)
        if count:
            ends = moments.minimum[j].item(), moments.maximum[j].item()
        sample = sample[~missing_in(sample)]
        return Summary(count, moments.column(j), *ends, sample, np.zeros(0, np.int64))

    def _sampled(self, at: tuple[Field, int]) -> np.ndarray:
        """Return the sample of the column at a place of a row; empty for codes."""
        field, j = at
        if field is CODES:
            return np.zeros(0)
        return self._sample.arrays()[0 if field is FLOATS else 1][:, j]

    def warnings(self, features: dict[str, dict[str, Any]]) -> list[str]:
        """Return what a person should look at."""
        said = _left_out_warnings(self._kinds)
        empty = [name for name, column in features.items() if not column["count"]]
        if empty:
            said.append(f"no value in train, so missing values become 0: {', '.join(empty[:10])}")
        constant = [
            name
            for name, column in features.items()
            if column["count"]
            and not column["missing"]
            and TYPES[column["kind"]].is_constant(column)
        ]
        if constant:
            said.append(f"the same value in every row of train: {some(constant)}")
        at = {it.name: at for it, at in zip(self._coding.features, self._places, strict=True)}
        for kind, type in TYPES.items():
            columns = {name: it for name, it in features.items() if it["kind"] == kind}
            said += type.warnings(columns, {name: self._sampled(at[name]) for name in columns})
        return said


def _left_out_warnings(kinds: Kinds) -> list[str]:
    """Return a line for each column that is left out."""
    return [
        f"the column {item.name!r} is dropped: {item.reason}"
        + ("" if item.reason == NO_VALUE else "; to keep it, set its type in data_options.types")
        for item in kinds.left_out
    ]


def _added(counts: np.ndarray, more: np.ndarray) -> np.ndarray:
    """Return the sum of two arrays of counts of different lengths."""
    found = np.zeros(max(len(counts), len(more)), np.int64)
    found[: len(counts)] += counts
    found[: len(more)] += more
    return found


def some(names: list[str]) -> str:
    """Return the first names for a warning."""
    return listed(names, _MOST_WARNED)


SPLITS = ("train", "validation", "test")


class Statistics:
    """The content of statistics.json.

    Args:
        features: Describes the features.
        label: The label.
        before: Rows of train that come before the first one.
    """

    def __init__(
        self,
        features: FeatureStatistics,
        label: Label,
        before: int = 0,
    ) -> None:
        self._features, self._label = features, label
        self._label_sample = Sample([(np.float32, 1)], before)
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
            self._label_sample.add(labels[:, None])

    def merge(self, later: Statistics) -> None:
        """Add the statistics of the rows that follow."""
        self._features.merge(later._features)
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
            "label_sample": self._label_sample.to_plain(),
            "labels": [moments.to_plain() for moments in self._labels],
            "classes": plain_of(self._classes),
            "equal": [self._duplicates, self._conflicts],
            "ends": [list(end) for end in self._ends],
        }

    def restore(self, plain: Mapping[str, Any]) -> None:
        """Become what `to_plain` has written."""
        self._features.restore(plain["features"])
        self._label_sample.restore(plain["label_sample"])
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
        left_out: Mapping[str, int],
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
        (labels,) = self._label_sample.arrays()
        bars = bars_of(labels[:, 0].astype(np.float64), train["min"], train["max"])
        body |= train | {"histogram": bars}
        for moments, split in zip(self._labels, SPLITS, strict=True):
            body[split] = moments.column(0)
        return body

    def _warnings(self, features: dict[str, dict[str, Any]]) -> list[str]:
        found = []
        found += self._features.warnings(features)
        for i, split in enumerate(SPLITS[1:], 1):
            lacking = [
                name
                for name, count in zip(self._label.classes or (), self._classes[i], strict=True)
                if not count
            ]
            if lacking:
                found.append(f"{split} has no row of these classes: {some(lacking)}")
        if self._conflicts:
            found.append(
                "rows with the same features as an earlier row but a different label:"
                f" {self._conflicts:,}"
            )
        return found
