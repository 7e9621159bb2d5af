"""Opens a file of the source as a table, in any format of FORMATS, and cuts a source into parts.

Parts are read one by one, in any order and anywhere. The cut depends on the source alone, never on
who reads them. A part is a range of a large file, a file that can only be read as a whole, or
several small files. Called by the scan and its tasks, and when data_uri is resolved.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import IO

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.options import table_formats
from kfp_tfjob.options.data import BLANKS, DataOptions
from kfp_tfjob.options.table_formats import Format

from .. import foreign_files
from ..column_names import empty
from ..decoding import text_of, unpacked
from ..files import Source, SourceFile
from .arrow_table import ArrowTable, Reader
from .byte_range import BLOCK, Span, ranges_of
from .csv_table import CsvTable
from .own_reader import OwnTable

PART_BYTES = 32 << 20
_MOST_IMAGES = 4096  # of a part


@dataclass(frozen=True)
class Part:
    """The part of the source that one task reads.

    Attributes:
        number: Its index in the source, from 0.
        files: Its files.
        span: The range of the only file; None if files are read as a whole.
        size: Its approximate size in bytes.
    """

    number: int
    files: Sequence[SourceFile]
    span: Span | None = None
    size: int = 0

    @property
    def follows(self) -> bool:
        """Whether its file began in the part before."""
        return self.span is not None and self.span.start > 0


def parts_of(source: Source, options: DataOptions, size: int = PART_BYTES) -> list[Part]:
    """Return the parts of a source, of about `size` bytes; large files are opened."""
    parts: list[Part] = []
    most = _MOST_IMAGES if source.pictures else sys.maxsize
    for group in ranges_of([file.size for file in source.files], size, most):
        files = source.files[group.start : group.end]
        group_bytes, spans = sum(file.size for file in files), []
        if group_bytes >= size + size // 2 and not source.pictures:  # a single file
            spans = _spans_of(source, files[0], options, size)
        for span in spans if len(spans) > 1 else [None]:
            share = group_bytes // max(1, len(spans))
            parts.append(Part(len(parts), files, span, share))
    return parts


# Files with these names are not recognized as CSV, regardless of their first bytes.
_JSON_NAME = re.compile(r"\.(json|jsonl|ndjson)(\.gz|\.zst)?$", re.IGNORECASE)


@contextmanager
def open_table(
    source: Source,
    file: SourceFile,
    options: DataOptions,
    block: int = BLOCK,
    span: Span | None = None,
) -> Iterator[ArrowTable]:
    """Open one file of the source, or a part of it; text is parsed in blocks of so many bytes.

    Raises:
        DataError: It is empty, damaged or of a different format.
    """
    if not file.size:
        raise empty(file.name)
    if source.reader:
        _refuse_names(file, OwnTable, options)
        with closing(OwnTable(source.reader, lambda: source.raw(file), file.name)) as rows:
            yield ArrowTable(rows, file.name, options)
        return
    reader = _reader_of(source, file, options)
    _refuse_names(file, reader, options)
    _refuse_sheet(file, reader, options)
    with (
        text_of(source, file, options.encoding) if reader.is_text else unpacked(source, file)
    ) as stream:
        yield ArrowTable(reader(stream, file.name, options, block, span), file.name, options)


@contextmanager
def csv_text(source: Source, file: SourceFile, options: DataOptions) -> Iterator[IO[bytes] | None]:
    """Open a CSV as UTF-8; None for a file of any other format.

    Raises:
        DataError: The file is damaged or of a format that cannot be read.
    """
    if _reader_of(source, file, options) is not CsvTable:
        yield None
        return
    with text_of(source, file, options.encoding) as stream:
        yield stream


def _spans_of(source: Source, file: SourceFile, options: DataOptions, size: int) -> list[Span]:
    """Return the ranges of a large file that can be read alone, of bytes or of units.

    There may be none if only the whole file can be read.
    """
    if source.reader:
        return []
    reader = _reader_of(source, file, options)
    if not reader.is_text:
        with unpacked(source, file) as stream:
            return ranges_of(reader.units(stream, file.name), size)
    if options.encoding not in ("auto", "utf-8") or options.delimiter == BLANKS:
        return []
    with text_of(source, file, options.encoding) as stream, source.raw(file) as raw:
        if stream.read(foreign_files.HEAD) != raw.read(foreign_files.HEAD):
            return []  # packed, or in another encoding
    return [Span(at, min(at + size, file.size)) for at in range(0, file.size, size)]


def _reader_of(source: Source, file: SourceFile, options: DataOptions) -> type[Reader]:
    """Return the reader of a file, by its first bytes.

    Raises:
        DataError: The format is not supported, or it is not the one in data_options.format.
    """
    with unpacked(source, file) as stream:
        head = stream.read(foreign_files.HEAD)
    recognised = _recognised(head, is_text=False)
    if recognised is None:
        if foreign := foreign_files.recognise(head):
            raise foreign_files.unreadable(file.name, *foreign)
        with text_of(source, file, options.encoding) as stream:
            head = stream.read(foreign_files.HEAD)
        recognised = _recognised(head, is_text=True)
    assert recognised, "any text may be a CSV"
    file_format, reader = recognised
    if file_format.name == "csv" != options.format and _JSON_NAME.search(file.name):
        file_format, reader = _reader_named("jsonl")
    if options.format not in ("auto", file_format.name):
        words = {recognised.name: recognised.words for recognised in table_formats.FORMATS}
        raise DataError(
            Problem(
                f"{file.name} does not have the format in data_options.format",
                received=f"a file that is not {words[options.format]}"
                if file_format.name == "csv"
                else f"a {file_format.words} file",
                expected=options.format,
                fix="correct data_options.format, or omit it",
            )
        )
    return reader


def _refuse_names(file: SourceFile, reader: type[Reader], options: DataOptions) -> None:
    if options.names is None or reader.takes_names:
        return
    raise DataError(
        Problem(
            f"{file.name} has names of its own, which data_options.names cannot replace",
            received=f"{len(options.names):,} names for a file that is no CSV",
            expected="data_options.names only for CSV and Excel files without a header",
            fix="remove data_options.names",
            path="data_options.names",
            suggestion="null",
        )
    )


def _refuse_sheet(file: SourceFile, reader: type[Reader], options: DataOptions) -> None:
    if options.sheet is None or reader.has_sheets:
        return
    raise DataError(
        Problem(
            f"{file.name} has no sheets, one of which data_options.sheet names",
            received=f"the sheet {options.sheet!r} for a file that is not from Excel",
            expected="data_options.sheet only for .xlsx files",
            fix="remove data_options.sheet",
            path="data_options.sheet",
            suggestion="null",
        )
    )


def _recognised(head: bytes, is_text: bool) -> tuple[Format, type[Reader]] | None:
    """Return the format of a file that begins so, and its reader."""
    for file_format in reversed(table_formats.FORMATS):  # CSV is the first, as any text may be one
        _, reader = _reader_named(file_format.name)
        if reader.is_text == is_text and reader.recognise(head):
            return file_format, reader
    return None


def _reader_named(name: str) -> tuple[Format, type[Reader]]:
    file_format = next(format for format in table_formats.FORMATS if format.name == name)
    return file_format, resolve_name(file_format.reader)
