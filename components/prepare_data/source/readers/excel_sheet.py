"""Reads a sheet of an Excel file as a CSV, so that null_values, formats and names apply to it.

A cell becomes the text that a CSV of it would contain: Excel stores 7 as 7.0, and a date as a
number with a format. Each row is one line, including empty rows, so an invalid value is reported
with the row number that Excel shows.

Excel computes formulas; a program that writes them leaves their values out. The library gives an
empty cell for these, which would be a missing value like any other, so the sheet's XML is searched
for them. The same holds for merged cells, because only the first one has the value.
"""

from __future__ import annotations

import csv
import io
import re
import zipfile
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from itertools import chain, islice
from typing import IO, Any
from xml.etree import ElementTree

import numpy as np
from python_calamine import CalamineError, CalamineSheet, CalamineWorkbook, SheetTypeEnum

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.common.formatting import did_you_mean, listed, nearest, sized
from kfp_tfjob.options.data import DataOptions

from ..column_names import Columns, empty
from ..decoding import Pieces
from ..foreign_files import READER, unreadable
from .arrow_table import Chunk, translate_read_errors
from .byte_range import BLOCK, Span
from .csv_records import PIECE
from .csv_table import CsvTable

_ZIP, _OLE = b"PK\x03\x04", b"\xd0\xcf\x11\xe0"  # of .xlsx; of .xls and of encrypted files
_WORKBOOK, _RELATIONS = "xl/workbook.xml", "xl/_rels/workbook.xml.rels"
# Bytes of a file, and of its sheet: both are in memory as a whole, and 100 MiB of XML take 190 MiB.
# Preflight reads the sheet, too, in a pod of 512 MiB to 1 GiB.
_MOST_BYTES, _MOST_XML = 64 << 20, 256 << 20
_PIECE = 1 << 20  # bytes of XML that are searched at once
_LONGEST_CELL = 1 << 16  # bytes; a cell's XML may lie across two pieces
_MOST_NAMED = 5  # cells
_EXPECTED = "an .xlsx file that can be read to its end"
# A cell with a formula and without a value; the empty string is a value.
_NOT_COMPUTED = re.compile(
    rb"<(?:\w+:)?c\b(?P<cell>[^>]*)>\s*<(?:\w+:)?f\b(?:[^>]*/>|[^>]*>[^<]*</(?:\w+:)?f>)\s*"
    rb"(?P<value><(?:\w+:)?v\s*/>|<(?:\w+:)?v>\s*</(?:\w+:)?v>)?\s*</(?:\w+:)?c>"
)
_PLACE, _IS_STRING = re.compile(rb'\br="([A-Z]+[0-9]+)"'), re.compile(rb'\bt="str"')
_EXACT = 2.0**53  # whole numbers beyond are not exact


class ExcelSheet(CsvTable):
    """A sheet of an .xlsx file: `data_options.sheet`, or the first one."""

    is_text = False
    has_sheets = True

    def __init__(
        self,
        stream: IO[bytes],
        name: str,
        options: DataOptions,
        block: int = BLOCK,
        span: Span | None = None,
    ) -> None:
        sheet = _opened(stream, name, options)
        lines = _CsvLines(sheet)
        self._row_of_line = lines.rows
        # The first look at a file needs its first rows only.
        pieces = _from_first_value(lines)
        if pieces is None:
            raise empty(f"sheet {sheet.name!r} of {name}")
        text = io.BufferedReader(Pieces(pieces), PIECE)
        super().__init__(text, name, options.model_copy(update={"delimiter": ","}), block)

    @staticmethod
    def recognise(head: bytes) -> bool:
        """Return whether a file begins as an Excel file does, or as another zip or Office file."""
        return head.startswith((_ZIP, _OLE))

    def chunks(self, columns: Columns, rows: int) -> Iterator[Chunk]:
        """Yield the columns block by block, with the sheet's row numbers as lines."""
        for chunk in super().chunks(columns, rows):
            faults = chunk.faults
            faults.lines = np.frombuffer(self._row_of_line, np.int64)[faults.lines]
            faults.examples = [
                replace(fault, line=self._row_of_line[fault.line]) for fault in faults.examples
            ]
            yield chunk


class _CsvLines:
    """The rows of a sheet as pieces of a CSV, each of whole lines.

    Attributes:
        rows: The number of the row, from 1, in which each line begins, at the line's number; a row
            has several lines if a cell does.
    """

    def __init__(self, sheet: CalamineSheet) -> None:
        self._sheet = sheet
        self.rows = array("q", [0])

    def __iter__(self) -> Iterator[bytes]:
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        for row, cells in enumerate(self._sheet.iter_rows(), 1):
            texts = [_text(cell) for cell in cells]
            if any(texts):
                writer.writerow(texts)
            else:
                buffer.write("\n")
            self.rows.extend([row] * (1 + sum(text.count("\n") for text in texts)))
            if buffer.tell() >= PIECE:
                yield buffer.getvalue().encode(errors="replace")
                buffer.seek(0)
                buffer.truncate()
        yield buffer.getvalue().encode(errors="replace")


def _from_first_value(lines: Iterable[bytes]) -> Iterator[bytes] | None:
    """Return the pieces of a CSV, empty lines included; None if all of them are blank."""
    pieces, blank = iter(lines), []
    for piece in pieces:
        if piece.strip():
            return chain(blank, [piece], pieces)
        blank.append(piece)
    return None


def _text(cell: Any) -> str:
    """Return a cell's value as a CSV would have it."""
    if isinstance(cell, str):
        return cell.replace("\r\n", "\n").replace("\r", "\n")
    if isinstance(cell, bool):
        return "TRUE" if cell else "FALSE"
    if isinstance(cell, float):
        return str(int(cell)) if cell.is_integer() and abs(cell) < _EXACT else repr(cell)
    if isinstance(cell, datetime):
        return cell.isoformat(sep=" ")
    if isinstance(cell, timedelta):
        minutes, seconds = divmod(round(cell.total_seconds()), 60)
        return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
    if isinstance(cell, date | time):
        return cell.isoformat()
    return str(cell)


def _opened(stream: IO[bytes], name: str, options: DataOptions) -> CalamineSheet:
    """Open the sheet that is the table.

    Raises:
        DataError: It is no .xlsx file, has a password, is too large, lacks the sheet, or has cells
            without their values.
    """
    data = stream.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise _too_large(name, f"more than {sized(_MOST_BYTES)}", f"at most {sized(_MOST_BYTES)}")
    archive = _archive_of(data, name)
    with translate_read_errors(name, _EXPECTED, (CalamineError, OSError)):
        workbook = CalamineWorkbook.from_filelike(io.BytesIO(data))
    sheets = [it.name for it in workbook.sheets_metadata if it.typ == SheetTypeEnum.WorkSheet]
    if not sheets:
        raise empty(name)
    wanted = sheets[0] if options.sheet is None else options.sheet
    if wanted not in sheets:
        raise DataError(_no_sheet(name, wanted, sheets))
    _refuse_cells_without_values(archive, name, wanted)
    with translate_read_errors(name, _EXPECTED, (CalamineError,)):
        sheet = workbook.get_sheet_by_name(wanted)
    if merged := sheet.merged_cell_ranges:
        cells = [f"{_cell_name(*first)}:{_cell_name(*last)}" for first, last in merged]
        raise DataError(
            Problem(
                f"sheet {wanted!r} of {name} has merged cells, of which only the first has a value",
                received=listed(cells, _MOST_NAMED),
                expected="a value in each cell",
                fix="unmerge them, fill in the cells, and save the file",
            )
        )
    return sheet


def _archive_of(data: bytes, name: str) -> zipfile.ZipFile:
    """Open an .xlsx file as the zip that it is.

    Raises:
        DataError: It is another file of Office, an encrypted one, another zip, or damaged.
    """
    if data.startswith(_OLE):
        is_encrypted = "EncryptedPackage".encode("utf-16-le") in data
        kind = "an Excel file with a password" if is_encrypted else "an old Excel or Office file"
        fix = "save it without a password" if is_encrypted else "save it as .xlsx"
        raise unreadable(name, kind, f"{fix}, save a sheet as CSV, or {READER}")
    with translate_read_errors(name, _EXPECTED, (zipfile.BadZipFile, OSError)):
        archive = zipfile.ZipFile(io.BytesIO(data))
    members = archive.namelist()
    if _WORKBOOK in members:
        return archive
    if "mimetype" in members or "content.xml" in members:
        raise unreadable(name, "a LibreOffice file", f"save it as .xlsx or CSV, or {READER}")
    raise unreadable(name, "a zip or npz file", f"unpack it, or {READER}")


def _refuse_cells_without_values(archive: zipfile.ZipFile, name: str, sheet: str) -> None:
    """Reject a sheet that is too large, or has formulas that no program has computed.

    Raises:
        DataError: It is such a sheet, or the file is damaged.
    """
    errors = (zipfile.BadZipFile, ElementTree.ParseError, OSError, KeyError)
    with translate_read_errors(name, _EXPECTED, errors):
        member = _member_of(archive, sheet)
        if member is None:
            return
        size = archive.getinfo(member).file_size
        most = 0 if size > _MOST_XML else _MOST_NAMED + 1
        cells = list(islice(_not_computed(archive, member), most))
    if size > _MOST_XML:
        raise _too_large(name, f"a sheet of {sized(size)}", f"at most {sized(_MOST_XML)} of XML")
    if cells:
        raise DataError(
            Problem(
                f"sheet {sheet!r} of {name} has formulas without their values",
                received=listed(cells, _MOST_NAMED),
                expected="the values that Excel stores beside the formulas",
                fix="open the file in Excel or LibreOffice, and save it",
            )
        )


def _member_of(archive: zipfile.ZipFile, sheet: str) -> str | None:
    """Return the name of a sheet's XML in the archive; None if the workbook does not tell it."""
    workbook = ElementTree.fromstring(archive.read(_WORKBOOK))
    relations = ElementTree.fromstring(archive.read(_RELATIONS))
    targets = {item.get("Id"): item.get("Target", "") for item in relations}
    for item in workbook.iter():
        if item.tag.endswith("}sheet") and item.get("name") == sheet:
            key = next((value for name, value in item.items() if name.endswith("}id")), None)
            target = targets.get(key, "")
            member = target.removeprefix("/") if target.startswith("/") else f"xl/{target}"
            return member if member in archive.namelist() else None
    return None


def _not_computed(archive: zipfile.ZipFile, member: str) -> Iterator[str]:
    """Yield the cells with a formula and without a value."""
    with archive.open(member) as stream:
        text = b""
        while piece := stream.read(_PIECE):
            text += piece
            end = 0
            for match in _NOT_COMPUTED.finditer(text):
                end = match.end()
                is_empty_string = match["value"] and _IS_STRING.search(match["cell"])
                if not is_empty_string and (place := _PLACE.search(match["cell"])):
                    yield place[1].decode()
            text = text[max(end, len(text) - _LONGEST_CELL) :]


def _cell_name(row: int, column: int) -> str:
    """Return a cell's name, such as AB7, given its row and column from 0."""
    letters, number = "", column + 1
    while number:
        number, letter = divmod(number - 1, 26)
        letters = chr(ord("A") + letter) + letters
    return f"{letters}{row + 1}"


def _no_sheet(file: str, sheet: str, sheets: list[str]) -> Problem:
    meant = nearest(sheet, sheets)
    return Problem(
        f"{file} has no sheet {sheet!r}",
        received=f"the sheets {listed([repr(name) for name in sheets], 10)}",
        expected="the name of one of them, or no name for the first one",
        fix=did_you_mean(meant, "correct data_options.sheet"),
        path="data_options.sheet",
        suggestion=meant,
    )


def _too_large(name: str, received: str, expected: str) -> DataError:
    return DataError(
        Problem(
            f"{name} is too large for an Excel file, which is read as a whole",
            received=received,
            expected=expected,
            fix="save the sheet as CSV, or write the table as Parquet",
        )
    )
