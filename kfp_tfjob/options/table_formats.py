"""The formats of tables: the endings of their files, and the class that reads each.

A new format is one line here and one module with its reader. Used by the option
`data_options.format`, and by prepare_data to list and read a source.
"""

from __future__ import annotations

from typing import NamedTuple


class Format(NamedTuple):
    """A format of data files.

    Attributes:
        name: The value of `data_options.format`.
        suffixes: Endings of the file names that count as data in a folder.
        words: The format in messages.
        reader: The class that recognizes and reads such files, as `module:class`.
    """

    name: str
    suffixes: tuple[str, ...]
    words: str
    reader: str


def _with_compression(*suffixes: str) -> tuple[str, ...]:
    return tuple(suffix + compressed for suffix in suffixes for compressed in ("", ".gz", ".zst"))


_READERS = "kfp_tfjob.components.prepare_data.source.readers"
# The last format that recognizes a file reads it, because any text file may be a CSV.
FORMATS = (
    Format("csv", _with_compression(".csv", ".tsv"), "CSV", f"{_READERS}.csv_table:CsvTable"),
    Format(
        "jsonl",
        _with_compression(".jsonl", ".ndjson"),
        "JSON Lines",
        f"{_READERS}.json_table:JsonTable",
    ),
    Format("parquet", (".parquet",), "Parquet", f"{_READERS}.parquet_table:ParquetTable"),
    Format(
        "tfrecord",
        _with_compression(".tfrecord", ".tfrecords"),
        "TFRecord",
        f"{_READERS}.tfrecord_table:TFRecordTable",
    ),
    Format("arrow", (".arrow", ".feather"), "Arrow", f"{_READERS}.arrow_file:ArrowFile"),
    Format("excel", (".xlsx",), "Excel", f"{_READERS}.excel_sheet:ExcelSheet"),
)


def suffixes() -> tuple[str, ...]:
    """Return the endings of the file names that count as data in a folder."""
    return tuple(suffix for format in FORMATS for suffix in format.suffixes)


FORMAT_WORDS = ", ".join(format.words for format in FORMATS[:-1]) + f" or {FORMATS[-1].words}"
FORMAT_NAMES = tuple(format.name for format in FORMATS)
