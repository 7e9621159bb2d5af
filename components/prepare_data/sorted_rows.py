"""Sorts the rows of a dataset by their hashes, without ever having them all in memory.

Each part is sorted alone and written to the exchange as one run or several, and a shard is merged
from its range of every run. The hashes are divided into bins that are the same for all runs. The
index of a run has, for each bin, the number of its rows and their CRC32C, so any range of bins can
be read and verified alone.

Rows whose label is not a number are among the others, and left out of what is read if they turn out
to be bad: that is known only once all labels are.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import google_crc32c
import numpy as np
import pyarrow as pa

from kfp_tfjob.components.prepare_data.executors.executor import Exchange, damaged
from kfp_tfjob.components.prepare_data.hashes import limits_of

RUN_BYTES = 32 << 20  # of rows in memory, before they are sorted and written
_BIN_BYTES = 2 << 20  # of the source, about
# The index of every run is in memory, in each process: 80 MB for a source of 100 GB.
_FEWEST_BITS, _MOST_BITS = 8, 12


def kind_of(features: int, codes: int = 0, dates: int = 0, weighted: bool = False) -> np.dtype:
    """Return the type of a row: its hash, its label, its values, and its weight if it has one."""
    return np.dtype(
        [
            ("hash", "<u8"),
            ("code", "<i4"),
            ("number", "<f4"),
            ("features", "<f4", (features,)),
            ("codes", "<i4", (codes,)),
            ("dates", "<i8", (dates,)),
            *([("weight", "<f4")] if weighted else []),
        ]
    )


def edges_of(size: int, fractions: list[float]) -> np.ndarray:
    """Return the first hash of each bin: uint64, ascending from 0, for so many bytes of the source.

    A bin is in one split, and its hashes have their first 8 bits in common.
    """
    bits = min(max((size // _BIN_BYTES).bit_length(), _FEWEST_BITS), _MOST_BITS)
    starts = np.arange(1 << bits, dtype=np.uint64) << np.uint64(64 - bits)
    return np.unique(np.concatenate([starts, np.array(limits_of(fractions), np.uint64)]))


def order_of(hashes: np.ndarray, labels: np.ndarray | None = None) -> np.ndarray:
    """Return the order of rows by hash, then by label if given, then as they are."""
    # Equal hashes are few, and a stable sort of all rows takes five times as long.
    order = np.argsort(hashes)
    found = hashes[order]
    same = found[1:] == found[:-1]
    if same.any():
        places = np.flatnonzero(np.append(same, False) | np.append(False, same))
        rows = order[places]
        keys = (rows, hashes[rows]) if labels is None else (rows, labels[rows], hashes[rows])
        order[places] = rows[np.lexsort(keys)]
    return order


def joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return several arrays of rows as one."""
    kind = parts[0].dtype
    return np.concatenate([_whole(part) for part in parts]).view(kind)


def taken(rows: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return the rows at some places."""
    return _whole(rows).take(places).view(rows.dtype)


def _whole(rows: np.ndarray) -> np.ndarray:
    """Return rows without their fields: numpy would copy each field alone, which takes longer."""
    return rows.view(np.dtype((np.void, rows.dtype.itemsize)))


class RunWriter:
    """Sorts the rows of a part and writes them as runs, whose names start with `name`.

    `texts` is the number of columns whose strings are kept for the test split.
    """

    def __init__(
        self,
        exchange: Exchange,
        name: str,
        part: int,
        kind: np.dtype,
        edges: np.ndarray,
        texts: int = 0,
    ) -> None:
        self._exchange, self._name, self._part = exchange, name, part
        self._kind, self._edges = kind, edges
        self._waiting: list[np.ndarray] = []
        self._texts: list[list[pa.Array]] = [[] for _ in range(texts)]
        self._size = 0
        self.runs: list[Run] = []

    def add(self, rows: np.ndarray, texts: Sequence[pa.Array] = ()) -> None:
        """Add rows, with the strings of each column; a string is null outside the test split."""
        self._waiting.append(rows)
        for kept, column in zip(self._texts, texts, strict=True):
            kept.append(column)
        self._size += rows.nbytes + sum(column.nbytes for column in texts)
        if self._size >= RUN_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is waiting as one run."""
        rows = joined([np.empty(0, self._kind), *self._waiting])
        self._waiting, self._size = [], 0
        if not len(rows):
            return
        name = f"{self._name}-{len(self.runs)}"
        hashes = np.ascontiguousarray(rows["hash"])
        order = order_of(hashes)
        rows, hashes = taken(rows, order), hashes[order]
        counts = self._counted(hashes)
        numbers = self._counted(hashes[~np.isnan(rows["number"])])
        sums, at = np.zeros(len(counts), np.uint32), 0
        for i in np.flatnonzero(counts).tolist():
            end = at + int(counts[i])
            sums[i] = google_crc32c.value(rows[at:end].tobytes())
            at = end
        self._exchange.write(f"{name}.rows", rows.view(np.uint8).data)
        if self._texts:
            columns = [pa.concat_arrays(kept).take(pa.array(order)) for kept in self._texts]
            table = pa.table(columns, [str(i) for i in range(len(columns))])
            self._texts = [[] for _ in self._texts]
            sink = io.BytesIO()
            with pa.ipc.new_stream(sink, table.schema) as stream:
                stream.write_table(table)
            self._exchange.write(f"{name}.texts", sink.getvalue())
        small = np.min_scalar_type(counts.max())  # of a large source, there are thousands of runs
        counts, numbers = counts.astype(small), numbers.astype(small)
        numbers = counts if (numbers == counts).all() else numbers
        self.runs.append(Run(name, self._part, counts, numbers, sums))

    def _counted(self, hashes: np.ndarray) -> np.ndarray:
        places = np.searchsorted(hashes, self._edges)
        return np.diff(np.append(places, len(hashes)))


@dataclass(frozen=True)
class Run:
    """One run: for each bin, its rows, those whose label is a number, and their checksum."""

    name: str
    part: int
    counts: np.ndarray
    numbers: np.ndarray
    sums: np.ndarray


@dataclass
class _Stretch:
    """The rows of a range of bins of one run: where the rows of each bin end, and their texts."""

    part: int
    rows: np.ndarray
    ends: np.ndarray
    texts: list[pa.Array] = field(default_factory=list)

    def within(self, start: int, end: int) -> _Stretch:
        """Return the rows of the bins from `start` up to `end`, counted from the first one."""
        low = int(self.ends[start - 1]) if start else 0
        high = int(self.ends[end - 1])
        texts = [column.slice(low, high - low) for column in self.texts]
        return _Stretch(self.part, self.rows[low:high], self.ends[start:end] - low, texts)


_GROUP_BYTES = 16 << 20  # of rows that are sorted at once; it is part of what statistics depend on


@dataclass(frozen=True)
class Meaning:
    """What the codes of one part mean in the dataset.

    Attributes:
        classes: The class of each code of a label; None if the label is a number.
        codes: For each column of strings, the code of each code; None for the code itself.
    """

    classes: np.ndarray | None
    codes: tuple[np.ndarray | None, ...]


@dataclass(frozen=True)
class Sorted:
    """Rows in the order of their hashes and labels, with the codes of the dataset.

    Attributes:
        labels: Class indices or numbers, of shape [rows].
        texts: The strings of each hashed column; none if they were not asked for.
    """

    rows: np.ndarray
    labels: np.ndarray
    texts: tuple[pa.Array, ...] = ()

    def cut(self, start: int, end: int) -> Sorted:
        """Return the rows from `start` up to `end`."""
        texts = tuple(column.slice(start, max(end - start, 0)) for column in self.texts)
        return Sorted(self.rows[start:end], self.labels[start:end], texts)


class SortedRows:
    """The good rows of a source: of runs in the order of the source.

    If the labels are no classes, rows whose label is not a number are bad. `meaning` returns what
    the codes of a part mean, by its number.

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
        self._is_class, self._meaning = is_class, meaning
        self.counts = np.zeros(len(edges), np.int64)
        for run in runs:
            self.counts += run.counts if is_class else run.numbers

    def read(self, first: int, last: int, texts: bool = False) -> Iterator[Sorted]:
        """Yield the rows of the bins from `first` up to `last`, in order.

        The rows come in groups of bins, which depend on the dataset alone.

        Args:
            first: A bin.
            last: A bin.
            texts: Whether to read the strings of hashed columns.
        """
        found = (self._stretch(run, first, last, texts) for run in self._runs)
        stretches = [stretch for stretch in found if len(stretch.rows)]
        meanings = {stretch.part: self._meaning(stretch.part) for stretch in stretches}
        for start, end in self._grouped(first, last):
            pieces = [stretch.within(start - first, end - first) for stretch in stretches]
            pieces = [piece for piece in pieces if len(piece.rows)]
            if pieces:
                yield _merged(pieces, meanings)

    def _stretch(self, run: Run, first: int, last: int, texts: bool) -> _Stretch:
        """Read the good rows of the bins from `first` up to `last`, and verify them."""
        before = int(run.counts[:first].sum(dtype=np.int64))
        counts = run.counts[first:last]
        ends = np.cumsum(counts, dtype=np.int64)
        total = int(ends[-1]) if len(ends) else 0
        if not total:
            return _Stretch(run.part, np.empty(0, self._kind), ends)
        size, name = self._kind.itemsize, f"{run.name}.rows"
        body = self._exchange.read(name, before * size, (before + total) * size)
        at = 0
        for count, checksum in zip(counts.tolist(), run.sums[first:last].tolist(), strict=True):
            if count:
                if google_crc32c.value(body[at : at + count * size]) != checksum:
                    raise damaged(name)
                at += count * size
        rows, found = np.frombuffer(body, self._kind), []
        if texts:
            with pa.ipc.open_stream(self._exchange.read(f"{run.name}.texts")) as stream:
                table = stream.read_all().slice(before, total)
                found = [pa.concat_arrays(column.chunks) for column in table.columns]
        if not self._is_class and run.numbers is not run.counts:
            good = np.flatnonzero(~np.isnan(rows["number"]))
            rows, found = taken(rows, good), [column.take(pa.array(good)) for column in found]
            ends = np.cumsum(run.numbers[first:last], dtype=np.int64)
        return _Stretch(run.part, rows, ends, found)

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


def _merged(pieces: list[_Stretch], meanings: dict[int, Meaning]) -> Sorted:
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
