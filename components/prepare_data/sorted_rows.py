"""Merges runs: the rows of a dataset in the order of their hashes, any range of bins at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from kfp_tfjob.components.prepare_data.executors.exchange import Exchange
from kfp_tfjob.components.prepare_data.plain import Array
from kfp_tfjob.components.prepare_data.runs import (
    Run,
    Stretch,
    joined,
    order_of,
    read_stretch,
    taken,
)

_GROUP_BYTES = 16 << 20  # of rows that are sorted at once; it is part of what statistics depend on


@dataclass(frozen=True)
class Meaning:
    """What the codes of one part mean in the dataset.

    Attributes:
        classes: The class of each code of a label; None if the label is a number.
        codes: For each column of texts, the code of each code; None for the code itself.
    """

    classes: Array | None
    codes: tuple[Array | None, ...]


@dataclass(frozen=True)
class Sorted:
    """Rows in the order of their hashes and labels.

    Attributes:
        rows: Rows of the runs, with the codes of the dataset.
        labels: Class indices or numbers, of shape [rows].
        texts: The texts of each hashed column; none if they were not asked for.
    """

    rows: np.ndarray
    labels: np.ndarray
    texts: tuple[pa.Array, ...] = ()

    def cut(self, start: int, end: int) -> Sorted:
        """Return the rows from `start` up to `end`."""
        texts = tuple(column.slice(start, max(end - start, 0)) for column in self.texts)
        return Sorted(self.rows[start:end], self.labels[start:end], texts)


class SortedRows:
    """The good rows of a source.

    Args:
        exchange: Where the runs are.
        runs: The runs, in the order of the source.
        kind: The type of a row.
        edges: The bins.
        is_class: Whether the labels are classes; otherwise rows whose label is not a number are
            bad.
        meaning: Returns what codes mean, by the number of the part.

    Attributes:
        counts: int64 of shape [bins], the rows of each bin.
    """

    def __init__(
        self,
        exchange: Exchange,
        runs: list[Run],
        kind: np.dtype,
        edges: np.ndarray,
        is_class: bool,
        meaning: Callable[[int], Meaning],
    ) -> None:
        self._exchange, self._runs, self._kind, self._edges = exchange, runs, kind, edges
        self._groups = range(2 if is_class else 1)
        self._meaning = meaning
        self.counts = np.zeros(len(edges), np.int64)
        for run in runs:
            self.counts += run.counts[: len(self._groups)].sum(0, dtype=np.int64)

    def read(self, first: int, last: int, texts: bool = False) -> Iterator[Sorted]:
        """Yield the rows of the bins from `first` up to `last`, in order.

        The rows come in groups of bins, which depend on the dataset alone.

        Args:
            first: A bin.
            last: A bin.
            texts: Whether to read the texts of hashed columns.
        """
        stretches = [
            read_stretch(self._exchange, run, self._kind, group, first, last, texts)
            for run in self._runs
            for group in self._groups
        ]
        stretches = [stretch for stretch in stretches if len(stretch.rows)]
        meanings = {stretch.part: self._meaning(stretch.part) for stretch in stretches}
        for start, end in self._grouped(first, last):
            pieces = [_within(stretch, start - first, end - first) for stretch in stretches]
            pieces = [piece for piece in pieces if len(piece.rows)]
            if pieces:
                yield _merged(pieces, meanings)

    def _grouped(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of bins that have their first 8 bits in common, of bounded size."""
        most = max(1, _GROUP_BYTES // self._kind.itemsize)
        prefixes = self._edges[first:last] >> np.uint64(56)
        start, rows = first, 0
        for i in range(first, last):
            new = i > start and prefixes[i - first] != prefixes[i - first - 1]
            if new or (rows and rows + self.counts[i] > most):
                yield start, i
                start, rows = i, 0
            rows += int(self.counts[i])
        if start < last:
            yield start, last


def _within(stretch: Stretch, start: int, end: int) -> Stretch:
    low = int(stretch.ends[start - 1]) if start else 0
    high = int(stretch.ends[end - 1])
    texts = [column.slice(low, high - low) for column in stretch.texts]
    return replace(stretch, rows=stretch.rows[low:high], texts=texts)


def _merged(pieces: list[Stretch], meanings: dict[int, Meaning]) -> Sorted:
    rows = joined([piece.rows for piece in pieces])
    labels, at = [], 0
    for piece in pieces:
        meaning, part = meanings[piece.part], rows[at : at + len(piece.rows)]
        at += len(part)
        labels.append(part["number"] if meaning.classes is None else meaning.classes[part["code"]])
        for j, codes in enumerate(meaning.codes):
            if codes is not None:
                part["codes"][:, j] = codes[part["codes"][:, j]]
    found = np.concatenate(labels)
    # By label too, so the order of rows with equal features does not depend on the input.
    order = order_of(np.ascontiguousarray(rows["hash"]), found)
    columns = zip(*(piece.texts for piece in pieces), strict=True)
    texts = tuple(pa.concat_arrays(column).take(pa.array(order)) for column in columns)
    return Sorted(taken(rows, order), found[order], texts)
