"""Describes the features over train by their kinds, for statistics.json and the report."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from heapq import nsmallest
from typing import Any

import numpy as np

from kfp_tfjob.components.prepare_data.kinds import NO_VALUE, Kinds
from kfp_tfjob.components.prepare_data.moments import Moments, Sample, bars_of
from kfp_tfjob.components.prepare_data.plain import array_of, plain_of
from kfp_tfjob.features import dates
from kfp_tfjob.features.coding import BOOLEAN, CATEGORY, DATE, NO_DATE, NUMBER, TEXT, Coded, Coding
from kfp_tfjob.storage.formatting import listed

_MOST_WARNED = 10  # names in one warning
_EXACT = 2**24  # from here on float32 skips whole numbers
# With this many rows, whole numbers are hardly all different by chance. The first limit is for a
# sequence or a name like that of an identifier, the second for any column.
_ROWS_OF_A_SEQUENCE, _ROWS_OF_ANY = 20, 1000
_DENSE = 3  # a sequence's range may be this many times its rows: train has only some of them
_IDENTIFIER = re.compile(r"(?i:(^|[\W_])(id|idx|index|key|no|nr|number))$|[a-z]I[dD]$")
_MOST_TOP = 10  # values of a category that are listed
_GROUPS = {NUMBER: "features", BOOLEAN: "features", DATE: "dates", CATEGORY: "codes", TEXT: "codes"}


class FeatureStatistics:
    """Describes the features over train.

    Args:
        coding: What was learned from train.
        kinds: The kinds of the columns.
        before: Rows of train that come before the first one.
    """

    def __init__(self, coding: Coding, kinds: Kinds, before: int = 0) -> None:
        self._coding, self._kinds = coding, kinds
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
        floats, moments = self._sample.arrays()
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
                count, false = int(self._floats.count[j]), int(self._floats.zeros[j])
                found[coded.name] = self._head(BOOLEAN, count) | {
                    "true": count - false,
                    "false": false,
                }
            else:
                found[coded.name] = self._of_numbers(j, floats[:, j])
        packed, moments = [], self._packed or self._floats
        for i, name in enumerate(self._coding.names):
            column = moments.column(i)
            is_code = i >= self._coding.numbers
            mean, std = (0.0, 1.0) if is_code else (column["mean"], column["std"])
            packed.append({"name": name, "mean": mean, "std": std})
        return {"features": found, "packed": packed}

    def warnings(self, features: dict[str, dict[str, Any]]) -> list[str]:
        """Return what a person should look at."""
        floats, _ = self._sample.arrays()
        numbers = self._kinds.of(NUMBER, BOOLEAN)
        values = {
            name: floats[:, j].astype(np.float64)
            for j, name in enumerate(numbers)
            if features[name]["kind"] == NUMBER
        }
        said = _left_out_warnings(self._kinds)
        empty = [name for name, column in features.items() if not column["count"]]
        if empty:
            said.append(f"no value in train, so each gap is 0: {', '.join(empty[:10])}")
        constant = [name for name, column in features.items() if _is_constant(column)]
        return said + _number_warnings({name: features[name] for name in values}, constant, values)

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


def _left_out_warnings(kinds: Kinds) -> list[str]:
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


def _is_constant(column: dict[str, Any]) -> bool:
    """Tell whether a column has one value in every row of train, without a gap."""
    if column["missing"] or not column["count"]:
        return False
    if column["kind"] == CATEGORY:
        return column["distinct"] == 1
    if column["kind"] == BOOLEAN:
        return not column["true"] or not column["false"]
    return column["kind"] != TEXT and column["min"] == column["max"]


def _number_warnings(
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
        found.append(f"the same value in every row of train: {some(constant)}")
    large = [
        name for name, column in features.items() if max(-column["min"], column["max"]) > _EXACT
    ]
    if large:
        found.append(
            f"values above {_EXACT:,} are rounded to float32 (7 digits); an identifier is not a"
            f" feature: {some(large)}; leave it out with data_options.drop"
        )
    alike = [
        name
        for name, values in samples.items()
        if not np.isnan(values).any() and _identifies(name, values)
    ]
    if alike:
        found.append(
            "a different whole number in every row, like an identifier or a row number:"
            f" {some(alike)}; if it says nothing about new rows, leave it out with"
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


def some(names: list[str]) -> str:
    """Return the first names for a warning."""
    return listed(names, _MOST_WARNED)
