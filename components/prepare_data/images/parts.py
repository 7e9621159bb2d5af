"""The two tasks of prepare_data for pictures: files become runs, and runs become shards.

A part is a group of files that follow each other by name: at most 16 MiB or 4,096 files, whatever
the number of workers. Its run has the records of its pictures in the order of their hashes, so that
a shard reads one range of each run.

The hash of a picture is the keyed BLAKE2b of the SHA-256 of its bytes: 64 bits. As with tables, it
determines split and order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b, sha256
from itertools import chain
from typing import Any

import numpy as np

from kfp_tfjob.components.prepare_data.executors.exchange import Array, Value, damaged, dump
from kfp_tfjob.components.prepare_data.executors.executor import Context, code_version
from kfp_tfjob.components.prepare_data.faults import Fault, Faults
from kfp_tfjob.components.prepare_data.images.header import (
    CMYK,
    FORMATS,
    MODES,
    Header,
    Unusable,
    look,
)
from kfp_tfjob.components.prepare_data.source.files import Source, SourceFile
from kfp_tfjob.components.prepare_data.split_rules import place
from kfp_tfjob.components.prepare_data.tfrecord import PictureEncoder, split_records
from kfp_tfjob.features.statistics import SPLITS
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.pictures import Pictures
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import DataError, ObjectNotFoundError
from kfp_tfjob.storage.manifest import ManifestObject

READ = f"{__name__}:read"
WRITE = f"{__name__}:write"
LARGEST_FILE = 64 << 20  # bytes: a record is held in memory several times
_PART_BYTES, _PART_FILES = 16 << 20, 4096
_FOLDER, _RESULT, _DIGITS = "pictures", ".json", 16
_REQUESTS = 16  # objects that are fetched at the same time
_FORMATS, _MODES, _SPLITS = (
    {name: i for i, name in enumerate(names)} for names in (FORMATS, MODES, SPLITS)
)
# What is kept of each picture in memory: 46 bytes.
INDEX = np.dtype(
    [
        ("hash", "<u8"),  # places the row
        ("content", "<u8"),  # the hash of the picture alone
        ("label", "<i4"),
        ("record", "<u4"),  # bytes of its record
        ("size", "<u4"),  # bytes of its file
        ("width", "<u4"),
        ("height", "<u4"),
        ("format", "u1"),  # the index in FORMATS
        ("mode", "u1"),  # the index in MODES
        ("turned", "?"),
    ]
)


@dataclass(frozen=True)
class Part:
    """Pictures that one task reads.

    Attributes:
        name: Of its run, in the exchange.
        files: The files.
        labels: The number of the class of each.
        classes: The number of classes.
        folders: The splits that folders name, if they divide the files.
        options: The typed `data_options`.
    """

    name: str
    files: list[SourceFile]
    labels: list[int]
    classes: int
    folders: tuple[str, ...]
    options: DataOptions

    @property
    def size(self) -> int:
        """The size of its files in bytes."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class PartDone:
    """What the task has found.

    Attributes:
        index: The pictures in the order of the run, as bytes of INDEX.
        faults: The files that are no pictures to train on.
    """

    index: Array
    faults: Faults


@dataclass(frozen=True)
class Shard:
    """Pictures that one task writes.

    Attributes:
        name: Of the file.
        address: Of the object.
        pieces: The run, start and end of each range of records.
        order: The index in `pieces` of each record.
    """

    name: str
    address: S3Address
    pieces: list[tuple[str, int, int]]
    order: Array


def parts_of(source: Source, options: DataOptions) -> Iterator[Part]:
    """Yield the parts of a source of pictures."""
    pictures = source.pictures
    assert pictures
    label = {name: i for i, name in enumerate(pictures.classes)}
    by_folder = source.splits_by_folder and options.split.folders
    folders = tuple(sorted(source.folder_splits)) if by_folder else ()
    groups: list[list[SourceFile]] = [[]]
    size = 0
    for file in source.files:
        if groups[-1] and (size + file.size > _PART_BYTES or len(groups[-1]) == _PART_FILES):
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.size
    for number, files in enumerate(groups):
        labels = [label[pictures.class_of(file.name)] for file in files]
        what = (files, labels, len(label), folders, options)
        yield Part(f"{_FOLDER}/{number:06d}-{_digest(what)}", *what)


def read(context: Context, part: Part) -> PartDone:
    """Check the files of a part, and write its run.

    If an earlier try of the step has got here, its result is used.

    Raises:
        DataError: A file changed since it was listed, or cannot be read.
    """
    if done := _done(context, part.name, PartDone):
        return done
    options = part.options
    source = Source("", part.files, context.store)
    encoder, faults, rows, records = PictureEncoder(part.classes), [], [], []
    splits = []
    key = options.split.salt.encode()
    contents = _contents(source, part.files)
    for file, label, content in zip(part.files, part.labels, contents, strict=True):
        found = _checked(file, content, options.pictures)
        if isinstance(found, Unusable):
            faults.append(_fault(file, found))
            continue
        assert content is not None
        digest = blake2b(sha256(content).digest(), digest_size=8, key=key).digest()
        content_hash = int.from_bytes(digest, "big")
        record = encoder.encode(label, content)
        length = sum(map(len, record))
        format, mode = _FORMATS[found.format], _MODES[found.mode]
        row = (content_hash, content_hash, label, length, len(content))
        rows.append((*row, found.width, found.height, format, mode, found.is_turned))
        records.append(record)
        splits.append(_SPLITS.get(file.split, -1))
    index = np.array(rows, INDEX)
    if part.folders:
        fractions = list(options.split.fractions.values())
        given = np.array(splits, np.int8)
        index["hash"] = place(index["content"], given, fractions, frozenset(part.folders))
    order = np.lexsort((index["label"], index["hash"]))
    ordered = chain.from_iterable(map(records.__getitem__, order.tolist()))
    context.exchange.write(part.name, b"".join(ordered))
    done = PartDone(index[order].view(np.uint8), Faults.of_files(len(part.files), faults))
    context.exchange.write_plain(part.name + _RESULT, done)
    return done


def write(context: Context, shard: Shard) -> ManifestObject:
    """Write a shard and send it to the store.

    Raises:
        DataError: A run is damaged.
    """
    name = f"{_FOLDER}/{shard.name}-{_digest(shard)}"
    if done := _done(context, name, ManifestObject):
        return done
    pieces = [split_records(context.exchange.read(*piece)) for piece in shard.pieces]
    path = context.folder / shard.name
    try:
        with open(path, "wb", buffering=1 << 20) as file:
            for i in shard.order.tolist():
                record = next(pieces[i], None)
                if record is None:
                    raise damaged(shard.pieces[i][0])
                file.write(record)
        sent = context.store.send(path, shard.address, shard.name)
    finally:
        path.unlink(missing_ok=True)
    found = ManifestObject(sent.key, sent.size, sent.crc64nvme, sent.sha256)
    context.exchange.write_plain(name + _RESULT, found)
    return found


def faults_of(source: Source, files: Sequence[SourceFile], options: DataOptions) -> Faults:
    """Return the faults of some files, which are not decoded."""
    pictures = options.pictures.model_copy(update={"verify": "header"})
    faults = Faults()
    for file, content in zip(files, _contents(source, files), strict=True):
        found = _checked(file, content, pictures)
        wrong = [_fault(file, found)] if isinstance(found, Unusable) else []
        faults.merge(Faults.of_files(1, wrong))
    return faults


def _fault(file: SourceFile, found: Unusable) -> Fault:
    return Fault(file.name, 0, "", found.value, found.rule)


def _digest(work: Any) -> str:
    """Return what tells work from any other, that of another version of the image included."""
    text = json.dumps([code_version(), dump(work)])
    return sha256(text.encode()).hexdigest()[:_DIGITS]


def _done(context: Context, name: str, kind: type[Value]) -> Value | None:
    """Return the result of an earlier try; None without one."""
    try:
        return context.exchange.read_plain(name + _RESULT, kind)
    except (ObjectNotFoundError, DataError):
        return None


def _checked(file: SourceFile, content: bytes | None, options: Pictures) -> Header | Unusable:
    if content is None:
        expected = f"at most {LARGEST_FILE >> 20} MiB"
        return Unusable("bytes", f"{file.size / 2**20:,.0f} MiB, {expected}")
    found = look(content)
    if isinstance(found, Unusable):
        return found
    if found.width * found.height > options.max_megapixels * 1e6:
        return Unusable("pixels", f"{found.width:,} x {found.height:,} pixels")
    if found.mode == CMYK and options.channels == 1:
        return Unusable("channels", "data_options.pictures.channels is 1")
    if options.verify == "decode":
        from kfp_tfjob.components.prepare_data.images.header import decoding_fault

        if fault := decoding_fault(content):
            return Unusable("broken", fault)
    return found


def _contents(source: Source, files: Sequence[SourceFile]) -> Iterator[bytes | None]:
    """Yield the bytes of each file; None for one that is too large."""

    def content(file: SourceFile) -> bytes | None:
        return None if file.size > LARGEST_FILE else source.content(file)

    if not any(isinstance(file.location, S3Address) for file in files):
        yield from map(content, files)
        return
    # An answer takes milliseconds, however small the object.
    with ThreadPoolExecutor(_REQUESTS) as pool:
        for at in range(0, len(files), 2 * _REQUESTS):
            yield from pool.map(content, files[at : at + 2 * _REQUESTS])
