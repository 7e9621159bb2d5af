"""Rows that do not parse: where each stands, and what to tell the user about all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from storage.errors import Problem

MOST_EXAMPLES = 10
_MOST_COLUMNS = 20
_VALUE_LENGTH = 200
# From this share on it is the column that is wrong and not its rows.
_COLUMN_SHARE = 0.5
# What the rules mean, in the order in which they are counted in messages.
RULES = {
    "text": "not a number",
    "missing": "no value",
    "not finite": "not a finite float32 number",
    "columns": "another number of values than the header has names",
    "quotes": "a quote that is not closed, or text after the closing quote",
    "encoding": "not UTF-8",
}
_WITHOUT_VALUES = ("columns", "quotes")
_NUMBERS = {rule: i for i, rule in enumerate(RULES, 1)}
_DROP = "drop these rows with data_options.on_bad_row=drop"


@dataclass(frozen=True, order=True)
class Fault:
    """The first fault of one row.

    Attributes:
        file: Name of the file.
        line: Line of the file in which the row begins, from 1 and with the header; of Parquet the
            row, from 1.
        column: Name of the column; empty where the row as a whole is at fault.
        value: What stands there, at most 200 characters.
        rule: A key of RULES.
    """

    file: str
    line: int
    column: str
    value: str
    rule: str

    def problem(self) -> Problem:
        """Describe it."""
        column = f", column {self.column!r}" if self.column else ""
        return Problem(
            f"{self.file}, line {self.line}{column}: {RULES[self.rule]}", received=repr(self.value)
        )


class BlockFaults:
    """The faults of the rows of one block, found column by column.

    Args:
        file: Name of the file.
        lines: int64 of shape [rows], the line in which each row begins.
    """

    def __init__(self, file: str, lines: np.ndarray) -> None:
        self.file, self.lines = file, lines
        self._rule = np.zeros(len(lines), np.uint8)
        self.cells: Counter[tuple[str, str]] = Counter()
        self.rows: Counter[str] = Counter()
        self.examples: list[Fault] = []

    @property
    def seen(self) -> int:
        """The rows of the block, good or bad."""
        return len(self.lines) + sum(self.rows[rule] for rule in _WITHOUT_VALUES)

    @property
    def good(self) -> np.ndarray:
        """Bool of shape [rows]: the rows without a fault."""
        return self._rule == 0

    def mark(self, mask: np.ndarray, rule: str, column: str, text_at: Callable[[int], str]) -> None:
        """Mark rows as bad.

        Args:
            mask: Bool of shape [rows].
            rule: A key of RULES.
            column: The column that is at fault.
            text_at: Returns what stands in that column of a row.
        """
        if not mask.any():
            return
        self.cells[column, rule] += int(mask.sum())
        fresh = np.flatnonzero(mask & self.good)
        self._rule[fresh] = _NUMBERS[rule]
        self.rows[rule] += len(fresh)
        for i in fresh[:MOST_EXAMPLES].tolist():
            self._example(int(self.lines[i]), column, text_at(i), rule)

    def lost(self, line: int, rule: str, text: str) -> None:
        """Count a row that has no values at all."""
        self.rows[rule] += 1
        self._example(line, "", text, rule)

    def _example(self, line: int, column: str, value: str, rule: str) -> None:
        self.examples.append(Fault(self.file, line, column, value[:_VALUE_LENGTH], rule))


class Faults:
    """The faults of the whole source, in bounded memory.

    Attributes:
        seen: Rows read, good or bad.
        rows: Bad rows by rule; a row counts once, by its first fault.
        cells: Bad values by column and rule.
        examples: The first ten bad rows.
    """

    def __init__(self) -> None:
        self.seen = 0
        self.rows: Counter[str] = Counter()
        self.cells: Counter[tuple[str, str]] = Counter()
        self.examples: list[Fault] = []
        self._values: dict[str, str] = {}

    @property
    def bad(self) -> int:
        """The number of bad rows."""
        return self.rows.total()

    def add(self, block: BlockFaults) -> None:
        """Add the faults of the next block."""
        self.seen += block.seen
        self.include(block.rows, block.cells, block.examples)

    def include(
        self, rows: Counter[str], cells: Counter[tuple[str, str]], examples: list[Fault]
    ) -> None:
        """Add faults of rows that were counted as seen before."""
        self.rows.update(rows)
        self.cells.update(cells)
        for fault in examples:
            self._values.setdefault(fault.column, fault.value)
        self.examples = sorted([*self.examples, *examples])[:MOST_EXAMPLES]

    def counts(self) -> dict[str, int]:
        """Return the bad rows by rule, in the order of RULES."""
        return {rule: self.rows[rule] for rule in RULES if self.rows[rule]}

    def column_problems(self) -> dict[str, Problem]:
        """Describe the columns of which most values are bad, by the name of the column."""
        problems = {}
        for column in dict.fromkeys(column for column, _ in self.cells):
            rules = [rule for rule in RULES if self.cells[column, rule]]
            bad = sum(self.cells[column, rule] for rule in rules)
            if bad <= _COLUMN_SHARE * self.seen:
                continue
            share = "every row" if bad >= self.seen else f"{bad:,} of {self.seen:,} rows"
            kind = {"text": "is text in", "missing": "has no value in"}.get(
                rules[0], f"is {RULES[rules[0]]} in"
            )
            problems[column] = Problem(
                f"column {column!r} {kind} {share}",
                received=repr(self._values[column]) if column in self._values else None,
                expected="a number in every row",
                fix=f'leave it out with data_options.drop=["{column}"], or write it as numbers',
            )
        return problems

    def problems(self) -> list[Problem]:
        """Describe columns that are wrong as a whole, the counts, and the first ten rows."""
        columns = self.column_problems()
        rest = [fault for fault in self.examples if fault.column not in columns]
        shown = list(columns.values())[:_MOST_COLUMNS]
        if len(columns) > len(shown):
            shown.append(Problem(f"{len(columns) - len(shown)} more columns are like these"))
        if rest or not columns:
            counts = ", ".join(f"{rule} {count:,}" for rule, count in self.counts().items())
            shown.append(
                Problem(
                    f"{self.bad:,} of {self.seen:,} rows are bad ({counts})",
                    fix=f"correct them, or {_DROP}, or leave a column out with data_options.drop",
                )
            )
        return [*shown, *(fault.problem() for fault in rest)]
