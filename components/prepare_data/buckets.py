"""Sorts the rows of a dataset by their hashes, one range of hashes at a time.

A dataset may be larger than memory, so the hashes are divided into *buckets*, the same for all
parts of the source. The task that reads a part writes its rows to a bucket file: one Arrow IPC
stream for each bucket, one after the other. A shard is gathered from its buckets in all files,
sorted, and written.

Each stream has the strings of its own rows. An Arrow IPC *file* would have one dictionary for all
of them, so 4,000 rows of a bucket would bring every string of their part along.

A bucket consists of *bins*, whose rows are counted. The counts decide which rows a shard contains
and which rows are added up together, so the result depends neither on the bucket size nor on the
part size.

Rows of images have another form, with the bytes of each image (contents.py).

Rows whose label is not a number are written as well. Whether they are invalid is known only after
all labels have been read. If they are, they are skipped when the buckets are read.

Written by tasks.py, read by dataset.py and shards.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import google_crc32c
import numpy as np
import pyarrow as pa

from kfp_tfjob.features.coding import Coding
from kfp_tfjob.features.string_hashes import string_hashes
from kfp_tfjob.features.types.base import CODES, FLOATS, ColumnType, Field
from kfp_tfjob.features.types.string import bins_of

from . import contents
from .bucket_folder import BucketFolder, damaged
from .hashes import limits_of

FILE_BYTES = 32 << 20  # of rows in memory, before they are sorted and written
_BIN_BYTES = 2 << 20  # of the source, about
# Smaller ones cost more for their Arrow streams, of 0.7 ms each, than for rows of other shards that
# are read with them.
_BUCKET_BYTES = 4 << 20  # of the source, about
# The index of every file is in memory: 130 MB for a source of 100 GB.
_FEWEST_BITS, _MOST_BITS = 8, 12
_GROUP_BYTES = 16 << 20  # of rows that are added up at once; statistics depend on it
_READ_BYTES = 64 << 20  # of streams that are read at once, from all files: fewer requests to S3
_OPTIONAL = ("weight", "group")  # fields that not every table has
# Up to this many strings are all written to every bucket: faster than finding each bucket's own.
_FEW_STRINGS = 256


def kind_of(
    features: int,
    codes: int = 0,
    dates: int = 0,
    weighted: bool = False,
    number: type[np.floating] = np.float32,
    grouped: bool = False,
    with_contents: bool = False,
) -> np.dtype:
    """Return the type of a row: its hash, its label and values, its weight and its group's hash.

    `number` is the type of the features that are numbers. With contents, a row also has
    contents.FIELDS.
    """
    return np.dtype(
        [
            ("hash", "<u8"),
            ("code", "<i4"),
            ("number", "<f8"),
            ("features", number, (features,)),
            ("codes", "<i4", (codes,)),
            ("dates", "<i8", (dates,)),
            *([("weight", "<f4")] if weighted else []),
            *([("group", "<u8")] if grouped else []),
            *(contents.FIELDS if with_contents else []),
        ]
    )


def schema_of(kind: np.dtype) -> pa.Schema:
    """Return the columns of a stream: the fields of a row, with strings in place of their codes."""
    strings, names = pa.dictionary(pa.int32(), pa.string()), kind.names or ()
    return pa.schema(
        [
            ("hash", pa.uint64()),
            ("number", pa.float64()),
            ("features", pa.list_(_value_type(kind["features"]), kind["features"].shape[0])),
            ("dates", pa.list_(pa.int64(), kind["dates"].shape[0])),
            *((name, _value_type(kind[name])) for name in _OPTIONAL if name in names),
            ("label", strings),
            *((f"string {i}", strings) for i in range(kind["codes"].shape[0])),
        ]
    )


def model_numbers(rows: np.ndarray) -> np.ndarray:
    """Return the numbers of rows as the model gets them: float32, NaN if missing.

    Statistics and distributions count these too, so they stay comparable with earlier datasets.
    """
    return _rounded(rows["features"])


def model_values(rows: np.ndarray, field: Field, place: int) -> np.ndarray:
    """Return the contiguous column at a place of rows; of numbers, as `model_numbers` has them."""
    column = np.ascontiguousarray(rows[field.name][:, place])
    return _rounded(column) if field == FLOATS else column


def _rounded(numbers: np.ndarray) -> np.ndarray:
    """Return numbers as float32."""
    # Rounding makes -0.0 of a small negative number.
    return numbers if numbers.dtype == np.float32 else numbers.astype(np.float32) + np.float32(0)


def _value_type(kind: np.dtype) -> pa.DataType:
    """Return the Arrow type of the values in a row's field."""
    return pa.from_numpy_dtype(kind.base)


@dataclass(frozen=True)
class HashBins:
    """The bins of the hashes, and the buckets, which consist of whole bins.

    A bin is in one split, and its hashes have their first 8 bits in common.

    Attributes:
        edges: uint64 of shape [bins], the first hash of each, ascending from 0.
        buckets: int64 of shape [buckets + 1], the first bin of each, then the number of bins.
    """

    edges: np.ndarray
    buckets: np.ndarray

    @classmethod
    def of(cls, size: int, fractions: list[float], is_fine: bool = False) -> HashBins:
        """Return those for `size` bytes of source; if it is fine, each bin is a bucket."""
        limits = np.array(limits_of(fractions), np.uint64)

        def edges(bits: int) -> np.ndarray:
            starts = np.arange(1 << bits, dtype=np.uint64) << np.uint64(64 - bits)
            return np.unique(np.concatenate([starts, limits]))

        bits = min(max((size // _BIN_BYTES).bit_length(), _FEWEST_BITS), _MOST_BITS)
        bins = edges(bits)
        if is_fine:
            return cls(bins, np.arange(len(bins) + 1))
        # One bit at least: a number of 64 bits cannot be shifted by 64.
        buckets = edges(min(max((size // _BUCKET_BYTES).bit_length(), 1), bits))
        return cls(bins, np.append(np.searchsorted(bins, buckets), len(bins)))

    def cuts(self, hashes: np.ndarray) -> np.ndarray:
        """Return for sorted hashes where each bin begins, and where the last one ends."""
        return np.append(np.searchsorted(hashes, self.edges), len(hashes))

    def buckets_with(self, first: int, last: int) -> tuple[int, int]:
        """Return the first bucket with a bin from `first` up to `last`, and the one after them."""
        start = int(np.searchsorted(self.buckets, first, side="right")) - 1
        return start, int(np.searchsorted(self.buckets, last))


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
    """The index of a bucket file.

    Attributes:
        counts: The rows of each bin.
        numbers: The rows of each bin whose label is a number.
        streams: Of all buckets.
    """

    counts: np.ndarray
    numbers: np.ndarray
    streams: Streams


@dataclass(frozen=True)
class Streams:
    """Where the streams of some buckets are in a file.

    Attributes:
        name: The file in the folder of the buckets.
        starts: uint32 of shape [buckets + 1], where each begins, and where the last one ends.
        checksums: uint32 of shape [buckets], the CRC32C of each stream.
    """

    name: str
    starts: np.ndarray
    checksums: np.ndarray


class BucketWriter:
    """Sorts the rows of a part and writes them as bucket files, whose names start with `name`.

    Attributes:
        files: The bucket files.
        content_bytes: int64 of shape [bins], the bytes of the images, or of the strings in `sized`
            columns, in each bin.
    """

    def __init__(
        self,
        folder: BucketFolder,
        name: str,
        kind: np.dtype,
        bins: HashBins,
        sized: Sequence[int] = (),
    ) -> None:
        self._folder, self._name, self._sized = folder, name, sized
        self._kind, self._schema, self._bins = kind, schema_of(kind), bins
        self._blocks: list[np.ndarray] = []
        self._images: list[bytes] = []
        self._size = 0
        self.files: list[BucketFile] = []
        self.content_bytes = np.zeros(len(bins.edges), np.int64)

    def add(
        self,
        rows: np.ndarray,
        string_bytes: int = 0,
        images: Sequence[bytes] = (),
    ) -> None:
        """Add rows.

        Args:
            rows: The rows, whose codes are those that `flush` gets.
            string_bytes: The bytes of their new strings.
            images: The bytes of each row's image; empty for tables.
        """
        self._blocks.append(rows)
        self._size += rows.nbytes + string_bytes
        self._images += images
        self._size += sum(map(len, images))

    @property
    def is_full(self) -> bool:
        """Whether there are enough rows for a file."""
        return self._size >= FILE_BYTES

    def flush(self, labels: Sequence[str], strings: Sequence[Sequence[str]]) -> None:
        """Write the waiting rows to a file.

        Args:
            labels: The label of each code.
            strings: For each string column, the strings of codes 1, 2 and so on.
        """
        rows = joined([np.empty(0, self._kind), *self._blocks])
        self._blocks, self._size = [], 0
        if not len(rows):
            return
        name = f"{self._name}-{len(self.files)}"
        order = order_of(np.ascontiguousarray(rows["hash"]))
        rows = taken(rows, order)
        hashes = np.ascontiguousarray(rows["hash"])
        cuts = self._bins.cuts(hashes)
        counts = np.diff(cuts)
        numbers = np.diff(self._bins.cuts(hashes[~np.isnan(rows["number"])]))
        if self._images:
            image_ends = np.append(0, np.cumsum(rows["size"], dtype=np.int64))
            self.content_bytes += np.diff(image_ends[cuts])
            body, ends = self._image_streams(rows, cuts[self._bins.buckets], order)
        else:
            for column in self._sized:
                lengths = np.array([0, *(len(text.encode()) for text in strings[column])], np.int64)
                text_ends = np.append(0, np.cumsum(lengths[rows["codes"][:, column]]))
                self.content_bytes += np.diff(text_ends[cuts])
            body, ends = self._streams(rows, cuts[self._bins.buckets], labels, strings)
        self._folder.write(name, memoryview(body))
        starts = np.array([0, *ends], np.uint32)
        checksums = [
            google_crc32c.value(body.slice(start, end - start))
            for start, end in zip(starts.tolist(), ends, strict=False)
        ]
        small = np.min_scalar_type(counts.max())  # of a large source, there are thousands of files
        counts, numbers = counts.astype(small), numbers.astype(small)
        numbers = counts if (numbers == counts).all() else numbers
        streams = Streams(name, starts, np.array(checksums, np.uint32))
        self.files.append(BucketFile(counts, numbers, streams))

    def _image_streams(
        self, rows: np.ndarray, cuts: np.ndarray, order: np.ndarray
    ) -> tuple[pa.Buffer, list[int]]:
        """Return the streams of sorted images and where each ends, as `_streams` does.

        A label's code is the number of its folder in the source, so no labels are needed.
        """
        images = [self._images[row] for row in order.tolist()]
        self._images, parts, ends = [], [], []
        end = 0
        for start, stop in pairwise(cuts.tolist()):
            stream = [*contents.stream_of(rows[start:stop], images[start:stop])]
            parts += stream
            end += sum(map(len, stream))
            ends.append(end)
        return pa.py_buffer(b"".join(parts)), ends

    def _streams(
        self,
        rows: np.ndarray,
        cuts: np.ndarray,
        labels: Sequence[str],
        strings: Sequence[Sequence[str]],
    ) -> tuple[pa.Buffer, list[int]]:
        """Return the streams of sorted rows, which are cut into buckets, and where each ends."""
        names = rows.dtype.names or ()
        plain = [_plain_column(rows, field) for field in self._schema if field.name in names]
        codes = [rows["code"], *(rows["codes"].T - 1)]
        columns = [
            _dictionary_arrays(column, texts, cuts)
            for column, texts in zip(codes, [labels, *strings], strict=True)
        ]
        # A file object of Python would be called for each buffer of a stream.
        sink, ends = pa.BufferOutputStream(), []
        for start, end, *of_bucket in zip(cuts.tolist(), cuts[1:].tolist(), *columns, strict=False):
            if end > start:
                arrays = [column.slice(start, end - start) for column in plain]
                batch = pa.RecordBatch.from_arrays([*arrays, *of_bucket], schema=self._schema)
                with pa.ipc.new_stream(sink, self._schema) as stream:
                    stream.write_batch(batch)
            ends.append(sink.tell())
        return sink.getvalue(), ends


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
    codes: np.ndarray, strings: Sequence[str], cuts: np.ndarray
) -> Iterator[pa.DictionaryArray]:
    """Yield the strings of each bucket, given where each begins; a code below 0 is null."""
    texts, buckets = pa.array(strings, pa.string()), len(cuts) - 1
    # A dictionary that became too long has dropped its strings, and its rows are read again.
    codes = np.ascontiguousarray(codes) if len(texts) else np.full(len(codes), -1, np.int32)
    dictionaries = [texts] * buckets
    if len(texts) > _FEW_STRINGS:
        # All buckets at once: a key is the bucket, then the code.
        span = len(texts)
        places = np.repeat(np.arange(buckets), np.diff(cuts))
        present = np.flatnonzero(codes >= 0)
        places = places[present]
        keys, indices = np.unique(places * span + codes[present], return_inverse=True)
        starts = np.searchsorted(keys, np.arange(buckets + 1) * span)
        codes = np.full(len(codes), -1, np.int32)
        codes[present] = indices - starts[places]
        ordered = texts.take(pa.array(keys % span))
        dictionaries = [
            ordered.slice(start, end - start)
            for start, end in zip(starts.tolist(), starts[1:].tolist(), strict=False)
        ]
    mask, ends = codes < 0, cuts[1:].tolist()
    for start, end, dictionary in zip(cuts.tolist(), ends, dictionaries, strict=False):
        indices = pa.array(codes[start:end], mask=mask[start:end])
        yield pa.DictionaryArray.from_arrays(indices, dictionary, safe=False)


@dataclass(frozen=True)
class Vocabulary:
    """The codes that the dataset has for labels and strings.

    Attributes:
        classes: The class of each label; None if the label is a number.
        columns: For each column of strings, the code of each string, the number of bins into
            which it is hashed, or the encoding that was learned from the strings.
    """

    classes: Mapping[str, int] | None
    columns: tuple[Mapping[str, int] | int | ColumnType, ...]

    def learned(self, coding: Coding) -> Vocabulary:
        """Return a copy with the encodings of types that learn from all strings of train."""
        features = (feature for feature in coding.features if feature.field is CODES)
        columns = (
            feature if feature.learns_from_strings else codes
            for feature, codes in zip(features, self.columns, strict=True)
        )
        return replace(self, columns=tuple(columns))


def _codes_of(strings: pa.Array, codes: Mapping[str, int] | int | ColumnType) -> np.ndarray:
    """Return the code of each string: int32 of shape [strings], 0 for a string without one."""
    texts = strings.to_pylist()
    if isinstance(codes, ColumnType):
        return codes.codes_of(texts)
    if isinstance(codes, int):
        return (bins_of(string_hashes(texts), codes) + 1).astype(np.int32)
    return np.array([codes.get(text, 0) for text in texts], np.int32)


@dataclass(frozen=True)
class Sorted:
    """Rows in the order of their hashes and labels, with the codes of the dataset.

    Attributes:
        labels: Class indices, or numbers as float32, of shape [rows].
        strings: Each column of strings, as a dictionary; null if missing.
        images: The bytes of the images, as large_binary; None for tables.
    """

    rows: np.ndarray
    labels: np.ndarray
    strings: tuple[pa.DictionaryArray, ...] = ()
    images: pa.ChunkedArray | None = None

    @classmethod
    def joined(cls, pieces: Sequence[Sorted]) -> Sorted:
        """Return the rows of several pieces, which follow each other."""
        if len(pieces) == 1:
            return pieces[0]
        strings = zip(*(piece.strings for piece in pieces), strict=True)
        return cls(
            joined([piece.rows for piece in pieces]),
            np.concatenate([piece.labels for piece in pieces]),
            tuple(map(pa.concat_arrays, strings)),
            contents.chained([piece.images for piece in pieces]),
        )

    def cut(self, start: int, end: int) -> Sorted:
        """Return the rows from `start` up to `end`."""
        count = max(end - start, 0)
        strings = tuple(column.slice(start, count) for column in self.strings)
        images = None if self.images is None else self.images.slice(start, count)
        return Sorted(self.rows[start:end], self.labels[start:end], strings, images)


@dataclass(frozen=True)
class RowRange:
    """The good rows of the bins from `first` up to `last`, and where they are.

    Attributes:
        counts: int64 of shape [last - first], the rows of each bin.
        sizes: int64 of the same shape, their bytes.
        streams: Of the buckets with these bins, in all files in the order of the source.
    """

    first: int
    last: int
    counts: np.ndarray
    sizes: np.ndarray
    streams: tuple[Streams, ...]


class SortedRows:
    """The good rows of all bucket files, sorted.

    If the labels are no classes, rows whose label is not a number are bad.

    Args:
        kind: The type of a row.
        content_bytes: The bytes of the images or of long strings in each bin; None without them,
            or if only `read` is called.
    """

    def __init__(
        self,
        folder: BucketFolder,
        kind: np.dtype,
        bins: HashBins,
        vocabulary: Vocabulary,
        content_bytes: np.ndarray | None = None,
    ) -> None:
        self._folder, self._kind, self._bins = folder, kind, bins
        self._vocabulary = vocabulary
        none = np.zeros(len(bins.edges), np.int64)
        self._content_bytes = none if content_bytes is None else content_bytes

    def counts(self, files: Sequence[BucketFile]) -> np.ndarray:
        """Return the rows of each bin in all files: int64 of shape [bins]."""
        counts = np.zeros(len(self._bins.edges), np.int64)
        for file in files:
            counts += file.numbers if self._vocabulary.classes is None else file.counts
        return counts

    def weights(self, counts: np.ndarray) -> tuple[np.ndarray, int]:
        """Return the amount by bin that all shards share equally, and the bytes of one unit.

        The amount is the rows; images differ much in size, so their bytes count instead.
        """
        if self._content_bytes.any():
            return self._sizes(counts), 1
        return counts, self._kind.itemsize

    def _sizes(self, counts: np.ndarray) -> np.ndarray:
        """Return the bytes of each bin, given its rows."""
        return counts * self._kind.itemsize + self._content_bytes

    def range(
        self, files: Sequence[BucketFile], counts: np.ndarray, first: int, last: int
    ) -> RowRange:
        """Return the rows of some bins of files, which are in the order of the source."""
        start, end = self._bins.buckets_with(first, last)
        streams = (
            Streams(streams.name, streams.starts[start : end + 1], streams.checksums[start:end])
            for streams in (file.streams for file in files)
        )
        sizes = self._sizes(counts)[first:last]
        return RowRange(first, last, counts[first:last], sizes, tuple(streams))

    def read(self, rows: RowRange) -> Iterator[Sorted]:
        """Yield sorted rows, in groups that depend on the dataset alone.

        Raises:
            DataError: A file is damaged.
        """
        ends = deque(self._group_ends(rows))
        pieces: list[Sorted] = []
        for last, bucket in self._sorted_buckets(rows):
            if bucket is not None:
                pieces.append(bucket)
            # A large bucket has several groups, and of a large source, a group several buckets.
            while pieces and ends and ends[0] <= last:
                group = Sorted.joined(pieces)
                place = self._place_of(group, ends.popleft())
                if place:
                    yield group.cut(0, place)
                pieces = [group.cut(place, len(group.rows))]
            while ends and ends[0] <= last:
                ends.popleft()

    def _place_of(self, rows: Sorted, number: int) -> int:
        """Return where a bin begins in sorted rows."""
        if number == len(self._bins.edges):
            return len(rows.rows)
        return int(np.searchsorted(rows.rows["hash"], self._bins.edges[number]))

    def _sorted_buckets(self, rows: RowRange) -> Iterator[tuple[int, Sorted | None]]:
        """Yield the bin after each bucket, and its rows from `rows.first` on; None without any."""
        first, last = self._bins.buckets_with(rows.first, rows.last)
        bodies: list[pa.Buffer] = []
        begin = end = 0  # the buckets in `bodies`, counted from `first`
        for bucket in range(last - first):
            if bucket == end:
                begin, end = bucket, self._window_end(rows, bucket, last - first)
                bodies = [self._body(streams, begin, end) for streams in rows.streams]
            bucket_streams = [
                stream
                for streams, body in zip(rows.streams, bodies, strict=True)
                if (stream := _stream_of(streams, body, begin, bucket)).size
            ]
            gathered = self._gathered(bucket_streams) if bucket_streams else None
            if gathered and not bucket:  # it may begin before the rows
                gathered = gathered.cut(self._place_of(gathered, rows.first), len(gathered.rows))
            yield int(self._bins.buckets[first + bucket + 1]), gathered

    def _window_end(self, rows: RowRange, bucket: int, last: int) -> int:
        """Return the bucket after those that are read at once from `bucket` on."""
        size = sum(
            np.diff(streams.starts[bucket : last + 1].astype(np.int64)) for streams in rows.streams
        )
        return bucket + max(1, int(np.searchsorted(np.cumsum(size), _READ_BYTES, side="right")))

    def _body(self, streams: Streams, first: int, last: int) -> pa.Buffer:
        """Return the bytes of some streams of a file."""
        start, end = int(streams.starts[first]), int(streams.starts[last])
        body = self._folder.read(streams.name, start, end) if end > start else b""
        return pa.py_buffer(body)  # whose slices are not copied

    def _group_ends(self, rows: RowRange) -> Iterator[int]:
        """Yield the bin after each group.

        The bins of a group have their first 8 bits in common, and its size is bounded.
        """
        prefixes = self._bins.edges[rows.first : rows.last] >> np.uint64(56)
        size = 0
        for i, added in enumerate(rows.sizes.tolist()):
            if i and (prefixes[i] != prefixes[i - 1] or (size and size + added > _GROUP_BYTES)):
                yield rows.first + i
                size = 0
            size += added
        if rows.last > rows.first:
            yield rows.last

    def _gathered(self, streams: Sequence[pa.Buffer]) -> Sorted | None:
        """Return the good rows of a bucket's streams, sorted; None without any."""
        if "content" in (self._kind.names or ()):
            return self._gathered_images(streams)
        batches = [*map(_batch_of, streams)]
        rows = np.empty(sum(map(len, batches)), self._kind)
        for name in ("hash", "number", "features", "dates", *_OPTIONAL):
            if name in (self._kind.names or ()):
                _fill(rows[name], [batch.column(name) for batch in batches])
        classes = self._vocabulary.classes
        if classes is None:
            labels = rows["number"].astype(np.float32)
        else:
            codes, strings = _unified(batches, "label")
            labels = np.array([classes[text] for text in strings.to_pylist()], np.int32)[codes]
        rows["code"] = 0 if classes is None else labels
        columns = []
        for j, codes_of_column in enumerate(self._vocabulary.columns):
            codes, strings = _unified(batches, f"string {j}")
            rows["codes"][:, j] = np.append(_codes_of(strings, codes_of_column), np.int32(0))[codes]
            columns.append((codes, strings))
        if classes is None:
            good = np.flatnonzero(~np.isnan(labels))
            if not len(good):
                return None
            if len(good) < len(rows):
                rows, labels = taken(rows, good), labels[good]
                columns = [(codes[good], strings) for codes, strings in columns]
        # By label too, so the order of rows with equal features does not depend on the input.
        by_label = labels if classes is not None else rows["number"]
        order = order_of(np.ascontiguousarray(rows["hash"]), by_label)
        in_order = (_dictionary_array(codes[order], strings) for codes, strings in columns)
        return Sorted(taken(rows, order), labels[order], tuple(in_order))

    def _gathered_images(self, streams: Sequence[pa.Buffer]) -> Sorted:
        """Return the images of a bucket's streams, sorted."""
        parts, images = [], []
        for stream in streams:
            rows, images_of_stream = contents.rows_of(stream, self._kind)
            parts.append(rows)
            images += images_of_stream
        rows = joined(parts)
        order = order_of(np.ascontiguousarray(rows["hash"]), rows["code"])
        rows = taken(rows, order)
        in_order = contents.array_of([images[row] for row in order.tolist()])
        labels = np.ascontiguousarray(rows["code"])
        return Sorted(rows, labels, (), pa.chunked_array([in_order]))


def _dictionary_array(codes: np.ndarray, strings: pa.Array) -> pa.DictionaryArray:
    """Return strings by their codes; the code after the last string is null."""
    indices = pa.array(codes.astype(np.int32, copy=False), mask=codes == len(strings))
    return pa.DictionaryArray.from_arrays(indices, strings, safe=False)


def _stream_of(streams: Streams, body: pa.Buffer, first: int, bucket: int) -> pa.Buffer:
    """Return a bucket's stream in one file, empty without rows; `body` begins at bucket `first`."""
    start, end = (int(at) for at in streams.starts[bucket : bucket + 2] - streams.starts[first])
    stream = body.slice(start, end - start)
    if stream.size and google_crc32c.value(stream) != streams.checksums[bucket]:
        raise damaged(streams.name)
    return stream


def _batch_of(stream: pa.Buffer) -> pa.RecordBatch:
    """Return the rows of a table's stream."""
    with pa.ipc.open_stream(stream) as reader:
        return reader.read_next_batch()


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
