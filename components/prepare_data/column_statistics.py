"""Describes the features over train, for statistics.json and the report."""

from __future__ import annotations

from typing import Any

import numpy as np

from kfp_tfjob.components.prepare_data.kinds import NO_VALUE, Kinds
from kfp_tfjob.components.prepare_data.moments import Moments, Sample
from kfp_tfjob.components.prepare_data.plain import array_of, plain_of
from kfp_tfjob.features.coding import Coding
from kfp_tfjob.features.types import TYPES
from kfp_tfjob.features.types.base import CODES, FLOATS, Field, Summary, missing_in
from kfp_tfjob.storage.formatting import listed

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
            said.append(f"no value in train, so each gap is 0: {', '.join(empty[:10])}")
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


def some(names: list[str]) -> str:
    """Return the first names for a warning."""
    return listed(names, _MOST_WARNED)
