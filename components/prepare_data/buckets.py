"""Sorts the rows of a dataset by their hashes, one range of hashes at a time.

A dataset may be larger than memory, so the hashes are divided into *buckets*, the same for all
parts of the source. The task that reads a part writes its rows to a bucket file: one Arrow IPC
stream for each bucket, one after the other. A shard is gathered from its buckets in all files,
sorted, and written.

Each stream has the strings of its own rows. An Arrow IPC *file* would have one dictionary for all
of them, so 4,000 rows of a bucket would bring every string of their part along.

Rows whose label is not a number are among the others, and left out of what is read if they turn out
to be bad: that is known only once all labels are.

Written by tasks.py, read by dataset.py and shards.py.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import google_crc32c
import numpy as np
import pyarrow as pa

from kfp_tfjob.components.prepare_data.bucket_folder import BucketFolder, damaged
from kfp_tfjob.components.prepare_data.hashes import limits_of
from kfp_tfjob.features.types.string import bins_of

FILE_BYTES = 32 << 20  # of rows in memory, before they are sorted and written
_BUCKET_BYTES = 2 << 20  # of the source, about
# The index of every file is in memory: 150 MB for a source of 100 GB.
_FEWEST_BITS, _MOST_BITS = 8, 12
_GROUP_BYTES = 16 << 20  # of rows that are sorted at once; it is part of what statistics depend on
_READ_BYTES = 32 << 20  # of streams that are read at once, from all files together
# So few strings are written to every bucket, which takes less time than to find those of its rows.
_FEW_STRINGS = 64


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


def schema_of(kind: np.dtype) -> pa.Schema:
    """Return the columns of a stream: the fields of a row, with strings in place of their codes."""
    strings = pa.dictionary(pa.int32(), pa.string())
    return pa.schema(
        [
            ("hash", pa.uint64()),
            ("number", pa.float32()),
            ("features", pa.list_(pa.float32(), kind["features"].shape[0])),
            ("dates", pa.list_(pa.int64(), kind["dates"].shape[0])),
            *([("weight", pa.float32())] if "weight" in (kind.names or ()) else []),
            ("label", strings),
            *((f"string {i}", strings) for i in range(kind["codes"].shape[0])),
        ]
    )


def edges_of(size: int, fractions: list[float]) -> np.ndarray:
    """Return the first hash of each bucket: uint64, ascending from 0, for `size` bytes of source.

    A bucket is in one split, and its hashes have their first 8 bits in common.
    """
    bits = min(max((size // _BUCKET_BYTES).bit_length(), _FEWEST_BITS), _MOST_BITS)
    starts = np.arange(1 << bits, dtype=np.uint64) << np.uint64(64 - bits)
    return np.unique(np.concatenate([starts, np.array(limits_of(fractions), np.uint64)]))


def order_of(hashes: np.ndarray, labels: np.ndarray | None = None) -> np.ndarray:
    """Return the order of rows by hash, then by label if given, then as they are."""
    # Equal hashes are few, and a stable sort of all rows takes five times as long.
    order = np.argsort(hashes)
    ordered = hashes[order]
    same = ordered[1:] == ordered[:-1]
    if same.any():
        places = np.flatnonzero(np.append(same, False) | np.append(False, same))
        rows = order[places]
        keys = (rows, hashes[rows]) if labels is None else (rows, labels[rows], hashes[rows])
        order[places] = rows[np.lexsort(keys)]
    return order


def joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return several arrays of rows as one."""
    kind = parts[0].dtype
    return np.concatenate([_opaque(part) for part in parts]).view(kind)


def taken(rows: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return the rows at some places."""
    return _opaque(rows).take(places).view(rows.dtype)


def _opaque(rows: np.ndarray) -> np.ndarray:
    """Return rows without their fields: numpy would copy each field alone, which takes longer."""
    return rows.view(np.dtype((np.void, rows.dtype.itemsize)))


@dataclass(frozen=True)
class BucketFile:
    """The index of a bucket file, or of a range of its buckets: one entry for each bucket.

    Attributes:
        name: In the folder of the buckets.
        counts: The rows.
        numbers: The rows whose label is a number.
        starts: uint32, where each stream begins, and where the last one ends.
        checksums: uint32, the CRC32C of each stream.
    """

    name: str
    counts: np.ndarray
    numbers: np.ndarray
    starts: np.ndarray
    checksums: np.ndarray

    def of_range(self, first: int, last: int) -> BucketFile:
        """Return the index of the buckets from `first` up to `last`, in arrays of their own."""
        return BucketFile(
            self.name,
            self.counts[first:last].copy(),
            self.numbers[first:last].copy(),
            self.starts[first : last + 1].copy(),
            self.checksums[first:last].copy(),
        )


class BucketWriter:
    """Sorts the rows of a part and writes them as bucket files, whose names start with `name`."""

    def __init__(self, folder: BucketFolder, name: str, kind: np.dtype, edges: np.ndarray) -> None:
        self._folder, self._name = folder, name
        self._kind, self._schema, self._edges = kind, schema_of(kind), edges
        self._blocks: list[np.ndarray] = []
        self._size = 0
        self.files: list[BucketFile] = []

    def add(self, rows: np.ndarray, string_bytes: int = 0) -> None:
        """Add rows, whose codes are those that `flush` gets, and the bytes of their new strings."""
        self._blocks.append(rows)
        self._size += rows.nbytes + string_bytes

    @property
    def is_full(self) -> bool:
        """Whether there are enough rows for a file."""
        return self._size >= FILE_BYTES

    def flush(self, labels: Sequence[str], strings: Sequence[Sequence[str]]) -> None:
        """Write the waiting rows to a file.

        Args:
            labels: The label of each code.
            strings: For each column of strings, those of the codes from 1 on.
        """
        rows = joined([np.empty(0, self._kind), *self._blocks])
        self._blocks, self._size = [], 0
        if not len(rows):
            return
        name = f"{self._name}-{len(self.files)}"
        rows = taken(rows, order_of(np.ascontiguousarray(rows["hash"])))
        hashes = np.ascontiguousarray(rows["hash"])
        counts = self._counted(hashes)
        numbers = self._counted(hashes[~np.isnan(rows["number"])])
        body, starts, checksums = self._streams(rows, counts, labels, strings)
        self._folder.write(name, body)
        small = np.min_scalar_type(counts.max())  # of a large source, there are thousands of files
        counts, numbers = counts.astype(small), numbers.astype(small)
        numbers = counts if (numbers == counts).all() else numbers
        self.files.append(BucketFile(name, counts, numbers, starts, checksums))

    def _streams(
        self,
        rows: np.ndarray,
        counts: np.ndarray,
        labels: Sequence[str],
        strings: Sequence[Sequence[str]],
    ) -> tuple[bytes, np.ndarray, np.ndarray]:
        """Return the streams of sorted rows, where they begin, and their checksums."""
        plain = [
            _plain_column(rows, field) for field in self._schema if field.name in rows.dtype.names
        ]
        codes = [rows["code"], *(rows["codes"].T - 1)]
        columns = [
            iter(_dictionary_arrays(column, texts, counts))
            for column, texts in zip(codes, [labels, *strings], strict=True)
        ]
        starts = np.zeros(len(counts) + 1, np.uint32)
        checksums = np.zeros(len(counts), np.uint32)
        sink, first = io.BytesIO(), 0
        for bucket, count in enumerate(counts.tolist()):
            if count:
                arrays = [column.slice(first, count) for column in plain]
                arrays += [next(column) for column in columns]
                with pa.ipc.new_stream(sink, self._schema) as stream:
                    stream.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
                first += count
            starts[bucket + 1] = sink.tell()
        body = sink.getvalue()
        for bucket in np.flatnonzero(counts).tolist():
            checksums[bucket] = google_crc32c.value(body[starts[bucket] : starts[bucket + 1]])
        return body, starts, checksums

    def _counted(self, hashes: np.ndarray) -> np.ndarray:
        places = np.searchsorted(hashes, self._edges)
        return np.diff(np.append(places, len(hashes)))


def _plain_column(rows: np.ndarray, field: pa.Field) -> pa.Array:
    """Return a field of rows as a column; a list of values stays a list."""
    values = np.ascontiguousarray(rows[field.name])
    if not pa.types.is_fixed_size_list(field.type):
        return pa.array(values)
    flat = pa.array(values.reshape(-1))
    if field.type.list_size:
        return pa.FixedSizeListArray.from_arrays(flat, type=field.type)
    return pa.array([[]] * len(rows), field.type)  # from_arrays cannot tell how many rows


def _dictionary_arrays(
    codes: np.ndarray, strings: Sequence[str], counts: np.ndarray
) -> Iterator[pa.DictionaryArray]:
    """Yield the strings of each bucket that has rows; a code below 0 is null."""
    ends = np.cumsum(counts)[counts > 0].tolist()
    texts = pa.array(strings, pa.string())
    # A dictionary that got too long has no strings any more, and its rows are read again.
    codes = np.ascontiguousarray(codes) if len(texts) else np.full(len(codes), -1, np.int32)
    if len(texts) <= _FEW_STRINGS:
        of_bucket = [texts] * len(ends)
    else:
        # All buckets at once: a key is the bucket, then the code.
        span = len(texts) + 1
        buckets = np.repeat(np.arange(len(ends)), counts[counts > 0])
        present = codes >= 0
        keys, indices = np.unique(buckets[present] * span + codes[present], return_inverse=True)
        firsts = np.searchsorted(keys, np.arange(len(ends) + 1) * span)
        codes = np.full(len(codes), -1, np.int32)
        codes[present] = indices - firsts[buckets[present]]
        ordered = texts.take(pa.array(keys % span))
        of_bucket = [
            ordered.slice(start, end - start)
            for start, end in zip(firsts.tolist(), firsts[1:].tolist(), strict=False)
        ]
    mask, first = codes < 0, 0
    for end, dictionary in zip(ends, of_bucket, strict=True):
        indices = pa.array(codes[first:end], mask=mask[first:end])
        yield pa.DictionaryArray.from_arrays(indices, dictionary, safe=False)
        first = end


@dataclass(frozen=True)
class Vocabulary:
    """The codes that the dataset has for labels and strings.

    Attributes:
        classes: The class of each label; None if the label is a number.
        columns: For each column of strings, the code of each string, or the number of bins into
            which it is hashed.
    """

    classes: Mapping[str, int] | None
    columns: tuple[Mapping[str, int] | int, ...]


def _codes_of(strings: pa.Array, codes: Mapping[str, int] | int) -> np.ndarray:
    """Return the code of each string: int32 of shape [strings], 0 for one that has none."""
    texts = strings.to_pylist()
    if isinstance(codes, int):
        return (bins_of([text.encode() for text in texts], codes) + 1).astype(np.int32)
    return np.array([codes.get(text, 0) for text in texts], np.int32)


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
    """The good rows of some buckets, sorted.

    If the labels are no classes, rows whose label is not a number are bad.

    Args:
        files: In the order of the source, so that equal rows are in that order, too.
        kind: The type of a row.
        edges: The first hash of each bucket.

    Attributes:
        counts: int64 of shape [buckets], the rows of each.
    """

    def __init__(
        self,
        folder: BucketFolder,
        files: Sequence[BucketFile],
        kind: np.dtype,
        edges: np.ndarray,
        vocabulary: Vocabulary,
    ) -> None:
        self._folder, self._files, self._kind, self._edges = folder, files, kind, edges
        self._vocabulary = vocabulary
        self.counts = np.zeros(len(edges), np.int64)
        for file in files:
            self.counts += file.numbers if vocabulary.classes is None else file.counts

    def read(self, first: int, last: int, texts: bool = False) -> Iterator[Sorted]:
        """Yield the rows of the buckets from `first` up to `last`, in order.

        The rows come in groups of buckets, which depend on the dataset alone.

        Args:
            first: A bucket.
            last: A bucket.
            texts: Whether to return the strings of hashed columns.

        Raises:
            DataError: A file is damaged.
        """
        for groups in self._windows(first, last):
            low, high = groups[0][0], groups[-1][1]
            bodies = [self._body(file, low, high) for file in self._files]
            for start, end in groups:
                batches = [
                    batch
                    for file, body in zip(self._files, bodies, strict=True)
                    for batch in self._batches(file, body, low, start, end)
                ]
                if batches and (group := self._gathered(batches, texts)) is not None:
                    yield group

    def _body(self, file: BucketFile, first: int, last: int) -> bytes:
        """Return the streams of the buckets from `first` up to `last` of a file."""
        start, end = int(file.starts[first]), int(file.starts[last])
        return self._folder.read(file.name, start, end) if end > start else b""

    def _batches(
        self, file: BucketFile, body: bytes, low: int, first: int, last: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some buckets of a file, whose body begins at the bucket `low`."""
        begin = int(file.starts[low])
        for bucket in range(first, last):
            start, end = int(file.starts[bucket]) - begin, int(file.starts[bucket + 1]) - begin
            if end == start:
                continue
            stream = body[start:end]
            if google_crc32c.value(stream) != file.checksums[bucket]:
                raise damaged(file.name)
            with pa.ipc.open_stream(stream) as reader:
                yield reader.read_next_batch()

    def _windows(self, first: int, last: int) -> Iterator[list[tuple[int, int]]]:
        """Yield groups whose streams are read at once: of bounded size, if a group is."""
        window, size = [], 0
        for start, end in self._grouped(first, last):
            more = sum(int(file.starts[end]) - int(file.starts[start]) for file in self._files)
            if window and size + more > _READ_BYTES:
                yield window
                window, size = [], 0
            window.append((start, end))
            size += more
        if window:
            yield window

    def _grouped(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of buckets that have their first 8 bits in common, of bounded size."""
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

    def _gathered(self, batches: Sequence[pa.RecordBatch], texts: bool) -> Sorted | None:
        """Return the good rows of streams, sorted; None without any."""
        rows = np.empty(sum(map(len, batches)), self._kind)
        for name in ("hash", "number", "features", "dates", "weight"):
            if name in (self._kind.names or ()):
                _fill(rows[name], [batch.column(name) for batch in batches])
        classes = self._vocabulary.classes
        if classes is None:
            labels = rows["number"].copy()
        else:
            codes, strings = _unified(batches, "label")
            labels = np.array([classes[text] for text in strings.to_pylist()], np.int32)[codes]
        rows["code"] = 0 if classes is None else labels
        columns = []
        for j, known in enumerate(self._vocabulary.columns):
            codes, strings = _unified(batches, f"string {j}")
            rows["codes"][:, j] = np.append(_codes_of(strings, known), np.int32(0))[codes]
            if texts and isinstance(known, int):
                columns.append((codes, pa.concat_arrays([strings, pa.array([""])])))
        if classes is None:
            good = np.flatnonzero(~np.isnan(labels))
            if not len(good):
                return None
            if len(good) < len(rows):
                rows, labels = taken(rows, good), labels[good]
                columns = [(codes[good], strings) for codes, strings in columns]
        # By label too, so the order of rows with equal features does not depend on the input.
        order = order_of(np.ascontiguousarray(rows["hash"]), labels)
        in_order = (strings.take(pa.array(codes[order])) for codes, strings in columns)
        return Sorted(taken(rows, order), labels[order], tuple(in_order))


def _fill(field: np.ndarray, columns: Sequence[pa.Array]) -> None:
    """Write the values of columns into a field of rows, one after the other."""
    first = 0
    for column in columns:
        last = first + len(column)
        if pa.types.is_fixed_size_list(column.type):
            field[first:last] = column.flatten().to_numpy().reshape(len(column), -1)
        else:
            field[first:last] = column.to_numpy()
        first = last


def _unified(batches: Sequence[pa.RecordBatch], name: str) -> tuple[np.ndarray, pa.Array]:
    """Return a column's codes over all batches, and the string of each; null has the next code."""
    column = pa.chunked_array([batch.column(name) for batch in batches]).unify_dictionaries()
    strings = column.chunk(0).dictionary
    codes = [chunk.indices.fill_null(len(strings)).to_numpy() for chunk in column.chunks]
    return np.concatenate(codes), strings
