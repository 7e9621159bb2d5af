"""Parses a request's rows into the columns that the model takes.

A request contains the raw columns of the training table by name: a number, true or false, a string,
a date in ISO 8601, or an image's bytes in base64. null and an empty string are missing values. A
column that is missing, unknown or of another type is rejected by name. A model answers any input,
so a mistake would otherwise yield a prediction that looks right.

V1 requests enter by `of_rows` (protocol.py), V2 requests by `of_columns` (tensors.py).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
import pyarrow as pa

from kfp_tfjob.common.errors import Problem
from kfp_tfjob.common.formatting import counted, listed
from kfp_tfjob.features.cells import BLANKS
from kfp_tfjob.features.null_values import are_null_numbers, null_numbers, rounded_nulls
from kfp_tfjob.features.schema import Schema
from kfp_tfjob.features.types.base import WHOLES, ColumnType, missing_in, text_of
from kfp_tfjob.features.types.number import is_number, parse_number

from .limits import check_row_count
from .refusal import SHOWN, RefusedRequest

_MOST_SHOWN = 5  # problems of one column, names in a list
_LONGEST = 100  # characters of an unknown name that are compared and shown; a name may be megabytes
# From a column and a row's number, from 0, to the path of the value in the request.
ValuePath = Callable[[str, int], str]


@dataclass(frozen=True)
class Rows:
    """A request's rows.

    Attributes:
        count: The number of rows, at least 1.
        features: A (rows,) array by column, in the first of its column type's `raw_types`; the
            argument of `ServedModel.predict`.
    """

    count: int
    features: dict[str, np.ndarray]

    def part(self, rows: slice) -> dict[str, np.ndarray]:
        """Return the features of some of the rows."""
        return {name: values[rows] for name, values in self.features.items()}

    def values(self, row: int) -> list[Any]:
        """Return the values of one row, in the order of the columns."""
        return [values[row] for values in self.features.values()]


class RequestColumns:
    """The columns that requests for a model must have.

    Args:
        schema: The content of schema.json.
        arguments: The signature's argument for each column; None if the model does not list them.
            Requests may name arguments instead of columns, as TensorFlow Serving requires.

    Attributes:
        classes: The names of the classes; empty for a regression.
        types: The type of each column by name, in the table's order.
    """

    def __init__(self, schema: Schema, arguments: Mapping[str, str] | None = None) -> None:
        self.classes, self._label = schema.classes, schema.label.name
        features = schema.encoding.features
        self.types = {feature.name: type(feature) for feature in features}
        self._formats, self._null_values = schema.formats, frozenset(schema.null_values)
        self._null_numbers = null_numbers(schema.null_values)
        self._max_megapixels = schema.megapixel_limit
        # The model was trained without missing values in these columns: the rule, if there is one.
        self._without_missing = {
            feature.name: feature.missing.rule if feature.missing else ""
            for feature in features
            if not feature.takes_missing
        }
        column_of_argument = {argument: name for name, argument in (arguments or {}).items()}
        self._column_of_argument = {
            argument: name
            for argument, name in column_of_argument.items()
            if argument not in self.types
        }

    def column(self, name: str) -> str:
        """Return the column for a name in a request, which may be an argument's name."""
        return self._column_of_argument.get(name, name)

    def of_rows(self, rows: Any) -> Rows:
        """Parse `instances` of a V1 request: one object for each row.

        Raises:
            RefusedRequest: There are no rows, or a row lacks a column or contains an unknown column
                or an invalid value.
        """
        if not isinstance(rows, list) or not rows:
            raise RefusedRequest(
                Problem(
                    "the request has no rows",
                    received=f"instances: {_format_value(rows)}",
                    expected="a list with one object for each row",
                    fix=self._example_fix(),
                    path="instances",
                )
            )
        check_row_count(len(rows))
        rows = self._rows_by_column(rows)
        columns = {name: [row[name] for row in rows] for name in self.types}
        return self.of_columns(columns, lambda name, row: f"instances[{row}].{name}")

    def of_columns(
        self,
        columns: Mapping[str, Sequence[Any]],
        path: ValuePath,
        float_types: Mapping[str, type[np.floating]] | None = None,
    ) -> Rows:
        """Parse the values of the columns.

        Args:
            columns: Every column's values from JSON or numpy; of equal length.
            path: Returns the path of a value.
            float_types: The type to which the client rounded a column's numbers, if not float64.

        Raises:
            RefusedRequest: A column is missing or unknown, or a value is invalid for its type.
        """
        self._check_column_names(columns)
        check_row_count(len(next(iter(columns.values()))))
        problems_found: list[Problem] = []
        features = {}
        for name, column in self.types.items():
            float_type = (float_types or {}).get(name, np.float64)
            values, invalid = column.read(self._with_missing(column, columns[name], float_type))
            problems_found += self._describe_invalid(name, column, columns[name], invalid, path)
            if not invalid and name in self._without_missing:
                problems_found += self._describe_missing(name, column, columns[name], values, path)
            if not invalid:
                problems_found += self._describe_unusable(name, column, values, path)
            features[name] = values
        if problems_found:
            raise RefusedRequest(*problems_found)
        return Rows(len(next(iter(features.values()))), features)

    def _with_missing(
        self, column: type[ColumnType], values: Sequence[Any], float_type: type[np.floating]
    ) -> Sequence[Any]:
        """Return a column's values with None or NaN for those that were missing in training.

        Args:
            column: The column's type.
            values: The values from JSON or numpy.
            float_type: The type to which the client rounded the numbers.
        """
        if not self._null_values:
            return values
        # A number in a column of dates is microseconds, which training files do not contain.
        has_numbers = len(self._null_numbers) > 0 and column.field is not WHOLES
        if isinstance(values, np.ndarray) and values.dtype != object:
            if not has_numbers or values.dtype.kind not in "iuf":
                return values
            missing = self._are_null(values.astype(np.float64), float_type)
            with_missing: Any = np.where(missing, np.nan, values)
            return with_missing if missing.any() else values
        texts = [
            None if (text := text_of(value)) is None else text.strip(BLANKS) for value in values
        ]
        null_texts = self._null_values | self._spelled_nulls(texts)
        missing = np.array([text in null_texts for text in texts], bool)
        if has_numbers:
            missing |= self._are_null(np.array([*map(_as_float, values)]), float_type)
        pairs = zip(values, missing.tolist(), strict=True)
        return [None if is_missing else value for value, is_missing in pairs]

    def _spelled_nulls(self, texts: Iterable[str | None]) -> set[str]:
        """Return the strings that spell a number which was missing in training."""
        numbers = {text for text in texts if text is not None and is_number(text)}
        if not numbers or not len(self._null_numbers):
            return set()
        strings = pa.array(sorted(numbers))
        are_null = are_null_numbers(strings, self._null_numbers)
        return set(strings.filter(pa.array(are_null)).to_pylist())

    def _are_null(self, numbers: np.ndarray, float_type: type[np.floating]) -> np.ndarray:
        """Return bool of shape [rows]: the float64 numbers that were missing in training."""
        with np.errstate(over="ignore"):
            rounded = numbers.astype(float_type).astype(np.float64)
        return np.isin(rounded, rounded_nulls(self._null_numbers, float_type))

    def _rows_by_column(self, rows: list[Any]) -> list[dict[str, Any]]:
        """Return the rows with columns as keys; reject the first row with other keys."""
        expected = self.types.keys()
        if all(isinstance(row, dict) and row.keys() == expected for row in rows):
            return rows
        named_rows = []
        for index, row in enumerate(rows):
            row_path = f"instances[{index}]"
            if not isinstance(row, dict):
                raise RefusedRequest(
                    Problem(
                        f"row {index} of the request is not an object",
                        received=f"{row_path}: {_format_value(row)}",
                        expected="an object with one key per column",
                        fix=self._example_fix(),
                        path=row_path,
                    )
                )
            named = {self.column(name): value for name, value in row.items()}
            duplicates = {
                key
                for key in row
                if key in self._column_of_argument and self._column_of_argument[key] in row
            }
            if named.keys() != expected or duplicates:
                foreign = (named.keys() - expected) | duplicates
                raise self._column_mismatch(expected - named.keys(), foreign, row_path)
            named_rows.append(named)
        return named_rows

    def _check_column_names(self, columns: Mapping[str, Sequence[Any]]) -> None:
        if columns.keys() == self.types.keys():
            return
        missing, foreign = self.types.keys() - columns.keys(), columns.keys() - self.types.keys()
        raise self._column_mismatch(missing, foreign, "inputs")

    def _column_mismatch(
        self, missing: set[str], foreign: set[str], location: str
    ) -> RefusedRequest:
        """Return the refusal of missing and unknown columns; `location` is the row's path."""
        # Training makes a column of each element of a list.
        lists = {name: self._elements(name) for name in foreign if f"{name}[0]" in missing}
        missing = missing.difference(*lists.values())
        foreign = foreign - lists.keys()
        problems = [
            Problem(
                f"the model has no column {name!r}, but one for each of its elements",
                received=f"{name!r} in {location}",
                expected=f"the columns {listed(elements, _MOST_SHOWN)}",
                fix=f"send each element as a column of its own: {listed(elements, 2)}",
                path=name,
            )
            for name, elements in sorted(lists.items())
        ]
        problems += [
            Problem(
                f"the column {name!r} is missing",
                received=f"no {name!r} in {location}",
                expected=self._describe_values(name),
                fix=f"add {name!r} to every row",
                path=name,
            )
            for name in self.types
            if name in missing
        ]
        for name in [foreign_name[:_LONGEST] for foreign_name in sorted(foreign)[:SHOWN]]:
            similar = get_close_matches(name, missing, 1)
            problems.append(
                Problem(
                    f"{name!r} is the label, which the model predicts"
                    if name == self._label
                    else f"the model has no column {name!r}",
                    received=f"{name!r} in {location}",
                    expected=f"the columns {listed(self.types, _MOST_SHOWN)}",
                    fix=f"rename it to {similar[0]!r}" if similar else f"remove {name!r}",
                    path=name,
                    suggestion=similar[0] if similar else "",
                )
            )
        problems += problems[-1:] * (len(foreign) - SHOWN)  # only counted: no more are shown
        return RefusedRequest(*problems)

    def _elements(self, name: str) -> list[str]:
        """Return the columns that are the elements of a list."""
        element = re.compile(rf"{re.escape(name)}\[[0-9]+\]")
        return [column for column in self.types if element.fullmatch(column)]

    def _describe_invalid(
        self,
        name: str,
        column: type[ColumnType],
        values: Sequence[Any],
        invalid_rows: Iterable[tuple[int, str]],
        path: ValuePath,
    ) -> list[Problem]:
        """Return the problems of a column's first few invalid values."""
        invalid = list(invalid_rows)
        described = [
            Problem(
                f"the column {name!r} has a value that is {reason}",
                received=f"{path(name, row)}: {_format_value(values[row])}",
                expected=self._describe_values(name),
                fix=f"send {name!r} as {suggestion or self._describe_values(name)}"
                + (", not in the format of the training files" if name in self._formats else ""),
                path=path(name, row),
                suggestion=suggestion,
            )
            for row, reason in invalid[:_MOST_SHOWN]
            for suggestion in [self._suggest(name, column, values[row])]
        ]
        if len(invalid) > _MOST_SHOWN:
            described.append(
                Problem(f"{len(invalid) - _MOST_SHOWN:,} more values of {name!r} are like these")
            )
        return described

    def _suggest(self, name: str, column: type[ColumnType], value: Any) -> str:
        """Return the valid JSON for a string copied from a training file; empty if there is none.

        Files may contain a column in a declared format, and numbers are strings in a CSV.
        """
        if not isinstance(value, str):
            return ""
        try:
            strings = pa.array([value])
        except (UnicodeError, pa.ArrowException):  # half of a surrogate pair, for example
            return ""
        format_ = self._formats.get(name)
        plain = (column.plain(strings, format_) if format_ else strings)[0].as_py()
        for candidate in (parse_number(plain.strip(BLANKS)), plain):
            if candidate is not None and not list(column.read([candidate])[1]):
                return json.dumps(candidate, ensure_ascii=False)
        return ""

    def _describe_missing(
        self,
        name: str,
        column: type[ColumnType],
        values: Sequence[Any],
        values_read: np.ndarray,
        path: ValuePath,
    ) -> list[Problem]:
        """Return the problem of missing values in a column that does not accept them."""
        rows = np.flatnonzero(missing_in(values_read))
        if not len(rows):
            return []
        first, rule = int(rows[0]), self._without_missing[name]
        change = f"without the rule `{rule}`" if rule else "with a rule"
        return [
            Problem(
                f"the column {name!r} has {counted(len(rows), 'missing value')}, but the model does"
                " not accept any in it",
                received=f"{path(name, first)}: {_format_value(values[first])}",
                expected=column.written,
                fix=f"fill it in, or train {change} for {name!r} in data_options.missing",
                path=path(name, first),
            )
        ]

    def _describe_unusable(
        self, name: str, column: type[ColumnType], values: np.ndarray, path: ValuePath
    ) -> list[Problem]:
        """Return the problems of the first few values that the model must not decode."""
        expected = f"{column.whole}, of at most {self._max_megapixels:g} megapixels"
        return [
            Problem(
                f"the column {name!r} has a value that the model cannot decode",
                received=f"{path(name, row)}: {reason}",
                expected=expected,
                fix=f"send {name!r} as another file, or make it smaller if it is too large",
                path=path(name, row),
            )
            for row, reason in column.unusable(values, self._max_megapixels)[:_MOST_SHOWN]
        ]

    def _describe_values(self, name: str) -> str:
        return self.types[name].written + (
            "" if name in self._without_missing else ", or null for a missing value"
        )

    def _example_fix(self) -> str:
        example = ", ".join(f'"{name}": ...' for name in [*self.types][:3])
        ellipsis = ", ..." if len(self.types) > 3 else ""
        return f'send {{"instances": [{{{example}{ellipsis}}}]}}'


def _as_float(value: Any) -> float:
    """Return a number from JSON as a float; NaN for any other value."""
    if type(value) not in (int, float):
        return math.nan
    try:
        return float(value)
    except OverflowError:  # a whole number of Python has any size
        return math.inf


def _format_value(value: Any) -> str:
    return f"{value!r:.80}"
