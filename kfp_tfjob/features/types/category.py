"""Categories: strings of a vocabulary, as codes in a packed row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Any, Self

import numpy as np

from kfp_tfjob.common.formatting import counted, listed, setting
from kfp_tfjob.options.data import DataOptions

from .base import ColumnStatistics, ColumnType, Summary, TrainValues, Votes, vocabulary_table
from .lookalikes import NULLS, are_booleans, described, in_quotes, spellings
from .number import is_number

UNKNOWN, GAP, FIRST = 0, 1, 2  # packed codes: of an unknown or rare string, a missing one, the rest
_MOST_TOP, _MOST_SHOWN = 10, 5  # values in statistics.json, and in a report
_MANY, _BLANKS = 1000, 2  # more strings, most with this many blanks, may be free text
MOST_CODES = 2**24  # float32 has all whole numbers up to here


@dataclass(frozen=True, kw_only=True)
class CategoryStatistics(ColumnStatistics):
    """How many values there are, and how many the model knows; the most frequent ones."""

    distinct: int
    vocabulary: int
    rare: int  # rows with a value that the model does not know
    top: list[tuple[str, int]]  # with their rows

    @property
    def is_constant(self) -> bool:
        """Whether all values are equal."""
        return self.distinct == 1

    @property
    def is_free_text(self) -> bool:
        """Whether the strings seem to be sentences: each is different and has several words."""
        sentences = sum(text.count(" ") >= _BLANKS for text, _ in self.top)
        is_rare = 2 * self.rare > self.count
        return self.distinct > _MANY and is_rare and 2 * sentences > len(self.top)

    @property
    def words(self) -> str:
        """The most frequent values as a string."""
        most = ", ".join(f"{text} ({count:,})" for text, count in self.top[:_MOST_SHOWN])
        rare = f", {counted(self.rare, 'row')} with rare ones" if self.rare else ""
        return f"{counted(self.distinct, 'text')}{rare}: {most}"


@dataclass(frozen=True)
class Category(ColumnType):
    """A string of a vocabulary.

    Attributes:
        dictionary: Its strings by the code of the shards, which starts at 1.
        vocabulary: The strings that have a packed code of their own.
    """

    dictionary: tuple[str, ...] = field(kw_only=True)
    vocabulary: tuple[str, ...] = field(kw_only=True)

    kind = "category"
    schema_type = "category"
    has_dictionary = True
    nouns = ("a category", "categories")
    drift_bins = "values"
    statistics = CategoryStatistics

    def __post_init__(self) -> None:
        """Reject a vocabulary that cannot be one."""
        name, texts = self.name, self.vocabulary
        if self.size > MOST_CODES:
            raise ValueError(f"{name!r} has {self.size:,} codes; expected 2 to {MOST_CODES:,}")
        if "" in texts or len(set(texts)) < len(texts):
            raise ValueError(f"the vocabulary of {name!r} contains an empty string or a duplicate")

    @classmethod
    def fit(cls, name: str, values: TrainValues, options: DataOptions) -> Self:
        """Return the encoding; the vocabulary has the strings of train that are not rare."""
        counts = values.rows.tolist()[1:]
        pairs = zip(values.dictionary, counts, strict=False)
        frequent = sorted((-count, text) for text, count in pairs if count >= options.min_count)
        frequent = tuple(text for _, text in frequent)
        missing = cls.learn_missing(values)
        return cls(name, missing, dictionary=values.dictionary, vocabulary=frequent)

    @property
    def size(self) -> int:
        """The number of packed codes."""
        return FIRST + len(self.vocabulary)

    precedence = 3

    @classmethod
    def fits(cls, votes: Votes) -> bool:
        """Tell that any column of strings may be a category."""
        return True

    @classmethod
    def tables(cls, columns: Sequence[Self]) -> tuple[Any, ...]:
        """Return the vocabularies."""
        return (vocabulary_table([column.vocabulary for column in columns], FIRST, UNKNOWN),)

    @classmethod
    def graph(cls, columns: Sequence[Self], values: Any, tables: tuple[Any, ...]) -> list[Any]:
        """Return the packed codes of strings."""
        import tensorflow as tf

        numbers = tf.constant([f"{number}:" for number in range(len(columns))])
        keys = tf.strings.join([tf.broadcast_to(numbers, tf.shape(values)), values])
        return [tf.where(values == "", np.int64(GAP), tables[0].lookup(keys))]

    @property
    def strings(self) -> tuple[str, ...]:
        """The dictionary."""
        return self.dictionary

    @property
    def frequent(self) -> tuple[str, ...]:
        """The vocabulary."""
        return self.vocabulary

    def describe(self, column: Summary) -> CategoryStatistics:
        """Return how many values there are, and the most frequent ones."""
        counts = column.rows.tolist()
        pairs = list(zip(self.dictionary, counts, strict=False))
        top = nsmallest(_MOST_TOP, ((-count, text) for text, count in pairs))
        with_code = set(self.vocabulary)
        return CategoryStatistics(
            distinct=int((column.rows > 0).sum()),
            vocabulary=len(self.vocabulary),
            rare=sum(count for text, count in pairs if text not in with_code),
            top=[(text, -count) for count, text in top if count],
        )

    @classmethod
    def warnings(
        cls, columns: Mapping[str, ColumnStatistics], samples: Mapping[str, np.ndarray]
    ) -> list[str]:
        """Return which columns have numbers that other data may spell in another way.

        Or numbers and one string that may stand for a missing value, or free text.
        """
        warnings = []
        for name, column in columns.items():
            if isinstance(column, CategoryStatistics) and column.is_free_text:
                warnings.append(
                    f"most of the {column.distinct:,} strings of the category {name!r} occur once,"
                    f" so the model does not know them; if this is free text, drop it, or let the"
                    f" model get its words with {setting('data_options.types', {name: 'words'})}"
                )
            top = dict(column.top) if isinstance(column, CategoryStatistics) else {}
            words = [text for text in top if not is_number(text)]
            if top and not words and all(text.endswith(".0") for text in top):
                text = next(iter(top))
                warnings.append(
                    f"the values of the category {name!r} are written like {text}, as pandas writes"
                    f" whole numbers if one is missing; {text[:-2]} in other data would be another"
                    " category, so write them as whole numbers (in pandas, Int64)"
                )
            if len(words) == 1 and len(top) > 2:
                warnings.append(
                    f"the values of the category {name!r} are numbers, except {words[0]!r}"
                    f" ({counted(top[words[0]], 'row')}); if it stands for a missing value, add"
                    " it to data_options.null_values"
                )
        return warnings

    def suspicions(
        self, values: Summary, column: ColumnStatistics, options: DataOptions
    ) -> list[str]:
        """Return how the strings look like numbers, dates, booleans or missing values."""
        rows = dict(zip(self.dictionary, values.rows.tolist(), strict=False))
        suspicions = list(self._several_spellings())
        if self.name not in options.types:
            suspicions += self._lookalikes({text: count for text, count in rows.items() if count})
        return suspicions

    def _several_spellings(self) -> Iterator[str]:
        """Yield that the strings of one number differ."""
        texts = set(self.dictionary)
        if twice := [text for text in self.dictionary if f"{text}.0" in texts and is_number(text)]:
            pairs_shown = listed((f"{text} and {text}.0" for text in twice), _MOST_SHOWN)
            yield (
                f"the category {self.name!r} has whole numbers in two spellings, which are two"
                f" categories: {pairs_shown}; write them as whole numbers everywhere (in pandas,"
                " Int64)"
            )

    def _lookalikes(self, rows: Mapping[str, int]) -> Iterator[str]:
        """Yield which other type the strings seem to have."""
        if nulls := [text for text in NULLS if text in rows]:
            null_counts = ", ".join(f"{text!r} ({counted(rows[text], 'row')})" for text in nulls)
            yield (
                f"the category {self.name!r} has {null_counts}, as programs write a missing value"
                " that they take for a string; write missing values as null or empty"
            )
        if same := spellings(rows):
            yield (
                f"the category {self.name!r} may have the same value in several spellings: {same};"
                " write each in the same way"
                + (f", or set {self._with_type('boolean')}" * are_booleans(rows))
            )
        words, plain_strings = described(rows)
        claim = f"the values of the category {self.name!r} are {words}"
        if plain_strings:
            is_one = len(plain_strings) == 1
            stand, them = ("it stands", "it") if is_one else ("they stand", "them")
            yield (
                f"{claim}; if {stand} for a missing value, add {them} to data_options.null_values"
            )
        elif in_quotes(rows):
            yield f"{claim}; write them without quotes, or in double quotes that CSV removes"
        elif words:
            yield (
                f"{claim}, and categories have no order; write plain numbers, or, if these are"
                f" codes, set {self._with_type(self.kind)}"
            )

    def _with_type(self, kind: str) -> str:
        return setting("data_options.types", {self.name: kind})

    def usual(self, column: ColumnStatistics | None = None) -> str:
        """Return the most frequent value, or any if all are rare."""
        return next(iter((*self.vocabulary[:1], *self.dictionary[:1])), "")
