"""The two tasks of prepare_data for pictures: files become runs, and runs become shards.

A part is a group of files that follow each other by name: at most 16 MiB or 4,096 files, whatever
the number of workers. Its run has the records of its pictures in the order of their hashes, so that
a shard reads one range of each run.

The hash of a picture is the keyed BLAKE2b of the SHA-256 of its bytes: 64 bits. As with tables, it
determines split and order.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b, sha256
from itertools import chain
from typing import Any

import numpy as np

from kfp_tfjob.components.prepare_data.executors.exchange import Exchange, damaged
from kfp_tfjob.components.prepare_data.executors.executor import Context
from kfp_tfjob.components.prepare_data.faults import Fault, Faults
from kfp_tfjob.components.prepare_data.images.header import (
    CMYK,
    FORMATS,
    MODES,
    Header,
    Unusable,
    look,
)
from kfp_tfjob.components.prepare_data.images.records import PictureEncoder, split_records
from kfp_tfjob.components.prepare_data.plain import array_of, plain_of
from kfp_tfjob.components.prepare_data.source.files import Source, SourceFile
from kfp_tfjob.components.prepare_data.split_rules import SplitRules
from kfp_tfjob.components.prepare_data.statistics import SPLITS
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.pictures import Pictures
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import DataError, ObjectNotFoundError
from kfp_tfjob.storage.manifest import ManifestObject

READ = f"{__name__}:read"
WRITE = f"{__name__}:write"
LARGEST_FILE = 64 << 20  # bytes: a record is held in memory several times
_PART_BYTES, _PART_FILES = 16 << 20, 4096
_FOLDER, _FILES, _RESULT, _DIGITS = "pictures", ".files", ".json", 16
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


def parts_of(source: Source, options: DataOptions, exchange: Exchange) -> list[list[Any]]:
    """Return the items of `read`; what is in them is left in the exchange.

    Args:
        source: Pictures.
        options: The typed `data_options`.
        exchange: Where tasks find it.
    """
    folders = source.pictures
    assert folders
    label = {name: i for i, name in enumerate(folders.classes)}
    common = {
        "uri": source.uri,
        "classes": len(folders.classes),
        "options": options.model_dump(mode="json"),
        "splits": _one_of_each(source),
    }
    items: list[list[Any]] = []
    files: list[list[Any]] = []

    def close() -> None:
        body = {**common, "files": files}
        name = f"{_FOLDER}/{len(items):06d}-{_digest(body)}"
        exchange.write_plain(f"{name}{_FILES}", body)
        items.append([name, len(files), sum(file[1] for file in files)])

    size = 0
    for file in source.files:
        if files and (size + file.size > _PART_BYTES or len(files) == _PART_FILES):
            close()
            files, size = [], 0
        files.append([*_plain(file), label[folders.class_of(file.name)]])
        size += file.size
    if files:
        close()
    return items


def read(context: Context, item: list[Any]) -> dict[str, Any]:
    """Check the files of a part, and write its run.

    Args:
        context: Where it runs.
        item: One of `parts_of`.

    Returns:
        The name of the run; its plain index, the rows in order; the faults. If an earlier try of
        the step has got here, its result is used.

    Raises:
        DataError: A file changed since it was listed, or cannot be read.
    """
    name = item[0]
    if done := _done(context, name):
        return done
    part = context.exchange.read_plain(name + _FILES)
    options = DataOptions.model_validate(part["options"])
    source = Source(part["uri"], (), context.store)
    files = [_file(plain[:-1]) for plain in part["files"]]
    labels = [plain[-1] for plain in part["files"]]
    encoder, faults, rows, records = PictureEncoder(part["classes"]), [], [], []
    splits = []
    key = options.split.salt.encode()
    for file, label, content in zip(files, labels, _contents(source, files), strict=True):
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
    rules = _rules(part, options, source)
    if rules.is_needed:
        index["hash"] = rules.place(index["content"], np.array(splits, np.int8))
    order = np.lexsort((index["label"], index["hash"]))
    ordered = chain.from_iterable(map(records.__getitem__, order.tolist()))
    context.exchange.write(name, b"".join(ordered))
    collected = Faults()
    collected.add_files(len(files), faults)
    found = {
        "run": name,
        "index": plain_of(index[order].view(np.uint8)),
        "faults": collected.to_plain(),
    }
    context.exchange.write_plain(name + _RESULT, found)
    return found


def write(context: Context, item: dict[str, Any]) -> list[Any]:
    """Write a shard and send it to the store.

    Args:
        context: Where it runs.
        item: `address` and `name` of the shard; `pieces`, the run, start and end of each range;
            `order`, the place in `pieces` of each of its records.

    Returns:
        The values of its ManifestObject.

    Raises:
        DataError: A run is damaged.
    """
    place = f"{_FOLDER}/{item['name']}-{_digest(item)}"
    if done := _done(context, place):
        return done
    pieces = [split_records(context.exchange.read(*piece)) for piece in item["pieces"]]
    path = context.folder / item["name"]
    try:
        with open(path, "wb", buffering=1 << 20) as file:
            for i in array_of(item["order"]).tolist():
                record = next(pieces[i], None)
                if record is None:
                    raise damaged(item["pieces"][i][0])
                file.write(record)
        sent = context.store.send(path, S3Address.parse(item["address"]), item["name"])
    finally:
        path.unlink(missing_ok=True)
    found = [sent.key, sent.size, sent.crc64nvme, sent.sha256]
    context.exchange.write_plain(place + _RESULT, found)
    return found


def faults_of(source: Source, files: Sequence[SourceFile], options: DataOptions) -> Faults:
    """Return the faults of some files, which are not decoded."""
    pictures = options.pictures.model_copy(update={"verify": "header"})
    faults = Faults()
    for file, content in zip(files, _contents(source, files), strict=True):
        found = _checked(file, content, pictures)
        faults.add_files(1, [_fault(file, found)] if isinstance(found, Unusable) else [])
    return faults


def _fault(file: SourceFile, found: Unusable) -> Fault:
    return Fault(file.name, 0, "", found.value, found.rule)


def sent(plain: list[Any]) -> ManifestObject:
    """Return the object that `write` has sent."""
    return ManifestObject(*plain)


def index_of(result: dict[str, Any]) -> np.ndarray:
    """Return the index that `read` has returned."""
    return array_of(result["index"]).view(INDEX)


def _digest(item: dict[str, Any]) -> str:
    """Return what tells the work of an item from any other."""
    text = json.dumps(item, sort_keys=True)
    return sha256(text.encode()).hexdigest()[:_DIGITS]


def _done(context: Context, name: str) -> Any:
    """Return the result of an earlier try; None without one."""
    try:
        return context.exchange.read_plain(name + _RESULT)
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
        from kfp_tfjob.components.prepare_data.images.verify import decoding_fault

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


def _rules(part: dict[str, Any], options: DataOptions, source: Source) -> SplitRules:
    """Return what places rows by the folders of splits; it only needs a file of each."""
    files = tuple(_file(plain) for plain in part["splits"])
    return SplitRules(Source(source.uri, files, source.store), options, np.empty(0))


def _one_of_each(source: Source) -> list[list[Any]]:
    found: dict[str, SourceFile] = {}
    for file in source.files:
        found.setdefault(file.split, file)
    return [_plain(found[split]) for split in sorted(found)]


def _plain(file: SourceFile) -> list[Any]:
    place = file.location
    where = [place.bucket, place.key] if isinstance(place, S3Address) else os.fspath(place)
    return [file.name, file.size, where, file.tag, file.split]


def _file(plain: Sequence[Any]) -> SourceFile:
    name, size, where, tag, split = plain
    place = where if isinstance(where, str) else S3Address(*where)
    return SourceFile(name, size, place, tag, split)
