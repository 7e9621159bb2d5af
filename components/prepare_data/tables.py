"""A file of the source opened as a table, whatever its format."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kfp_tfjob.components.prepare_data.csv_records import BLOCK
from kfp_tfjob.components.prepare_data.csv_table import CsvTable
from kfp_tfjob.components.prepare_data.files import Source, SourceFile, text_of
from kfp_tfjob.components.prepare_data.parquet_table import ParquetTable
from kfp_tfjob.components.prepare_data.rows import Table, empty
from kfp_tfjob.options.data import DataOptions


@contextmanager
def open_table(
    source: Source, file: SourceFile, options: DataOptions, block: int = BLOCK
) -> Iterator[Table]:
    """Open one file of the source.

    Args:
        source: The source.
        file: Which file.
        options: How it is written.
        block: Bytes of a CSV to parse at a time.

    Raises:
        DataError: It is empty, damaged or of a different format.
    """
    if not file.size:
        raise empty(file.name)
    if source.format_of(file, options.format) == "csv":
        with text_of(source, file) as stream:
            yield CsvTable(stream, file.name, options, block)
        return
    with source.raw(file) as stream:
        yield ParquetTable(stream, file.name, options)
