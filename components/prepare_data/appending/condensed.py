"""Describes the features over train so that the descriptions of groups give that of a dataset.

What a gap becomes and where dates begin is known only once all groups are. So moments are those of
the values that are there, and moments of packed rows follow from them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kfp_tfjob.components.prepare_data.appending.spread import Spread
from kfp_tfjob.components.prepare_data.column_statistics import (
    AnyColumns,
    Values,
    left_out_warnings,
)
from kfp_tfjob.components.prepare_data.kinds import Kinds
from kfp_tfjob.components.prepare_data.plain import plain_of
from kfp_tfjob.components.prepare_data.statistics import Described, Numbers
from kfp_tfjob.trainer.coding import DATE, DATE_PARTS, NO_DATE, SECOND, Coded, Coding, date_parts

_PARTS = len(DATE_PARTS) - 1  # seconds follow from the dates
_SAMPLE_ROWS = 10_000
_LATER = 1 << 62  # rows of train before any row: no sample of rows is kept
Moments = tuple[np.ndarray, np.ndarray, np.ndarray]  # counts, means, sums of squares


class Condensed(Described):
    """The numbers and dates of train.

    Args:
        floats: Numbers and booleans in a row.
        dates: Dates in a row.
    """

    def __init__(self, floats: int, dates: int) -> None:
        self.rows = 0
        self.floats, self.dates = Values(floats), Values(dates)
        self.parts = Values(_PARTS * dates)

    def add(self, rows: np.ndarray) -> None:
        """Add rows of train, as they are in the runs."""
        self.rows += len(rows)
        self.floats.add(rows["features"], np.isnan(rows["features"]))
        moments = rows["dates"]
        if moments.shape[1]:
            gaps = moments == NO_DATE
            self.dates.add(moments, gaps)
            parts = date_parts(np.where(gaps, 0, moments), np.int64(0))[:_PARTS]
            found = np.stack(parts, axis=2).reshape(len(rows), -1).astype(np.float64)
            self.parts.add(found, np.repeat(gaps, _PARTS, axis=1))

    def merge(self, later: Condensed) -> None:
        """Add the description of the rows that follow."""
        self.rows += later.rows
        self.floats.merge(later.floats)
        self.dates.merge(later.dates)
        self.parts.merge(later.parts)

    def to_plain(self) -> Any:
        """Return what `restore` needs, as JSON values."""
        return [self.rows, *(item.to_plain() for item in (self.floats, self.dates, self.parts))]

    def restore(self, plain: Any) -> None:
        """Become what `to_plain` has written."""
        self.rows = plain[0]
        for item, given in zip((self.floats, self.dates, self.parts), plain[1:], strict=True):
            item.restore(given)

    def whole(
        self, spread: Spread, kinds: Kinds, kind: np.dtype, coding: Coding | None
    ) -> Described:
        """Return the description of a dataset.

        Args:
            spread: Of the same rows, and of those of other splits.
            kinds: The kinds of the columns.
            kind: The type of a row.
            coding: What was learned; None for a table of numbers without a gap.
        """
        sample = spread.sample(kind, _SAMPLE_ROWS)
        found: _Numbers | _AnyColumns
        if coding is None:
            names = tuple(item.name for item in kinds.features)
            found = _Numbers(names, left_out_warnings(kinds), _LATER)
            count, mean, squares = self.floats.moments
            least, most, zeros = self.floats.range
            arrays = (mean, squares, least.astype(float), most.astype(float), zeros)
            found.restore([[self.rows, *map(plain_of, arrays)], plain_of(sample["features"])])
        else:
            found = _AnyColumns(coding, kinds, _LATER)
            count, mean, squares = self._packed(coding)
            nothing = np.zeros(coding.width)
            arrays = (mean, squares, nothing, nothing, nothing.astype(np.int64))
            found.restore(
                {
                    "rows": self.rows,
                    "floats": self.floats.to_plain(),
                    "dates": self.dates.to_plain(),
                    "codes": list(map(plain_of, spread.codes_of_train())),
                    "packed": [self.rows, *map(plain_of, arrays)],
                    "sample": [plain_of(sample["features"]), plain_of(sample["dates"])],
                }
            )
        found.spread = spread
        return found

    def _packed(self, coding: Coding) -> Moments:
        """Return the moments of the packed columns; zeros for codes."""
        found: list[tuple[float, float]] = []
        floats = dates = 0
        for coded in (item for item in coding.features if not item.size):
            if coded.kind == DATE:
                gaps = self.rows - int(self.dates.count[dates])
                found += self._date(coded, dates, gaps)
                dates += 1
            else:
                gaps = self.rows - int(self.floats.count[floats])
                value = _value(coded, np.float32)
                found.append(_joined(self.floats.moments, floats, gaps, value))
                floats += 1
            if coded.missing and coded.missing.indicator:
                found.append(_joined(([self.rows - gaps], [0.0], [0.0]), 0, gaps, 1.0))
        found += [(0.0, 0.0)] * (coding.width - len(found))
        mean, squares = map(np.array, zip(*found, strict=True))
        return np.full(len(found), self.rows), mean, squares

    def _date(self, coded: Coded, j: int, gaps: int) -> list[tuple[float, float]]:
        """Return the mean and the squares of the parts of a date."""
        value, origin = int(_value(coded, np.int64)), coded.origin
        stand_ins = [float(part) for part in date_parts(np.int64(value), np.int64(origin))]
        found = [
            _joined(self.parts.moments, _PARTS * j + k, gaps, stand_ins[k]) for k in range(_PARTS)
        ]
        count, mean, squares = (array[j] for array in self.dates.moments)
        seconds = ([count], [(mean - origin) / SECOND], [squares / SECOND**2])
        return [*found, _joined(seconds, 0, gaps, stand_ins[-2] + stand_ins[-1] / SECOND)]


def _value(coded: Coded, kind: Any) -> Any:
    """Return what stands for a gap; 0 if none is possible."""
    value = coded.missing.value if coded.missing else None
    return kind(0 if value is None else value)


def _joined(moments: Any, j: int, gaps: int, value: float) -> tuple[float, float]:
    """Return the mean and the squares of a column with its gaps filled."""
    count, mean, squares = (float(array[j]) for array in moments)
    if not gaps:
        return mean, squares
    delta = float(value) - mean
    both = count + gaps
    return mean + delta * gaps / both, squares + delta**2 * count * gaps / both


class _FromSpread:
    """What is known of columns, not from a sample of rows but from the spread of their values.

    Attributes:
        spread: Of all rows.
    """

    spread: Spread

    def known(self, j: int) -> np.ndarray:
        """Return values of a column of numbers."""
        return self.spread.identifying(j)


class _Numbers(_FromSpread, Numbers):
    pass


class _AnyColumns(_FromSpread, AnyColumns):
    pass
