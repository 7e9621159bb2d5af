"""Declares how the columns of a table become the numbers that a model gets.

schema.json contains the encoding: `features` has the columns, and `coding` what was learned from
the training rows. raw_columns.py executes it, with TensorFlow: in the exported model for a request,
and in the trainer for the rows of the dataset, so that both get the same values.

A packed row has the numbers first and the codes after them, each in the order of the columns. A
column has its `parts`, and then 1 for a missing value where `indicator` is set. Created by
prepare_data; read from schema.json by the trainer and the server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kfp_tfjob.common.errors import Problem
from kfp_tfjob.storage.documents import InvalidDocumentError, adapter

from .types import BY_SCHEMA_TYPE
from .types.base import CODES, FIELDS, FLOATS, WHOLES, ColumnType, Field, Learned


@dataclass(frozen=True)
class Column:
    """The place of a feature in a packed row.

    Attributes:
        name: The column of the table.
        kind: `number`, `boolean`, `date`, `category`, `text` or `words`.
        start: Its first packed column.
        width: Number of its packed columns; of words, how many of a value the model gets.
        size: Number of its codes, for an embedding or a one-hot layer; 0 for numbers. Of words, 0
            is none, 1 an unknown word, and the rest is the vocabulary.
    """

    name: str
    kind: str
    start: int
    width: int
    size: int


@dataclass(frozen=True)
class Group:
    """Columns that are encoded together, and where their values go.

    Attributes:
        type: Their type.
        columns: The columns.
        features: Their places among the features.
        starts: Their first packed columns.
        indicated: Which of them have an indicator.
        indicators: The packed columns of the indicators.
    """

    type: type[ColumnType]
    columns: tuple[ColumnType, ...]
    features: np.ndarray
    starts: np.ndarray
    indicated: np.ndarray
    indicators: np.ndarray

    @property
    def may_lack(self) -> bool:
        """Whether another value stands for a missing one, or it is rejected."""
        return self.type.field is not CODES and self.columns[0].missing is not None

    @cached_property
    def strict(self) -> list[int]:
        """Which columns reject a missing value."""
        return [at for at, column in enumerate(self.columns) if not column.takes_missing]

    @cached_property
    def stand_ins(self) -> np.ndarray:
        """(columns,) the fill value of a missing value; 0 where it is rejected."""
        values = [column.missing.value if column.missing else None for column in self.columns]
        kind = np.int64 if self.type.field.type == np.int64 else np.float64
        return np.array([0 if value is None else value for value in values], kind)


@dataclass(frozen=True)
class Coding:
    """The encoding of a table.

    Args:
        features: The features, in the order of the table.
    """

    features: tuple[ColumnType, ...]

    @classmethod
    def of_plain(cls, entries: Iterable[Learned]) -> Coding:
        """Return the encoding from each column's name, schema type and fitted parameters.

        Raises:
            InvalidDocumentError: A type is unknown, or a parameter is invalid.
        """
        return cls(tuple(map(_type_of_plain, entries)))

    @cached_property
    def is_identity(self) -> bool:
        """Whether packed rows are raw rows: only numbers, without a rule for missing values."""
        return all(item.raw_type == "float32" for item in self.features)

    @cached_property
    def places(self) -> tuple[tuple[Field, int], ...]:
        """For each feature, its field in a row (one of FIELDS), and its index in that field."""
        next_index = dict.fromkeys(FIELDS, 0)
        places = []
        for feature in self.features:
            places.append((feature.field, next_index[feature.field]))
            next_index[feature.field] += 1
        return tuple(places)

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The features in the order of the table."""
        start, starts = 0, {}
        for item in self._ordered:
            starts[item.name] = start
            start += len(item.packed_names)
        return tuple(
            Column(item.name, item.kind, starts[item.name], len(item.packed_names), item.size)
            for item in self.features
        )

    @cached_property
    def _ordered(self) -> tuple[ColumnType, ...]:
        return tuple(sorted(self.features, key=lambda item: item.size > 0))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The packed columns, in their order."""
        return tuple(name for item in self._ordered for name in item.packed_names)

    @property
    def width(self) -> int:
        """The number of packed columns."""
        return len(self.names)

    @cached_property
    def numbers(self) -> int:
        """The number of packed columns before the first code."""
        return sum(len(item.packed_names) for item in self.features if not item.size)

    @property
    def lengths(self) -> tuple[int, int, int]:
        """The number of floats, codes and dates in a row."""
        counts = Counter(feature.field for feature in self.features)
        return counts[FLOATS], counts[CODES], counts[WHOLES]

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The groups of features that are encoded together, by column type."""
        members: dict[Hashable, list[int]] = {}
        for at, feature in enumerate(self.features):
            members.setdefault((feature.kind, feature.group), []).append(at)
        return tuple(map(self._group, members.values()))

    def _group(self, features: Sequence[int]) -> Group:
        columns = tuple(self.features[at] for at in features)
        placed = [self.columns[at] for at in features]
        indicated = [
            at for at, column in enumerate(columns) if column.missing and column.missing.indicator
        ]
        return Group(
            type(columns[0]),
            columns,
            np.array(features),
            np.array([column.start for column in placed]),
            np.array(indicated, np.int64),
            np.array([placed[at].start + placed[at].width - 1 for at in indicated], np.int64),
        )


def gap_refused(name: str) -> Problem:
    """Describe a missing value in a column whose rule is `fail`; raw_columns.py raises it."""
    return Problem(
        f"the column {name!r} has a missing value, which its rule `fail` does not allow",
        expected="a value in every row",
        fix=f"fill it in, or train with another rule for {name!r} in data_options.missing",
    )


def _type_of_plain(entry: Learned) -> ColumnType:
    import pydantic

    if not (column_type := BY_SCHEMA_TYPE.get(entry["type"])):
        raise InvalidDocumentError(f"the column type {entry['type']!r}, which this version lacks")
    try:
        return adapter(column_type).validate_python(entry)
    except pydantic.ValidationError as error:
        raise InvalidDocumentError(str(error)) from None
