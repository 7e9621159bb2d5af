"""Encodes a dataset's rows once, when the trainer starts.

The shards contain the table's own values, so that any program can read them. A step takes packed
rows: the float32 numbers that the model gets. They are computed here by the same operations as in
the exported model (features/raw_columns.py), so training and serving cannot differ. They are stored
in files, and a step copies its rows from there (rows.py).

Every replica encodes all rows, because each epoch shuffles them over all replicas. A million rows
of 30 columns take 1 to 3 CPU seconds, and a row takes 4 bytes of disk for each packed column. If a
replica restarts in its pod, it finds the files again. Called by `dataset.py`.

Images stay encoded, because their pixels would be far larger than their files. A split's images are
copied into one file, from which a step takes those of its rows; each step decodes its own.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf
from pyarrow import parquet

from kfp_tfjob.common.errors import ConfigurationError, DataError, Problem
from kfp_tfjob.common.formatting import listed, sized
from kfp_tfjob.common.names import below
from kfp_tfjob.common.progress import ProgressReport, report
from kfp_tfjob.features.cells import as_array
from kfp_tfjob.features.moments import Moments
from kfp_tfjob.features.records import prepare_again
from kfp_tfjob.features.schema import Schema
from kfp_tfjob.features.statistics import TRAINING_SPLITS
from kfp_tfjob.features.types.image import HALF
from kfp_tfjob.options.image_options import PICTURE
from kfp_tfjob.storage import documents
from kfp_tfjob.storage.documents import InvalidDocumentError
from kfp_tfjob.storage.layout import ENCODED_DOCUMENT

from .errors import StoppedError
from .packing import Packing

log = logging.getLogger(__name__)

_SILENCE = 5.0  # seconds between two lines of progress
_LABEL_BYTES, _WEIGHT_BYTES, _OFFSET_BYTES = 8, 4, 8  # of a row, at most


@dataclass(frozen=True)
class PackedColumn:
    """A packed column over train; a code has the mean 0 and the deviation 1."""

    name: str
    mean: float
    std: float


@dataclass(frozen=True)
class EncodedRows:
    """The encoded rows of a dataset on this machine.

    Attributes:
        folder: The folder of their files.
        columns: The moments of the packed columns over train.
    """

    folder: Path
    columns: tuple[PackedColumn, ...]


@dataclass(frozen=True)
class EncodedDocument:
    """encoded.json: the dataset of the encoded rows, and the moments of train's packed columns.

    Attributes:
        dataset: The digest of the dataset's manifest, which covers the rows and their encoding.
        columns: The moments of the packed columns.
    """

    dataset: str
    columns: tuple[PackedColumn, ...]

    @classmethod
    def read(cls, folder: Path) -> EncodedDocument | None:
        """Return the document in a folder of encoded rows; None if they are not complete."""
        try:
            return cls.from_bytes((folder / ENCODED_DOCUMENT).read_bytes())
        except (FileNotFoundError, InvalidDocumentError):
            return None

    @classmethod
    def from_bytes(cls, data: bytes) -> EncodedDocument:
        """Read it back; it grows with the columns, so no limit of documents applies."""
        return documents.read(cls, data, None)

    def to_bytes(self) -> bytes:
        """Return the document as JSON."""
        return documents.to_bytes(self)


def features_of(folder: Path, split: str) -> Path:
    """Return the file with a split's packed rows: float32, row by row."""
    return folder / f"{split}.features"


def contents_of(folder: Path, split: str) -> Path:
    """Return the file with a split's images: JPEG or PNG files, one after the other."""
    return folder / f"{split}.contents"


def offsets_of(folder: Path, split: str) -> Path:
    """Return the .npy file with the offset of each image in `contents_of`, and of the end."""
    return folder / f"{split}.offsets.npy"


def labels_of(folder: Path, split: str) -> Path:
    """Return the .npy file with a split's labels."""
    return folder / f"{split}.labels.npy"


def weights_of(folder: Path, split: str) -> Path:
    """Return the .npy file with a split's weights, which is missing if all rows count the same."""
    return folder / f"{split}.weights.npy"


def encode_rows(
    dataset: Path,
    target: Path,
    schema: Schema,
    digest: str = "",
    *,
    uri: str = "",
    threads: int = 1,
    stop: Callable[[], bool] = lambda: False,
    deletes_shards: bool = False,
) -> EncodedRows:
    """Encode the rows of train and validation, unless `target` contains this dataset's rows.

    Args:
        dataset: The folder of the dataset's files.
        target: The folder for the encoded rows; it appears when all of them are written.
        schema: The content of schema.json.
        digest: The digest of the dataset's manifest; empty if there is none.
        uri: The dataset's address, for messages.
        threads: How many row groups of a table are encoded at the same time.
        stop: Returns whether to stop; it is asked after each row group.
        deletes_shards: Whether to delete each shard once it is encoded.

    Raises:
        DataError: A shard is damaged, or does not match schema.json.
        ConfigurationError: The disk does not have enough space.
        StoppedError: `stop` returned True.
    """
    document = EncodedDocument.read(target)
    if digest and document and document.dataset == digest:
        return EncodedRows(target, document.columns)
    partial = target.with_name(f"{target.name}.tmp")
    for folder in (target, partial):
        shutil.rmtree(folder, ignore_errors=True)
    kind = _ImageEncoding if schema.picture else _TableEncoding
    encoding = kind(dataset, partial, schema, uri, deletes_shards)
    encoding.check_space()
    partial.mkdir(parents=True)
    with ThreadPoolExecutor(threads) as pool:
        try:
            for split in TRAINING_SPLITS:
                encoding.run(split, pool, stop)
        finally:
            pool.shutdown(cancel_futures=True)
    document = EncodedDocument(digest, encoding.columns())
    (partial / ENCODED_DOCUMENT).write_bytes(document.to_bytes())
    partial.rename(target)
    return EncodedRows(target, document.columns)


@dataclass(frozen=True)
class _RowGroup:
    """A row group of a shard.

    Attributes:
        path: The shard.
        metadata: The shard's metadata.
        number: The row group's number in the shard.
        start: The number of its first row in the split.
        is_last: Whether it is the shard's last one.
    """

    path: Path
    metadata: parquet.FileMetaData
    number: int
    start: int
    is_last: bool


@dataclass(frozen=True)
class _Encoded:
    """The labels and weights of a row group, whose features are in their file.

    Attributes:
        labels: (rows,) int64 classes, or float32 values.
        weights: (rows,) float32; empty if all rows count the same.
    """

    labels: np.ndarray
    weights: np.ndarray


class _Encoding:
    """The encoding of a dataset; a subclass writes the features of its kind of rows.

    Args:
        dataset: The folder of the dataset's files.
        target: The folder for the encoded rows.
        schema: The content of schema.json.
        uri: The dataset's address, for messages.
        deletes_shards: Whether to delete each shard once it is encoded.
    """

    def __init__(
        self, dataset: Path, target: Path, schema: Schema, uri: str, deletes_shards: bool
    ) -> None:
        self._target, self._schema, self._uri = target, schema, uri
        self._deletes_shards = deletes_shards
        self._groups = {split: [*self._row_groups(dataset, split)] for split in TRAINING_SPLITS}
        self._rows = sum(schema.rows.get(split, 0) for split in TRAINING_SPLITS)
        self._progress = _Progress(self._rows)

    def columns(self) -> tuple[PackedColumn, ...]:
        """Return the moments of the packed columns of train, once all rows are encoded."""
        raise NotImplementedError

    def _space(self) -> tuple[int, str]:
        """Return the bytes that the encoded rows need, and what they contain."""
        raise NotImplementedError

    def _encode_split(
        self, split: str, groups: Sequence[_RowGroup], pool: ThreadPoolExecutor
    ) -> Generator[_Encoded, None, None]:
        """Write the features of a split; yield each row group once it is written."""
        raise NotImplementedError

    def check_space(self) -> None:
        """Reject a disk that is too small before anything is written.

        A pod that uses more than its own disk may have is evicted, and sees no error.
        """
        needed, content = self._space()
        self._target.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self._target.parent).free
        if needed > free:
            raise ConfigurationError(
                Problem(
                    f"the encoded rows need {sized(needed)} in {self._target.parent}",
                    received=f"{sized(free)} of free space",
                    expected=f"{sized(needed)}: {content}",
                    fix="in a pod, raise pod.all.ephemeral_storage; elsewhere, use a folder on a"
                    " larger disk",
                    name="disk-full",
                )
            )

    def run(self, split: str, pool: ThreadPoolExecutor, stop: Callable[[], bool]) -> None:
        """Encode a split."""
        groups, encoded = self._groups[split], []
        results = self._encode_split(split, groups, pool)
        with closing(results):
            for group, result in zip(groups, results, strict=True):
                if stop():
                    raise StoppedError("stopped by a signal while the rows were encoded")
                encoded.append(result)
                if self._deletes_shards and group.is_last:
                    group.path.unlink()
                self._progress.add(len(result.labels))
        kind = np.float32 if self._schema.label.classes is None else np.int64
        labels = np.concatenate([np.empty(0, kind), *(item.labels for item in encoded)])
        np.save(labels_of(self._target, split), labels)
        if self._schema.weight:
            weights = (item.weights for item in encoded)
            np.save(
                weights_of(self._target, split), np.concatenate([np.empty(0, np.float32), *weights])
            )

    def _row_groups(self, dataset: Path, split: str) -> Iterator[_RowGroup]:
        """Yield a split's row groups; raise DataError if the schema has another number of rows."""
        entry, rows = self._schema.splits.get(split), 0
        for name in entry.shards if entry else ():
            path = below(dataset, name)
            with self._errors_of(path):
                metadata = parquet.read_metadata(path)
            last = metadata.num_row_groups - 1
            for number in range(last + 1):
                yield _RowGroup(path, metadata, number, rows, number == last)
                rows += metadata.row_group(number).num_rows
        if entry and rows != entry.rows:
            raise DataError(
                Problem(
                    f"the {split} split is incomplete",
                    received=f"{rows} rows",
                    expected=f"{entry.rows} rows (schema.json)",
                    fix=prepare_again(self._uri),
                    name="dataset-unreadable",
                )
            )

    def _encoded(self, table: pa.Table) -> _Encoded:
        """Return the labels and weights of a row group."""
        weight = self._schema.weight
        weights = table[weight.name].to_numpy() if weight else np.empty(0)
        return _Encoded(self._labels(table), weights.astype(np.float32))

    def _read(self, group: _RowGroup) -> pa.Table:
        """Return a row group with one chunk for each column; strings have a dictionary."""
        with self._errors_of(group.path):
            return self._read_columns(group)

    def _read_columns(self, group: _RowGroup) -> pa.Table:
        schema = group.metadata.schema.to_arrow_schema()
        strings = [field.name for field in schema if pa.types.is_string(field.type)]
        file = parquet.ParquetFile(group.path, metadata=group.metadata, read_dictionary=strings)
        columns = [*self._schema.names, self._schema.label.name]
        if self._schema.weight:
            columns.append(self._schema.weight.name)
        if missing := set(columns).difference(schema.names):
            raise self._mismatch(group.path, f"no column {min(missing)!r}")
        return file.read_row_group(group.number, columns, use_threads=False)

    def _labels(self, table: pa.Table) -> np.ndarray:
        """Return (rows,) int64 classes, or float32 values."""
        label = self._schema.label
        column = as_array(table[label.name])
        if label.classes is None:
            return column.to_numpy(zero_copy_only=False).astype(np.float32)
        if not isinstance(column, pa.DictionaryArray):
            column = column.cast(pa.string()).dictionary_encode()
        numbers = label.numbers_of(column)
        if len(wrong := np.flatnonzero(numbers < 0)):
            raise DataError(
                Problem(
                    "a label in the dataset is not one of its classes",
                    received=f"{len(wrong)} such labels, the first is"
                    f" {column[int(wrong[0])].as_py()!r}",
                    expected=f"the classes {listed(label.classes, 10)}",
                    fix=prepare_again(self._uri),
                    name="dataset-unreadable",
                )
            )
        return numbers

    @contextmanager
    def _errors_of(self, path: Path) -> Iterator[None]:
        """Turn errors of Arrow into a DataError that names the shard."""
        try:
            yield
        except MemoryError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise self._mismatch(path, f"{type(error).__name__}: {error}"[:500]) from error

    def _mismatch(self, path: Path, received: str) -> DataError:
        return DataError(
            Problem(
                f"the shard {path.parent.name}/{path.name} of the dataset cannot be read",
                received=received,
                expected="a Parquet file with the columns of schema.json",
                fix=prepare_again(self._uri),
                name="dataset-unreadable",
            )
        )


class _TableEncoding(_Encoding):
    """The encoding of a table: packed rows of float32 numbers."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._coding = self._schema.encoding
        self._packing = Packing(self._coding)
        self._moments = Moments.empty(self._coding.numbers)

    def columns(self) -> tuple[PackedColumn, ...]:
        """Return the moments of the packed columns of train; codes stay as they are."""
        numbers = self._coding.numbers
        columns = (self._moments.column(at) for at in range(numbers))
        moments = [(column.mean, column.std) for column in columns]
        moments += [(0.0, 1.0)] * (self._coding.width - numbers)
        pairs = zip(self._coding.names, moments, strict=True)
        return tuple(PackedColumn(name, *of_column) for name, of_column in pairs)

    def _space(self) -> tuple[int, str]:
        width = self._coding.width
        packed = f"{width:,} packed columns of 4 bytes each, and their labels"
        needed = self._rows * (4 * width + _LABEL_BYTES + _WEIGHT_BYTES)
        return needed, f"{self._rows:,} rows with {packed}"

    def _encode_split(
        self, split: str, groups: Sequence[_RowGroup], pool: ThreadPoolExecutor
    ) -> Generator[_Encoded, None, None]:
        with open(features_of(self._target, split), "wb") as file:
            results = pool.map(lambda group: self._encode(group, file.fileno()), groups)
            for encoded, moments in results:
                if split == "train":
                    self._moments.merge(moments)
                yield encoded

    def _encode(self, group: _RowGroup, file: int) -> tuple[_Encoded, Moments]:
        """Write the packed rows of a row group to their place in an open file.

        Returns:
            Its labels and weights, and the moments of the packed columns that are numbers.
        """
        table = self._read(group)
        moments, start = Moments.empty(self._coding.numbers), group.start
        try:
            for packed in self._packing.pack(table):
                moments.add(packed[:, : self._coding.numbers], self._coding.width)
                _write(file, packed, start * packed.shape[1] * 4)
                start += len(packed)
        except tf.errors.InvalidArgumentError as error:
            raise self._mismatch(group.path, error.message[:500]) from error
        return self._encoded(table), moments


class _ImageEncoding(_Encoding):
    """The files of images, one after the other, and the offset of each.

    Row groups are copied one by one: the offset of the next one is not known before, and the disk
    is slower than one core.
    """

    def columns(self) -> tuple[PackedColumn, ...]:
        """Return the column of images, whose values are centred on half of the largest one."""
        return (PackedColumn(PICTURE, HALF, HALF),)

    def _space(self) -> tuple[int, str]:
        groups = [group for groups in self._groups.values() for group in groups]
        sizes = {group.path: 0 for group in groups}
        for group in groups:
            sizes[group.path] += group.metadata.row_group(group.number).total_byte_size
        # A shard is deleted before the next one is copied.
        copied = max(sizes.values(), default=0) if self._deletes_shards else sum(sizes.values())
        needed = copied + self._rows * (_LABEL_BYTES + _OFFSET_BYTES)
        shards = "the largest shard" if self._deletes_shards else f"{len(sizes):,} shards"
        return needed, f"the images of {shards}, and {self._rows:,} labels"

    def _encode_split(
        self, split: str, groups: Sequence[_RowGroup], pool: ThreadPoolExecutor
    ) -> Generator[_Encoded, None, None]:
        offsets = [np.zeros(1, np.int64)]
        with open(contents_of(self._target, split), "wb") as file:
            for group in groups:
                table = self._read(group)
                contents = as_array(table[PICTURE]).cast(pa.large_binary())
                ends = np.frombuffer(contents.buffers()[1], np.int64)
                ends = ends[contents.offset : contents.offset + len(contents) + 1]
                start, end = int(ends[0]), int(ends[-1])
                values = np.frombuffer(contents.buffers()[2] or b"", np.uint8)[start:end]
                offset = int(offsets[-1][-1])
                _write(file.fileno(), values, offset)
                offsets.append(ends[1:] - start + offset)
                yield self._encoded(table)
        np.save(offsets_of(self._target, split), np.concatenate(offsets))


def _write(file: int, values: np.ndarray, offset: int) -> None:
    """Write an array to an open file, at an offset in bytes."""
    data = np.ascontiguousarray(values).data.cast("B")
    while data:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written


class _Progress:
    """Logs how many rows are encoded, if it takes long."""

    def __init__(self, rows: int) -> None:
        self._rows, self._done = rows, 0
        self._started = self._logged = time.monotonic()

    def add(self, rows: int) -> None:
        """Count more rows."""
        self._done += rows
        now = time.monotonic()
        if now - self._logged >= _SILENCE:
            self._logged = now
            rate = self._done / (now - self._started)
            detail = f"{self._done:,} of {self._rows:,} rows, {rate:,.0f} rows/s"
            log.info("encoded %s", detail)
            left = (self._rows - self._done) / rate
            report(ProgressReport("encoding", self._done / self._rows, detail, left))
