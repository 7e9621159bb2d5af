"""Collects the rows that do not parse, and describes them for the user.

Called by every reader and parser of prepare_data; the report shows the result.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from kfp_tfjob.common.errors import Example, Problem, first
from kfp_tfjob.common.formatting import listed, setting
from kfp_tfjob.features.types import TYPES
from kfp_tfjob.features.types.date import Date
from kfp_tfjob.features.types.number import Number
from kfp_tfjob.options.data import NULL_VALUES, DataOptions
from kfp_tfjob.options.table_formats import FORMATS

from .source.foreign_files import CONVERT

MOST_EXAMPLES = 10
_MOST_COLUMNS = 20
_VALUE_LENGTH = 200
# Above this share of bad values, the column is wrong, not its rows.
_COLUMN_SHARE = 0.5
# The meaning of each rule, in the order of the counts in messages.
RULES = {
    "text": "not a number",
    "missing": "no value",
    "not finite": "not a finite float32 number",
    "columns": "more or fewer values than there are columns",
    "header": "the names of the columns again, as where files were joined",
    "mark": "a byte order mark before the first value, as where files were joined",
    "order": "the names of the columns in another order, so the rows below are in another order",
    "quotes": "a quote that is not closed, or text after the closing quote",
    "blank": "a blank before a quote, so that the quotes would be part of the value",
    "encoding": "not UTF-8",
    "nul": "a NUL character",
    "json": "not a JSON object with each key once",
    "keys": "a key that is in none of the first rows",
    "nested": "a list or an object where other rows have one value",
    "list": "not a list of numbers with the length of those in the first rows",
    "split": "not the name of a split: train, validation or test",
    "weight": "a weight below 0",
    "long": "a string of more than 1,000 characters",
    "large": "a text of more than 1 MiB",
    "boolean": "not true or false",
    "date": "not a date such as 2024-12-31 or 2024-12-31T23:59:59+01:00, of the years 1 to 9999",
    # Of files that have to be images.
    "empty": "an empty file",
    "picture": "neither a JPEG nor a PNG",
    "truncated": "truncated",
    "broken": "damaged",
    "coding": "a JPEG that is neither baseline nor progressive with 8 bits",
    "pixels": "more pixels than data_options.images.max_megapixels allows",
    "bytes": "a file that is too large for a record",
    "channels": "four inks (CMYK), which cannot become one channel",
    "format": "not in the format that data_options.types names",
    # Of rows that list images: _OF_LISTS.
    "outside": "a path that does not lead below the table's folder",
    "absent": "the path of a file that does not exist",
    "repeated": "the path of an earlier row",
}
# The types whose `parse` marks an invalid value by their name.
_BY_KIND = {
    column_type.kind: column_type
    for column_type in TYPES.values()
    if column_type.parsed_forms and column_type.kind not in RULES
}
RULES |= {
    kind: f"not {column_type.nouns[0]} such as {column_type.example}"
    for kind, column_type in _BY_KIND.items()
}
_OF_LISTS = ("outside", "absent", "repeated")
_NUMBERS = {rule: i for i, rule in enumerate(RULES, 1)}
_LEFT_OUT = 255
ENCODING = (
    "set data_options.encoding to that of the text files, for example cp1252 for Western European"
    " files from Windows"
)
# Rules that a value breaks as a column of any type: what is expected, and how to write it.
_OF_ANY_TYPE = {
    "encoding": ("strings in UTF-8", "write strings in UTF-8"),
    "nul": ("strings without NUL characters", "remove the NUL characters"),
    "nested": ("one value in every row", "write one value in every row"),
}
_NO_BLANK = (
    "remove the blanks before the quotes, for example with pandas:"
    " read_csv(OLD, skipinitialspace=True).to_csv(NEW, index=False)"
)
_GAP = "add the string to data_options.null_values if it means a missing value"
_WRITTEN = {"text": "1234.5", "date": "2024-12-31"}
_MAY_BE_GAPS = ("text", "boolean", "date", *_BY_KIND)


def _endings_without(*formats: str) -> tuple[str, ...]:
    return tuple(
        ending for format in FORMATS if format.name not in formats for ending in format.suffixes
    )


_WITH_TYPES, _BINARY = _endings_without("csv"), _endings_without("csv", "jsonl")
_DEFAULTS = DataOptions()
# Of the columns that options name.
_EXPECTED_OF = {
    "split.column": "train, validation or test in every row",
    "split.time": "a number, or a date with a day such as 2024-12-31, in every row",
    "weight": "a plain number of 0 or more in every row",
}


@dataclass(frozen=True, order=True)
class Fault:
    """The first fault of one row.

    Attributes:
        line: Line of the file where the row begins, from 1 and with the header; for Parquet, the
            number of the row, from 1; 0 if the file is the row.
        column: Name of the column; empty if the row as a whole is at fault.
        value: The value, at most 200 characters.
        rule: A key of RULES.
    """

    file: str
    line: int
    column: str
    value: str
    rule: str

    def shifted(self, lines: int) -> Fault:
        """Return the same fault, a number of lines further down."""
        return replace(self, line=self.line + lines)

    def example(self) -> Example:
        """Describe the fault and where it is."""
        line = f", line {self.line}" if self.line else ""
        column = f", column {self.column!r}" if self.column else ""
        received = repr(self.value) if self.line else self.value  # that says what a file is
        return Example(f"{self.file}{line}{column}: {RULES[self.rule]}", received)


@dataclass
class Faults:
    """The faults of the whole source, in bounded memory.

    Attributes:
        seen: Rows read, good or bad.
        rows: Bad rows by rule; a row counts once, by its first fault.
        cells: Bad values by column and rule.
        left_out: Rows with a missing value that data_options.missing omits, by column.
        examples: Up to ten bad rows, with as many columns and rules among them as possible.
        values: A bad value of each column.
        unlabelled: Rows whose first fault is a missing label.
        label: The column that cannot be dropped; empty if it is not known, or for images.
        options: The typed `data_options`, for what messages recommend.
    """

    seen: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    cells: Counter[tuple[str, str]] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    examples: list[Fault] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)
    unlabelled: int = 0
    label: str = ""
    options: DataOptions = _DEFAULTS

    @property
    def bad(self) -> int:
        """The number of bad rows."""
        return self.rows.total()

    def shift(self, lines: int) -> None:
        """Add a number of lines to the lines of the faults."""
        self.examples = [fault.shifted(lines) for fault in self.examples]

    def merge(self, faults: Faults) -> None:
        """Add the faults of the next block, or of the next part of the source."""
        self.seen += faults.seen
        self.unlabelled += faults.unlabelled
        self.left_out.update(faults.left_out)
        self.values = faults.values | self.values
        self.rows.update(faults.rows)
        self.cells.update(faults.cells)
        self.examples = _of_each([*self.examples, *faults.examples])

    def counts(self) -> dict[str, int]:
        """Return the bad rows by rule, in the order of RULES."""
        return {rule: self.rows[rule] for rule in RULES if self.rows[rule]}

    def quote_problem(self) -> Problem | None:
        """Describe the first line with misplaced quotes."""
        faults = sorted(fault for fault in self.examples if fault.rule in ("quotes", "blank"))
        if not faults:
            return None
        is_blank = faults[0].rule == "blank"
        return Problem(
            f"{faults[0].file}, line {faults[0].line}: {RULES[faults[0].rule]}",
            received=repr(faults[0].value),
            expected="a delimiter or the line's start before a quote"
            if is_blank
            else "a closing quote, followed by a delimiter or the end of the line",
            fix=_NO_BLANK if is_blank else "correct the line; inside quotes, double each quote",
        )

    def column_problems(self) -> dict[str, Problem]:
        """Describe the columns in which most values are bad, by name."""
        problems = {}
        for column, count in self._by_column().items():
            if count <= _COLUMN_SHARE * self.seen:
                continue
            rules = [rule for rule in RULES if self.cells[column, rule]]
            share = "every row" if count >= self.seen else f"{count:,} of {self.seen:,} rows"
            fix = self._column_fix(column, rules)
            if "encoding" in rules and not self._are_binary:
                fix = f"{ENCODING}, or {fix}"
            problems[column] = Problem(
                f"column {column!r} is invalid in {share}: {RULES[rules[0]]}",
                received=repr(self.values[column]) if column in self.values else None,
                expected=_EXPECTED_OF.get(self._option_of(column)) or _expected(rules),
                fix=fix,
            )
        return problems

    def _column_fix(self, column: str, rules: list[str]) -> str:
        """Return the fix for a column in which most values are invalid.

        Most fixes offer two ways: not to use the column, or to make its values valid.

        Args:
            column: Its name.
            rules: The keys of RULES that its values break, in that order.
        """
        if rules == ["long"]:
            return "choose a different data_label, or shorten its values"
        if "format" in rules:
            return self._other_format(column, self.values.get(column, ""))
        example, is_label = self.values.get(column, ""), column == self.label
        if option := self._option_of(column):
            return self._other_column(option, column, example, rules)
        drop = f"drop it with {setting('data_options.drop', [column])}"
        replace_column = "choose a different data_label" if is_label else drop
        if rules == ["missing"] and self._are_some_good:
            alternative = f"drop the rows without one with {self._dropping()}"
        elif rules == ["missing"]:
            alternative = "write its values"
        elif rules[0] in ("text", "date") and any(map(str.isdigit, example)):
            column_type = Number if rules[0] == "text" else Date
            alternative = f"write {_expected(rules)}, such as {_WRITTEN[rules[0]]}"
            if replacement := column_type.oddity_of([example])[1]:
                alternative += f"; {replacement}"
            if formats := column_type.named_formats(column, [example], self.options):
                alternative += f", or name the format: {formats}"
        elif rules == ["list"]:
            alternative = f"write {_expected(rules)}"
        elif rules[0] in _OF_ANY_TYPE:
            alternative = _OF_ANY_TYPE[rules[0]][1]
            if rules[0] == "encoding" and self._are_binary and not is_label:
                alternative += f", or {images_as_files(column)}"
        elif is_label:
            alternative = "correct data_options.task"
        else:
            alternative = f"set its type with {setting('data_options.types', {column: 'category'})}"
        return f"{replace_column}, or {alternative}"

    def _option_of(self, column: str) -> str:
        """Return the option that names a column which is no feature; empty for none."""
        uses = {f"split.{key}": name for key, name in self.options.split.extra.items()}
        uses["weight"] = self.options.weight or ""
        return next((key for key, name in uses.items() if name == column), "")

    def _other_column(self, option: str, column: str, value: str, rules: list[str]) -> str:
        """Return the fix for a column that an option names but that does not suit the option."""
        fix = f"name a different column in data_options.{option}"
        if rules == ["missing"] and self._are_some_good:
            return f"{fix}, or drop the rows without a value with {self._dropping()}"
        formats = Date.named_formats(column, [value], self.options)
        if option == "split.time" and formats:
            fix += f", or name the format: {formats}"
        return f"write {_EXPECTED_OF.get(option) or _expected(rules)}, or {fix}"

    def _other_format(self, column: str, value: str) -> str:
        """Return the fix for a value that is not in the format of data_options.types."""
        for column_type in TYPES.values():
            formats = column_type.named_formats(column, [value], self.options)
            _, replacement = column_type.oddity_of([value])
            if formats or replacement:
                return "; or ".join(filter(None, [formats, replacement]))
        return "correct data_options.types"

    def shape_problem(self, fix: str = "") -> Problem | None:
        """Describe a header that does not match the rows; `fix` is what its first lines show."""
        if self.rows["columns"] <= _COLUMN_SHARE * self.seen:
            return None
        example = next(fault for fault in self.examples if fault.rule == "columns")
        return Problem(
            f"{self.rows['columns']:,} of {self.seen:,} rows do not have one value for"
            f" each column of {example.file}",
            received=f"line {example.line}: {example.value!r}",
            expected="as many values as there are columns",
            fix=fix
            or "correct the header, name the columns in data_options.names if there is none, or"
            " correct data_options.delimiter",
        )

    def order_problem(self) -> Problem | None:
        """Describe files that were joined although their columns are in different orders."""
        fault = next((fault for fault in self.examples if fault.rule == "order"), None)
        if fault is None:
            return None
        return Problem(
            f"{fault.file}, line {fault.line}: a second header, with its columns in another order",
            received=repr(fault.value),
            expected="one order of the columns in each file",
            fix="split the file before this line, or use the files that were joined: data_uri may"
            " be a folder, in which each file has its own header",
            path="data_uri",
        )

    def problems(self, shape_fix: str = "") -> list[Problem]:
        """Describe the faults of whole columns or files, the counts, and ten bad rows."""
        if shape := self.shape_problem(shape_fix):
            # A quote that was opened by mistake may have swallowed the names of the header.
            return [problem for problem in (self.quote_problem(), shape) if problem]
        columns = self.column_problems()
        faults = [fault for fault in self.examples if fault.column not in columns]
        problems = first_columns(columns)
        if self.unlabelled and self.label not in columns:
            unlabelled = [
                fault for fault in faults if (fault.column, fault.rule) == (self.label, "missing")
            ]
            faults = [fault for fault in faults if fault not in unlabelled]
            problems += [self._without_label(), *(fault.example() for fault in unlabelled)]
        if faults or not problems:
            problems.append(self._invalid_rows())
        return [*problems, *(fault.example() for fault in faults)]

    @property
    def _are_some_good(self) -> bool:
        """Whether rows would remain if the bad ones were dropped."""
        return self.bad < self.seen

    @property
    def _are_dropped(self) -> bool:
        """Whether the options drop the bad rows."""
        few = self.bad <= self.options.max_bad_fraction * self.seen
        return self.options.on_bad_row == "drop" and few and self._are_some_good

    @property
    def _are_binary(self) -> bool:
        """Whether no file is text, so that data_options.encoding has no effect."""
        return self._all_end_with(_BINARY)

    def _all_end_with(self, endings: tuple[str, ...]) -> bool:
        return all(fault.file.lower().endswith(endings) for fault in self.examples)

    def _without_label(self) -> Problem:
        fix, options = "add the labels", {}
        if not self._are_dropped:
            fix += f", or drop these rows with {self._dropping()}"
            options = self._dropping_options()
        # Where it takes two options, one of them alone leads to the next error.
        path, suggestion = next(iter(options.items())) if len(options) == 1 else ("", "")
        return Problem(
            f"{self.unlabelled:,} of {self.seen:,} rows have no label"
            f"{' and are dropped' * self._are_dropped}: no value in {self.label!r}",
            expected="a label in every row of the training data",
            fix=f"{fix}; a model can predict their labels later",
            name="rows-without-label",
            path=path,
            suggestion=suggestion,
        )

    def _invalid_rows(self) -> Problem:
        """Describe the invalid rows, except rows without a label and rows of an invalid column."""
        rules = self.counts()
        if self.unlabelled:
            rules["missing"] -= self.unlabelled
        counts = "; ".join(f"{RULES[rule]}: {count:,}" for rule, count in rules.items() if count)
        columns = self._by_column()
        if self.unlabelled:
            columns[self.label] -= self.cells[self.label, "missing"]
        fixes = [_NO_BLANK if self.rows["blank"] else "correct them"]
        if self.rows["encoding"] and not self._are_binary:
            fixes.append(ENCODING)
        if self.rows["keys"]:
            fixes.append("list the features in data_options.columns to ignore all other keys")
        if any(self.rows[rule] for rule in _MAY_BE_GAPS):
            fixes.append(self._null_values())
        if self._are_some_good and not self._are_dropped:
            fixes.append(f"drop these rows with {self._dropping()}")
        if any(columns[name] for name in columns if name != self.label):
            fixes.append("drop a column with data_options.drop")
        columns_named = [f"{name!r} {count:,}" for name, count in columns.most_common(10) if count]
        return Problem(
            f"{self.bad - self.unlabelled:,} of {self.seen:,} rows are invalid"
            f"{' and dropped' * self._are_dropped} ({counts})",
            received=f"invalid values by column: {', '.join(columns_named)}"
            if columns_named
            else None,
            fix=f"{', '.join(fixes[:-1])}, or {fixes[-1]}" if len(fixes) > 1 else fixes[0],
            name="invalid-rows",
        )

    def _null_values(self) -> str:
        """Return the option by which strings mean a missing value; with those that often occur."""
        values = Counter(fault.value for fault in self.examples if fault.rule in _MAY_BE_GAPS)
        frequent = [value for value, count in values.items() if count > 1]
        if not frequent:
            return _GAP
        null_values = self.options.null_values
        # The usual strings do not mean a missing value in a file with types.
        if self._all_end_with(_WITH_TYPES) or {*frequent} & {*null_values}:
            null_values = null_values if {*null_values} != {*NULL_VALUES} else ("",)
        option = setting("data_options.null_values", [*null_values, *frequent])
        meaning = f"{listed(map(repr, frequent), 5)} {'means' if len(frequent) == 1 else 'mean'}"
        return f"set {option} if {meaning} a missing value"

    def _dropping(self) -> str:
        """Return the options that drop the rows as text."""
        return " and ".join(f"{name}={value}" for name, value in self._dropping_options().items())

    def _dropping_options(self) -> dict[str, str]:
        """Return the options that drop the rows, with the share that these are of all."""
        share = math.ceil(100 * self.bad / max(self.seen, 1)) / 100
        options = {"data_options.on_bad_row": "drop"}
        if share > self.options.max_bad_fraction:
            options["data_options.max_bad_fraction"] = f"{share:g}"
        return options

    def image_problems(self, images: int = 0) -> list[Problem]:
        """Describe files that cannot be used as images: the counts, and ten of them.

        Args:
            images: How many images the source has, if these are only a sample.
        """
        counts = "; ".join(f"{RULES[rule]}: {count:,}" for rule, count in self.counts().items())
        is_sample = images > self.seen
        dropping = self._dropping()
        if is_sample:
            dropping = (
                "data_options.on_bad_row=drop and data_options.max_bad_fraction above their share"
            )
        summary = Problem(
            f"{self.bad:,} of {self.seen:,} images{f' in a sample of {images:,}' * is_sample} are"
            " invalid"
            f"{' and dropped' * self._are_dropped} ({counts})",
            expected="complete JPEG or PNG files with nothing after the image"
            + ", each listed once by its path relative to the table, such as images/1.jpg"
            * any(self.rows[rule] for rule in _OF_LISTS),
            fix="correct or remove them"
            + f", or drop them with {dropping}" * (self._are_some_good and not self._are_dropped)
            + f"; {CONVERT}" * bool(self.rows["picture"]),
        )
        return [summary, *(fault.example() for fault in self.examples)]

    def _by_column(self) -> Counter[str]:
        """Return the bad values of each column."""
        counts: Counter[str] = Counter()
        for (column, _), count in self.cells.items():
            counts[column] += count
        return counts


class BlockFaults(Faults):
    """The faults of the rows of one block, found column by column, given the line of each row.

    Attributes:
        dropping: The columns whose missing values leave a row out without a fault.
    """

    def __init__(self, file: str, lines: np.ndarray) -> None:
        super().__init__(len(lines))
        self.file, self.lines = file, lines
        self.dropping: frozenset[str] = frozenset()
        self._rule = np.zeros(len(lines), np.uint8)

    @property
    def good(self) -> np.ndarray:
        """Bool of shape [rows]: the rows without a fault that are not left out."""
        return self._rule == 0

    def mark(self, mask: np.ndarray, rule: str, column: str, text_at: Callable[[int], str]) -> None:
        """Mark rows as bad by a key of RULES; `text_at` returns the value in a row."""
        if not mask.any():
            return
        if rule == "missing" and column in self.dropping:
            fresh = mask & self.good
            self._rule[fresh] = _LEFT_OUT
            self.left_out[column] += int(fresh.sum())
            return
        self.cells[column, rule] += int(mask.sum())
        self.values.setdefault(column, text_at(int(mask.argmax()))[:_VALUE_LENGTH])
        fresh = np.flatnonzero(mask & self.good)
        self._rule[fresh] = _NUMBERS[rule]
        self.rows[rule] += len(fresh)
        for i in fresh[:MOST_EXAMPLES].tolist():
            self._example(int(self.lines[i]), column, text_at(i), rule)

    def lost(self, line: int, rule: str, text: str) -> None:
        """Count a row that could not be split into values."""
        self.seen += 1
        self.rows[rule] += 1
        if self.rows[rule] <= MOST_EXAMPLES:
            self._example(line, "", text, rule)

    def _example(self, line: int, column: str, value: str, rule: str) -> None:
        self.examples.append(Fault(self.file, line, column, value[:_VALUE_LENGTH], rule))


class ListRow(NamedTuple):
    """The row of a table that names an image.

    Attributes:
        table: The table's name.
        line: As in `Fault`.
        column: The column of paths.
        split_value: The value in the column of `data_options.split`; empty without one.
    """

    table: str
    line: int
    column: str
    split_value: str = ""


class FileFaults(BlockFaults):
    """The faults of files that are rows, given the name of each, and the row that names it."""

    def __init__(self, files: Sequence[tuple[str, ListRow | None]]) -> None:
        super().__init__("", np.zeros(len(files), np.int64))
        self._files = files

    def mark_file(self, index: int, rule: str, value: str) -> None:
        """Mark a file as bad by a key of RULES; `value` says what it is instead, or is empty."""
        self.rows[rule] += 1
        self._rule[index] = _NUMBERS[rule]
        if self.rows[rule] > MOST_EXAMPLES:
            return
        name, row = self._files[index]
        if row:
            shown = f"{name}: {value}" if value else name
            fault = Fault(row.table, row.line, row.column, shown[:_VALUE_LENGTH], rule)
        else:
            fault = Fault(name, 0, "", value, rule)
        self.examples.append(fault)


def images_as_files(column: str) -> str:
    """Return the fix for a column that contains images instead of their paths."""
    types = setting("data_options.types", {column: "image"})
    return f"if they are images, store each as a file, write its path instead, and set {types}"


def _expected(rules: list[str]) -> str:
    if rules[0] in _OF_ANY_TYPE:
        return _OF_ANY_TYPE[rules[0]][0]
    if "list" in rules:
        return "a list of equally many numbers in every row"
    if "boolean" in rules or "date" in rules:
        return "a date in every row" if "date" in rules else "true or false in every row"
    if rules == ["missing"]:
        return "a value in every row"
    if "format" in rules:
        return "this format in every row"
    if rules[-1] in _BY_KIND:
        return f"{_BY_KIND[rules[-1]].nouns[0]} in every row"
    is_long = rules in (["long"], ["large"])
    return "shorter strings" if is_long else "a number in every row"


def first_columns(problems: Mapping[str, Problem]) -> list[Problem]:
    """Return the problems of the first columns, and the number of further ones."""
    return first(list(problems.values()), _MOST_COLUMNS, "columns are like these")


def _of_each(faults: list[Fault]) -> list[Fault]:
    """Return ten faults, sorted: the first of each column and rule, then the second, and so on."""
    ranks: Counter[tuple[str, str]] = Counter()
    ranked = []
    for fault in sorted(faults):
        ranked.append((ranks[fault.column, fault.rule], fault))
        ranks[fault.column, fault.rule] += 1
    return sorted(fault for _, fault in sorted(ranked)[:MOST_EXAMPLES])
