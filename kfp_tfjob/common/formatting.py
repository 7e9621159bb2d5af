"""Formats numbers and words for logs and messages.

Called throughout the project.
"""

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
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60} s" if rounded % 60 else f"{rounded // 60} min"
    return f"{rounded // 3600} h {rounded % 3600 // 60} min"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, for example `1 file` or `1,797 rows`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def listed(items: Iterable[str], most: int, separator: str = ", ") -> str:
    """Return the first `most` words and the number of the remaining ones: `a, b and 3 more`."""
    words = list(items)
    omitted = len(words) - most
    return separator.join(words[:most]) + (f" and {omitted:,} more" if omitted > 0 else "")


def choices(options: Iterable[str], meant: str = "", most: int = SHOWN) -> str:
    """Return the names to choose from, the suggestion first: `b, a, c and 3 more`.

    Args:
        options: All names.
        meant: The suggestion; empty for none.
        most: How many names to list.
    """
    names = list(options)
    if meant in names:
        names.remove(meant)
        names.insert(0, meant)
    return listed(names, most)


def nearest(word: str, candidates: Iterable[str], alike: float = 0.5) -> str:
    """Return the candidate that was probably meant by a misspelt word; empty if none is similar.

    Args:
        word: The misspelt word.
        candidates: The words to choose from.
        alike: The required similarity of the two words, from 0 to 1.
    """
    return next(iter(difflib.get_close_matches(word, list(candidates), n=1, cutoff=alike)), "")


def setting(option: str, value: object) -> str:
    """Return an option with its value in JSON; names with any characters remain valid."""
    return f"{option}={json.dumps(value, ensure_ascii=False)}"


def did_you_mean(suggestion: str, otherwise: str = "") -> str:
    """Return `did you mean 'SUGGESTION'?`, or `otherwise` if there is no suggestion."""
    return f"did you mean {suggestion!r}?" if suggestion else otherwise
