"""Formats numbers and words for logs and messages."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable

SHOWN = 8  # names that a message lists; a person looks for one of them


def sized(size: int) -> str:
    """Return a readable size, for example `900.0 kB` or `1.2 GB`."""
    for unit, letters in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.1f} {letters}"
    return f"{size} B"


def minutes(seconds: float) -> str:
    """Return a duration for people: `45 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def counted(number: int, what: str) -> str:
    """Return a number with its noun, for example `1 file` or `1,797 rows`."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def listed(items: Iterable[str], most: int, separator: str = ", ") -> str:
    """Return the first words and the number of the rest: `a, b and 3 more`."""
    known = list(items)
    others = len(known) - most
    return separator.join(known[:most]) + (f" and {others:,} more" if others > 0 else "")


def choices(known: Iterable[str], meant: str = "", most: int = SHOWN) -> str:
    """Return what may be chosen, the suggestion first: `b, a, c and 3 more`.

    Args:
        known: All of it.
        meant: The suggestion; empty for none.
        most: How many to name.
    """
    names = list(known)
    if meant in names:
        names.remove(meant)
        names.insert(0, meant)
    return listed(names, most)


def nearest(word: str, known: Iterable[str], alike: float = 0.5) -> str:
    """Return the known word that was probably meant; empty if none is similar.

    Args:
        word: An unknown word.
        known: The known words.
        alike: The required similarity of the two words, from 0 to 1.
    """
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=alike)), "")


def setting(option: str, value: object) -> str:
    """Return an option with a value in JSON, whatever characters a name in it has."""
    return f"{option}={json.dumps(value, ensure_ascii=False)}"


def did_you_mean(suggestion: str, otherwise: str = "") -> str:
    """Return the question whether a suggestion was meant; `otherwise` if there is none."""
    return f"did you mean {suggestion!r}?" if suggestion else otherwise
