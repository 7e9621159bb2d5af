"""Counts the values of each column by their form: numbers, dates, words, strings.

The column types define the forms. The profiles of a source's parts merge into one profile of the
whole source, which does not depend on how the source is divided into parts and blocks. Called by
the tasks that read parts of the source; the column types are decided from the merged profiles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.features.cells import LONGEST, Cells
from kfp_tfjob.features.types import BY_PRECEDENCE, TYPES
from kfp_tfjob.features.types.base import Votes
from kfp_tfjob.features.types.number import BIT, Number, are_bits
from kfp_tfjob.features.types.number import NUMBER_FORM as NUMBER

from .source.readers.arrow_table import Chunk

MOST_TEXTS = 100_000  # different values of a category
_MOST_CHARACTERS = 64 << 20  # of these values together
_LENGTH = 1023  # the last bits of a hash are the length of the text, or this
_BYTES = 8  # of a hash
_MOST_FORMS = 10_000  # texts of a column whose form is kept
_MOST_ALL_FORMS = 200_000  # of a table


@dataclass
class DistinctTexts:
    """Counts the different strings of a column without a dictionary, in bounded memory.

    A column may contain up to MOST_TEXTS different strings. Each takes 8 bytes, for its hash and
    its length, so a column takes at most 800 KB. A column with too many strings, such as an
    identifier, takes no memory because its strings are dropped.

    Attributes:
        hashes: The hash and the length of each string, sorted.
        is_lost: Whether there were too many strings.
    """

    hashes: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint64))
    is_lost: bool = False

    def __len__(self) -> int:
        return len(self.hashes)

    def add(self, texts: Sequence[str]) -> None:
        """Add strings."""
        if not self.is_lost:
            self._add(np.fromiter(map(_hash_of, texts), np.uint64, len(texts)))

    def merge(self, texts: DistinctTexts) -> None:
        """Add the strings of the next part of the source."""
        if texts.is_lost:
            self._lose()
        elif not self.is_lost:
            self._add(texts.hashes)

    def _add(self, hashes: np.ndarray) -> None:
        self.hashes = np.union1d(self.hashes, hashes)
        characters = int((self.hashes & np.uint64(_LENGTH)).sum())
        if len(self) > MOST_TEXTS or characters > _MOST_CHARACTERS:
            self._lose()

    def _lose(self) -> None:
        self.is_lost, self.hashes = True, np.empty(0, np.uint64)


def _hash_of(text: str) -> int:
    digest = blake2b(text.encode(errors="surrogatepass"), digest_size=_BYTES).digest()
    return int.from_bytes(digest, "little") & ~_LENGTH | min(len(text), _LENGTH)


MOST_OTHERS = 2_000  # columns that are not numbers
LONG, TEXT = "long", "text"  # the forms of strings that no type knows
_FORMS = (*(form for kind in TYPES.values() for form in kind.forms), LONG, TEXT)
LONG_FORMS = (LONG, *(form for kind in TYPES.values() for form in kind.long_forms))
_INDEX = {form: i for i, form in enumerate(_FORMS)}
_EXAMPLES = frozenset(form for kind in TYPES.values() for form in kind.odd_forms)
_SAMPLED = [_INDEX[form] for form in _EXAMPLES]
_MOST_SAMPLES = 200
_PROBED = frozenset(form for kind in TYPES.values() for form in kind.probed_forms)
_MOST_PROBES, _PROBED_CHARACTERS = 2_000, 300
_KEPT_CHARACTERS = 100  # of a text whose form is kept; longer ones seldom occur twice
# A string of another type's form is of that form.
_IN_ORDER = sorted(TYPES.values(), key=lambda column_type: not column_type.probed_forms)
_PARSED = [_INDEX[form] for kind in TYPES.values() for form in kind.parsed_forms]


@dataclass
class ColumnProfile:
    """One column's values, counted.

    Attributes:
        name: The column.
        gaps: The values that are missing.
        undecodable: The values that are not UTF-8; their rows are bad, regardless of the type.
        counts: The other values by form.
        examples: File, line and text of the first value of some forms.
        samples: The first different strings of these forms.
        only_bits: Whether every number is 0 or 1, as float32.
        texts: The different strings, except strings in one of `parsed_forms`, because it depends on
            the block whether those are parsed directly. None if a dictionary contains the strings.
        forms: The forms of some strings, which do not have to be determined again.
        probes: The beginnings of different strings in one of `probed_forms`, by their hash: those
            with the smallest hashes, which do not depend on the order of the rows.
    """

    name: str
    gaps: int = 0
    undecodable: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, tuple[str, int, str]] = field(default_factory=dict)
    samples: dict[str, None] = field(default_factory=dict)
    only_bits: bool = True
    texts: DistinctTexts | None = field(default_factory=DistinctTexts)
    forms: dict[str, int] = field(default_factory=dict)
    probes: dict[int, str] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """The values that are not missing, and UTF-8."""
        return self.counts.total()

    @property
    def votes(self) -> Votes:
        """The counts that decide the column's type."""
        texts = self.texts
        distinct = None if texts is None or texts.is_lost else len(texts)
        return Votes(self.counts, self.count, self.only_bits, distinct, self.probes.values())

    @property
    def all_different(self) -> bool:
        """Whether no value occurs twice. A column with numbers or dates is not looked at."""
        return self.texts is not None and len(self.texts) == self.count

    def shift(self, lines: int) -> None:
        """Add a number of lines to the lines of the examples."""
        self.examples = {
            form: (file, line + lines, text) for form, (file, line, text) in self.examples.items()
        }

    def merge(self, part: ColumnProfile) -> None:
        """Add the counts of the next part of the source."""
        self.gaps += part.gaps
        self.undecodable += part.undecodable
        self.counts.update(part.counts)
        self.examples = part.examples | self.examples
        self._sample(part.samples)
        self._probe(part.probes)
        self.only_bits &= part.only_bits
        if self.texts is not None and part.texts is not None:
            self.texts.merge(part.texts)

    def add_forms(self, forms: Mapping[str, int]) -> None:
        """Add values by form; a bit is a number, too."""
        self.only_bits &= not forms.get(NUMBER)
        for form, rows in forms.items():
            self.counts[NUMBER if form == BIT else form] += rows

    def add(self, cells: Cells, file: str, lines: np.ndarray) -> None:
        """Count the values in one block of a file; `lines` are the rows' line numbers."""
        for column_type in BY_PRECEDENCE:
            if (forms := column_type.count(cells)) is not None:
                self.gaps += len(lines) - sum(forms.values())
                self.add_forms(forms)
                return
        wrong, codes = cells.wrong, cells.distinct[1]
        if wrong.any():
            self.undecodable += int(wrong.sum())
            codes, lines = codes[~wrong], lines[~wrong]
        row_counts = np.bincount(codes + 1, minlength=len(cells.words) + 1)
        self.gaps += int(row_counts[0])  # a missing value has the code -1
        if row_counts[0] < len(codes):
            self._add_distinct(cells, row_counts[1:], codes, file, lines)

    def _add_distinct(
        self, cells: Cells, row_counts: np.ndarray, codes: np.ndarray, file: str, lines: np.ndarray
    ) -> None:
        """Count the different strings of a block.

        Args:
            cells: The column's values.
            row_counts: (strings,) the number of rows with each string of `cells.words`.
            codes: (rows,) the index of each row's string, -1 for a missing value.
            file: The file's name.
            lines: (rows,) the rows' line numbers.
        """
        words, known_forms = cells.words, self.forms
        forms = np.array([known_forms.get(text, -1) for text in words])
        new = np.flatnonzero(forms < 0)
        if len(new):
            forms[new] = _forms_of(cells.distinct[0].take(pa.array(new)))
        rows_by_form = np.bincount(forms, row_counts, len(_FORMS)).astype(np.int64)
        forms_present = np.flatnonzero(rows_by_form).tolist()
        self.add_forms({_FORMS[i]: int(rows_by_form[i]) for i in forms_present})
        for i in forms_present:
            form = _FORMS[i]
            if form in _EXAMPLES and form not in self.examples:
                row = int(np.flatnonzero((codes >= 0) & (forms[codes] == i))[0])
                self.examples[form] = (file, int(lines[row]), words[codes[row]][:200])
        # A dictionary may contain strings that no row has. A string with a known form has already
        # been probed, sampled and tracked.
        used = new[row_counts[new] > 0]
        probed = [i for i in used.tolist() if _FORMS[forms[i]] in _PROBED]
        if probed:
            beginnings = [words[i][:_PROBED_CHARACTERS] for i in probed]
            self._probe({_hash_of(text): text for text in beginnings})
        sampled = used[np.isin(forms[used], _SAMPLED)][:_MOST_SAMPLES]
        self._sample(words[i] for i in sampled.tolist())
        for i in used[: max(_MOST_FORMS - len(known_forms), 0)].tolist():
            if len(words[i]) <= _KEPT_CHARACTERS:
                known_forms[words[i]] = int(forms[i])
        if self.texts is not None:
            tracked = used[~np.isin(forms[used], _PARSED)]
            self.texts.add([words[i] for i in tracked.tolist()])

    def _probe(self, texts: Mapping[int, str]) -> None:
        self.probes |= texts
        if len(self.probes) > _MOST_PROBES:
            self.probes = {key: self.probes[key] for key in sorted(self.probes)[:_MOST_PROBES]}

    def _sample(self, texts: Iterable[str]) -> None:
        for text in texts:
            if len(self.samples) == _MOST_SAMPLES:
                return
            self.samples.setdefault(text)


def profile(columns: dict[str, ColumnProfile], chunk: Chunk) -> None:
    """Count the values of a chunk, by column.

    Raises:
        DataError: Too many columns are not numbers.
    """
    block, other_columns = chunk.numbers, 0
    for name, column in columns.items():
        if name in block.places:
            column.counts[NUMBER] += len(block.rows)
            continue
        column.add(chunk.cells(name), chunk.faults.file, chunk.faults.lines)
        other_columns += not Number.is_usual(column.votes)
        DataError.raise_if([too_many_others(other_columns)] if other_columns > MOST_OTHERS else [])
    may_be = [name for name in block.names if name in columns and columns[name].only_bits]
    if may_be:
        part = block.rows[:, [block.places[name] for name in may_be]]
        only = np.atleast_1d(are_bits(part).all(axis=0))
        for name, is_bits in zip(may_be, only, strict=True):
            columns[name].only_bits = bool(is_bits)
    if sum(len(column.forms) for column in columns.values()) > _MOST_ALL_FORMS:
        for column in columns.values():
            column.forms = {}


def votes_of(rows: Mapping[str, int]) -> Votes:
    """Return how strings are written, given the rows of each."""
    counts: Counter[str] = Counter()
    forms = _forms_of(pa.array(rows, pa.string())).tolist()
    for form, count in zip(forms, rows.values(), strict=True):
        counts[NUMBER if _FORMS[form] == BIT else _FORMS[form]] += count
    return Votes(counts, counts.total(), only_bits=False)


def too_many_others(columns: int) -> Problem:
    """Describe a table with more than MOST_OTHERS columns that are not numbers."""
    return Problem(
        "too many columns are not numbers",
        received=f"{columns:,} or more",
        expected=f"at most {MOST_OTHERS:,} booleans, categories, dates and texts",
        fix="choose fewer columns with data_options.columns; in a CSV, check the delimiter",
        path="data_options.columns",
    )


def _forms_of(texts: pa.Array) -> np.ndarray:
    """Return the form of each string, as an index of _FORMS: int64 of shape [texts]."""
    forms = np.full(len(texts), _INDEX[TEXT])
    long = pc.utf8_length(texts).to_numpy(zero_copy_only=False) > LONGEST
    forms[long] = _INDEX[LONG]
    for column_type in _IN_ORDER:
        for form, mask in column_type.forms_of(texts, ~long):
            forms[mask] = _INDEX[form]
    return forms
