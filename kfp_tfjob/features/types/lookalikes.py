"""Recognizes strings that are used as names, of categories or classes, but seem to be other values.

A model does not see the order of names. Numbers may become names because of a few other strings,
such as `?`, or because of a sign in each value, such as `23.4 kmpl`. Training on them causes no
error, but the model learns little from them. Called by prepare_data, for warnings about categories
and classes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from unicodedata import normalize

import numpy as np
import pyarrow as pa

from kfp_tfjob.common.formatting import counted, listed

from .base import MOST
from .boolean import FALSE_TEXTS, TRUE_TEXTS
from .date import Date
from .number import Number, is_number

FEW = 20  # distinct numbers may be the names of classes or categories
_FEWEST = 3
_HALF = 0.5  # of the rows
_MOST_OTHERS, _MOST_SHOWN = 10, 3  # strings that may stand for a missing value
_MOST_COMPARED = 10_000  # strings of a column
_MOST_DECORATIONS = 5  # of one column
# How astype(str) of pandas writes a missing value (MISSING), and other programs too (NULLS).
MISSING = ("nan", "NaN", "NaT", "<NA>")
NULLS = (*MISSING, "null", "NULL")
# A number, one of India, or two in one, such as 120/80 and 12:30.
_NUMBER = r"[0-9]+(?:\.[0-9]+)?|[0-9]{1,3}(?:,[0-9]{2,3})+(?:\.[0-9]+)?|[0-9]+[/:][0-9]+"
# Letters before a number belong to a code, such as A12.
_DECORATED = re.compile(
    rf"""((?:[A-Z]{{1,2}}\$|Rs\.?)? ?['"<>~≤≥≈=±(+$€£¥−-]{{0,3}}) ?(?:{_NUMBER})([^0-9]{{0,12}})"""
)


def described(strings: Mapping[str, int], few: int = FEW) -> tuple[str, list[str]]:
    """Describe strings that seem to be numbers or dates.

    Args:
        strings: The rows by string, without missing values.
        few: So many numbers with a unit or a sign may be names.

    Returns:
        Words that follow "they are", empty for other strings; and the strings that may stand for a
        missing value, the most frequent first.
    """
    rows = np.array(list(strings.values()), np.int64)
    if not rows.any():
        return "", []
    texts = pa.array(strings, pa.string())
    for column_type in (Number, Date):
        mask = column_type.like(texts)
        unlike = [text for text, matches in zip(strings, mask, strict=True) if not matches]
        if len(unlike) > _MOST_OTHERS or mask.sum() < _FEWEST:
            continue
        is_mixed = mask.sum() > FEW or len(unlike) == 1 and not re.search("[0-9]", unlike[0])
        is_mixed |= not any(re.search(r"\w", text) for text in unlike)
        if unlike and is_mixed and rows[mask].sum() >= _HALF * rows.sum():
            unlike.sort(key=lambda text: (-strings[text], text))
            described_strings = (f"{text!r} ({counted(strings[text], 'row')})" for text in unlike)
            return (
                f"{column_type.nouns[1]}, except {listed(described_strings, _MOST_SHOWN)}",
                unlike,
            )
    if in_quotes(strings):
        return f"in quotes that are part of them, such as {next(iter(strings))}", []
    example = _decorated(strings) if len(strings) > few else ""
    return (f"numbers with other characters, such as {example!r}" if example else ""), []


def in_quotes(texts: Collection[str]) -> bool:
    """Return whether all strings begin and end with the same quote, which no CSV reader removed."""
    quotes = {text[0] + text[-1] for text in texts if len(text) > 1}
    return len(texts) > 1 and quotes in ({"''"}, {'""'}) and all(len(text) > 1 for text in texts)


def are_booleans(texts: Collection[str]) -> bool:
    """Return whether strings are true or false, and both occur."""
    words = {text.lower() for text in texts}
    is_true, is_false = words.intersection(TRUE_TEXTS), words.intersection(FALSE_TEXTS)
    return bool(is_true and is_false) and len(is_true) + len(is_false) == len(words)


def spellings(texts: Collection[str]) -> str:
    """Return which strings may be the same in several spellings; empty for none.

    These are booleans of several pairs, such as yes and 1, and words with their first letters.
    """
    pairs: list[list[str]] = []
    if are_booleans(texts):
        pairs = [
            [text for text in texts if text.lower() in some] for some in (TRUE_TEXTS, FALSE_TEXTS)
        ]
    else:
        letters = [text for text in texts if len(text) == 1 and text.isalpha()]
        words = [text for text in texts if text not in letters]
        pairs = [
            [text, *(word for word in words if word[0].lower() == text.lower())] for text in letters
        ]
        are_words = len(letters) == len(words) > 1
        pairs = pairs if are_words and {len(pair) for pair in pairs} == {2} else []
    same = [pair for pair in pairs if len(pair) > 1]
    return ", ".join(" and ".join(map(repr, pair)) for pair in same)


def _decorated(strings: Mapping[str, int]) -> str:
    """Return an example of strings that are numbers with a unit or a sign; empty for others."""
    texts = list(strings)[:_MOST_COMPARED]
    matches = [_DECORATED.fullmatch(normalize("NFKC", text)) for text in texts]
    decorations = Counter((match[1].strip(), match[2].strip()) for match in matches if match)
    usual = dict(decorations.most_common(_MOST_DECORATIONS))
    if sum(usual.values()) < MOST * len(texts):
        return ""
    pairs = zip(texts, matches, strict=True)
    decorated = (text for text, match in pairs if match and not is_number(text))
    return next(decorated, "")
