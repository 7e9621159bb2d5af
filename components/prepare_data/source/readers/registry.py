"""Opens a file of the source as a table, in any format of FORMATS."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from importlib import import_module
from typing import IO

from kfp_tfjob.components.prepare_data.rows import empty
from kfp_tfjob.components.prepare_data.source.files import Source, SourceFile
from kfp_tfjob.components.prepare_data.source.readers.arrow_table import ArrowTable
from kfp_tfjob.components.prepare_data.source.readers.byte_range import Span
from kfp_tfjob.components.prepare_data.source.readers.csv_records import BLOCK
from kfp_tfjob.components.prepare_data.source.readers.file_format import HEAD, Content, FileFormat
from kfp_tfjob.components.prepare_data.source.readers.lists import with_lists
from kfp_tfjob.components.prepare_data.source.readers.own_reader import OwnTable
from kfp_tfjob.components.prepare_data.source.readers.streams import text_of, unpacked
from kfp_tfjob.options import data
from kfp_tfjob.options.data import FORMAT_WORDS, DataOptions
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
# What no header of a CSV begins with.
_JSON_ARRAY = re.compile(rb"\s*\[\s*[\[{]")


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
            yield ArrowTable(with_lists(rows, file.name), file.name, options)
        return
    known = _format_of(source, file, options)
    with _opened(source, file, options, known.content) as stream:
        reader = known.open(stream, file.name, options, block, span)
        yield ArrowTable(with_lists(reader, file.name), file.name, options)


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
        Ranges of bytes or of what the format is cut into; none if only the whole file can be read.
    """
    if source.reader:
        return [], False
    known = _format_of(source, file, options)
    if known.units:
        with source.raw(file) as stream:
            return _ranges(known.units(stream, file.name), size), False
    if not known.has_lines or options.encoding not in ("auto", "utf-8"):
        return [], False
    with _opened(source, file, options, Content.TEXT) as stream, source.raw(file) as raw:
        if stream.read(HEAD) != raw.read(HEAD):
            return [], False  # packed, or in another encoding
    return [Span(at, min(at + size, file.size)) for at in range(0, file.size, size)], True


def _ranges(sizes: list[int], most: int) -> list[Span]:
    """Return ranges of parts of these sizes, of about `most` bytes."""
    found, start, held = [], 0, 0
    for i, size in enumerate(sizes):
        if i > start and held + size > most:
            found.append(Span(start, i))
            start, held = i, 0
        held += size
    return [*found, Span(start, len(sizes))]


@contextmanager
def _opened(
    source: Source, file: SourceFile, options: DataOptions, content: Content
) -> Iterator[IO[bytes]]:
    if content is Content.STORED:
        with source.raw(file) as stream:
            yield stream
    elif content is Content.UNPACKED:
        with unpacked(source, file) as stream:
            yield stream
    else:
        with text_of(source, file, options.encoding) as stream:
            yield stream


@cache
def reader_of(module: str) -> FileFormat:
    """Return what the module of a reader says of its format."""
    return import_module(module).FORMAT


def _format_of(source: Source, file: SourceFile, options: DataOptions) -> FileFormat:
    """Return the format of a file, from its first bytes.

    Raises:
        DataError: The format is not supported, or it is not the one in data_options.format.
    """
    head, found = b"", None
    for content in Content:
        with _opened(source, file, options, content) as stream:
            head = stream.read(HEAD)
        # CSV is the first, as any text may be one.
        known = (item for item in reversed(data.FORMATS) if _is(item, content, head))
        if found := next(known, None):
            break
        _refuse_unreadable(file, head)
    if found is None or _JSON_ARRAY.match(head):
        raise DataError(
            Problem(
                f"{file.name} cannot be read",
                received="a JSON array",
                expected=FORMAT_WORDS,
                fix="write one object on each line, without a comma after it",
            )
        )
    if options.format not in ("auto", found.name):
        words = {known.name: known.words for known in data.FORMATS}
        raise DataError(
            Problem(
                f"{file.name} is not what data_options.format says",
                received=f"a file that is not {words[options.format]}"
                if found.name == "csv"
                else f"a {found.words} file",
                expected=options.format,
                fix="correct data_options.format, or leave it out",
            )
        )
    return reader_of(found.reader)


def _is(item: data.Format, content: Content, head: bytes) -> bool:
    known = reader_of(item.reader)
    return known.content is content and known.recognise(head)


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
