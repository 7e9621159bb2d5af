"""Checks the header against label and options before the data is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from kfp_tfjob.features.types.base import ColumnType
from kfp_tfjob.features.types.number import is_number
from kfp_tfjob.options.data import EVERY_COLUMN, IMPUTING, DataOptions
from kfp_tfjob.storage.errors import DataError, Problem
from kfp_tfjob.storage.formatting import choices, did_you_mean, nearest

MOST_COLUMNS = 100_000  # of a file; a million do not fit in memory
_LONGEST_COLUMN = 1000  # characters of a name
_MOST_CHARACTERS = 200  # of each name
_MOST_COMPARED = 1000  # names to compare with an unknown one
# Delimiters that are rare inside names come first.
_DELIMITERS = {";": ";", "\t": "tab", "|": "|", ",": ",", " ": "space"}


@dataclass(frozen=True)
class Columns:
    """The columns to read from a file.

    Attributes:
        features: Names, in the order of the model's input.
        label: Name.
        parsed: The types of the features that a reader of text may parse as `arrow_type`.
        extra: Columns that decide about the split; a reader of text leaves them as they are.
        texts: The features that a reader of text may return as dictionaries.
        gaps: Whether a reader of text may parse a block with missing values.
    """

    features: tuple[str, ...]
    label: str
    parsed: Mapping[str, type[ColumnType]] = field(default_factory=dict)
    extra: tuple[str, ...] = ()
    texts: frozenset[str] = frozenset()
    gaps: bool = True

    @property
    def all(self) -> tuple[str, ...]:
        """Every column to read, each once."""
        return tuple(dict.fromkeys((*self.features, self.label, *self.extra)))


def choose(
    names: list[str], label: str, options: DataOptions, file: str
) -> tuple[Columns | None, list[Problem]]:
    """Choose the columns of a file with these names in its header.

    Returns:
        The columns, or None if there is a problem, and the problems.
    """
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
    problems = [] if label in names else [_no_label(names, label, options, file)]
    there = set(names)
    for key, used in uses.items():
        problems += [_unknown(key, name, names, file) for name in used if name not in there]
    problems += _other_uses(label, options, uses)
    # A column that names the split or the group says nothing about a row that is new.
    groups = (name for key, name in split.items() if key != "time")
    left_out = {label, *weights, *uses["drop"], *groups}
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
    return (None if problems else Columns(features, label, extra=extra)), problems


def _unusable_names(
    names: list[str], features: tuple[str, ...], taken: set[str], file: str
) -> Iterator[Problem]:
    """Yield what is wrong with the names of the columns that are read."""
    repeated = Counter(name for name in names if name in taken)
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
    if long := [name for name in taken if len(name) > _LONGEST_COLUMN]:
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


def _used(what: str, name: str | None, key: str) -> Problem:
    is_choice = key == "weight" or key.startswith("split.")
    return Problem(
        f"data_options.{key} names the {what} {name!r}",
        expected=f"a column that is not the {what}",
        fix="name a different column" if is_choice else f"remove it from data_options.{key}",
        path=f"data_options.{key}",
    )


def _elements(wanted: tuple[str, ...], names: list[str]) -> tuple[str, ...]:
    """Return the names with the name of a list replaced by those of its elements."""
    lists = {name.removesuffix("[0]") for name in names if name.endswith("[0]")}.difference(names)
    if not lists.intersection(wanted):
        return wanted
    found: list[str] = []
    for name in wanted:
        of_list = [item for item in names if item.rpartition("[")[0] == name and item[-1] == "]"]
        found += of_list if name in lists else [name]
    return tuple(found)


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


def no_rows() -> Problem:
    """Describe a source that has only a header."""
    return Problem(
        "data_uri has a header but no rows",
        expected="at least a few rows for each of train, validation and test",
        fix="correct data_uri, or write the file again",
        path="data_uri",
    )


def _no_label(names: list[str], label: str, options: DataOptions, file: str) -> Problem:
    path = "data_label"
    if not label.strip():
        return Problem(
            "data_label, the column to predict, is missing",
            received="nothing",
            expected=f"one of the columns {_listed(names)}" + _headless(names),
            fix="set data_label (--label)",
            path=path,
        )
    folded = [name for name in names if name.strip("'\" ").casefold() == label.casefold()]
    if not folded and (meant := _other_delimiter(names, label, options.delimiter)):
        path = "data_options.delimiter"
        fix = f'the header seems to use a different delimiter: set {path}="{meant}"'
    else:
        meant = folded[0] if folded else nearest(label, _comparable(names))
        fix = did_you_mean(meant, "correct data_label")
    return Problem(
        f"{file} has no column {label!r} to use as the label",
        received=f"the columns {_listed(names, meant)}",
        expected=f"a column {label!r}",
        fix=fix + _headless(names),
        path=path,
        suggestion=meant,
    )


def _unknown(key: str, name: str, names: list[str], file: str) -> Problem:
    meant = nearest(name, _comparable(names))
    return Problem(
        f"data_options.{key} names {name!r}, which {file} does not have",
        received=name,
        expected=f"one of {_listed(names, meant)}",
        fix=did_you_mean(meant, f"remove it from data_options.{key}"),
        path=f"data_options.{key}",
        suggestion=meant,
    )


def _other_delimiter(names: list[str], label: str, delimiter: str) -> str:
    """Return the delimiter that the header seems to use, or an empty string."""
    line = delimiter.join(names)
    for other, shown in _DELIMITERS.items():
        found = [name.strip("'\" ") for name in line.split(other)]
        if other != delimiter and (label in found or len(names) == 1 < len(found)):
            return shown
    return ""


def _headless(names: list[str]) -> str:
    """Return a hint for a file that seems to begin with data."""
    numeric = sum(is_number(name) is not None for name in names)
    return (
        "; the first line looks like data: if the file has no header, add one"
        if numeric and numeric >= len(names) / 4
        else ""
    )


def _comparable(names: list[str]) -> list[str]:
    """Return the names that are worth comparing: the cost grows with the square of the length."""
    return [name for name in names if len(name) <= _LONGEST_COLUMN][:_MOST_COMPARED]


def _listed(names: list[str], meant: str = "") -> str:
    shown = (repr(name[:_MOST_CHARACTERS]) for name in names)
    return choices(shown, repr(meant[:_MOST_CHARACTERS]))
