"""Gives each string of a category a code, in the order in which the strings occur first.

Called by the tasks that read parts of the source, and by the scan that merges their results.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.features.cells import Texts
from kfp_tfjob.features.string_hashes import string_hashes
from kfp_tfjob.features.types.string import bins_of
from kfp_tfjob.storage.layout import LONGEST_SCHEMA

from .column_profile import MOST_TEXTS

_MOST_BYTES = LONGEST_SCHEMA - (32 << 20)  # of the strings of all dictionaries of a table
_AROUND = 16  # bytes around a string in schema.json


class TooManyTextsError(DataError):
    """The strings of all categories do not fit into schema.json."""


def _no_hashes() -> np.ndarray:
    return np.zeros(1, np.uint64)


@dataclass(frozen=True)
class CodedStrings:
    """A column of strings in one block, by row.

    Attributes:
        codes: int32, the code of each string in the next bucket file; 0 for a missing value.
        counted: int32, the code or 1 + the bin by which rows are counted; 0 for a missing value.
        hashes: uint64, the BLAKE2b of each string; 0 for a missing value.
        new_bytes: About how many bytes the strings have that were not in the file yet.
    """

    codes: np.ndarray
    counted: np.ndarray
    hashes: np.ndarray
    new_bytes: int


@dataclass
class Dictionary:
    """The strings of one category over the whole source, in bounded memory.

    Attributes:
        codes: The code of each text, in the order of the codes, which start at 1.
        is_lost: Whether there are more than MOST_TEXTS; then no text is kept, and no code counts.
        rows: The rows with a string.
        bytes: The most that they take in schema.json, in the dictionary and in the vocabulary.
    """

    codes: dict[str, int] = field(default_factory=dict)
    is_lost: bool = False
    rows: int = 0
    bytes: int = 0

    # By code, as far as they are known; a missing value is 0.
    _hashes: np.ndarray = field(default_factory=_no_hashes, compare=False)

    def merge(self, part: Dictionary) -> np.ndarray:
        """Add the strings of a later part; return for each of its codes the one here, int32."""
        self.rows += part.rows
        if part.is_lost:
            self._lose()
        return np.array([0, *self._coded(part.codes)], np.int32)

    @property
    def texts(self) -> tuple[str, ...]:
        """The strings in the order of their codes, which start at 1."""
        return tuple(self.codes)

    def add(self, column: Texts) -> CodedStrings:
        """Add the strings of a block."""
        before = len(self.codes)
        codes = self._coded(column.texts)
        self.rows += int(np.count_nonzero(column.codes))
        if self.is_lost:
            rows = len(column.codes)
            none = np.zeros(rows, np.int32)
            return CodedStrings(none, none, np.zeros(rows, np.uint64), 0)
        new = list(islice(self.codes, before, None))
        self._hashes = np.append(self._hashes, string_hashes(new))
        row_codes = np.array([0, *codes], np.int32)[column.codes]
        return CodedStrings(row_codes, row_codes, self._hashes[row_codes], sum(map(len, new)))

    def written(self) -> None:
        """Go on after a bucket file is written: codes stay the same in the next one."""

    def _coded(self, texts: Collection[str]) -> list[int]:
        """Return the codes of strings; new ones get the next codes."""
        if self.is_lost:
            return [0] * len(texts)
        code_of, before = self.codes, len(self.codes)
        codes: list[Any] = list(map(code_of.get, texts))
        if None in codes:
            codes = [code_of.setdefault(text, len(code_of) + 1) for text in texts]
        self.bytes += _stored(islice(code_of, before, None))
        if len(code_of) > MOST_TEXTS:
            self._lose()
        return codes

    def _lose(self) -> None:
        self.is_lost, self.codes, self.bytes, self._hashes = True, {}, 0, _no_hashes()

    @property
    def all_different(self) -> bool:
        """Whether no text occurs in two rows."""
        return not self.is_lost and len(self.codes) == self.rows


def too_large(dictionaries: Mapping[str, Dictionary]) -> Problem | None:
    """Describe the dictionaries of a table if they do not fit into schema.json; None if they do."""
    total = sum(item.bytes for item in dictionaries.values())
    if total <= _MOST_BYTES:
        return None
    largest = sorted(dictionaries, key=lambda name: (-dictionaries[name].bytes, name))[:5]
    listed_columns = ", ".join(
        f"{name!r} {dictionaries[name].bytes / 1e6:,.0f} MB" for name in largest
    )
    return Problem(
        "the categories have too many distinct values in total",
        received=f"{total / 1e6:,.0f} MB in schema.json, of {len(dictionaries):,} columns:"
        f" {listed_columns}",
        expected=f"at most {_MOST_BYTES >> 20} MiB",
        fix="drop columns with data_options.drop, or set another type in"
        " data_options.types, such as number, or text to hash them into bins",
        path="data_options.types",
    )


def _stored(texts: Iterable[str]) -> int:
    return sum(2 * (_AROUND + len(text.encode())) for text in texts)


class HashedStrings:
    """The strings of a column that is hashed into bins, over the rows of one bucket file."""

    def __init__(self, bins: int) -> None:
        self._bins = bins
        self._codes: dict[str, int] = {}

    @property
    def texts(self) -> tuple[str, ...]:
        """The strings in the order of their codes, which start at 1."""
        return tuple(self._codes)

    def add(self, column: Texts) -> CodedStrings:
        """Add the strings of a block; they are counted by 1 + their bin."""
        codes, before = self._codes, len(self._codes)
        rows = np.array([0, *(codes.setdefault(text, len(codes) + 1) for text in column.texts)])
        hashes = string_hashes(column.texts)
        bins = bins_of(hashes, self._bins)
        return CodedStrings(
            rows.astype(np.int32)[column.codes],
            np.array([0, *(bins + 1)], np.int32)[column.codes],
            np.append(np.uint64(0), hashes)[column.codes],
            sum(map(len, islice(codes, before, None))),
        )

    def written(self) -> None:
        """Go on after a bucket file is written: the next one has its own codes."""
        self._codes = {}
