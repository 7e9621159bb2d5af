"""Converts a prepared dataset to `.npy` files, one for each column and split.

Stock images of TensorFlow and PyTorch contain numpy but not pyarrow, so a program there cannot read
Parquet. A column in a file of its own is read with `np.load`, even as a memory map.

A replica's disk may be too small for the `.npy` files and the Parquet files together, and `setup`
has 1 GiB of memory. So only one shard is on the disk, and only one of its row groups in memory. The
list of a column's strings is complete only after the last shard. Until then, the codes of a row
group are positions in the row group's own list, which is sorted and kept on the disk. In the end,
these lists are merged, and the codes are replaced.

Everything is written to a hidden folder and renamed at the end. If `setup` is killed, it starts
again from nothing, and writes the same bytes. Called by the init container, `__main__.py`.
"""

from __future__ import annotations

import errno
import heapq
import json
import logging
import re
import shutil
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kfp_tfjob.common import files
from kfp_tfjob.common.errors import ConfigurationError, DataError, Problem
from kfp_tfjob.common.formatting import counted, listed, sized
from kfp_tfjob.common.names import below
from kfp_tfjob.features.cells import NO_DATE, sorted_strings
from kfp_tfjob.features.records import prepare_again
from kfp_tfjob.features.schema import Schema, SchemaSplit
from kfp_tfjob.features.statistics import TRAINING_SPLITS
from kfp_tfjob.options.train import images_as_npy, npy_problem
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.documents import InvalidDocumentError
from kfp_tfjob.storage.layout import (
    NPY_COLUMNS,
    NPY_STRINGS,
    SCHEMA,
    STATISTICS,
)
from kfp_tfjob.storage.manifest import ManifestObject
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader import pull
from kfp_tfjob.uploader.parallel import TransferProgress

log = logging.getLogger(__name__)

_CODES, _CLASSES, _BOOLEANS, _DATES = map(np.dtype, ("<i4", "<i8", "u1", "<M8[us]"))
_MISSING_CODE, _MISSING_BOOLEAN = -1, 255  # NO_DATE is NaT
_ODD = re.compile(r"[^A-Za-z0-9_-]+")
_LONGEST_NAME = 80  # characters of a file's name, without its suffix
_MERGED_BYTES = 32 << 20  # of strings that wait to be merged, over all row groups
_STRING_OBJECT = 64  # bytes of a string in Python, in addition to its text


@dataclass(frozen=True)
class Column:
    """A column, and the files with its values.

    Attributes:
        name: Its name in the dataset.
        file: The name of its files, without a suffix.
        type: Its column type; `class` or `number` for the label, `weight` for the weight.
        dtype: The type of the values in its files.
    """

    name: str
    file: str
    type: str
    dtype: np.dtype

    @property
    def has_strings(self) -> bool:
        """Whether its values are codes of strings."""
        return self.dtype == _CODES

    @property
    def strings_path(self) -> str:
        """The list of its strings, below DATA_DIR."""
        return f"{NPY_STRINGS}/{self.file}.json"

    def path(self, split: str) -> str:
        """Return the file with its values in a split, below DATA_DIR."""
        return f"{split}/{self.file}.npy"

    @property
    def entry(self) -> dict[str, str]:
        """Its entry in columns.json."""
        entry = {"file": f"{self.file}.npy", "type": self.type, "dtype": _dtype_name(self.dtype)}
        return entry | ({"strings": self.strings_path} if self.has_strings else {})


def stage_npy(store: Store, dataset: S3Address, folder: Path) -> None:
    """Write the training and validation rows of a dataset as `.npy` files, next to its schema.json.

    Args:
        store: The store.
        dataset: The dataset.
        folder: DATA_DIR; `.npy` files of an earlier try are replaced.

    Raises:
        ConfigurationError: The rows are images or have values of a type without a dtype, or there
            is not enough disk space.
        DataError: The dataset is incomplete or damaged, or was prepared by another version.
    """
    manifest = pull(store, dataset, folder, {SCHEMA, STATISTICS}.__contains__)
    try:
        schema = Schema.from_bytes((folder / SCHEMA).read_bytes())
    except InvalidDocumentError as error:
        raise DataError(
            Problem(
                f"schema.json of {dataset} is damaged",
                received=error,
                fix=prepare_again(str(dataset)),
            )
        ) from error
    schema.check_codec(str(dataset))
    if schema.picture:
        raise ConfigurationError(images_as_npy())
    objects = {entry.key: entry for entry in manifest.objects}
    _Conversion(store, dataset, folder, schema, objects).run()


def file_names(names: Iterable[str]) -> dict[str, str]:
    """Return the file name of each column, without a suffix.

    A plain name is the file's name. In other names, `_` replaces characters that are not plain. A
    number distinguishes names that would be the same file, even where file systems ignore case.
    """
    names = list(names)
    plain = {name: _ODD.sub("_", name).strip("_-")[:_LONGEST_NAME] or "column" for name in names}
    used: set[str] = set()
    # Plain names first: another column must not take them.
    for name in sorted(names, key=lambda name: plain[name] != name):
        candidate, number = plain[name], 1
        while candidate.casefold() in used:
            number += 1
            candidate = f"{plain[name]}_{number}"
        used.add(candidate.casefold())
        plain[name] = candidate
    return plain


class _Conversion:
    """One conversion. It takes the arguments of `stage_npy` and the dataset's objects."""

    def __init__(
        self,
        store: Store,
        dataset: S3Address,
        folder: Path,
        schema: Schema,
        objects: Mapping[str, ManifestObject],
    ) -> None:
        self._store, self._dataset, self._folder = store, dataset, folder
        self._schema, self._objects = schema, objects
        self._scratch = files.partial_of(folder / "npy")
        self._columns: list[Column] = []
        self._writers: dict[str, _ColumnWriter] = {}

    def run(self) -> None:
        """Convert the splits, and rename the files once all of them are complete."""
        (self._folder / NPY_COLUMNS).unlink(missing_ok=True)
        folders = [*TRAINING_SPLITS, NPY_STRINGS]
        for path in (self._scratch, *(self._folder / name for name in folders)):
            shutil.rmtree(path, ignore_errors=True)
        shards = {split: self._shards(split) for split in TRAINING_SPLITS}
        size = sum(shard.size for entries in shards.values() for shard in entries)
        progress = TransferProgress("converting", sum(map(len, shards.values())), size)
        try:
            with self._translate_full_disk():
                for name in folders:
                    (self._scratch / name).mkdir(parents=True)
                for split, entries in shards.items():
                    self._convert(split, entries, progress)
                for writer in self._writers.values():
                    writer.merge_strings()
                    progress.tick()
                for name in folders:
                    (self._scratch / name).rename(self._folder / name)
                index = json.dumps(self._index(), indent=1, ensure_ascii=False) + "\n"
                files.write(self._folder / NPY_COLUMNS, index)
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)
        log.info(
            "converted %s of %s rows to .npy files: %s",
            counted(len(self._columns), "column"),
            " and ".join(f"{self._split(split).rows:,} {split}" for split in TRAINING_SPLITS),
            progress,
        )

    def _split(self, name: str) -> SchemaSplit:
        return self._schema.splits.get(name, SchemaSplit())

    def _shards(self, split: str) -> list[ManifestObject]:
        keys = self._split(split).shards
        if missing := [key for key in keys if key not in self._objects]:
            raise self._mismatch(f"no {listed(missing, 3)} in the manifest", "every shard")
        return [self._objects[key] for key in keys]

    def _convert(
        self, split: str, shards: list[ManifestObject], progress: TransferProgress
    ) -> None:
        """Convert the shards of a split, one at a time."""
        rows = 0
        for shard in shards:
            path = below(self._scratch, shard.key)
            # A shard is in its split's folder, which is renamed only after the shard was deleted.
            self._store.fetch(self._dataset / shard.key, self._scratch, shard)
            with pq.ParquetFile(path) as parquet:
                columns = self._columns_of(parquet.schema_arrow)
            if not self._columns:
                self._columns = columns
                self._writers = {
                    column.name: _ColumnWriter(self._scratch, column) for column in columns
                }
                self._check_space(shard)
            elif columns != self._columns:
                raise self._mismatch(f"other columns in {shard.key}", "equal columns in all shards")
            if not rows:
                self._begin(split)
            for table in self._read(path):
                rows += len(table)
                for column in self._columns:
                    self._writers[column.name].write(self._values(column, table[column.name]))
                progress.tick()
            path.unlink()
            progress.add(shard.size)
        if rows != self._split(split).rows:
            raise self._mismatch(f"{rows:,} {split} rows", f"{self._split(split).rows:,} rows")
        if not rows:
            self._begin(split)

    def _begin(self, split: str) -> None:
        for writer in self._writers.values():
            writer.begin(split, self._split(split).rows)

    def _columns_of(self, parquet: pa.Schema) -> list[Column]:
        """Return the columns of a Parquet file, in the order of schema.json."""
        label, weight = self._schema.label, self._schema.weight
        column_types = {feature.name: feature.column_type.kind for feature in self._schema.features}
        column_types[label.name] = "number" if label.classes is None else "class"
        if weight:
            column_types[weight.name] = "weight"
        if missing := [name for name in column_types if name not in parquet.names]:
            raise self._mismatch(f"no column {missing[0]!r}", "every column in each shard")
        names, columns = file_names(column_types), []
        for name, column_type in column_types.items():
            dtype = _dtype(parquet.field(name).type)
            if dtype is None:
                raise ConfigurationError(
                    npy_problem(
                        f"no dtype of numpy suits column {name!r}",
                        str(parquet.field(name).type),
                        "numbers, booleans, dates and strings",
                    )
                )
            dtype = _CLASSES if column_type == "class" and dtype == _CODES else dtype
            columns.append(Column(name, names[name], column_type, dtype))
        return columns

    def _read(self, path: Path) -> Iterator[pa.Table]:
        """Yield the row groups, with strings as dictionaries."""
        strings = [column.name for column in self._columns if column.dtype in (_CODES, _CLASSES)]
        with pq.ParquetFile(path, read_dictionary=strings) as parquet:
            for group in range(parquet.num_row_groups):
                table = parquet.read_row_group(group, use_threads=False)
                if len(table):
                    yield table

    def _values(self, column: Column, values: pa.ChunkedArray) -> np.ndarray | pa.DictionaryArray:
        """Return the values of a row group; a column of strings as a dictionary."""
        if column.dtype in (_CODES, _CLASSES):
            strings = values.unify_dictionaries().combine_chunks()
            return strings if column.has_strings else self._class_numbers(strings)
        if column.dtype == _BOOLEANS:
            return values.cast(pa.uint8()).fill_null(_MISSING_BOOLEAN).to_numpy()
        if column.dtype == _DATES:
            return values.cast(pa.int64()).fill_null(NO_DATE).to_numpy().view(_DATES)
        return values.to_numpy()  # a missing number becomes NaN

    def _class_numbers(self, names: pa.DictionaryArray) -> np.ndarray:
        classes = self._schema.label.numbers_of(names)
        if classes.min() < 0:
            raise self._mismatch("a label that is not a class", "only classes of schema.json")
        return classes

    def _check_space(self, shard: ManifestObject) -> None:
        """Compare the disk with the bytes of all files, apart from the lists of strings."""
        rows = sum(self._split(split).rows for split in TRAINING_SPLITS)
        needed = rows * sum(column.dtype.itemsize for column in self._columns)
        free = shutil.disk_usage(self._folder).free
        if needed > free:
            raise ConfigurationError(self._too_small(f"{sized(free)} free", needed))
        log.info(
            "the .npy files need %s, and while they are written, the strings of their row groups"
            " and a shard of %s",
            sized(needed),
            sized(shard.size),
        )

    @contextmanager
    def _translate_full_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise ConfigurationError(self._too_small(str(error), 0)) from error

    def _too_small(self, received: str, needed: int) -> Problem:
        return Problem(
            f"the disk is too small for the .npy files of {self._dataset} in {self._folder}",
            received=received,
            expected=f"{sized(needed)} for the values, plus twice the size of the lists of strings"
            if needed
            else "space for all values, for twice the lists of strings, and for one shard",
            fix="in a pod, raise pod.all.ephemeral_storage; elsewhere, use a folder on a larger"
            " disk",
        )

    def _mismatch(self, received: str, expected: str) -> DataError:
        return DataError(
            Problem(
                f"the shards of {self._dataset} do not match its schema.json",
                received=received,
                expected=expected,
                fix=prepare_again(str(self._dataset)),
            )
        )

    def _index(self) -> Mapping[str, object]:
        """Return the content of columns.json."""
        label, weight = self._schema.label.name, self._schema.weight
        special = {label, weight.name if weight else label}
        entries = {column.name: column.entry for column in self._columns}
        index = {
            "rows": {split: self._split(split).rows for split in TRAINING_SPLITS},
            "columns": {name: entry for name, entry in entries.items() if name not in special},
            "label": {"name": label} | entries[label],
        }
        return index | ({"weight": {"name": weight.name} | entries[weight.name]} if weight else {})


@dataclass
class _ColumnWriter:
    """Writes the files of a column.

    Attributes:
        scratch: The folder in which DATA_DIR's files are written.
        column: The column.
    """

    scratch: Path
    column: Column
    _file: Path = field(init=False)
    _row_groups: list[_RowGroup] = field(default_factory=list)
    _lists_bytes: int = 0

    @property
    def _lists(self) -> Path:
        """The strings of each row group, one Arrow stream after another."""
        return self.scratch / f"{self.column.file}.lists"

    def begin(self, split: str, rows: int) -> None:
        """Begin the file of a split, to which all following rows belong."""
        self._file = self.scratch / self.column.path(split)
        descr = np.lib.format.dtype_to_descr(self.column.dtype)
        with open(self._file, "wb") as file:
            header = {"descr": descr, "fortran_order": False, "shape": (rows,)}
            np.lib.format.write_array_header_1_0(file, header)

    def write(self, values: np.ndarray | pa.DictionaryArray) -> None:
        """Append the rows of a row group."""
        # A table may have more columns than a process may have open files.
        with open(self._file, "ab") as file:
            if isinstance(values, pa.DictionaryArray):
                codes, strings = sorted_strings(values)
                self._row_groups.append(self._add_list(file.tell(), len(codes), strings))
                values = codes
            file.write(np.asarray(values, self.column.dtype).tobytes())

    def _add_list(self, start: int, rows: int, strings: pa.StringArray) -> _RowGroup:
        stream = pa.BufferOutputStream()
        batch = pa.record_batch({"strings": strings})
        with pa.ipc.new_stream(stream, batch.schema) as writer:
            writer.write_batch(batch)
        content = stream.getvalue()
        with open(self._lists, "ab") as file:
            file.write(content)
        offset, self._lists_bytes = self._lists_bytes, self._lists_bytes + content.size
        return _RowGroup(self._file, start, rows, offset, content.size)

    def merge_strings(self) -> None:
        """Write the list of all strings, and replace the codes by positions in it."""
        if not self.column.has_strings:
            return
        path = self.scratch / self.column.strings_path
        if not self._row_groups:
            path.write_text("[]\n")
            return
        with pa.memory_map(str(self._lists)) as lists:
            content = lists.read_buffer()
            maps = _merge([group.strings(content) for group in self._row_groups], path)
        self._lists.unlink()
        for group, codes in zip(self._row_groups, maps, strict=True):
            with open(group.file, "r+b") as file:
                group.replace_codes(file, np.append(codes, _MISSING_CODE).astype(_CODES))


@dataclass(frozen=True)
class _RowGroup:
    """Rows of a column of strings.

    Attributes:
        file: The `.npy` file.
        start: The offset of their codes there.
        rows: Their number.
        list_start: The offset of their strings in the column's lists.
        list_size: The bytes of these strings there.
    """

    file: Path
    start: int
    rows: int
    list_start: int
    list_size: int

    def strings(self, lists: pa.Buffer) -> pa.StringArray:
        """Return the strings in order, without copying them."""
        stream = pa.BufferReader(lists.slice(self.list_start, self.list_size))
        return pa.ipc.open_stream(stream).read_next_batch().column(0)

    def replace_codes(self, file: BinaryIO, codes: np.ndarray) -> None:
        """Replace each code by the one in `codes`, whose last element is the missing code."""
        file.seek(self.start)
        local = np.frombuffer(file.read(self.rows * _CODES.itemsize), _CODES)
        file.seek(self.start)
        file.write(codes[local].tobytes())


def _merge(lists: list[pa.StringArray], path: Path) -> list[np.ndarray]:
    """Write the sorted strings of sorted lists as a JSON list.

    Args:
        lists: The lists; a string may be in several of them.
        path: The file.

    Returns:
        For each list, the positions of its strings in the JSON list.
    """
    text_bytes = sum(strings.nbytes for strings in lists)
    mean_bytes = _STRING_OBJECT + text_bytes // max(1, sum(map(len, lists)))
    ahead = max(1, _MERGED_BYTES // mean_bytes // len(lists))
    positions, position, previous = [array("i") for _ in lists], -1, None
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write("[")
        ordered = (_numbered(strings, at, ahead) for at, strings in enumerate(lists))
        for string, at in heapq.merge(*ordered):
            if string != previous:
                position, previous = position + 1, string
                file.write(",\n" if position else "\n")
                file.write(json.dumps(string, ensure_ascii=False))
            positions[at].append(position)
        file.write("\n]\n")
    return [np.frombuffer(numbers, np.intc) for numbers in positions]


def _numbered(strings: pa.StringArray, number: int, ahead: int) -> Iterator[tuple[str, int]]:
    """Yield each string with the number of its list; `ahead` of them are Python objects."""
    for start in range(0, len(strings), ahead):
        for string in strings.slice(start, ahead).to_pylist():
            yield string, number


def _dtype(arrow: pa.DataType) -> np.dtype | None:
    """Return the dtype of a column in `.npy` files; None if its type is not converted."""
    if pa.types.is_float32(arrow) or pa.types.is_float64(arrow):
        return np.dtype(arrow.to_pandas_dtype()).newbyteorder("<")
    if pa.types.is_timestamp(arrow) and arrow.unit == "us":
        return _DATES
    if pa.types.is_boolean(arrow):
        return _BOOLEANS
    return _CODES if pa.types.is_string(arrow) else None


def _dtype_name(dtype: np.dtype) -> str:
    return str(dtype.newbyteorder("="))
