"""Counts the different texts of columns that may be categories, in bounded memory.

A column may have MOST_TEXTS of them. What is kept of a text is a hash and its length, in 8 bytes,
so a column that has too many, such as an identifier, costs the others little. All columns of a
table together may have MOST_BYTES: while they have more, the limit of each column is lowered by an
eighth, and a column above it is lost. Every column counts with at most this limit, so neither the
order of the rows nor the parts of the source play a part.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from itertools import islice
from typing import Any

import numpy as np

from kfp_tfjob.components.prepare_data.plain import array_of, plain_of

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
    """The different texts of one column.

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
                f"more than {self.limit // _BYTES:,} different texts, too many beside those of the"
                " other columns"
            )
        return f"more than {MOST_TEXTS:,} different texts"


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
