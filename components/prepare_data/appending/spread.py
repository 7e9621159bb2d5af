"""How the values of each column are spread over the rows of each split, in little space.

The spreads of the groups give, together, all that a dataset says of values in order: medians,
quantiles, histograms and distributions. So no row of an unchanged group is read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from kfp_tfjob.components.prepare_data.appending.sketch import Sketch
from kfp_tfjob.components.prepare_data.distributions import Bins, Distributions, Edges
from kfp_tfjob.components.prepare_data.plain import array_of, plain_of
from kfp_tfjob.components.prepare_data.statistics import SPLITS
from kfp_tfjob.trainer.coding import BOOLEAN, CATEGORY, DATE, NO_DATE, TEXT

_FLOATS, _DATES, _LABEL = "features", "dates", "label"  # the first two as in a row of a run
_MOST = (512, 128, 128)  # values of a sketch of a group, by split
_FINER = 8  # times as many, until all rows of a shard are counted
_Key = tuple[str, int]


class Spread:
    """The spread of the values of some rows.

    Args:
        kind: The type of a row of the runs.
        of_label: Whether the label is a number.

    Attributes:
        rows: int64 of shape [3], by split.
    """

    def __init__(self, kind: np.dtype, of_label: bool) -> None:
        shapes = {key: kind[key].shape[0] for key in (_FLOATS, _DATES, "codes")}
        self._keys: list[_Key] = [(_FLOATS, j) for j in range(shapes[_FLOATS])]
        self._keys += [(_DATES, j) for j in range(shapes[_DATES])]
        self._keys += [(_LABEL, 0)] if of_label else []
        empty = {_DATES: np.int64}
        self.rows = np.zeros(len(SPLITS), np.int64)
        self._sketches = {
            (key, split): Sketch(np.empty(0, empty.get(key[0], np.float32)), np.empty(0, np.int64))
            for key in self._keys
            for split in range(len(SPLITS))
        }
        self._codes = [[np.zeros(0, np.int64) for _ in SPLITS] for _ in range(shapes["codes"])]
        # Whether the values of train are whole numbers, none of them known twice.
        self._differ = np.ones(shapes[_FLOATS], bool)

    def add(self, split: int, rows: np.ndarray, labels: np.ndarray) -> None:
        """Add rows of a split, as they are in the runs, with their labels."""
        self.rows[split] += len(rows)
        for key in self._keys:
            name, j = key
            if name == _LABEL:
                column = labels.astype(np.float32)
            else:
                column = rows[name][:, j]
                column = column[column != NO_DATE if name == _DATES else ~np.isnan(column)]
            more = Sketch.of(column)
            if name == _FLOATS and split == 0 and self._differ[j]:
                self._differ[j] = _all_differ(more)
            self._join((key, split), [more])
            self._sketches[key, split] = self._sketches[key, split].shortened(_FINER * _MOST[split])
        for j, counts in enumerate(self._codes):
            counts[split] = added(counts[split], np.bincount(rows["codes"][:, j]))

    def merge(self, others: Iterable[Spread]) -> None:
        """Add the rows of others."""
        others = list(others)
        for place in self._sketches:
            self._join(place, [other._sketches[place] for other in others])
        for other in others:
            self.rows += other.rows
            self._differ &= other._differ
            for mine, more in zip(self._codes, other._codes, strict=True):
                mine[:] = [added(*pair) for pair in zip(mine, more, strict=True)]

    def _join(self, place: tuple[_Key, int], later: list[Sketch]) -> None:
        parts = [self._sketches[place], *later]
        found = self._sketches[place] = Sketch.merged(parts)
        (name, j), split = place
        if name == _FLOATS and split == 0:
            self._differ[j] &= len(found.values) == sum(len(part.values) for part in parts)

    def shorten(self) -> None:
        """Shorten the sketches to the size in which they are kept."""
        for (key, split), sketch in self._sketches.items():
            self._sketches[key, split] = sketch.shortened(_MOST[split])

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "rows": self.rows.tolist(),
            "sketches": [sketch.to_plain() for sketch in self._sketches.values()],
            "codes": [[plain_of(counts) for counts in column] for column in self._codes],
            "differ": self._differ.tolist(),
        }

    def restore(self, plain: Mapping[str, Any]) -> None:
        """Become what `to_plain` has written."""
        self.rows = np.array(plain["rows"], np.int64)
        sketches = map(Sketch.from_plain, plain["sketches"])
        self._sketches = dict(zip(self._sketches, sketches, strict=True))
        self._codes = [[array_of(counts) for counts in column] for column in plain["codes"]]
        self._differ = np.array(plain["differ"], bool)

    def codes_of_train(self) -> list[np.ndarray]:
        """Return for each column of texts the rows of train by code."""
        return [column[0] for column in self._codes]

    def identifying(self, j: int) -> np.ndarray:
        """Return values of train of a float column, float64 with NaN if it has a gap.

        It is empty unless all are whole numbers, and none of them is known twice.
        """
        sketch = self._sketches[(_FLOATS, j), 0]
        if not self._differ[j]:
            return np.empty(0)
        gap = [np.nan] if sketch.total < self.rows[0] else []
        return np.concatenate([sketch.values.astype(np.float64), gap])

    def sample(self, kind: np.dtype, most: int) -> np.ndarray:
        """Return rows like those of train; each column is drawn and sorted for itself.

        Args:
            kind: The type of a row.
            most: The most rows.

        Returns:
            All values if train has no more rows, and if the sketches are exact.
        """
        total = int(self.rows[0])
        found = np.zeros(min(total, most), kind)
        found[_FLOATS], found[_DATES] = np.nan, NO_DATE
        for name, j in self._keys:
            if name != _LABEL:
                column = self._drawn((name, j), len(found))
                found[name][: len(column), j] = column
        return found

    def labels(self, most: int) -> np.ndarray:
        """Return labels like those of train, float32 and sorted; none for classes."""
        if (_LABEL, 0) not in self._keys:
            return np.empty(0, np.float32)
        return self._drawn((_LABEL, 0), min(int(self.rows[0]), most))

    def _drawn(self, key: _Key, rows: int) -> np.ndarray:
        """Return the values of so many rows of train, without gaps."""
        sketch, total = self._sketches[key, 0], int(self.rows[0])
        return sketch.drawn(-(-rows * sketch.total // max(total, 1)))

    def distributions(self, edges: Edges) -> Distributions:
        """Return the rows of each split by bin; a sketch that is not exact counts about."""
        bins = [*edges.columns, *([edges.label] if edges.label else [])]
        counts = [[list(self._counted(item, split)) for split in range(3)] for item in bins]
        return Distributions.from_plain(edges, counts)

    def _counted(self, bins: Bins, split: int) -> Iterator[int]:
        """Yield the rows of a split by bin, those with a gap first."""
        rows = int(self.rows[split])
        if bins.kind in (CATEGORY, TEXT):
            found = self._codes[bins.place][split]
            gaps = int(found[0]) if len(found) else 0
            yield from (
                bins.of_codes(found).tolist()
                if bins.kind == CATEGORY
                else (
                    gaps,
                    rows - gaps,
                )
            )
            return
        key = (_LABEL, 0) if bins.place < 0 else (_FLOATS, bins.place)
        if bins.kind == DATE:
            key = (_DATES, bins.place)
        sketch = self._sketches[key, split]
        kind = np.int64 if bins.kind == DATE else np.float32
        edges = np.array((0,) if bins.kind == BOOLEAN else bins.edges, kind)
        yield rows - sketch.total
        yield from np.diff([0, *sketch.up_to(edges).tolist(), sketch.total]).tolist()


def _all_differ(sketch: Sketch) -> bool:
    whole = sketch.values == np.floor(sketch.values)
    return bool((sketch.rows == 1).all() and whole.all())


def added(counts: np.ndarray, more: np.ndarray) -> np.ndarray:
    """Return the sum of two arrays of counts of different lengths."""
    found = np.zeros(max(len(counts), len(more)), np.int64)
    found[: len(counts)] += counts
    found[: len(more)] += more
    return found
