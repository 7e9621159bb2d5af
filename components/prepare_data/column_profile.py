"""Counts the values of each column by their form: numbers, dates, words, strings.

The column types say which forms there are. Profiles of parts of a source merge into that of the
whole, whatever the parts and the blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from hashlib import blake2b
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kfp_tfjob.components.prepare_data.executors.exchange import array_of, plain_of
from kfp_tfjob.components.prepare_data.source.readers.arrow_table import Chunk
from kfp_tfjob.features.cells import LONGEST, Cells
from kfp_tfjob.features.types import BY_PRECEDENCE, TYPES
from kfp_tfjob.features.types.base import Votes
from kfp_tfjob.features.types.number import BIT, MANY, Number, are_bits, parse_together
from kfp_tfjob.features.types.number import NUMBER_FORM as NUMBER
from kfp_tfjob.storage.errors import DataError, Problem

MOST_TEXTS = 100_000  # different values of a category
_MOST_CHARACTERS = 64 << 20  # of these values together
_LENGTH = 1023  # the last bits of a hash are the length of the text, or this
_BYTES = 8  # of a hash
_LARGEST = MOST_TEXTS * _BYTES  # no column has more within its own limits
MOST_BYTES = 128 << 20
MOST_IN_ALL = MOST_BYTES // _BYTES  # texts of a table
_MOST_FORMS = 10_000  # texts of a column whose form is kept
_MOST_ALL_FORMS = 200_000  # of a table


class DistinctTexts:
    """Counts the different texts of a column that may be a category, in bounded memory.

    A column may have MOST_TEXTS of them. What is kept of a text is a hash and its length, in 8
    bytes, so a column that has too many, such as an identifier, costs the others little. All
    columns of a table together may have MOST_BYTES: while they have more, the limit of each column
    is lowered by an eighth, and a column above it is lost. Every column counts with at most this
    limit, so neither the order of the rows nor the parts of the source play a part.

    Attributes:
        forms: The forms of some of them, which need not be determined again.
        is_lost: Whether there are too many.
        limit: The bytes that a column of this table may have.
    """

    def __init__(self) -> None:
        self.forms: dict[str, int] = {}
        self.is_lost = False
        self.limit = _LARGEST
        self._hashes = np.empty(0, np.uint64)  # sorted

    def __len__(self) -> int:
        return len(self._hashes)

    @property
    def bytes(self) -> int:
        """Their size in memory; one more than the limit if there are too many."""
        return self.limit + 1 if self.is_lost else self._hashes.nbytes

    def to_plain(self) -> dict[str, Any]:
        """Return the texts as values of JSON."""
        return {"hashes": plain_of(self._hashes), "lost": self.is_lost, "limit": self.limit}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> DistinctTexts:
        """Return texts from the values of `to_plain`."""
        found = cls()
        found._hashes, found.is_lost = array_of(plain["hashes"]), plain["lost"]
        found.limit = plain["limit"]
        return found

    def add(self, texts: dict[str, int]) -> None:
        """Add texts with their forms."""
        if not self.is_lost:
            self.forms.update(islice(texts.items(), max(_MOST_FORMS - len(self.forms), 0)))
            self._add(np.fromiter(map(_hash_of, texts), np.uint64, len(texts)))

    def merge(self, later: DistinctTexts) -> None:
        """Add the texts of the next part of the source."""
        self.lower(later.limit)
        if later.is_lost:
            self._lose()
        elif not self.is_lost:
            self._add(later._hashes)

    def lower(self, limit: int) -> None:
        """Lower the limit."""
        self.limit = min(self.limit, limit)
        if self.bytes > self.limit:
            self._lose()

    def _add(self, hashes: np.ndarray) -> None:
        self._hashes = np.union1d(self._hashes, hashes)
        characters = int((self._hashes & np.uint64(_LENGTH)).sum())
        if len(self) > MOST_TEXTS or characters > _MOST_CHARACTERS:
            self._lose()

    def _lose(self) -> None:
        self.is_lost, self._hashes, self.forms = True, np.empty(0, np.uint64), {}

    @property
    def reason(self) -> str:
        """Why there are too many."""
        if self.limit < _LARGEST:
            return (
                f"more than {self.limit // _BYTES:,} distinct strings, too many in addition to"
                " those of the other columns"
            )
        return f"more than {MOST_TEXTS:,} distinct strings"


def fit(columns: list[DistinctTexts]) -> None:
    """Forget the texts of the largest columns of a table until the others fit in memory."""
    if not columns:
        return
    limit = min(column.limit for column in columns)
    while sum(min(column.bytes, limit) for column in columns) > MOST_BYTES and limit:
        limit = limit * 7 // 8
    for column in columns:
        column.lower(limit)
    if sum(len(column.forms) for column in columns) > _MOST_ALL_FORMS:
        for column in columns:
            column.forms = {}


def _hash_of(text: str) -> int:
    digest = blake2b(text.encode(errors="surrogatepass"), digest_size=_BYTES).digest()
    return int.from_bytes(digest, "little") & ~_LENGTH | min(len(text), _LENGTH)


MOST_OTHERS = 2_000  # columns that are not numbers
LONG, TEXT = "long", "text"  # the forms of strings that no type knows
_FORMS = (*(form for it in TYPES.values() for form in it.forms), LONG, TEXT)
_INDEX = {form: i for i, form in enumerate(_FORMS)}
_EXAMPLES = frozenset(form for it in TYPES.values() for form in it.odd_forms)
_PARSED = [_INDEX[form] for it in TYPES.values() for form in it.parsed_forms]


class ColumnProfile:
    """The values of one column, counted.

    Args:
        name: The column.

    Attributes:
        gaps: The values that are missing.
        undecodable: The values that are not UTF-8; their rows are bad, whatever the type.
        counts: The other values by form.
        examples: File, line and text of the first value of some forms.
        only_bits: Whether every number is 0 or 1, as float32.
        texts: The different strings, without those of `parsed_forms`: which of these are parsed
            without a look at their string depends on the blocks.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.gaps = self.undecodable = 0
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, tuple[str, int, str]] = {}
        self.only_bits = True
        self.texts = DistinctTexts()

    @property
    def count(self) -> int:
        """The values that are not missing, and UTF-8."""
        return self.counts.total()

    @property
    def votes(self) -> Votes:
        """What decides about its type."""
        return Votes(self.counts, self.count, self.only_bits)

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
    def from_plain(cls, plain: Mapping[str, Any]) -> ColumnProfile:
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

    def merge(self, later: ColumnProfile) -> None:
        """Add the counts of the next part of the source."""
        self.gaps += later.gaps
        self.undecodable += later.undecodable
        self.counts.update(later.counts)
        self.examples = later.examples | self.examples
        self.only_bits &= later.only_bits
        self.texts.merge(later.texts)

    def add_forms(self, forms: Mapping[str, int]) -> None:
        """Add values by form; a bit is a number, too."""
        self.only_bits &= not forms.get(NUMBER)
        for form, rows in forms.items():
            self.counts[NUMBER if form == BIT else form] += rows

    def add(self, cells: Cells, file: str, lines: np.ndarray) -> None:
        """Count the values of a block.

        Args:
            cells: The values, of shape [rows].
            file: Name of the file.
            lines: int64 of shape [rows].
        """
        for known in BY_PRECEDENCE:
            if (forms := known.count(cells)) is not None:
                self.gaps += len(lines) - sum(forms.values())
                self.add_forms(forms)
                return
        wrong, codes = cells.wrong, cells.distinct[1]
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
        """Count the different strings of a block.

        Args:
            cells: The strings.
            rows: The rows of each string.
            codes: The index of the string in each row, -1 if missing.
            file: Name of the file.
            lines: int64 of shape [rows].
        """
        words, known = cells.words, self.texts.forms
        forms = np.array([known.get(text, -1) for text in words])
        new = np.flatnonzero(forms < 0)
        forms[new] = _forms_of(cells.distinct[0].take(pa.array(new)))
        by_form = np.bincount(forms, rows, len(_FORMS)).astype(np.int64)
        self.add_forms({_FORMS[i]: int(by_form[i]) for i in np.flatnonzero(by_form).tolist()})
        for i in np.flatnonzero(by_form).tolist():
            form = _FORMS[i]
            if form in _EXAMPLES and form not in self.examples:
                row = int(np.flatnonzero((codes >= 0) & (forms[codes] == i))[0])
                self.examples[form] = (file, int(lines[row]), words[codes[row]][:200])
        if not self.texts.is_lost:
            tracked = new[(rows[new] > 0) & ~np.isin(forms[new], _PARSED)]
            self.texts.add({words[i]: int(forms[i]) for i in tracked.tolist()})


def profile(columns: dict[str, ColumnProfile], chunk: Chunk) -> None:
    """Count the values of a chunk, by column.

    Raises:
        DataError: Too many columns are not numbers.
    """
    if len(columns) > MANY:
        parse_together(chunk.many_cells(columns))
    block, others = chunk.numbers, 0
    for name, column in columns.items():
        if name in block.places:
            column.counts[NUMBER] += len(block.rows)
            continue
        column.add(chunk.cells(name), chunk.faults.file, chunk.faults.lines)
        others += not Number.is_usual(column.votes)
        DataError.raise_if([too_many_others(others)] if others > MOST_OTHERS else [])
    may_be = [name for name in block.names if name in columns and columns[name].only_bits]
    if may_be:
        part = block.rows[:, [block.places[name] for name in may_be]]
        only = np.atleast_1d(are_bits(part).all(axis=0))
        for name, is_bits in zip(may_be, only, strict=True):
            columns[name].only_bits = bool(is_bits)
    fit([column.texts for column in columns.values()])


def merge(columns: dict[str, ColumnProfile], later: Mapping[str, ColumnProfile]) -> None:
    """Add the counts of all columns in the next part of the source."""
    for name, column in columns.items():
        column.merge(later[name])
    fit([column.texts for column in columns.values()])


def too_many_others(columns: int) -> Problem:
    """Describe a table with more than MOST_OTHERS columns that are not numbers."""
    return Problem(
        "too many columns are not numbers",
        received=f"{columns:,} or more",
        expected=f"at most {MOST_OTHERS:,} booleans, categories, dates and texts",
        fix="choose columns with data_options.columns, or correct data_options.delimiter",
        path="data_options.columns",
    )


def _forms_of(texts: pa.Array) -> np.ndarray:
    """Return the form of each string, as an index of _FORMS: int64 of shape [texts]."""
    found = np.full(len(texts), _INDEX[TEXT])
    long = pc.utf8_length(texts).to_numpy(zero_copy_only=False) > LONGEST
    found[long] = _INDEX[LONG]
    for known in TYPES.values():
        for form, mask in known.forms_of(texts, ~long):
            found[mask] = _INDEX[form]
    return found
