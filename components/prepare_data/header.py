"""The header against label and options: what can be known before the data is read."""

from __future__ import annotations

import difflib
from collections import Counter

from components.prepare_data import values
from components.prepare_data.options import DataOptions
from components.prepare_data.rows import Columns
from storage.errors import Problem

_MOST_NAMES = 30  # in a message
# Those that are rare inside of names come first.
_DELIMITERS = {";": ";", "\t": "tab", "|": "|", ",": ",", " ": "space"}


def choose(
    names: list[str], label: str, options: DataOptions, file: str
) -> tuple[Columns | None, list[Problem]]:
    """Choose the columns of a file.

    Args:
        names: Its header.
        label: The label column.
        options: The typed `data_options`.
        file: Name of the file, for messages.

    Returns:
        The columns, None where there is a problem; and the problems.
    """
    problems = []
    if label not in names:
        problems.append(_no_label(names, label, options, file))
    for key, wanted in (("columns", options.columns or ()), ("drop", options.drop)):
        problems += [_unknown(key, name, names, file) for name in wanted if name not in names]
    if options.columns and label in options.columns:
        problems.append(
            Problem(
                f"data_options.columns names the label {label!r} as a feature",
                fix="remove it from data_options.columns",
            )
        )
    if label in options.drop:
        problems.append(
            Problem(
                f"data_options.drop names the label {label!r}",
                fix="remove it from data_options.drop",
            )
        )
    left_out = {label, *options.drop}
    features = options.columns or tuple(name for name in names if name not in left_out)
    repeated = Counter(name for name in names if name in features or name == label)
    if twice := [name for name, count in repeated.items() if count > 1]:
        problems.append(
            Problem(
                f"{file} has several columns of one name",
                received=_listed(twice),
                expected="each name once",
                fix="rename them, or leave them out with data_options.drop" + _headless(names),
            )
        )
    if "" in features:
        problems.append(
            Problem(
                f"column {names.index('') + 1} of {file} has no name",
                expected="a name for every feature",
                fix='name it in the header, or leave it out with data_options.drop=[""]',
            )
        )
    if not features and not problems:
        problems.append(
            Problem(
                f"{file} has no feature column",
                received=_listed(names),
                expected=f"at least one column besides the label {label!r}",
                fix="drop fewer columns, or correct data_options.delimiter",
            )
        )
    return (None if problems else Columns(tuple(features), label)), problems


def no_rows() -> Problem:
    """Describe a source with a header and nothing else."""
    return Problem(
        "data_uri has a header but no rows",
        expected="at least a few rows for each of train, validation and test",
        fix="correct data_uri, or write the file again",
    )


def _no_label(names: list[str], label: str, options: DataOptions, file: str) -> Problem:
    fix = "correct data_label"
    close = difflib.get_close_matches(label, names, n=1, cutoff=0.6)
    folded = [name for name in names if name.strip("'\" ").casefold() == label.casefold()]
    if folded:
        fix = f"did you mean {folded[0]!r}?"
    elif other := _other_delimiter(names, label, options.delimiter):
        fix = f'the header seems to have another delimiter: set data_options.delimiter="{other}"'
    elif close:
        fix = f"did you mean {close[0]!r}?"
    return Problem(
        f"{file} has no column {label!r}, which is to be the label",
        received=f"the columns {_listed(names)}",
        expected=f"a column {label!r}",
        fix=fix + _headless(names),
    )


def _unknown(key: str, name: str, names: list[str], file: str) -> Problem:
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return Problem(
        f"data_options.{key} names {name!r}, which {file} does not have",
        received=name,
        expected=f"one of {_listed(names)}",
        fix=f"did you mean {close[0]!r}?" if close else f"remove it from data_options.{key}",
    )


def _other_delimiter(names: list[str], label: str, delimiter: str) -> str:
    """Return the delimiter that the header seems to have, or an empty text."""
    line = delimiter.join(names)
    for other, shown in _DELIMITERS.items():
        found = [name.strip("'\" ") for name in line.split(other)]
        if other != delimiter and (label in found or len(names) == 1 < len(found)):
            return shown
    return ""


def _headless(names: list[str]) -> str:
    """Return a hint for a file whose first line looks like data."""
    numeric = sum(values.plain_number(name) for name in names)
    return (
        "; the first line looks like data: if the file has no header, add one"
        if numeric and numeric >= len(names) / 4
        else ""
    )


def _listed(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:_MOST_NAMES])
    more = len(names) - _MOST_NAMES
    return f"{shown} and {more} more" if more > 0 else shown
