"""Remembers the different texts of columns that may be categories, in bounded memory.

A column may have MOST_TEXTS of them. All columns of a table together may have MOST_BYTES: while
they have more, the limit of each column is lowered by an eighth, and a column above it forgets its
texts. Every column counts with at most this limit, so neither the order of the rows nor the parts
of the source play a part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

MOST_TEXTS = 100_000  # different values of a category
_MOST_CHARACTERS = 64 << 20  # of these values together
TEXT_BYTES = 100  # in memory, besides the characters
_LARGEST = _MOST_CHARACTERS + MOST_TEXTS * TEXT_BYTES  # no column has more within its own limits
MOST_BYTES = 128 << 20


class DistinctTexts:
    """The different texts of one column.

    Attributes:
        texts: The form of each text, -1 if it is not known; None if there are too many.
        bytes: Their size in memory; one more than the limit if there are too many.
        limit: The bytes that a column of this table may have.
    """

    def __init__(self) -> None:
        self.texts: dict[str, int] | None = {}
        self.bytes = 0
        self.limit = _LARGEST

    def to_plain(self) -> dict[str, Any]:
        """Return the texts as values of JSON."""
        texts = None if self.texts is None else sorted(self.texts)
        return {"texts": texts, "bytes": self.bytes, "limit": self.limit}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> DistinctTexts:
        """Return texts from the values of `to_plain`."""
        found = cls()
        found.texts = None if plain["texts"] is None else dict.fromkeys(plain["texts"], -1)
        found.bytes, found.limit = plain["bytes"], plain["limit"]
        return found

    def add(self, texts: dict[str, int]) -> None:
        """Add texts with their forms."""
        if self.texts is None:
            return
        new = texts.keys() - self.texts.keys()
        self.texts |= texts
        self.bytes += size_of(new)
        characters = self.bytes - TEXT_BYTES * len(self.texts)
        if len(self.texts) > MOST_TEXTS or characters > _MOST_CHARACTERS:
            self._forget()

    def merge(self, later: DistinctTexts) -> None:
        """Add the texts of the next part of the source."""
        self.lower(later.limit)
        if later.texts is None:
            self._forget()
        else:
            self.add(later.texts)

    def lower(self, limit: int) -> None:
        """Lower the limit."""
        self.limit = min(self.limit, limit)
        if self.bytes > self.limit:
            self._forget()

    def _forget(self) -> None:
        self.texts, self.bytes = None, self.limit + 1

    @property
    def reason(self) -> str:
        """Why there are too many."""
        if self.limit < _LARGEST:
            return (
                f"different texts of more than {self.limit >> 10:,} KiB, too many beside those of"
                " the other columns"
            )
        return f"more than {MOST_TEXTS:,} different texts"


def size_of(texts: Iterable[str]) -> int:
    """Return about how many bytes texts take in memory."""
    return sum(TEXT_BYTES + len(text) for text in texts)


def fit(columns: list[DistinctTexts]) -> None:
    """Forget the texts of the largest columns of a table until the others fit in memory."""
    if not columns:
        return
    limit = min(column.limit for column in columns)
    while sum(min(column.bytes, limit) for column in columns) > MOST_BYTES and limit:
        limit = limit * 7 // 8
    for column in columns:
        column.lower(limit)
