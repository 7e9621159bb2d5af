"""Reads a request's rows into the columns that the model takes.

A request names the raw columns of the training data, as the table had them: a number, true or
false, a string, a date in ISO 8601, the bytes of an image in base64. null and an empty string are
missing values. A column that is missing, foreign or of another type is rejected by name: a model
answers any input, so a mistake would be an answer that looks right.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
import pyarrow as pa

from kfp_tfjob.features.schema import Schema
from kfp_tfjob.features.types.base import ColumnType, missing_in
from kfp_tfjob.serving.limits import refuse_many
from kfp_tfjob.serving.refusal import SHOWN, RefusedRequest
from kfp_tfjob.storage.errors import Problem
from kfp_tfjob.storage.formatting import counted, listed

_SHOWN = 5  # problems of one column, names in a list
_LONGEST = 100  # characters of a foreign name that are compared and shown
# The path of a value: a column and the number of its row, from 0.
Where = Callable[[str, int], str]


@dataclass(frozen=True)
class Rows:
    """A request's rows.

    Attributes:
        count: The number of rows, at least 1.
        features: What `ServedModel.predict` takes: by column a (rows,) array of the first of the
            `raw_types` of its type.
    """

    count: int
    features: dict[str, np.ndarray]

    def part(self, rows: slice) -> dict[str, np.ndarray]:
        """Return the features of some rows."""
        return {name: values[rows] for name, values in self.features.items()}

    def values(self, row: int) -> list[Any]:
        """Return the values of one row, in the order of the columns."""
        return [values[row] for values in self.features.values()]


class RequestColumns:
    """The columns that requests for a model must have.

    Args:
        schema: The content of schema.json.
        arguments: The argument of each column in the model's signature, if it says so. A
            request that names these instead of the columns is read, too, because it is what
            TensorFlow Serving takes.

    Attributes:
        classes: The names of the classes; none for a regression.
        types: The type of each column by name, in the order of the table.
    """

    def __init__(self, schema: Schema, arguments: Mapping[str, str] | None = None) -> None:
        self.classes, self._label = schema.classes, schema.label.name
        features = schema.encoding.features
        self.types = {it.name: type(it) for it in features}
        self._formats = schema.formats
        # The model rejects a missing value of these, or would answer it with nonsense.
        self._full = frozenset(it.name for it in features if not it.takes_missing)
        columns = {argument: name for name, argument in (arguments or {}).items()}
        self._columns = {it: name for it, name in columns.items() if it not in self.types}

    def column(self, name: str) -> str:
        """Return the column that a name of a request means: its own, or that of the argument."""
        return self._columns.get(name, name)

    def of_rows(self, rows: Any) -> Rows:
        """Read `instances` of a request in V1: one object by row.

        Raises:
            RefusedRequest: It has no rows, or a row lacks a column, has another, or a wrong value.
        """
        if not isinstance(rows, list) or not rows:
            raise RefusedRequest(
                Problem(
                    "the request has no rows",
                    received=f"instances: {_shown(rows)}",
                    expected="a list with one object for each row",
                    fix=self._fix(),
                    path="instances",
                )
            )
        refuse_many(len(rows))
        rows = self._refuse_names(rows)
        given = {name: [row[name] for row in rows] for name in self.types}
        return self.of_columns(given, lambda name, row: f"instances[{row}].{name}")

    def of_columns(self, columns: Mapping[str, Sequence[Any]], where: Where) -> Rows:
        """Read the values of the columns.

        Args:
            columns: Every column's values, as JSON or numpy has them; of equal length.
            where: Returns the path of a value.

        Raises:
            RefusedRequest: A column is missing or foreign, or a value is not of its kind.
        """
        self._refuse_columns(columns)
        refuse_many(len(next(iter(columns.values()))))
        wrong: list[Problem] = []
        found = {}
        for name, column in self.types.items():
            values, problems = column.read(columns[name])
            wrong += self._described(name, column, columns[name], problems, where)
            if not problems and name in self._full:
                wrong += self._gaps(name, column, values, where)
            found[name] = values
        if wrong:
            raise RefusedRequest(*wrong)
        return Rows(len(next(iter(found.values()))), found)

    def _refuse_names(self, rows: list[Any]) -> list[dict[str, Any]]:
        """Return rows by column, or refuse the first that is not an object or has other columns."""
        wanted = self.types.keys()
        if all(isinstance(row, dict) and row.keys() == wanted for row in rows):
            return rows
        found = []
        for at, row in enumerate(rows):
            place = f"instances[{at}]"
            if not isinstance(row, dict):
                raise RefusedRequest(
                    Problem(
                        f"row {at} of the request is not an object",
                        received=f"{place}: {_shown(row)}",
                        expected="an object with one key per column",
                        fix=self._fix(),
                        path=place,
                    )
                )
            named = {self.column(name): value for name, value in row.items()}
            twice = {it for it in row if it in self._columns and self._columns[it] in row}
            if named.keys() != wanted or twice:
                foreign = (named.keys() - wanted) | twice
                raise self._other_columns(wanted - named.keys(), foreign, place)
            found.append(named)
        return found

    def _refuse_columns(self, columns: Mapping[str, Sequence[Any]]) -> None:
        if columns.keys() == self.types.keys():
            return
        missing, foreign = self.types.keys() - columns.keys(), columns.keys() - self.types.keys()
        raise self._other_columns(missing, foreign, "inputs")

    def _other_columns(self, missing: set[str], foreign: set[str], place: str) -> RefusedRequest:
        """Return the refusal of missing and foreign columns at a place of the request."""
        wrong = [
            Problem(
                f"the column {name!r} is missing",
                received=f"no {name!r} in {place}",
                expected=self._written(name),
                fix=f"add {name!r} to every row",
                path=name,
            )
            for name in self.types
            if name in missing
        ]
        for name in [it[:_LONGEST] for it in sorted(foreign)[:SHOWN]]:
            near = get_close_matches(name, missing, 1)
            wrong.append(
                Problem(
                    f"{name!r} is the label, which the model predicts"
                    if name == self._label
                    else f"the model has no column {name!r}",
                    received=f"{name!r} in {place}",
                    expected=f"the columns {listed(self.types, _SHOWN)}",
                    fix=f"rename it to {near[0]!r}" if near else f"remove {name!r}",
                    path=name,
                    suggestion=near[0] if near else "",
                )
            )
        wrong += wrong[-1:] * (len(foreign) - SHOWN)  # only counted: no more are shown
        return RefusedRequest(*wrong)

    def _described(
        self,
        name: str,
        column: type[ColumnType],
        values: Sequence[Any],
        problems: Iterable[tuple[int, str]],
        where: Where,
    ) -> list[Problem]:
        """Describe the wrong values of a column, the first few of them."""
        found = list(problems)
        wrong = [
            Problem(
                f"the column {name!r} has a value that is {what}",
                received=f"{where(name, row)}: {_shown(values[row])}",
                expected=self._written(name),
                fix=f"send {name!r} as {meant or self._written(name)}"
                + (", not in the format of the training files" if name in self._formats else ""),
                path=where(name, row),
                suggestion=meant,
            )
            for row, what in found[:_SHOWN]
            for meant in [self._meant(name, column, values[row])]
        ]
        if len(found) > _SHOWN:
            wrong.append(Problem(f"{len(found) - _SHOWN:,} more values of {name!r} are like these"))
        return wrong

    def _meant(self, name: str, column: type[ColumnType], value: Any) -> str:
        """Return the JSON of what a string in the form of a file means; empty if that is nothing.

        Files may write a column in a format, and numbers are strings in a CSV.
        """
        if not isinstance(value, str):
            return ""
        try:
            texts = pa.array([value])
        except (UnicodeError, pa.ArrowException):  # half of a surrogate pair, for example
            return ""
        form = self._formats.get(name)
        text = (column.plain(texts, form) if form else texts)[0].as_py()
        for candidate in (_number(text), text):
            if candidate is not None and not list(column.read([candidate])[1]):
                return json.dumps(candidate, ensure_ascii=False)
        return ""

    def _gaps(
        self, name: str, column: type[ColumnType], values: np.ndarray, where: Where
    ) -> list[Problem]:
        """Describe a missing value in a column that must have none."""
        rows = np.flatnonzero(missing_in(values))
        if not len(rows):
            return []
        return [
            Problem(
                f"the column {name!r} has {counted(len(rows), 'missing value')}, but the model does"
                " not accept any in it",
                received=f"{where(name, int(rows[0]))}: null or empty",
                expected=column.written,
                fix=f"fill it in, or train with a rule for {name!r} in data_options.missing",
                path=where(name, int(rows[0])),
            )
        ]

    def _written(self, name: str) -> str:
        return self.types[name].written + (
            "" if name in self._full else ", or null for a missing value"
        )

    def _fix(self) -> str:
        example = ", ".join(f'"{name}": ...' for name in [*self.types][:3])
        more = ", ..." if len(self.types) > 3 else ""
        return f'send {{"instances": [{{{example}{more}}}]}}'


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _shown(value: Any) -> str:
    return f"{value!r:.80}"
