"""Finds the delimiter of CSV files if `data_options.delimiter` is `auto`.

Spreadsheets write `;` where the comma is the decimal separator, databases write tabs or `|`, and
instruments align columns with blanks. A wrong guess would train on other columns, so another
delimiter than the comma needs proof: the first line contains no comma outside quotes, and all rows
of the first block have equally many values. The first file decides for all files and parts. Called
when data_uri is resolved and when the scan begins.
"""

from __future__ import annotations

import io
import re

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.options.data import AUTO, BLANKS, DataOptions

from .column_names import DELIMITERS
from .files import Source
from .readers.byte_range import ByteRange
from .readers.csv_records import CsvRecords, first_record, reduced
from .readers.open_table import csv_text

_BLOCK = 1 << 20  # bytes of the first file whose rows must fit
_TAB_SEPARATED = (".tsv", ".tsv.gz", ".tsv.zst")
_QUOTED = re.compile(rb'"(?:[^"]|"")*+"')
_CANDIDATES = (";", "\t", "|")  # only if none of them fits, the columns may be aligned


def with_delimiter(source: Source, options: DataOptions) -> DataOptions:
    """Return the options with the delimiter of the source's CSV files in place of `auto`.

    Raises:
        DataError: Several delimiters fit, or the first file cannot be read.
    """
    if options.delimiter != AUTO or source.reader or source.pictures or not source.first.size:
        return options
    file = source.first
    with csv_text(source, file, options) as stream:
        text = stream.read(_BLOCK) if stream else b""
    text = text[: text.rfind(b"\n") + 1] or text + b"\n"
    first = first_record(text)[0] if text.strip(b"\r\n") else b""
    header = _QUOTED.sub(b"", first)
    delimiter = ","
    if file.name.lower().endswith(_TAB_SEPARATED) and b"\t" in header:
        delimiter = "\t"
    elif header and b"," not in header:
        candidates = [delimiter for delimiter in _CANDIDATES if delimiter.encode() in first]
        fitting = [delimiter for delimiter in candidates if _divides(text, delimiter, options)]
        fitting = fitting or [BLANKS] * _divides(text, BLANKS, options)
        if len(fitting) > 1:
            raise DataError(_ambiguous(file.name, text, fitting))
        delimiter = fitting[0] if fitting else ","
    return options.model_copy(update={"delimiter": delimiter})


def _divides(text: bytes, delimiter: str, options: DataOptions) -> bool:
    """Return whether a delimiter divides each row into as many values as there are columns."""
    first, *widths = _widths(text, delimiter)
    if options.names is not None:
        return first > 1 and {first, *widths} == {len(options.names)}
    # The header that R writes above named rows is one field short.
    return first > 1 and len({*widths}) < 2 and all(width - first in (0, 1) for width in widths)


def _widths(text: bytes, delimiter: str) -> list[int]:
    """Return the number of values in each record, and 0 for a line that is no record."""
    separator, stream = delimiter, io.BytesIO(text)
    if delimiter == BLANKS:
        separator, stream = " ", io.BytesIO(b"".join(reduced(stream)))
    records = CsvRecords(stream, "", separator, len(text), ByteRange())
    widths: list[int] = []
    for block in records:
        widths += [0] * block.bad.seen
        widths += [records.width(record) for record in records.records(block)]
    return widths or [0]


def _ambiguous(file: str, text: bytes, fitting: list[str]) -> Problem:
    words = [DELIMITERS[delimiter] for delimiter in fitting]
    line = text.partition(b"\n")[0][:200].decode(errors="replace").rstrip("\r")
    return Problem(
        f"{file}: the delimiter is not clear",
        received=f"{line!r}, which {' and '.join(map(repr, words))} divide into columns, as they do"
        " with the rows below it",
        expected="one delimiter that fits, or data_options.delimiter",
        fix=f"set data_options.delimiter={words[0]} or {words[1]}",
        path="data_options.delimiter",
        suggestion=words[0],
    )
