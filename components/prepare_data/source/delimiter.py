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
from collections.abc import Sequence

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
_ESCAPED = b'\\"'  # R's write.table and Spark write it for a quote inside quotes
_CANDIDATES = (";", "\t", "|")  # only if none of them fits, the columns may be aligned


def with_delimiter(source: Source, options: DataOptions) -> DataOptions:
    """Return the options with the delimiter of the source's CSV files in place of `auto`.

    Raises:
        DataError: Several delimiters fit, the first file cannot be read, or its quotes are escaped
            with a backslash.
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
    candidates: list[str] = []
    if file.name.lower().endswith(_TAB_SEPARATED) and b"\t" in header:
        delimiter = "\t"
    elif header and b"," not in header:
        candidates = [delimiter for delimiter in _CANDIDATES if delimiter.encode() in first]
        fitting = [delimiter for delimiter in candidates if _divides(text, delimiter, options)]
        fitting = fitting or [BLANKS] * _divides(text, BLANKS, options)
        if len(fitting) > 1:
            raise DataError(_ambiguous(file.name, text, fitting))
        delimiter = fitting[0] if fitting else ","
    if options.on_bad_row == "fail" and _ESCAPED in text:
        likely = [delimiter] if delimiter != "," or b"," in header else [*candidates, BLANKS]
        DataError.raise_if(filter(None, [_escaped_quotes(file.name, text, likely, options)]))
    return options.model_copy(update={"delimiter": delimiter})


def _divides(text: bytes, delimiter: str, options: DataOptions) -> bool:
    """Return whether a delimiter divides each row into as many values as there are columns."""
    first, *widths = _widths(text, delimiter)
    if options.names is not None:
        return first > 1 and {first, *widths} == {len(options.names)}
    # The header that R writes above named rows is one field short.
    return first > 1 and len({*widths}) < 2 and all(width - first in (0, 1) for width in widths)


def _escaped_quotes(
    file: str, text: bytes, delimiters: Sequence[str], options: DataOptions
) -> Problem | None:
    """Describe quotes escaped with a backslash, if a delimiter fits once they are doubled.

    Otherwise, their lines would be invalid, and R's row names would seem to be too many values.
    """
    if any(_divides(text, delimiter, options) for delimiter in delimiters):
        return None  # the backslash is an ordinary character
    doubled = text.replace(_ESCAPED, b'""')
    if not any(_divides(doubled, delimiter, options) for delimiter in delimiters):
        return None
    line = text.count(b"\n", 0, text.index(_ESCAPED))
    received = text.split(b"\n", line + 1)[line][:200].decode(errors="replace").rstrip("\r")
    return Problem(
        f"{file}, line {line + 1}: a quote is escaped with a backslash",
        received=repr(received),
        expected="two quotes for each quote inside quotes",
        fix="write the file with doubled quotes: in R, write.csv(TABLE, FILE, row.names=FALSE); in"
        """ Spark, option("escape", '"')""",
    )


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
