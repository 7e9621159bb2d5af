"""Checks the header against label and options before the data is read.

Called by every reader of tables, and when data_uri is resolved.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.common.formatting import choices, did_you_mean, nearest
from kfp_tfjob.features.types.base import ColumnType
from kfp_tfjob.features.types.number import is_number
from kfp_tfjob.options.data import BLANKS, EVERY_COLUMN, IMPUTING, DataOptions

MOST_COLUMNS = 100_000  # of a file; a million do not fit in memory
_LONGEST_COLUMN = 1000  # characters of a name
_MOST_CHARACTERS = 200  # of each name
_MOST_NAMED = 30  # of the columns of a file without a header
_MOST_COMPARED = 1000  # names to compare with an unknown one
_MOST_TYPED = 20  # names of a list to type
# Delimiters that are rare inside names come first.
_SEPARATOR_LINE = re.compile(r'"?sep=(.)"?\s*$')  # for Excel
DELIMITERS = {";": ";", "\t": "tab", "|": "|", ",": ",", " ": "space", BLANKS: BLANKS}


@dataclass(frozen=True)
class Header:
    """A file's columns, known before its rows are read.

    Attributes:
        names: The columns, in the file's order.
        lines: The first records of a CSV as text, including its header if there is one.
        has_index: Whether the first column is unnamed and merely numbers or names the rows.
    """

    names: list[str]
    lines: tuple[str, ...] = ()
    has_index: bool = False


@dataclass(frozen=True)
class Columns:
    """The columns to read from a file.

    Attributes:
        features: Names, in the order of the model's input.
        label: Name.
        parsed: The types of the features that a reader of text may parse as `arrow_type`.
        extra: Columns that decide about the split; a reader of text leaves them as they are.
        texts: The features that a reader of text may return as dictionaries.
        has_index: Whether a column without a name, which numbers or names the rows, is dropped.
        gaps: Whether a reader of text may parse a block with missing values.
        null_values: The strings that mean a missing value in the first file.
    """

    features: tuple[str, ...]
    label: str
    parsed: Mapping[str, type[ColumnType]] = field(default_factory=dict)
    extra: tuple[str, ...] = ()
    texts: frozenset[str] = frozenset()
    gaps: bool = True
    has_index: bool = False
    null_values: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        """Every column to read, each once."""
        return tuple(dict.fromkeys((*self.features, self.label, *self.extra)))


def choose(
    header: Header,
    label: str,
    options: DataOptions,
    file: str,
    elsewhere: Collection[str] = (),
) -> tuple[Columns | None, list[Problem]]:
    """Choose the columns of a file with this header.

    Args:
        header: The header.
        label: The label column.
        options: The typed `data_options`.
        file: The file's name.
        elsewhere: Columns of `data_options.drop` that other files have.

    Returns:
        The columns, or None if there is a problem, and the problems.
    """
    names = header.names
    if label not in names and (problem := _below_header(header, label, options, file)):
        return None, [problem]
    weights = () if options.weight is None else (options.weight,)
    split = options.split.extra
    uses: dict[str, Collection[str]] = {
        "columns": _elements(options.columns or (), names),
        "drop": _elements(options.drop, names),
        "types": options.types,
        "missing": [name for name in options.missing if name != EVERY_COLUMN],
        **{f"split.{key}": [name] for key, name in split.items()},
        "weight": weights,
    }
    problems = [] if label in names else [_no_label(header, label, options, file)]
    present = set(names)
    for key, used in uses.items():
        names_elsewhere = elsewhere if key == "drop" else ()
        unknown = (name for name in used if name not in present and name not in names_elsewhere)
        problems += [_unknown(key, name, used, names, file) for name in unknown]
    problems += _other_uses(label, options, uses)
    # A column that names the split or the group says nothing about a row that is new.
    groups = (name for key, name in split.items() if key != "time")
    left_out = {label, *weights, *uses["drop"], *groups}
    has_index = header.has_index and "" not in left_out and not uses["columns"]
    if has_index:
        left_out.add("")
    features = tuple(uses["columns"] or (name for name in names if name not in left_out))
    extra = (*split.values(), *weights)
    problems += _unusable_names(names, features, {label, *features, *extra}, file)
    if not features and not problems:
        problems.append(
            Problem(
                f"{file} has no feature column",
                received=_listed(names),
                expected=f"at least one column besides the label {label!r}",
                fix="drop fewer columns, or correct data_options.delimiter",
            )
        )
    columns = Columns(features, label, extra=extra, has_index=has_index)
    return (None if problems else columns), problems


def _unusable_names(
    names: list[str], features: tuple[str, ...], used: set[str], file: str
) -> Iterator[Problem]:
    """Yield what is wrong with the names of the columns that are read."""
    repeated = Counter(name for name in names if name in used)
    if twice := [name for name, count in repeated.items() if count > 1]:
        yield Problem(
            f"{file} has several columns with the same name",
            received=_listed(twice),
            expected="each name once",
            fix="rename them, or drop them with data_options.drop" + _headless(names),
        )
    if "" in features:
        yield Problem(
            f"column {names.index('') + 1} of {file} has no name",
            expected="a name for every feature",
            fix='name it in the header, or drop it with data_options.drop=[""]',
        )
    if long := [name for name in used if len(name) > _LONGEST_COLUMN]:
        yield Problem(
            f"{file} has columns with very long names",
            received=f"{len(long):,}, for example {min(long)[:100]!r}...",
            expected=f"at most {_LONGEST_COLUMN:,} characters",
            fix="rename them" + _headless(names),
        )


def _other_uses(
    label: str, options: DataOptions, uses: Mapping[str, Collection[str]]
) -> Iterator[Problem]:
    """Yield the options that name the label or the weight and may not."""
    allowed = {"types"} if options.format_of(label) else set()
    if label in options.missing and options.missing[label].rule not in IMPUTING:
        allowed.add("missing")
    for key, names in uses.items():
        if label in names and key not in allowed:
            yield _used("label", label, key)
        if options.weight in names and key != "weight":
            yield _used("weight", options.weight, key)


def _used(role: str, name: str | None, key: str) -> Problem:
    is_choice = key == "weight" or key.startswith("split.")
    return Problem(
        f"data_options.{key} names the {role} {name!r}",
        expected=f"a column that is not the {role}",
        fix="name a different column" if is_choice else f"remove it from data_options.{key}",
        path=f"data_options.{key}",
    )


def _elements(requested: tuple[str, ...], names: list[str]) -> tuple[str, ...]:
    """Return the names, with a list's name replaced by the names of its elements."""
    lists = {name.removesuffix("[0]") for name in names if name.endswith("[0]")}.difference(names)
    if not lists.intersection(requested):
        return requested
    elements: list[str] = []
    for name in requested:
        of_list = [item for item in names if item.rpartition("[")[0] == name and item[-1] == "]"]
        elements += of_list if name in lists else [name]
    return tuple(elements)


def too_many_columns(file: str, columns: int) -> Problem:
    """Describe a file with more columns than MOST_COLUMNS."""
    return Problem(
        f"{file} has too many columns",
        received=f"{columns:,}",
        expected=f"at most {MOST_COLUMNS:,}",
        fix="write fewer columns; in a CSV, check data_options.delimiter",
    )


def empty(name: str) -> DataError:
    """Return the error for a file without a header."""
    return DataError(
        Problem(
            f"{name} is empty",
            expected="a header with the column names, and rows",
            fix="correct data_uri, or write the file again",
        )
    )


def has_header(file: str, names: list[str]) -> Problem:
    """Describe a file with a header, whose columns `data_options.names` names."""
    return Problem(
        f"data_options.names means that {file} has no header, but its first line seems to be one",
        received=_listed(names),
        expected="a row on the first line",
        fix="remove data_options.names; if the line is a row, set data_options.header=false",
        path="data_options.names",
        suggestion="null",
    )


def without_header(file: str, fields: Sequence[str], label: str) -> Problem:
    """Describe a file whose first line is a row, with these fields."""
    names = [f"column{i}" for i in range(1, len(fields) + 1)]
    names_shown = names if len(names) <= _MOST_NAMED else [*names[:2], "...", names[-1]]
    also = f" and data_label={names[fields.index(label)]}" if label in fields else ""
    return Problem(
        f"{file} has no header: each field of its first line could be a value of its column",
        received=_listed(list(fields)),
        expected="the names of the columns on the first line",
        fix=f"name all {len(names):,} columns, for example data_options.names="
        f"{json.dumps(names_shown)}{also}; if the first line is the header, set"
        " data_options.header=true",
        name="no-header",
        path="data_options.names",
    )


def no_rows() -> Problem:
    """Describe a source that has only a header."""
    return Problem(
        "data_uri has a header but no rows",
        expected="at least a few rows for each of train, validation and test",
        name="no-rows",
        fix="correct data_uri, or write the file again",
        path="data_uri",
    )


def _no_label(header: Header, label: str, options: DataOptions, file: str) -> Problem:
    path, names = "data_label", header.names
    if not label.strip():
        return Problem(
            "data_label, the column to predict, is missing",
            received="nothing",
            expected=f"one of the columns {_listed(names)}" + _headless(names),
            fix="set data_label (--label)",
            path=path,
        )
    folded = [name for name in names if name.strip("'\" ").casefold() == label.casefold()]
    if not folded and (meant := other_delimiter(header, options, label)):
        path = "data_options.delimiter"
        fix = other_delimiter_fix(meant)
    else:
        meant = folded[0] if folded else nearest(label, _comparable(names))
        fix = did_you_mean(meant, "correct data_label")
    return Problem(
        f"{file} has no column {label!r} to use as the label",
        name="label-not-found",
        received=f"the columns {_listed(names, meant)}",
        expected=f"a column {label!r}",
        fix=fix + _headless(names),
        path=path,
        suggestion=meant,
    )


def _unknown(key: str, name: str, used: Collection[str], names: list[str], file: str) -> Problem:
    meant = suggestion = nearest(name, _comparable(names))
    if key in ("columns", "drop") and meant:  # a list is set as a whole
        better = [meant if name_used == name else name_used for name_used in used]
        suggestion = json.dumps(better, ensure_ascii=False) if len(used) <= _MOST_TYPED else ""
    return Problem(
        f"data_options.{key} names {name!r}, which {file} does not have",
        received=name,
        expected=f"one of {_listed(names, meant)}",
        fix=did_you_mean(meant, f"remove it from data_options.{key}"),
        path=f"data_options.{key}" + (f".{name}" if key in ("types", "missing") else ""),
        suggestion=suggestion,
        name="column-not-found",
    )


def other_delimiter(header: Header, options: DataOptions, label: str = "") -> str:
    """Return the word for the delimiter that the first lines of a CSV seem to use.

    Args:
        header: What the file says of its columns; without lines, it is no CSV.
        options: With the delimiter that does not fit.
        label: A name that the header must have, unless the whole line is one name.

    Returns:
        An empty string if none fits.
    """
    if not header.lines:
        return ""
    fitting = []
    for delimiter, word in DELIMITERS.items():
        first, *rows = (_split(line, delimiter) for line in header.lines)
        is_other = delimiter != options.known_delimiter and len(first) > 1
        is_even = all(len(row) == len(first) for row in rows)
        if options.names is not None:
            fits = len(first) == len(options.names)
        else:
            fits = label in first or (len(header.names) == 1 and is_even)
        if is_other and fits:
            fitting.append((not is_even, "" in first, word))
    # The rows decide, then whether a name would be empty, then the order of the delimiters.
    return min(fitting, key=lambda fit: fit[:2])[2] if fitting else ""


def _below_header(header: Header, label: str, options: DataOptions, file: str) -> Problem | None:
    """Describe a file whose header is on a later line, or in quotes as a whole."""
    first, *lines = header.lines or [""]
    marked = _SEPARATOR_LINE.match(first)
    delimiter = marked[1] if marked else options.known_delimiter
    rows = [_split(line, delimiter) for line in lines]
    problem = f"{file} does not begin with its header"
    if len(header.names) == 1 and label in _split(header.names[0], options.known_delimiter):
        problem = f"{file} has each line as a whole in quotes"
        fix, path, suggestion = "write the lines without quotes around each of them", "", ""
    elif not any(len(row) > 1 and label in row for row in rows):
        return None
    elif marked:
        suggestion, path = DELIMITERS.get(delimiter, delimiter), "data_options.delimiter"
        fix = f'delete the first line, and set {path}="{suggestion}"'
    else:
        fix, path, suggestion = "delete the lines above the header", "", ""
    return Problem(
        problem,
        name="no-header",
        received=repr(first[:_MOST_CHARACTERS].rstrip("\r\n")),
        expected=f"the names of the columns, {label!r} among them, on the first line",
        fix=fix,
        path=path,
        suggestion=suggestion,
    )


def longer_rows_fix(header: Header, options: DataOptions) -> str:
    """Return the fix if the first rows have more or fewer values than there are columns."""
    first, *rows = (_split(line, options.known_delimiter) for line in header.lines or [""])
    if rows and all(len(row) == len(first) + 1 and not row[-1] for row in rows):
        return (
            "each row ends with a delimiter: remove it, or end the header with one, too, and set"
            ' data_options.drop=[""]'
        )
    if rows and len(first) == 1 < min(map(len, rows)):
        return "delete the lines above the header, or correct data_options.delimiter"
    delimiter = other_delimiter(header, options, first[-1].rpartition(" ")[2])
    return other_delimiter_fix(delimiter) if delimiter else ""


def other_delimiter_fix(delimiter: str) -> str:
    """Return the fix for lines with another delimiter."""
    return f'the lines seem to use a different delimiter: set data_options.delimiter="{delimiter}"'


def aligned_with_blanks(header: Header, options: DataOptions, file: str) -> Problem | None:
    """Describe a file whose columns are aligned with several blanks, read with the delimiter space.

    Each blank more would be an empty value. Where it means one, the lines have different lengths
    without it.
    """
    widths = {len(_split(line, BLANKS)) for line in header.lines}
    if options.delimiter != " " or len(widths) > 1 or not header.lines:
        return None
    if not any("" in _split(line, " ") for line in header.lines):
        return None
    return Problem(
        f"{file} has several blanks between two values",
        received=repr(header.lines[0][:_MOST_CHARACTERS].rstrip("\r\n")),
        expected="one space between two values",
        fix=other_delimiter_fix(BLANKS),
        path="data_options.delimiter",
        suggestion=BLANKS,
    )


def _split(line: str, delimiter: str) -> list[str]:
    if delimiter == BLANKS:
        line, delimiter = " ".join(line.split()), " "
    return [field.strip("'\" \t\r\n") for field in fields_of(line, delimiter)]


def fields_of(line: str, delimiter: str) -> list[str]:
    """Return the values of a CSV line, unchanged."""
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:  # a value that is very long
        return line.split(delimiter)


def _headless(names: list[str]) -> str:
    """Return a hint for a file that seems to begin with data."""
    numeric = sum(is_number(name) is not None for name in names)
    return (
        "; the first line looks like a row: if the file has no header, name its columns in"
        " data_options.names"
        if numeric and numeric >= len(names) / 4
        else ""
    )


def _comparable(names: list[str]) -> list[str]:
    """Return the names that are worth comparing: the cost grows with the square of the length."""
    return [name for name in names if len(name) <= _LONGEST_COLUMN][:_MOST_COMPARED]


def _listed(names: list[str], meant: str = "") -> str:
    shortened = (repr(name[:_MOST_CHARACTERS]) for name in names)
    return choices(shortened, repr(meant[:_MOST_CHARACTERS]))
