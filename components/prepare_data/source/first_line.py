"""Tells whether the first line of a CSV is its header or a row, by the values below it.

A file without a header would otherwise lose its first row, whose values would be the names of the
columns. The line is a row if each field could be a value of its column, and a header if none could.
In between, the file is read as the options say. Called when data_uri is resolved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kfp_tfjob.common.errors import Problem
from kfp_tfjob.features.cells import Cells
from kfp_tfjob.features.types import TYPES
from kfp_tfjob.features.types.base import Votes
from kfp_tfjob.features.types.number import is_number
from kfp_tfjob.options.data import DataOptions

from ..column_profile import ColumnProfile
from .column_names import aligned_with_blanks, has_header, without_header
from .readers.arrow_table import ArrowTable
from .readers.csv_table import CsvTable

_COLUMNS = 500  # that are parsed at once; the first field that is no value ends the search


def first_line_problem(table: ArrowTable, options: DataOptions, label: str) -> Problem | None:
    """Describe a CSV whose first line is a row and not the header, or the other way around.

    Args:
        table: An open file before its rows are read.
        options: `names` and `header` say what the first line is.
        label: The label column, which may be named by its first value.
    """
    reader, names = table.reader, options.names
    if not isinstance(reader, CsvTable):
        return None
    if problem := aligned_with_blanks(table.header, options, table.name):
        return problem
    fields = reader.first_fields
    if options.header is not None or reader.has_index or not fields:
        return None
    if names is None:
        is_row = len(fields) > 1 and not _count_up(fields) and all(_fit(reader, fields))
        return without_header(table.name, fields, label) if is_row else None
    if [field.casefold() for field in fields] == [name.casefold() for name in names]:
        return has_header(table.name, fields)
    # Numbers may be names and values. A class that has the first row alone is rare.
    words = [place for place, field in enumerate(fields) if field and not _parsed_forms(field)]
    is_header = names.index(label) in words if label in names else bool(words)
    is_header = is_header and not any(_fit(reader, fields, words, first=1))
    return has_header(table.name, fields) if is_header else None


def _count_up(fields: Sequence[str]) -> bool:
    """Return whether fields are 0, 1, 2, ..., as the names that pandas gives an array's columns."""
    if not all(field.isdecimal() for field in fields):
        return False
    return (np.diff([int(field) for field in fields]) == 1).all()


def _fit(
    reader: CsvTable, fields: Sequence[str], places: Sequence[int] | None = None, first: int = 0
) -> Iterator[bool]:
    """Yield whether each field could be a value of its column, the words first.

    Args:
        reader: The open file.
        fields: The fields of the first line.
        places: The indices of the fields to check; None for all.
        first: The first row whose values count.
    """
    if places is None:
        places = sorted(range(len(fields)), key=lambda place: is_number(fields[place]) is not None)
    start, size = 0, 1  # a word that is no value ends the search, and is usually in the first place
    while start < len(places):
        some = places[start : start + size]
        for place, column in zip(some, reader.first_values(some), strict=True):
            yield _fits(fields[place], Cells(column[first:], reader.nulls))
        start, size = start + size, _COLUMNS


def _fits(field: str, values: Cells) -> bool:
    """Return whether a field has the type of a column, or is one of its values."""
    if not len(values.column):
        return False
    if not field or field in values.nulls.to_pylist():
        return True
    if pc.any(pc.equal(values.texts, field)).as_py():
        return True
    forms = _parsed_forms(field)
    votes = _votes(values)
    return bool(forms) and 2 * votes.of(*forms) >= votes.total


def _parsed_forms(field: str) -> tuple[str, ...]:
    """Return the forms of the type that parses a field, such as a number; none of a word."""
    votes = _votes(Cells(pa.array([field]), pa.array([""])))
    types = (column_type.forms for column_type in TYPES.values() if column_type.parsed_forms)
    return next((forms for forms in types if votes.of(*forms)), ())


def _votes(values: Cells) -> Votes:
    profile = ColumnProfile("", texts=None)
    profile.add(values, "", np.zeros(len(values.column), np.int64))
    return profile.votes
