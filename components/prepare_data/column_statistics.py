"""Describes the columns of train by their kinds, for statistics.json and the report."""

from __future__ import annotations

from heapq import nsmallest
from typing import Any

import numpy as np

from kfp_tfjob.components.prepare_data.kinds import NO_VALUE, Kinds
from kfp_tfjob.components.prepare_data.plain import array_of, plain_of
from kfp_tfjob.components.prepare_data.statistics import (
    Described,
    Moments,
    bars_of,
    number_warnings,
)
from kfp_tfjob.features import dates
from kfp_tfjob.features.coding import BOOLEAN, CATEGORY, DATE, NO_DATE, NUMBER, TEXT, Coded, Coding

_SAMPLE_ROWS, _SAMPLE_BYTES = 10_000, 64 << 20
_MOST_TOP = 10  # values of a category that are listed
_GROUPS = {NUMBER: "features", BOOLEAN: "features", DATE: "dates", CATEGORY: "codes", TEXT: "codes"}


class AnyColumns(Described):
    """The columns of a table in which not all are numbers.

    Args:
        coding: What was learned from train.
        kinds: The kinds of the columns.
        before: Rows of train that come before the first one.
    """

    def __init__(self, coding: Coding, kinds: Kinds, before: int = 0) -> None:
        self._coding, self._kinds = coding, kinds
        floats, codes, dates = coding.lengths
        self._rows = 0
        self._floats = _Values(floats)
        self._dates = _Values(dates)
        self._codes = [np.zeros(0, np.int64) for _ in range(codes)]
        self._packed = Moments(coding.width)
        width = 4 * floats + 8 * dates
        wanted = max(1, min(_SAMPLE_ROWS, _SAMPLE_BYTES // max(width, 1)))
        self._wanted = max(wanted - before, 0)
        self._sample = [(np.empty((0, floats), np.float32), np.empty((0, dates), np.int64))]

    def add(self, rows: np.ndarray) -> None:
        """Add rows of train, as they are in the runs."""
        self._rows += len(rows)
        floats, codes, moments = rows["features"], rows["codes"], rows["dates"]
        self._floats.add(floats, np.isnan(floats))
        self._dates.add(moments, moments == NO_DATE)
        for j, counts in enumerate(self._codes):
            self._codes[j] = _added(counts, np.bincount(codes[:, j]))
        self._packed.add(self._coding.pack(floats, codes.astype(np.int64), moments))
        if self._wanted:
            part = floats[: self._wanted].copy(), moments[: self._wanted].copy()
            self._wanted -= len(part[0])
            self._sample.append(part)

    def merge(self, later: AnyColumns) -> None:
        """Add the description of the rows that follow."""
        self._rows += later._rows
        self._floats.merge(later._floats)
        self._dates.merge(later._dates)
        self._packed.merge(later._packed)
        self._codes = [_added(*pair) for pair in zip(self._codes, later._codes, strict=True)]
        self._sample += later._sample

    def to_plain(self) -> Any:
        """Return what `restore` needs, as JSON values."""
        return {
            "rows": self._rows,
            "floats": self._floats.to_plain(),
            "dates": self._dates.to_plain(),
            "codes": list(map(plain_of, self._codes)),
            "packed": self._packed.to_plain(),
            "sample": [plain_of(array) for array in self._sampled()],
        }

    def restore(self, plain: Any) -> None:
        """Become what `to_plain` has written."""
        self._rows = plain["rows"]
        self._floats.restore(plain["floats"])
        self._dates.restore(plain["dates"])
        self._codes = list(map(array_of, plain["codes"]))
        self._packed = Moments.from_plain(plain["packed"])
        floats, dates = map(array_of, plain["sample"])
        self._sample = [(floats, dates)]

    def _sampled(self) -> tuple[np.ndarray, np.ndarray]:
        floats, dates = zip(*self._sample, strict=True)
        return np.concatenate(floats), np.concatenate(dates)

    def described(self) -> dict[str, Any]:
        """Return the keys `features` and `packed` of statistics.json."""
        floats, moments = self._sampled()
        at = {"features": 0, "dates": 0, "codes": 0}
        found = {}
        for coded in self._coding.features:
            group = _GROUPS[coded.kind]
            j, at[group] = at[group], at[group] + 1
            if group == "codes":
                found[coded.name] = self._of_codes(coded, self._codes[j])
            elif coded.kind == DATE:
                found[coded.name] = self._of_dates(j, moments[:, j])
            elif coded.kind == BOOLEAN:
                count, true = int(self._floats.count[j]), int(self._floats.sum[j])
                found[coded.name] = self._head(BOOLEAN, count) | {
                    "true": true,
                    "false": count - true,
                }
            else:
                found[coded.name] = self._of_numbers(j, floats[:, j])
        packed = []
        for i, name in enumerate(self._coding.names):
            column = self._packed.column(i)
            is_code = i >= self._coding.numbers
            mean, std = (0.0, 1.0) if is_code else (column["mean"], column["std"])
            packed.append({"name": name, "mean": mean, "std": std})
        return {"features": found, "packed": packed}

    def warnings(self, features: dict[str, dict[str, Any]]) -> list[str]:
        """Return what a person should look at."""
        floats, _ = self._sampled()
        numbers = self._kinds.of(NUMBER, BOOLEAN)
        values = {
            name: floats[:, j].astype(np.float64)
            for j, name in enumerate(numbers)
            if features[name]["kind"] == NUMBER
        }
        said = left_out_warnings(self._kinds)
        empty = [name for name, column in features.items() if not column["count"]]
        if empty:
            said.append(f"no value in train, so each gap is 0: {', '.join(empty[:10])}")
        constant = [name for name, column in features.items() if _is_constant(column)]
        return said + number_warnings({name: features[name] for name in values}, constant, values)

    def _head(self, kind: str, count: int) -> dict[str, Any]:
        return {"kind": kind, "count": count, "missing": self._rows - count}

    def _of_numbers(self, j: int, sample: np.ndarray) -> dict[str, Any]:
        column = self._floats.column(j)
        sample = sample[~np.isnan(sample)].astype(np.float64)
        return (
            self._head(NUMBER, int(column["count"]))
            | column
            | {"histogram": bars_of(sample, column["min"], column["max"])}
        )

    def _of_dates(self, j: int, sample: np.ndarray) -> dict[str, Any]:
        count = int(self._dates.count[j])
        if not count:
            return self._head(DATE, 0) | {"min": None, "max": None, "histogram": []}
        low, high = int(self._dates.minimum[j]), int(self._dates.maximum[j])
        sample = sample[sample != NO_DATE].astype(np.float64)
        return self._head(DATE, count) | {
            "min": dates.shown(low),
            "max": dates.shown(high),
            "histogram": bars_of(sample, float(low), float(high)),
        }

    def _of_codes(self, coded: Coded, counts: np.ndarray) -> dict[str, Any]:
        gaps, rows = int(counts[0]) if len(counts) else 0, counts[1:]
        head = self._head(coded.kind, self._rows - gaps)
        if coded.kind == TEXT:
            return head | {"bins": int((rows > 0).sum())}
        counted = zip((-rows).tolist(), coded.dictionary, strict=False)
        top = [[text, -count] for count, text in nsmallest(_MOST_TOP, counted) if count]
        known = set(coded.vocabulary)
        rare = sum(
            count
            for text, count in zip(coded.dictionary, rows.tolist(), strict=False)
            if text not in known
        )
        return head | {
            "distinct": int((rows > 0).sum()),
            "vocabulary": len(coded.vocabulary),
            "rare": rare,
            "top": top,
        }


def left_out_warnings(kinds: Kinds) -> list[str]:
    """Return a line for each column that is left out."""
    return [
        f"the column {item.name!r} is left out: {item.reason}"
        + ("" if item.reason == NO_VALUE else "; to keep it, name its kind in data_options.types")
        for item in kinds.left_out
    ]


def _added(counts: np.ndarray, more: np.ndarray) -> np.ndarray:
    """Return the sum of two arrays of counts of different lengths."""
    found = np.zeros(max(len(counts), len(more)), np.int64)
    found[: len(counts)] += counts
    found[: len(more)] += more
    return found


class _Values:
    """Moments and range of columns with gaps, in float64; dates keep their range exactly."""

    def __init__(self, columns: int) -> None:
        self.count = np.zeros(columns, np.int64)
        self.sum = np.zeros(columns)
        self._mean, self._squares = np.zeros(columns), np.zeros(columns)
        self.minimum: Any = None  # np.ndarray [columns], once there are rows
        self.maximum: Any = None
        self._zeros = np.zeros(columns, np.int64)

    def add(self, values: np.ndarray, gaps: np.ndarray) -> None:
        """Add values of shape [rows, columns]."""
        if not len(values) or not values.shape[1]:
            return
        whole = values.dtype.kind == "i"
        least, most = (
            (np.iinfo(np.int64).min, np.iinfo(np.int64).max)
            if whole
            else (
                -np.inf,
                np.inf,
            )
        )
        low, high = np.where(gaps, most, values).min(0), np.where(gaps, least, values).max(0)
        self.minimum = low if self.minimum is None else np.minimum(self.minimum, low)
        self.maximum = high if self.maximum is None else np.maximum(self.maximum, high)
        part = np.where(gaps, 0, values).astype(np.float64)
        count = (~gaps).sum(0)
        mean = part.sum(0) / np.maximum(count, 1)
        squares = np.where(gaps, 0, (part - mean) ** 2).sum(0)
        self._join(count, mean, squares, part.sum(0), ((part == 0) & ~gaps).sum(0))

    def merge(self, later: _Values) -> None:
        """Add the values of later rows."""
        if later.minimum is None or later.maximum is None:
            return
        first = self.minimum is None
        self.minimum = later.minimum if first else np.minimum(self.minimum, later.minimum)
        self.maximum = later.maximum if first else np.maximum(self.maximum, later.maximum)
        self._join(later.count, later._mean, later._squares, later.sum, later._zeros)

    def _join(
        self,
        count: np.ndarray,
        mean: np.ndarray,
        squares: np.ndarray,
        total: np.ndarray,
        zeros: np.ndarray,
    ) -> None:
        both = self.count + count
        delta = np.where(count > 0, mean - self._mean, 0)
        self._squares += squares
        self._squares += delta**2 * (self.count * count / np.maximum(both, 1))
        self._mean = self._mean + delta * (count / np.maximum(both, 1))
        self.sum += total
        self._zeros += zeros
        self.count = both

    def to_plain(self) -> list[Any]:
        """Return what `restore` needs, as JSON values."""
        if self.minimum is None or self.maximum is None:
            return []
        arrays = (self.count, self._mean, self._squares, self.sum, self._zeros)
        return list(map(plain_of, (*arrays, self.minimum, self.maximum)))

    def restore(self, plain: list[Any]) -> None:
        """Become what `to_plain` has written."""
        if plain:
            arrays = list(map(array_of, plain))
            self.count, self._mean, self._squares, self.sum, self._zeros = arrays[:5]
            self.minimum, self.maximum = arrays[5:]

    def column(self, i: int) -> dict[str, float | int]:
        """Return the statistics of one column; zeros if it has no value."""
        count = int(self.count[i])
        if not count:
            return {"count": 0, "mean": 0.0, "std": 0.0, "min": 0.0, "max": 0.0, "zeros": 0}
        return {
            "count": count,
            "mean": float(self._mean[i]),
            "std": float(np.sqrt(self._squares[i] / count)),
            "min": float(self.minimum[i]),
            "max": float(self.maximum[i]),
            "zeros": int(self._zeros[i]),
        }


def _is_constant(column: dict[str, Any]) -> bool:
    """Tell whether a column has one value in every row of train, without a gap."""
    if column["missing"] or not column["count"]:
        return False
    if column["kind"] == CATEGORY:
        return column["distinct"] == 1
    if column["kind"] == BOOLEAN:
        return not column["true"] or not column["false"]
    return column["kind"] != TEXT and column["min"] == column["max"]
