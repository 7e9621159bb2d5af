"""Booleans: 0 or 1 in a packed row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..cells import BLANKS, Cells, Parsed
from .base import (
    FLOATS,
    ColumnStatistics,
    ColumnType,
    Read,
    Summary,
    Votes,
    lookup_table,
    named,
    text_of,
)
from .number import NUMBER_FORM

# In any case, for training, the exported model and the server.
TRUE_TEXTS = ("true", "t", "yes", "y", "on", "1", "1.0")  # pandas writes 1.0 next to missing values
FALSE_TEXTS = ("false", "f", "no", "n", "off", "0", "0.0")
_TRUTH = {**dict.fromkeys(TRUE_TEXTS, 1.0), **dict.fromkeys(FALSE_TEXTS, 0.0)}
PAIRS = (("true", "false"), ("yes", "no"), ("t", "f"), ("y", "n"), ("on", "off"))
_WORDS = {word: f"{pair[0]} or {pair[1]}" for pair in PAIRS for word in pair}


@dataclass(frozen=True, kw_only=True)
class BooleanStatistics(ColumnStatistics):
    """The rows by value."""

    true: int
    false: int

    @property
    def is_constant(self) -> bool:
        """Whether all values are equal."""
        return not self.true or not self.false

    @property
    def words(self) -> str:
        """The share of true."""
        return f"true in {self.true / self.count:.1%}"


@dataclass(frozen=True)
class Boolean(ColumnType):
    """True or false. In the signature, a string that is neither is a missing value."""

    kind = "boolean"
    schema_type = "boolean"
    field = FLOATS
    sample_type = pa.bool_()
    datatypes = ("BOOL", "BYTES")
    written = "true or false"
    nouns = ("a boolean", "booleans")
    drift_bins = "edges"
    fixed_edges = (0,)
    statistics = BooleanStatistics

    precedence = 0
    forms = tuple(dict.fromkeys(_WORDS.values()))

    @classmethod
    def count(cls, cells: Cells) -> dict[str, int] | None:
        """Return the values of a boolean column."""
        column = cells.column
        if not pa.types.is_boolean(column.type):
            return None
        return {_WORDS["true"]: len(column) - column.null_count}

    @classmethod
    def forms_of(cls, texts: pa.Array, short: np.ndarray) -> list[tuple[str, np.ndarray]]:
        """Return masks of the strings that are words of each pair."""
        words = pc.utf8_lower(texts)
        return [
            (
                f"{true_text} or {false_text}",
                pc.is_in(words, pa.array([true_text, false_text])).to_numpy(False),
            )
            for true_text, false_text in PAIRS
        ]

    @classmethod
    def fits(cls, votes: Votes) -> bool:
        """Return whether all values are words of one pair, with 0 and 1 among them."""
        return votes.only_bits and any(
            votes.of(form) and votes.of(form, NUMBER_FORM) == votes.total for form in cls.forms
        )

    @classmethod
    def constant(cls, text: str) -> int | None:
        """Return 1 or 0."""
        truth = _TRUTH.get(text.lower())
        return None if truth is None else int(truth)

    @classmethod
    def parse(cls, cells: Cells) -> Parsed:
        """Return 0, 1 or NaN."""
        if cells.is_temporal:
            return cells.refused("boolean", np.nan)
        if cells.is_numeric:
            truths, invalid = cells.floats, {}
        else:
            texts, codes, invalid = cells.written()
            truths = np.array([*(_TRUTH.get(text.lower(), 2) for text in texts), np.nan])[codes]
        wrong = ~np.isnan(truths) & (truths != 0) & (truths != 1)
        return Parsed(np.where(wrong, 0, truths), {**invalid, "boolean": wrong})

    @classmethod
    def tables(cls, columns: Sequence[Self]) -> tuple[Any, ...]:
        """Return the table from literals to 1 or 0."""
        return (lookup_table(_TRUTH, float("nan")),)

    @classmethod
    def stored(cls, values: Any, tables: tuple[Any, ...]) -> Any:
        """Return 1, 0 or NaN."""
        import tensorflow as tf

        return tables[0].lookup(tf.strings.lower(tf.strings.strip(values)))

    def to_arrow(self, values: np.ndarray) -> pa.Array:
        """Return booleans; null if missing."""
        return pa.array(values == 1, mask=np.isnan(values))

    @classmethod
    def read(cls, values: Sequence[Any]) -> Read:
        """Return b"true", b"false", or b"" if missing; the numbers 1 and 0 are booleans, too."""
        if isinstance(values, np.ndarray) and values.dtype == bool:
            return np.where(values, b"true", b"false").astype(object), []
        literals = {
            "": b"",
            **{text: b"true" if is_true else b"false" for text, is_true in _TRUTH.items()},
        }
        words = list(map(_word, values))
        wrong = [
            (row, f"{named(values[row])} instead of true or false")
            for row, word in enumerate(words)
            if word not in literals
        ]
        return np.array([literals.get(word) for word in words], object), wrong

    def describe(self, column: Summary) -> BooleanStatistics:
        """Return the rows by value."""
        false = column.moments.zeros
        return BooleanStatistics(true=column.count - false, false=false)

    @classmethod
    def shown(cls, value: Any) -> str:
        """Return `true` or `false`, even of 1 or 0 in the shards."""
        return str(value) if isinstance(value, str) else str(bool(value)).lower()

    def usual(self, column: ColumnStatistics | None = None) -> str:
        """Return the fill value, or false without one."""
        return "true" if self.missing and self.missing.value else "false"


def _word(value: Any) -> str:
    """Return a value of a request as a literal; `?` is none."""
    if isinstance(value, int | float | np.number):
        return "1" if value == 1 else "0" if value == 0 else "?"
    text = "" if value is None else text_of(value)
    return "?" if text is None else text.strip(BLANKS).lower()
