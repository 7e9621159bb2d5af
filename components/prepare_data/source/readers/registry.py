"""Opens a file of the source as a table, in any supported format."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any, NamedTuple

from kfp_tfjob.components.prepare_data.rows import empty
from kfp_tfjob.components.prepare_data.source.files import Source, SourceFile
from kfp_tfjob.components.prepare_data.source.readers.arrow_table import ArrowTable, Reader
from kfp_tfjob.components.prepare_data.source.readers.byte_range import Span
from kfp_tfjob.components.prepare_data.source.readers.csv_records import BLOCK
from kfp_tfjob.components.prepare_data.source.readers.csv_table import CsvTable
from kfp_tfjob.components.prepare_data.source.readers.ipc_table import (
    FILE_MAGIC,
    STREAM_MAGIC,
    IpcTable,
)
from kfp_tfjob.components.prepare_data.source.readers.json_table import JsonTable
from kfp_tfjob.components.prepare_data.source.readers.lists import WithLists
from kfp_tfjob.components.prepare_data.source.readers.own_reader import OwnTable
from kfp_tfjob.components.prepare_data.source.readers.parquet_table import ParquetTable
from kfp_tfjob.components.prepare_data.source.readers.text_stream import text_of, unpacked
from kfp_tfjob.components.prepare_data.source.readers.tfrecord_table import (
    TFRecordTable,
    is_tfrecord,
)
from kfp_tfjob.options.data import FORMAT_WORDS, FORMATS, DataOptions
from kfp_tfjob.storage.errors import DataError, Problem

# First bytes of unsupported files, and what to do with such a file.
_FOLDER_OF_PICTURES = "give the folder that has a folder of pictures for each class"
_UNREADABLE = {
    b"PK\x03\x04": ("a zip, npz or Excel file", f"write it as {FORMAT_WORDS}"),
    b"BZh": ("compressed with bzip2", "use gzip, zstd, Parquet or no compression"),
    b"\xfd7zXZ": ("compressed with xz", "use gzip, zstd, Parquet or no compression"),
    b"\x04\x22\x4d\x18": ("compressed with lz4", "use gzip, zstd, Parquet or no compression"),
    b"Obj\x01": ("Avro", f"write it as {FORMAT_WORDS}"),
    b"FEA1": ("Feather of version 1", f"write it as {FORMAT_WORDS}"),
    b"ORC": ("ORC", f"write it as {FORMAT_WORDS}"),
    b"\x89HDF": ("HDF5", f"write it as {FORMAT_WORDS}"),
    b"\x93NUMPY": ("a NumPy array", f"write it as {FORMAT_WORDS}"),
    b"SQLite format 3": ("an SQLite database", f"export it as {FORMAT_WORDS}"),
    b"\xd0\xcf\x11\xe0": ("an old Excel or Office file", f"export it as {FORMAT_WORDS}"),
    b"%PDF": ("a PDF", f"export its table as {FORMAT_WORDS}"),
    b"\xff\xd8\xff": ("a picture", _FOLDER_OF_PICTURES),
    b"\x89PNG": ("a picture", _FOLDER_OF_PICTURES),
    b"GIF8": ("a picture", _FOLDER_OF_PICTURES),
    b"version https://git-lfs": ("a pointer of Git LFS", "fetch the file itself: git lfs pull"),
}
# Pages and answers of web servers and stores, in place of the file that was asked for.
_MARKUP = re.compile(rb"\s*<(!doctype|html|\?xml|head|body|error)\b", re.IGNORECASE)
_TAR_AT, _TAR = 257, b"ustar"
_ZLIB = (b"\x78\x01", b"\x78\x9c", b"\x78\xda")
_HEAD = 512  # bytes
# What no header of a CSV begins with.
_JSON_OBJECT = re.compile(rb'\s*\{\s*["}\r\n]')
_JSON_ARRAY = re.compile(rb"\s*\[\s*[\[{]")


class _Reader(NamedTuple):
    recognise: Callable[[bytes], bool]  # by the first _HEAD bytes, unpacked
    stream: Callable[[Source, SourceFile, DataOptions], AbstractContextManager[Any]]
    # Of a stream, with name, options, block and the range to read.
    read: Callable[[Any, str, DataOptions, int, Span | None], Reader]


@contextmanager
def open_table(
    source: Source,
    file: SourceFile,
    options: DataOptions,
    block: int = BLOCK,
    span: Span | None = None,
) -> Iterator[ArrowTable]:
    """Open one file of the source, or a part of it.

    Args:
        source: The source.
        file: The file to open.
        options: The typed `data_options`.
        block: Bytes of text to parse at a time.
        span: One of `spans_of`; None for the whole file.

    Raises:
        DataError: It is empty, damaged or of a different format.
    """
    if not file.size:
        raise empty(file.name)
    if source.reader:
        with closing(OwnTable(source.reader, lambda: source.raw(file), file.name)) as rows:
            yield ArrowTable(WithLists(rows, file.name), file.name, options)
        return
    reader = _READERS[_format_of(source, file, options)]
    with reader.stream(source, file, options) as stream:
        columns = reader.read(stream, file.name, options, block, span)
        yield ArrowTable(columns, file.name, options)


def spans_of(
    source: Source, file: SourceFile, options: DataOptions, size: int
) -> tuple[list[Span], bool]:
    """Return the parts of a large file that can be read alone, and whether they are of bytes.

    Args:
        source: The source.
        file: The file.
        options: The typed `data_options`.
        size: About the bytes of a part.

    Returns:
        Ranges of bytes or of row groups; none if only the whole file can be read.
    """
    if source.reader:
        return [], False
    known = _format_of(source, file, options)
    if known == "parquet":
        with source.raw(file) as stream:
            return _groups(ParquetTable(stream, file.name).group_sizes, size), False
    if known not in ("csv", "jsonl") or options.encoding not in ("auto", "utf-8"):
        return [], False
    with _text(source, file, options) as stream, source.raw(file) as raw:
        if stream.read(_HEAD) != raw.read(_HEAD):
            return [], False  # packed, or in another encoding
    return [Span(at, min(at + size, file.size)) for at in range(0, file.size, size)], True


def _groups(sizes: list[int], most: int) -> list[Span]:
    """Return ranges of row groups."""
    found, start, held = [], 0, 0
    for i, size in enumerate(sizes):
        if i > start and held + size > most:
            found.append(Span(start, i))
            start, held = i, 0
        held += size
    return [*found, Span(start, len(sizes))]


def _raw(source: Source, file: SourceFile, options: DataOptions) -> AbstractContextManager[Any]:
    return source.raw(file)


def _unpacked(
    source: Source, file: SourceFile, options: DataOptions
) -> AbstractContextManager[Any]:
    return unpacked(source, file)


def _text(source: Source, file: SourceFile, options: DataOptions) -> AbstractContextManager[Any]:
    return text_of(source, file, options.encoding)


_STORED_AS_THEY_ARE = ("parquet", "arrow")  # never packed with gzip or zstd
# The reader of each format in FORMATS. The first that recognises a file reads it.
_READERS = {
    "parquet": _Reader(
        lambda head: head.startswith(b"PAR1"),
        _raw,
        lambda stream, name, options, block, span: WithLists(
            ParquetTable(stream, name, span), name
        ),
    ),
    "arrow": _Reader(
        lambda head: head.startswith((FILE_MAGIC, STREAM_MAGIC)),
        _raw,
        lambda stream, name, options, block, span: WithLists(IpcTable(stream, name), name),
    ),
    "tfrecord": _Reader(
        is_tfrecord,
        _unpacked,
        lambda stream, name, options, block, span: TFRecordTable(
            stream, name, options.tfrecord_features
        ),
    ),
    "jsonl": _Reader(lambda head: bool(_JSON_OBJECT.match(head)), _text, JsonTable),
    "csv": _Reader(lambda head: True, _text, CsvTable),  # any other text
}


def _format_of(source: Source, file: SourceFile, options: DataOptions) -> str:
    """Return the name of the format, from the first bytes of the file.

    Raises:
        DataError: The format is not supported, or it is not the one in data_options.format.
    """
    with source.raw(file) as stream:
        head = stream.read(_HEAD)
    if not any(_READERS[name].recognise(head) for name in _STORED_AS_THEY_ARE):
        _refuse_unreadable(file, head)
        with unpacked(source, file) as stream:
            head = stream.read(_HEAD)
        _refuse_unreadable(file, head)
        if not _READERS["tfrecord"].recognise(head):
            with text_of(source, file, options.encoding) as stream:
                head = stream.read(_HEAD)
    if _JSON_ARRAY.match(head):
        raise DataError(
            Problem(
                f"{file.name} cannot be read",
                received="a JSON array",
                expected=FORMAT_WORDS,
                fix="write one object on each line, without a comma after it",
            )
        )
    found = next(name for name, reader in _READERS.items() if reader.recognise(head))
    if options.format not in ("auto", found):
        words = {known.name: known.words for known in FORMATS}
        raise DataError(
            Problem(
                f"{file.name} is not what data_options.format says",
                received=f"a file that is not {words[options.format]}"
                if found == "csv"
                else f"a {words[found]} file",
                expected=options.format,
                fix="correct data_options.format, or leave it out",
            )
        )
    return found


def _unreadable(head: bytes) -> tuple[str, str] | None:
    """Return what an unsupported file is, and what to do with it."""
    if _MARKUP.match(head):
        what = " ".join(head[:60].decode(errors="replace").split())
        return f"HTML or XML: {what}", "look at it: it may be an error page; fetch the file again"
    if head.startswith(_TAR, _TAR_AT):
        return "a tar archive", "unpack it, and name its folder or its files"
    if head.startswith(_ZLIB) and _is_zlib(head):
        return "compressed with zlib", "use gzip, zstd, Parquet or no compression"
    return next((found for magic, found in _UNREADABLE.items() if head.startswith(magic)), None)


def _is_zlib(head: bytes) -> bool:
    """Tell whether bytes unpack; a text in Latin-1 may begin with those of a packed file."""
    try:
        return bool(zlib.decompressobj().decompress(head, 1))
    except zlib.error:
        return False


def _refuse_unreadable(file: SourceFile, head: bytes) -> None:
    if found := _unreadable(head):
        kind, fix = found
        raise DataError(
            Problem(
                f"{file.name} cannot be read",
                received=f"a file that is {kind}",
                expected=f"{FORMAT_WORDS}; text may be packed with gzip or zstd",
                fix=fix,
            )
        )
