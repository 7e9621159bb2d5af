"""Collects the labels, and determines the task and the class of each label.

Called by the tasks that read parts of the source, and by the scan that merges their results.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.common.formatting import counted, listed
from kfp_tfjob.features.cells import LONGEST
from kfp_tfjob.features.types.base import ColumnMoments, Votes
from kfp_tfjob.features.types.boolean import PAIRS, TRUE_TEXTS
from kfp_tfjob.features.types.date import Date
from kfp_tfjob.features.types.lookalikes import (
    FEW,
    MISSING,
    NULLS,
    described,
    in_quotes,
    spellings,
)
from kfp_tfjob.features.types.number import (
    NUMBER_FORM,
    Number,
    are_formatted,
    is_number,
    is_whole,
    parse_number,
    rounded,
)
from kfp_tfjob.options.data import DataOptions

from .column_profile import votes_of
from .columns_to_rows import Rows
from .faults import MOST_EXAMPLES, Fault

MOST_CLASSES = 10_000
_ROWS_OF_A_CLASS = 10  # on average, where whole numbers are classes
# A label column with this share of numbers is a number column with faults.
_NUMERIC_SHARE = 0.9
_DEFAULTS = DataOptions()
_MOST_LISTED = 10  # classes
_FEW_CLASSES = 10  # may be numbers with a unit or a sign, such as 250 ml and 500 ml
_MOST_TRIED = 200  # labels that a format has to fit
_FLAGS = ("0", "1", "0.0", "1.0")  # may be among the words of a boolean
_WHOLE = re.compile(r"^(-?\d+)\.0+\Z")  # pandas writes 1.0 in a column with missing values
_PADDED = re.compile("[+-]?0[0-9]+").fullmatch
_OVERFLOW = -1


@dataclass(frozen=True)
class Label:
    """The label column with its task and classes.

    Attributes:
        classes: The names of the classes in the order of their indices; None for a number.
        class_of: int32, the class of each code of the distinct labels; empty for a number.
        padded: The labels of each class that has some with leading zeros and some without.
        suspicions: Why classes that the labels suggest may be something else.
    """

    name: str
    task: str
    classes: tuple[str, ...] | None
    class_of: np.ndarray
    padded: tuple[tuple[str, ...], ...] = ()
    suspicions: tuple[str, ...] = ()

    def problem(self, splits: Sequence[ColumnMoments]) -> Problem | None:
        """Describe a numeric label whose differences float32 does not keep.

        Args:
            splits: The moments of a numeric label, by split; none of classes.
        """
        if self.classes is not None:
            return None
        train = splits[0]
        ends = {end for moments in splits if moments.count for end in (moments.min, moments.max)}
        if len(ends) > 1 and not rounded(train):
            return None
        return Problem(
            f"the numbers of the label {self.name!r} differ too little for float32",
            received=f"values from {train.min:,} to {train.max:,}",
            expected="differences that show in 7 significant digits",
            fix="subtract a constant from the label, or predict the difference from another column",
            path="data_label",
        )


def number_fix(name: str, classes: Sequence[str], options: DataOptions) -> str:
    """Return the fix for classes that are really the numbers of a regression."""
    some = classes[:_MOST_TRIED]
    task = 'set data_options.task to "regression"'
    if not are_formatted(classes) or not (formats := Number.named_formats(name, some, options)):
        return task
    named = f"name the format of the numbers: {formats}"
    return named if options.task == "auto" else f"{task}, and {named}"


def _no_counts() -> np.ndarray:
    return np.zeros((3, 0), np.int64)


@dataclass
class Labels:
    """The distinct labels of the whole source, in bounded memory.

    Attributes:
        codes: The code of each label, in the order of the codes.
        overflowed: Whether there are too many labels for classes.
        text_rows: int64 of shape [3], rows of each split whose label is not a number.
        number_rows: The same of labels that are numbers.
        text_faults: The first ten rows whose label is not a number.
        counts: int64 of shape [3, codes], rows by split and code; without codes if there are too
            many for classes.
        forms: The rows by the form of their label, if `data_options.types` names its format.
        lost: Labels of omitted rows; some of them may not be labels.
    """

    name: str
    codes: dict[str, int] = field(default_factory=dict)
    overflowed: bool = False
    text_rows: np.ndarray = field(default_factory=lambda: np.zeros(3, np.int64))
    number_rows: np.ndarray = field(default_factory=lambda: np.zeros(3, np.int64))
    text_faults: list[Fault] = field(default_factory=list)
    counts: np.ndarray = field(default_factory=_no_counts)
    forms: Counter[str] = field(default_factory=Counter)
    lost: set[str] = field(default_factory=set)

    def add(self, rows: Rows, split: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Add the labels of a block, given the split of each row.

        Returns:
            For each row, the code of its label as int32, -1 if there are too many for classes;
            and its number as float64, NaN if it is not a number.
        """
        self.forms.update(rows.forms)
        self._lose(rows.lost)
        codes = np.array([self._code(text) for text in rows.labels], np.int32)
        parsed = [parse_number(text) for text in rows.labels]
        numbers = np.array([np.nan if x is None else x for x in parsed], np.float64)
        if not len(rows.codes):
            return np.empty(0, np.int32), np.empty(0, np.float64)
        codes, numbers = codes[rows.codes], numbers[rows.codes]
        is_text = np.isnan(numbers)
        self.text_rows += np.bincount(split[is_text], minlength=3)
        self.number_rows += np.bincount(split[~is_text], minlength=3)
        for i in np.flatnonzero(is_text)[: MOST_EXAMPLES - len(self.text_faults)].tolist():
            text = rows.labels[rows.codes[i]]
            fault = Fault(rows.faults.file, int(rows.lines[i]), self.name, text[:200], "text")
            self.text_faults.append(fault)
        if self.overflowed:
            self.counts = _no_counts()
        else:
            size = len(self.codes)
            counts = np.bincount(split.astype(np.int64) * size + codes, minlength=3 * size)
            self._count(counts.reshape(3, size), np.arange(size))
        return codes, numbers

    def shift(self, lines: int) -> None:
        """Add a number of lines to the lines of the faults."""
        self.text_faults = [fault.shifted(lines) for fault in self.text_faults]

    def merge(self, part: Labels) -> None:
        """Add the labels of the next part of the source."""
        codes = np.array([self._code(text) for text in part.codes], np.int32)
        self.overflowed |= part.overflowed
        self.forms.update(part.forms)
        self._lose(part.lost)
        self.text_rows += part.text_rows
        self.number_rows += part.number_rows
        self.text_faults = [*self.text_faults, *part.text_faults][:MOST_EXAMPLES]
        if self.overflowed:
            self.counts = _no_counts()
        elif len(codes):
            self._count(part.counts, codes)

    def _lose(self, labels: Iterable[str]) -> None:
        """Keep labels of omitted rows, as long as these may be the classes."""
        if len(self.lost) <= MOST_CLASSES:
            self.lost |= set(labels)

    def _count(self, counts: np.ndarray, codes: np.ndarray) -> None:
        """Add rows by split and code, of shape [3, codes]."""
        total = np.zeros((3, len(self.codes)), np.int64)
        total[:, : self.counts.shape[1]] = self.counts
        total[:, codes] += counts
        self.counts = total

    def _code(self, text: str) -> int:
        code = self.codes.get(text)
        if code is None and len(self.codes) < MOST_CLASSES:
            code = self.codes[text] = len(self.codes)
        if code is None:
            self.overflowed = True
            return _OVERFLOW
        return code

    def decide(self, task: str, options: DataOptions = _DEFAULTS) -> Label:
        """Determine the task, as in data_options, and the classes of the label.

        With `auto`, text labels are classes, unless nine in ten labels are numbers: then the texts
        are faults. Whole numbers are classes if there are at most 20 different ones, with ten rows
        each on average (two are always classes). Other numbers mean a regression. So they would if
        they are in a format that is a guess, such as 3,5, which ends the run.

        Raises:
            DataError: There are fewer than two different labels, too many for classes, or they are
                numbers in another format, or dates.
        """
        texts = list(self.codes)
        if len(set(self._keys(texts))) == 1:
            raise DataError(
                Problem(
                    f"the label {self.name!r} is the same in every row",
                    received=repr(texts[0]),
                    expected="at least two classes, or numbers that differ",
                    fix="choose a different data_label, or data with more than one outcome",
                )
            )
        votes = Votes(self.forms, self.forms.total(), only_bits=False)
        sign, mixture = Number.sign_of_most(votes)
        if mixture or sign is not None:
            raise DataError(
                Problem(
                    f"the label {self.name!r} has {mixture or 'numbers with several signs'}",
                    expected="the same sign, such as %, beside every number, or none",
                    fix="write all labels with the same sign",
                )
            )
        inferred = task == "auto"
        if inferred and (problem := self._unclear(options)):
            raise DataError(problem)
        if (self._inferred() if inferred else task) == "regression":
            return Label(self.name, "regression", None, np.empty(0, np.int32))
        if self.overflowed:
            raise DataError(
                Problem(
                    f"the label {self.name!r} has too many distinct values to be classes",
                    received=f"more than {MOST_CLASSES:,}, for example {texts[0]!r}",
                    expected=f"at most {MOST_CLASSES:,} classes, or numbers in every row",
                    fix="choose a different data_label, or, if it is a number,"
                    f" {number_fix(self.name, texts, options)}",
                )
            )
        keys = dict(zip(texts, self._keys(texts), strict=True))
        names: dict[Any, str] = {}
        # A class's name is its shortest spelling, whether or not a missing label made floats.
        for text in sorted(texts, key=lambda text: (len(text), text)):
            names.setdefault(keys[text], _WHOLE.sub(r"\1", text))
        in_order = sorted(names, key=lambda key: names[key] if isinstance(key, str) else key)
        index = {key: i for i, key in enumerate(in_order)}
        class_of = np.array([index[keys[text]] for text in texts], np.int32)
        classes = tuple(names[key] for key in index)
        suspicions = [*self._without_rows(options)]
        suspicions += self._suspicions(classes, options) if inferred else ()
        padded = _padded(texts, class_of)
        return Label(self.name, "classification", classes, class_of, padded, tuple(suspicions))

    def class_counts(self, label: Label) -> np.ndarray:
        """Return int64 of shape [3, classes], rows by split and class."""
        counts = np.zeros((3, len(label.classes or ())), np.int64)
        for split in range(3):
            np.add.at(counts[split], label.class_of, self.counts[split])
        return counts

    def _keys(self, texts: list[str]) -> list[Decimal] | list[str]:
        """Return keys that are equal for spellings of one class: 1 and 1.0, or True and true."""
        if None not in map(parse_number, texts):
            return list(map(_exact, texts))  # exact, so long ids stay different classes
        words = [text.lower() for text in texts]
        if any({*pair, *_FLAGS}.issuperset(words) for pair in PAIRS):
            return [str(word in TRUE_TEXTS) for word in words]
        return [_WHOLE.sub(r"\1", text) for text in texts]  # 01 and 1 may be codes

    def _unclear(self, options: DataOptions) -> Problem | None:
        """Describe labels that are numbers in another format, dates or missing, and not names."""
        rows = self._rows
        if missing := [text for text in MISSING if text in rows]:
            return self._not_classes(
                f"has the class {missing[0]!r}, as pandas writes a missing value in astype(str)",
                f"{counted(rows[missing[0]], 'row')} of {sum(rows.values()):,}",
                "a class or a number in every row",
                "leave these labels empty, and drop their rows with data_options.on_bad_row=drop",
            )
        votes = votes_of(rows)
        texts = pa.array(rows, pa.string())
        formatted = NUMBER_FORM, *Number.odd_forms
        if not rows or Number.is_usual(votes):
            return None
        if votes.are_most(*formatted):
            numbers = [
                text
                for text, is_number_like in zip(rows, Number.like(texts), strict=True)
                if is_number_like
            ]
            are_whole = all(map(is_whole, numbers))
            enough = _are_enough(numbers, votes.of(*formatted))
            if len(numbers) <= FEW and are_whole and enough:
                return None
            odd = [text for text in numbers if not is_number(text)]
            alike = f"{votes.of(*Number.odd_forms):,} of {votes.total:,} labels like it"
            formats = Number.named_formats(self.name, odd[:_MOST_TRIED], options, votes)
            return self._not_classes(
                f"has {Number.oddity_of(odd)[0] or Number.unclear(votes)}",
                f"{odd[0]!r}, and {alike}",
                f"{Number.expected}, or classes",
                f"name the format: {formats}" if formats else f"write {Number.expected}",
            )
        if votes.are_most(*Date.forms) and int((dates := Date.like(texts)).sum()) > FEW:
            return self._not_classes(
                "is a date",
                f"{list(rows)[int(dates.argmax())]!r}, and {int(dates.sum()):,} distinct dates",
                "classes, or numbers",
                "choose a different data_label, or write a number, such as that of the days since a"
                " date",
            )
        return None

    def _not_classes(self, description: str, received: str, expected: str, fix: str) -> Problem:
        return Problem(
            f"the label {self.name!r} {description}",
            received=received,
            expected=expected,
            fix=f'{fix}; if these are classes, set data_options.task to "classification"',
            path="data_options.task",
            suggestion="classification",
        )

    def _without_rows(self, options: DataOptions) -> Iterator[str]:
        """Yield a suspicion if classes have lost all their rows."""
        remaining = {_WHOLE.sub(r"\1", text).lower() for text in self.codes}
        none = {"", *options.null_values}
        lost = [
            text
            for text in sorted(self.lost - none)
            if _WHOLE.sub(r"\1", text).lower() not in remaining and len(text) <= LONGEST
        ]
        if lost and not options.format_of(self.name):
            yield (
                f"these classes of {self.name!r} have no row left, because each of their rows is"
                f" invalid or dropped: {listed(lost, _MOST_LISTED)}"
            )

    def _suspicions(self, names: Collection[str], options: DataOptions) -> Iterator[str]:
        """Yield what classes with these names may be, which the labels suggest."""
        rows, classes = self._rows, f"the classes of {self.name!r}"
        words, plain_strings = described(rows, _FEW_CLASSES)
        if rows and are_formatted(list(rows)):
            odd = [text for text in rows if not is_number(text)]
            yield (
                f"{classes} are numbers in a format such as {odd[0]!r}; to predict the number,"
                f" {number_fix(self.name, odd, options)}"
            )
        elif words:
            fix = "to predict the number, write plain numbers"
            if plain_strings:
                fix = "to predict the number, leave these labels empty and set"
                fix += " data_options.on_bad_row=drop"
            elif in_quotes(rows):
                fix = "write them without quotes"
            yield f"{classes} are {words}; {fix}"
        if nulls := [text for text in NULLS if text in rows]:
            yield (
                f"{classes} include {', '.join(map(repr, nulls))}, which may be a missing value: if"
                " it is, leave these labels empty and set data_options.on_bad_row=drop"
            )
        if same := spellings(names):
            yield (
                f"{classes} may be the same in several spellings: {same}; write each in the same"
                " way"
            )

    @property
    def _rows(self) -> dict[str, int]:
        """The rows of each distinct label; none if there are too many labels."""
        if self.overflowed:
            return {}
        return dict(zip(self.codes, self.counts.sum(0).tolist(), strict=True))

    def _inferred(self) -> str:
        text, numeric = int(self.text_rows.sum()), int(self.number_rows.sum())
        parsed = map(parse_number, self.codes)
        numbers = {number for number in parsed if number is not None}
        few = len(numbers) <= FEW and not self.overflowed
        if text:
            faulty = numeric >= _NUMERIC_SHARE * (text + numeric) and not few
            return "regression" if faulty else "classification"
        are_whole = all(number.is_integer() for number in numbers)
        enough = _are_enough(numbers, numeric)
        return "classification" if few and are_whole and enough else "regression"


def _padded(texts: Sequence[str], class_of: np.ndarray) -> tuple[tuple[str, ...], ...]:
    """Return the labels of each class that are the same number with other leading zeros."""
    spellings_of: dict[int, set[str]] = {}
    for text, number in zip(texts, class_of.tolist(), strict=True):
        spellings_of.setdefault(number, set()).add(_WHOLE.sub(r"\1", text))
    several = (sorted(same, key=lambda text: (len(text), text)) for same in spellings_of.values())
    return tuple(tuple(same) for same in several if len(same) > 1 and any(map(_PADDED, same)))


def _are_enough(numbers: Sized, rows: int) -> bool:
    """Return whether distinct numbers are classes by the rows that they have."""
    return len(numbers) <= max(2, rows / _ROWS_OF_A_CLASS)


def _exact(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent of 19 digits: 0, because infinite values are bad rows
        return Decimal(parse_number(text) or 0)
