"""Counts the values of each column by their form: numbers, dates, words, texts.

Counts of parts of a source merge into those of the whole, whatever the parts and the blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kfp_tfjob.components.prepare_data import values
from kfp_tfjob.components.prepare_data.cells import MANY, Cells, cells_of, parse_together
from kfp_tfjob.components.prepare_data.distinct_texts import DistinctTexts, fit
from kfp_tfjob.components.prepare_data.source.readers.arrow_table import Chunk, numeric, temporal
from kfp_tfjob.features import dates
from kfp_tfjob.storage.errors import DataError, Problem

MOST_OTHERS = 2_000  # columns that are not numbers
MOST = 0.9  # of the values make a column a number or a date


class Form(StrEnum):
    """How a value is written; a boolean has the form of its pair, such as `yes or no`."""

    NUMBER = "number"
    INFINITE = "not finite"
    DATE = "date"
    OTHER_DATE = "other date"
    DOTTED = "dotted date"
    SEPARATED = "separated"
    POINT = values.POINT
    COMMA = values.COMMA
    LONG = "long"
    TEXT = "text"


PAIRS = (("true", "false"), ("yes", "no"), ("t", "f"), ("y", "n"), ("on", "off"))
_WORDS = {word: f"{pair[0]} or {pair[1]}" for pair in PAIRS for word in pair}
_WORD_SET = pa.array(list(_WORDS))
BOOLEANS = tuple(dict.fromkeys(_WORDS.values()))
_FORMS = (*BOOLEANS, *Form)
_GROUPED = (Form.POINT, Form.COMMA)
_KEPT = (Form.OTHER_DATE, Form.SEPARATED, *_GROUPED)  # an example of each is kept
_INDEX = {name: i for i, name in enumerate(_FORMS)}
_UNTRACKED = [
    _INDEX[form] for form in (Form.NUMBER, Form.INFINITE, Form.DATE, Form.DOTTED, *_GROUPED)
]
_MONEY = r"([$€£¥]|EUR|USD|GBP|CHF|JPY)"
# Only such texts are compared with the patterns below, which costs more.
_MAY_BE_NUMBER = (
    rf"^[-+(\x{{2212}}]*{_MONEY}? ?[-+\x{{2212}}]?[0-9.,]"
    r"[0-9a-zA-Z .,:/+'\x{2019}\x{a0}\x{2009}\x{202f}%$€£¥()\x{2212}-]*$"
)
_BETWEEN = r"[., '\x{2019}\x{a0}\x{2009}\x{202f}]"  # groups of three digits
_DIGITS = rf"[0-9]{{1,3}}({_BETWEEN}[0-9]{{3}})+([.,][0-9]+)?|[0-9]+([.,][0-9]+)?"
_SIGN = r"[-+\x{2212}]?"
_AMOUNT = rf"{_SIGN}{_MONEY}? ?{_SIGN}({_DIGITS})[ \x{{a0}}]?({_MONEY}|%)?"
_SEPARATED_PATTERN = rf"^({_AMOUNT}|\({_AMOUNT}\))$"
_OTHER_DATE_PATTERN = (
    r"^([0-9]{1,2}[./-][0-9]{1,2}[./-][0-9]{4}|[0-9]{1,2}/[0-9]{1,2}/[0-9]{2}"
    r"|[0-9]{4}[./-][0-9]{1,2}[./-][0-9]{1,2})([ T,].*)?$"
)
_MONTH = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_NAMED_DATE_PATTERN = (
    r"(?i)^((mon|tue|wed|thu|fri|sat|sun)[a-z]*\.?,? +)?"
    rf"([0-9]{{1,2}}(st|nd|rd|th)?[ ./-]+{_MONTH}[ ,./-]+([0-9]{{4}}|[0-9]{{2}})"
    rf"|{_MONTH} +[0-9]{{1,2}}(st|nd|rd|th)?,? +([0-9:]+ +)?[0-9]{{4}})([ T,].*)?$"
)


class Seen:
    """The values of one column, counted.

    Args:
        name: The column.

    Attributes:
        gaps: The values that are gaps.
        undecodable: The values that are not UTF-8; their rows are bad, whatever the kind.
        counts: The other values by form.
        examples: File, line and text of the first value of some forms.
        only_bits: Whether every number, as float32, is 0 or 1.
        texts: The different texts, without numbers and dates: which of these are parsed without a
            look at their text depends on the blocks.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.gaps = self.undecodable = 0
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, tuple[str, int, str]] = {}
        self.only_bits = True
        self.texts = DistinctTexts()
        self._last: str = Form.NUMBER  # of the last block, which the next one probably has too

    @property
    def count(self) -> int:
        """The values that are no gaps, and UTF-8."""
        return self.counts.total()

    @property
    def is_other(self) -> bool:
        """Whether it is not a number, by the values so far."""
        return self.counts[Form.NUMBER] + self.counts[Form.INFINITE] < MOST * self.count

    @property
    def all_different(self) -> bool:
        """Whether no value occurs twice. A column with numbers or dates is not looked at."""
        return not self.texts.is_lost and len(self.texts) == self.count

    def to_plain(self) -> dict[str, Any]:
        """Return the counts as values of JSON."""
        return {
            "name": self.name,
            "gaps": self.gaps,
            "undecodable": self.undecodable,
            "counts": {form: count for form, count in self.counts.items() if count},
            "examples": {form: list(example) for form, example in self.examples.items()},
            "only_bits": self.only_bits,
            "texts": self.texts.to_plain(),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Seen:
        """Return counts from the values of `to_plain`."""
        found = cls(plain["name"])
        found.gaps, found.only_bits = plain["gaps"], plain["only_bits"]
        found.undecodable = plain["undecodable"]
        found.counts.update(plain["counts"])
        found.examples = {form: tuple(example) for form, example in plain["examples"].items()}
        found.texts = DistinctTexts.from_plain(plain["texts"])
        return found

    def shift(self, lines: int) -> None:
        """Add a number of lines to the lines of the examples."""
        self.examples = {
            form: (file, line + lines, text) for form, (file, line, text) in self.examples.items()
        }

    def merge(self, later: Seen) -> None:
        """Add the counts of the next part of the source."""
        self.gaps += later.gaps
        self.undecodable += later.undecodable
        self.counts.update(later.counts)
        self.examples = later.examples | self.examples
        self.only_bits &= later.only_bits
        self.texts.merge(later.texts)

    def add(self, cells: Cells, file: str, lines: np.ndarray) -> None:
        """Count the values of a block.

        Args:
            cells: The values, of shape [rows].
            file: Name of the file.
            lines: int64 of shape [rows].
        """
        column = cells.column
        if temporal(column.type):
            self._add_whole(Form.DATE, column)
        elif pa.types.is_boolean(column.type):
            self._add_whole(_WORDS["true"], column)
            words = (str(item).lower() for item in column.unique().drop_null().to_pylist())
            self.texts.add(dict.fromkeys(words, _INDEX[_WORDS["true"]]))
        elif numeric(column.type):
            found = cells.floats
            gaps = int(np.isnan(found).sum())
            infinite = int((np.abs(found) > values.LARGEST).sum())
            self.gaps += gaps
            self.counts[Form.INFINITE] += infinite
            self._add_numbers(len(found) - gaps - infinite, found)
        else:
            self._add_texts(cells, file, lines)

    def _add_whole(self, form: str, column: pa.Array) -> None:
        self.gaps += column.null_count
        self.counts[form] += len(column) - column.null_count

    def _add_numbers(self, count: int, found: np.ndarray) -> None:
        """Count finite numbers; NaN is a gap."""
        self.counts[Form.NUMBER] += count
        self.only_bits = self.only_bits and bool((_bits(found) | ~np.isfinite(found)).all())

    def _add_texts(self, cells: Cells, file: str, lines: np.ndarray) -> None:
        """Count texts. Those that are not UTF-8 have no form."""
        wrong = cells.wrong
        if not wrong.any() and not isinstance(cells.column, pa.DictionaryArray):
            gaps = int(np.count_nonzero(cells.gaps))
            if self._last == Form.NUMBER and (found := cells.numbers) is not None:
                self.gaps += gaps
                self._add_numbers(len(wrong) - gaps, found)
                return
            if self._last == Form.DATE and cells.dates is not None:
                self.gaps += gaps
                self.counts[Form.DATE] += len(wrong) - gaps
                return
        codes = cells.distinct[1]
        if wrong.any():
            self.undecodable += int(wrong.sum())
            codes, lines = codes[~wrong], lines[~wrong]
        rows = np.bincount(codes + 1, minlength=len(cells.words) + 1)
        self.gaps += int(rows[0])
        if rows[0] < len(codes):
            self._add_distinct(cells, rows[1:], codes, file, lines)

    def _add_distinct(
        self, cells: Cells, rows: np.ndarray, codes: np.ndarray, file: str, lines: np.ndarray
    ) -> None:
        """Count the different texts of a block.

        Args:
            cells: The texts.
            rows: The rows of each text.
            codes: The index of the text in each row, -1 for a gap.
            file: Name of the file.
            lines: int64 of shape [rows].
        """
        words, known = cells.words, self.texts.forms
        forms = np.array([known.get(text, -1) for text in words])
        new = np.flatnonzero(forms < 0)
        forms[new], bits = _forms_of(cells.distinct[0].take(pa.array(new)))
        by_form = np.bincount(forms, rows, len(_FORMS)).astype(np.int64)
        for i in np.flatnonzero(by_form).tolist():
            form = _FORMS[i]
            self.counts[form] += int(by_form[i])
            if form in _KEPT and form not in self.examples:
                row = int(np.flatnonzero((codes >= 0) & (forms[codes] == i))[0])
                self.examples[form] = (file, int(lines[row]), words[codes[row]][:200])
        other = (forms[new] == _INDEX[Form.NUMBER]) & ~bits & (rows[new] > 0)
        self.only_bits &= not other.any()
        self._last = _FORMS[int(by_form.argmax())]
        if not self.texts.is_lost:
            tracked = new[(rows[new] > 0) & ~np.isin(forms[new], _UNTRACKED)]
            self.texts.add({words[i]: int(forms[i]) for i in tracked.tolist()})


def see(seen: dict[str, Seen], chunk: Chunk) -> None:
    """Count the values of a chunk, by column.

    Raises:
        DataError: Too many columns are not numbers.
    """
    if len(seen) > MANY:
        parse_together(chunk, seen)
    block, rows, others = chunk.numbers, len(chunk.faults.lines), 0
    for name, column in seen.items():
        if name in block.places:
            column.counts[Form.NUMBER] += rows
            continue
        column.add(cells_of(chunk, name), chunk.faults.file, chunk.faults.lines)
        others += column.is_other
        DataError.raise_if([too_many_others(others)] if others > MOST_OTHERS else [])
    may_be = [name for name in block.names if name in seen and seen[name].only_bits]
    if may_be:
        part = block.rows[:, [block.places[name] for name in may_be]]
        only = np.atleast_1d(_bits(part).all(axis=0))
        for name, is_bits in zip(may_be, only, strict=True):
            seen[name].only_bits = bool(is_bits)
    fit([column.texts for column in seen.values()])


def merge(seen: dict[str, Seen], later: Mapping[str, Seen]) -> None:
    """Add the counts of all columns in the next part of the source."""
    for name, column in seen.items():
        column.merge(later[name])
    fit([column.texts for column in seen.values()])


def too_many_others(columns: int) -> Problem:
    """Describe a table with more than MOST_OTHERS columns that are not numbers."""
    return Problem(
        "too many columns are not numbers",
        received=f"{columns:,} or more",
        expected=f"at most {MOST_OTHERS:,} booleans, categories, dates and texts",
        fix="choose columns with data_options.columns, or correct data_options.delimiter",
        path="data_options.columns",
    )


def _bits(numbers: np.ndarray) -> np.ndarray:
    """Tell which numbers, as float32, are 0 or 1."""
    with np.errstate(over="ignore"):
        single = numbers.astype(np.float32, copy=False)
    return (single == 0) | (single == 1)


def _forms_of(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the form of each text, as an index of _FORMS, and which texts are 0 or 1.

    Returns:
        int64 and bool of shape [texts].
    """
    found, bits = np.full(len(texts), _INDEX[Form.TEXT]), np.zeros(len(texts), bool)
    words = pc.index_in(pc.utf8_lower(texts), value_set=_WORD_SET).fill_null(-1)
    words = words.to_numpy(zero_copy_only=False)
    pairs = np.array([_INDEX[name] for name in _WORDS.values()])
    found[words >= 0] = pairs[words[words >= 0]]
    long = pc.utf8_length(texts).to_numpy(zero_copy_only=False) > values.LONGEST_LABEL
    found[long] = _INDEX[Form.LONG]
    maybe = pc.match_substring_regex(texts, _MAY_BE_NUMBER).to_numpy(zero_copy_only=False)
    at = np.flatnonzero(maybe)
    if len(at):
        some, short = texts.take(pa.array(at)), ~long[at]
        # The last that matches counts.
        for pattern, form in (
            (_SEPARATED_PATTERN, Form.SEPARATED),
            (_OTHER_DATE_PATTERN, Form.OTHER_DATE),
            *((values.proof_of(form), form) for form in _GROUPED),
        ):
            match = pc.match_substring_regex(some, pattern).to_numpy(zero_copy_only=False)
            found[at[match & short]] = _INDEX[form]
        numbers, known = values.parse_all(some)
        finite = known & np.isfinite(numbers)
        found[at[finite]] = _INDEX[Form.NUMBER]
        found[at[known & ~finite & short]] = _INDEX[Form.INFINITE]
        bits[at] = known & _bits(numbers)
        dotted, is_day = dates.is_dotted(some), dates.parse_all(dates.of_dotted(some))[1]
        found[at[is_day]] = np.where(dotted, _INDEX[Form.DOTTED], _INDEX[Form.DATE])[is_day]
    rest = np.flatnonzero(found == _INDEX[Form.TEXT])
    if len(rest):
        some = texts.take(pa.array(rest))
        for pattern, form in (
            (values.NAMED_NOT_FINITE, Form.INFINITE),
            (_NAMED_DATE_PATTERN, Form.OTHER_DATE),
        ):
            match = pc.match_substring_regex(some, pattern).to_numpy(zero_copy_only=False)
            found[rest[match]] = _INDEX[form]
    return found, bits
