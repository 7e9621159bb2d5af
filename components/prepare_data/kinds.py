"""Determines the kind of each column from all of its values, and what becomes of it.

The rule, in this order, over the values that are no gaps:

1. Without any value, the column is left out.
2. It is a boolean if every value is one of true/false, yes/no, t/f, y/n or on/off, of one pair and
   in any case; 0 and 1 may be among them. A column of only 0 and 1 is a number.
3. It is a number if nine in ten values are numbers, and a date if nine in ten are dates in ISO
   8601. The other values are faults of their rows.
4. If nine in ten values are numbers or dates written in another way, such as 1.234,50 or
   31.12.2024, the run ends with the name of the column: a guess could be wrong.
5. Other texts are a category. It is left out if every value is different, as in an identifier, if
   there are more than 100,000 different ones, or if one in ten is longer than 1,000 characters.

The values are counted one by one, so neither the order of the files nor the size of the blocks
plays a part. `data_options.types` replaces the rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kfp_tfjob.components.prepare_data import dates, values
from kfp_tfjob.components.prepare_data.arrow_table import Chunk, numeric, temporal
from kfp_tfjob.options.data import EVERY_COLUMN, IMPUTING, RULES_BY_KIND, DataOptions, Gaps
from kfp_tfjob.storage.errors import DataError, Problem
from kfp_tfjob.storage.words import listed
from kfp_tfjob.trainer.coding import (
    BOOLEAN,
    CATEGORY,
    DATE,
    FALSE_TEXTS,
    NUMBER,
    TEXT,
    TRUE_TEXTS,
)

MOST_OTHERS = 2_000  # columns that are not numbers
_WIDE = 1_000  # columns; in wider tables with few rows, a call for each would cost the most
MOST_TEXTS = 100_000  # different values of a category
_MOST_CHARACTERS = 64 << 20  # of these values together
_MOST_NAMED = 50  # columns in a line of the log
_MOST = 0.9  # of the values make a column a number or a date
NO_VALUE = "no value in any row"
ALL_DIFFERENT = "a different text in every row, like an identifier"
TOO_MANY_TEXTS = f"more than {MOST_TEXTS:,} different texts"
FEWEST_IDS = 20  # rows from which a category is an identifier if no value occurs twice

_PAIRS = (("true", "false"), ("yes", "no"), ("t", "f"), ("y", "n"), ("on", "off"))
_WORDS = {word: f"{pair[0]} or {pair[1]}" for pair in _PAIRS for word in pair}
_WORD_SET = pa.array(list(_WORDS))
_NUMBER, _INFINITE, _DATE, _OTHER_DATE, _SEPARATED, _LONG, _TEXT = (
    "number",
    "not finite",
    "date",
    "other date",
    "separated",
    "long",
    "text",
)
_CLASSES = (*dict.fromkeys(_WORDS.values()), _NUMBER, _INFINITE, _DATE, _OTHER_DATE, _SEPARATED,
            _LONG, _TEXT)  # fmt: skip
_INDEX = {name: i for i, name in enumerate(_CLASSES)}
# Only such texts are compared with the patterns below, which costs more.
_MAY_BE_NUMBER = r"^[-+(]?[$€£¥]? ?[0-9.,][0-9a-zA-Z .,:/+'\x{a0}%$€£¥()-]*$"
_DIGITS = r"[0-9]{1,3}([., '\x{a0}][0-9]{3})+([.,][0-9]+)?|[0-9]+([.,][0-9]+)?"
_MONEY = r"([$€£¥]|EUR|USD|GBP|CHF|JPY)"
_SEPARATED_PATTERN = rf"^[-+]?{_MONEY}? ?[-+]?({_DIGITS}) ?({_MONEY}|%)?$"
_OTHER_DATE_PATTERN = (
    r"^([0-9]{1,2}[./-][0-9]{1,2}[./-][0-9]{4}|[0-9]{1,2}/[0-9]{1,2}/[0-9]{2}"
    r"|[0-9]{4}[./-][0-9]{1,2}[./-][0-9]{1,2})([ T,].*)?$"
)


@dataclass(frozen=True)
class Feature:
    """A column that the model gets.

    Attributes:
        name: The column.
        kind: One of those in trainer/coding.py.
        gaps: The rule for its gaps; None if a gap has a code of its own.
        missing: The gaps that were found.
        asked: Whether data_options.missing has a rule for it.
    """

    name: str
    kind: str
    gaps: Gaps | None
    missing: int
    asked: bool = False

    @property
    def imputed(self) -> bool:
        """Whether a value stands for a gap."""
        return self.gaps is not None and self.gaps.rule in IMPUTING


@dataclass(frozen=True)
class LeftOut:
    """A column that the model does not get, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Kinds:
    """What becomes of the columns.

    Attributes:
        features: The features, in the order of the file.
        left_out: The other columns.
    """

    features: tuple[Feature, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def plain(self) -> bool:
        """Whether there are only numbers, without a gap that a value stands for.

        A rule in data_options.missing that fills gaps makes a model that accepts them.
        """
        return all(
            item.kind == NUMBER and not (item.imputed and (item.missing or item.asked))
            for item in self.features
        )

    def without(self, lost: Iterable[LeftOut]) -> Kinds:
        """Return the same with these columns left out."""
        more = {item.name: item for item in lost}
        kept = tuple(item for item in self.features if item.name not in more)
        return Kinds(kept, (*self.left_out, *more.values()))

    def of(self, *kinds: str) -> tuple[str, ...]:
        """Return the names of the features of these kinds, in order."""
        return tuple(item.name for item in self.features if item.kind in kinds)


NO_KINDS = Kinds((), ())


class Seen:
    """The values of one column, counted.

    Args:
        name: The column.
        nulls: The texts that mean a missing value, and the empty one.
    """

    def __init__(self, name: str, nulls: pa.Array) -> None:
        self.name, self.nulls = name, nulls
        self.gaps = 0
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, tuple[str, int, str]] = {}  # file, line, value
        self._zero_or_one = 0
        self._texts: set[str] | None = set()
        self._characters = 0
        self._untracked = 0
        self._last = _NUMBER  # the form of the last block, which the next one probably has too

    @property
    def count(self) -> int:
        """The values that are no gaps."""
        return self.counts.total()

    @property
    def is_other(self) -> bool:
        """Whether it is not a number, by the values so far."""
        return self.counts[_NUMBER] + self.counts[_INFINITE] < _MOST * self.count

    def add(self, column: pa.Array, file: str, lines: np.ndarray) -> None:
        """Count the values of a block.

        Args:
            column: An array of shape [rows].
            file: Name of the file.
            lines: int64 of shape [rows].
        """
        if temporal(column.type):
            self._add_whole(_DATE, column)
        elif pa.types.is_boolean(column.type):
            self._add_whole(_WORDS["true"], column)
            self._track({"true", "false"} if self.count else set())
        elif numeric(column.type):
            self._add_numbers(column)
        elif isinstance(column, pa.DictionaryArray):
            texts, codes, wrong = values.distinct(column)
            good = ~np.append(wrong, False)[codes]  # other rows are bad, whatever the kind
            gap = pc.is_in(texts, value_set=self.nulls).to_numpy(zero_copy_only=False)
            codes = np.where(np.append(gap, True)[codes], -1, codes)[good]
            self.gaps += int((codes < 0).sum())
            self._add_distinct(texts, codes, file, lines[good])
        else:
            text, wrong = values.text_of(column)
            if wrong.any():  # such a row is bad, whatever the kind
                text, lines = text.filter(pa.array(~wrong)), lines[~wrong]
            self._add_text(text, file, lines)

    def _add_whole(self, kind: str, column: pa.Array) -> None:
        self.gaps += column.null_count
        self.counts[kind] += len(column) - column.null_count
        if kind == _DATE:
            self._untracked += len(column) - column.null_count

    def _add_numbers(self, column: pa.Array) -> None:
        found = column.cast(pa.float64(), safe=False).fill_null(np.nan)
        self.add_numbers(found.to_numpy(zero_copy_only=False))

    def add_numbers(self, found: np.ndarray) -> None:
        """Count numbers: float64 of shape [rows], NaN for a gap."""
        gaps = int(np.isnan(found).sum())
        infinite = int((np.abs(found) > values.LARGEST).sum())
        self.gaps += gaps
        self.counts[_NUMBER] += len(found) - gaps - infinite
        self.counts[_INFINITE] += infinite
        self._zero_or_one += int(((found == 0) | (found == 1)).sum())
        self._untracked += len(found) - gaps

    def _add_text(self, text: pa.Array, file: str, lines: np.ndarray) -> None:
        """Count texts without blanks around them."""
        gap = pc.is_in(text, value_set=self.nulls)
        gaps = int(pc.sum(gap).as_py() or 0)
        self.gaps += gaps
        present = pc.if_else(gap, None, text) if gaps else text
        if self._last == _NUMBER and (found := values.parse_quickly(present)) is not None:
            self.counts[_NUMBER] += len(text) - gaps
            self._zero_or_one += int(((found == 0) | (found == 1)).sum())
            self._untracked += len(text) - gaps
        elif self._last == _DATE and dates.parse_quickly(present) is not None:
            self.counts[_DATE] += len(text) - gaps
            self._untracked += len(text) - gaps
        elif gaps < len(text):
            encoded = present.dictionary_encode()
            codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
            self._add_distinct(encoded.dictionary, codes, file, lines)

    def _add_distinct(
        self, texts: pa.Array, codes: np.ndarray, file: str, lines: np.ndarray
    ) -> None:
        """Count texts by the index of the text in each row, -1 for a gap."""
        if not (codes >= 0).any():
            return
        found, bits = _classes(texts)
        rows = np.bincount(codes[codes >= 0], minlength=len(texts))
        by_class = np.bincount(found, rows, len(_CLASSES)).astype(np.int64)
        for i in np.flatnonzero(by_class).tolist():
            name = _CLASSES[i]
            self.counts[name] += int(by_class[i])
            if name not in self.examples:
                row = int(np.flatnonzero((codes >= 0) & (found[codes] == i))[0])
                self.examples[name] = (file, int(lines[row]), texts[codes[row]].as_py()[:200])
        self._zero_or_one += int(rows[bits].sum())
        self._last = _CLASSES[int(by_class.argmax())]
        if self._texts is not None:
            self._track({text for text, some in zip(texts.to_pylist(), rows, strict=True) if some})

    def _track(self, texts: set[str]) -> None:
        """Remember different values while they may be those of a category."""
        if self._texts is None:
            return
        texts -= self._texts
        self._texts |= texts
        self._characters += sum(map(len, texts))
        if len(self._texts) > MOST_TEXTS or self._characters > _MOST_CHARACTERS:
            self._texts = None

    def decide(self, options: DataOptions) -> Feature | LeftOut | Problem:
        """Return what becomes of the column."""
        said = options.types.get(self.name)
        if not self.count:
            return LeftOut(self.name, NO_VALUE)
        kind = said or self._kind()
        if isinstance(kind, Problem):
            return kind
        gaps = options.gaps(self.name, kind)
        if problem := _gaps_problem(self.name, kind, gaps):
            return problem
        if kind == CATEGORY and (reason := self._unusable()):
            if not is_wanted(self.name, options):
                return LeftOut(self.name, reason)
            if self._texts is None:
                return _too_many(self.name)
        asked = self.name in options.missing or EVERY_COLUMN in options.missing
        return Feature(self.name, kind, gaps, self.gaps, asked)

    def _kind(self) -> str | Problem:
        total, counts = self.count, self.counts
        for word in dict.fromkeys(_WORDS.values()):
            if counts[word] and counts[word] + self._zero_or_one == total:
                return BOOLEAN
        if counts[_NUMBER] + counts[_INFINITE] >= _MOST * total:
            return NUMBER
        if counts[_DATE] >= _MOST * total:
            return DATE
        if counts[_NUMBER] + counts[_SEPARATED] >= _MOST * total:
            return self._written(
                _SEPARATED, "numbers in a form that has several readings", "numbers such as 1234.5"
            )
        if counts[_DATE] + counts[_OTHER_DATE] >= _MOST * total:
            return self._written(
                _OTHER_DATE,
                "dates in several forms"
                if counts[_DATE]
                else "dates in a form of several readings",
                "dates such as 2024-12-31 or 2024-12-31T23:59:59+01:00",
            )
        return CATEGORY

    def _unusable(self) -> str:
        """Return why a category is left out; empty if it is used."""
        if self.counts[_LONG] > (1 - _MOST) * self.count:
            return f"texts of more than {values.LONGEST_LABEL:,} characters"
        if self._texts is None:
            return TOO_MANY_TEXTS
        if self._untracked == 0 and self.count >= FEWEST_IDS and len(self._texts) == self.count:
            return ALL_DIFFERENT
        return ""

    def _written(self, form: str, what: str, expected: str) -> Problem:
        file, line, value = self.examples[form]
        return Problem(
            f"column {self.name!r} has {what} ({file}, line {line})",
            received=f"{value!r}, and {self.counts[form]:,} of {self.count:,} values like it",
            expected=expected,
            fix=f'write them so, take the column as it is with data_options.types={{"{self.name}":'
            f' "category"}}, or leave it out with data_options.drop=["{self.name}"]',
        )


def constant_of(kind: str, text: str) -> float | int | None:
    """Return what a text stands for in a column of a kind; None if it is not of that kind."""
    if kind == DATE:
        return dates.parse(text)
    if kind == BOOLEAN:
        word = text.lower()
        return int(word in TRUE_TEXTS) if word in (*TRUE_TEXTS, *FALSE_TEXTS) else None
    return values.number(text)


def _gaps_problem(name: str, kind: str, gaps: Gaps | None) -> Problem | None:
    """Describe a rule for gaps that does not suit the kind of its column."""
    if gaps is None:
        return None
    wrong = gaps.rule not in RULES_BY_KIND[kind]
    if not wrong and (gaps.rule != "constant" or constant_of(kind, gaps.value) is not None):
        return None
    return Problem(
        f"data_options.missing has a {'rule' if wrong else 'value'} for {name!r} that does not"
        f" suit a {kind}",
        received=gaps.rule if wrong else repr(gaps.value),
        expected=f"one of {', '.join(RULES_BY_KIND[kind])}" if wrong else f"a {kind}",
        fix="correct data_options.missing, or the kind with data_options.types"
        + ("; a gap of a category or a text has a code of its own" * (kind in (CATEGORY, TEXT))),
        path=f"data_options.missing.{name}",
    )


def _too_many(name: str) -> Problem:
    return Problem(
        f"the category {name!r} has too many different values",
        received=f"more than {MOST_TEXTS:,}",
        expected=f"at most {MOST_TEXTS:,}",
        fix=f'hash them into bins with data_options.types={{"{name}": "{TEXT}"}}, or leave the'
        f' column out with data_options.drop=["{name}"]',
        path="data_options.types",
    )


def is_wanted(name: str, options: DataOptions) -> bool:
    """Tell whether the options name a column, which is then a feature in any case."""
    return name in options.types or name in (options.columns or ())


def of_numbers(names: Iterable[str], options: DataOptions) -> Kinds:
    """Return the kinds of a table of numbers without a gap."""
    return Kinds(tuple(Feature(name, NUMBER, options.gaps(name, NUMBER), 0) for name in names), ())


def described(kinds: Kinds) -> Iterator[str]:
    """Yield lines for the log: the columns of each kind, and those that are left out."""
    for kind in (NUMBER, BOOLEAN, CATEGORY, DATE, TEXT):
        if names := kinds.of(kind):
            yield f"{kind}: {listed(names, _MOST_NAMED)}"
    for item in kinds.left_out:
        yield f"left out: {item.name!r}, {item.reason}"


def see(seen: dict[str, Seen], chunk: Chunk) -> None:
    """Count the values of a chunk, by column.

    Raises:
        DataError: Too many columns are not numbers.
    """
    rest = set(seen)
    if len(seen) > _WIDE:
        rest -= _see_numbers(seen, chunk)
    others = 0
    for name in seen:
        if name in rest:
            seen[name].add(chunk.columns[name], chunk.faults.file, chunk.faults.lines)
            others += seen[name].is_other
            DataError.raise_if([too_many_others(others)] if others > MOST_OTHERS else [])


def _see_numbers(seen: dict[str, Seen], chunk: Chunk) -> set[str]:
    """Count the text columns with only numbers at once, and return their names."""
    texts = [name for name in seen if pa.types.is_binary(chunk.columns[name].type)]
    rows = len(chunk.faults.lines)
    if not texts or not rows:
        return set()
    text, wrong = values.text_of(pa.concat_arrays([chunk.columns[name] for name in texts]))
    numbers, known = values.parse_all(text)
    gap = pc.is_in(text, value_set=seen[texts[0]].nulls).to_numpy(zero_copy_only=False)
    numbers[gap] = np.nan
    good = ((known & np.isfinite(numbers)) | gap) & ~wrong
    plain = good.reshape(len(texts), rows).all(1)
    found = set()
    for name, column, is_plain in zip(texts, numbers.reshape(len(texts), rows), plain, strict=True):
        if is_plain:
            seen[name].add_numbers(column)
            found.add(name)
    return found


def too_many_others(columns: int) -> Problem:
    """Describe a table with more than MOST_OTHERS columns that are not numbers."""
    return Problem(
        "too many columns are not numbers",
        received=f"{columns:,} or more",
        expected=f"at most {MOST_OTHERS:,} booleans, categories, dates and texts",
        fix="choose columns with data_options.columns, or correct data_options.delimiter",
        path="data_options.columns",
    )


def decide(seen: Iterable[Seen], options: DataOptions) -> tuple[Kinds, list[Problem]]:
    """Return the kinds of all columns, and the problems of those that have none."""
    found = [column.decide(options) for column in seen]
    features = tuple(item for item in found if isinstance(item, Feature))
    others = sum(item.kind != NUMBER for item in features)
    if others > MOST_OTHERS:
        return NO_KINDS, [too_many_others(others)]
    left_out = tuple(item for item in found if isinstance(item, LeftOut))
    return Kinds(features, left_out), [item for item in found if isinstance(item, Problem)]


def _classes(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the class of each text, as an index of _CLASSES, and which texts are 0 or 1.

    Returns:
        int64 and bool of shape [texts].
    """
    found, bits = np.full(len(texts), _INDEX[_TEXT]), np.zeros(len(texts), bool)
    words = pc.index_in(pc.utf8_lower(texts), value_set=_WORD_SET).fill_null(-1)
    words = words.to_numpy(zero_copy_only=False)
    pairs = np.array([_INDEX[name] for name in _WORDS.values()])
    found[words >= 0] = pairs[words[words >= 0]]
    lengths = pc.utf8_length(texts).to_numpy(zero_copy_only=False)
    found[lengths > values.LONGEST_LABEL] = _INDEX[_LONG]
    maybe = pc.match_substring_regex(texts, _MAY_BE_NUMBER).to_numpy(zero_copy_only=False)
    at = np.flatnonzero(maybe & (lengths <= values.LONGEST_LABEL))
    if len(at):
        some = texts.take(pa.array(at))
        # The last that matches counts.
        for pattern, name in (
            (_SEPARATED_PATTERN, _SEPARATED),
            (_OTHER_DATE_PATTERN, _OTHER_DATE),
        ):
            match = pc.match_substring_regex(some, pattern).to_numpy(zero_copy_only=False)
            found[at[match]] = _INDEX[name]
        numbers, known = values.parse_all(some)
        found[at[known]] = np.where(np.isinf(numbers), _INDEX[_INFINITE], _INDEX[_NUMBER])[known]
        bits[at] = known & ((numbers == 0) | (numbers == 1))
        found[at[dates.parse_all(some)[1]]] = _INDEX[_DATE]
    rest = np.flatnonzero(found == _INDEX[_TEXT])
    if len(rest):
        named = pc.match_substring_regex(texts.take(pa.array(rest)), values.NAMED_NOT_FINITE)
        found[rest[named.to_numpy(zero_copy_only=False)]] = _INDEX[_INFINITE]
    return found, bits
