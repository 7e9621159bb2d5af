"""Determines the kind of each column from all of its values, and what becomes of it.

The rule, in this order, over the values that are not missing:

1. Without any value, the column is omitted.
2. It is a boolean if every value is one of true/false, yes/no, t/f, y/n or on/off, of one pair and
   in any case; 0 and 1 may be among them. A column of only 0 and 1 is a number. Another spelling
   of these numbers, such as 01, is an invalid value of its row.
3. It is a number if nine in ten values are numbers, and a date if nine in ten are dates in ISO
   8601. The other values are faults of their rows.
4. Numbers such as 1.234,50 are read where a value has both separators, which proves what each
   means, and none contradicts it. So are dates such as 31.12.2024, which are day, month and year.
   If nine in ten values are numbers or dates written in another way, such as 1,5 or 12/31/2024,
   the run ends with the column's name, its readings and the option for each: a guess could
   be wrong.
5. Strings that seldom repeat are free text if most of them are sentences: three words or more, of
   letters, and most words occur in several rows. The model gets their words.
6. Other strings are a category. It is omitted if every value is different, as in an identifier, if
   there are more than 100,000 different ones, or if one in ten is longer than 1,000 characters.

The values are counted one by one, so neither the order of the files nor the size of the blocks
matters. `data_options.types` replaces the rule. Called by the scan, after its first block and again
after all values are counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from kfp_tfjob.common.errors import Example, Problem, first
from kfp_tfjob.common.formatting import listed, setting
from kfp_tfjob.features.cells import LONGEST
from kfp_tfjob.features.schema import LeftOut
from kfp_tfjob.features.types import BY_PRECEDENCE, TYPES
from kfp_tfjob.features.types.base import CODES, MOST, ColumnType, Field, Votes
from kfp_tfjob.options.data import EVERY_COLUMN, IMPUTING, RULES_BY_KIND, DataOptions, Gaps

from .column_profile import LONG_FORMS, MOST_OTHERS, MOST_TEXTS, ColumnProfile, too_many_others
from .dictionary import Dictionary
from .source.column_names import Columns

_HASHED = next(column_type.kind for column_type in TYPES.values() if column_type.is_hashed)
_MOST_NAMED = 50  # columns in a line of the log
_MOST_PROBLEMS = 20  # columns
_MOST_EXAMPLES = 4  # values, one of each form
NO_VALUE = "no value in any row"
INDEX = "it has no name and only numbers or names the rows"
ALL_DIFFERENT = "a different string in every row, like an identifier"
TOO_MANY_TEXTS = f"more than {MOST_TEXTS:,} distinct strings"
FEWEST_IDS = 20  # a category with this many rows, all different, is an identifier


@dataclass(frozen=True)
class Feature:
    """A column that the model gets.

    Attributes:
        name: The column.
        kind: The name of its type.
        gaps: The rule for missing values. None if one has its own code or, in a table of
            numbers without missing values, is invalid.
        missing: The missing values that were found.
        format: How files write its numbers or dates; empty for 1234.5 and ISO 8601.
        sign: The sign that its values have if others are invalid, such as `%`; empty for none, and
            None for any.
    """

    name: str
    kind: str
    gaps: Gaps | None
    missing: int
    format: str = ""
    sign: str | None = None

    @property
    def type(self) -> type[ColumnType]:
        """Its column type."""
        return TYPES[self.kind]

    @property
    def imputed(self) -> bool:
        """Whether a value replaces a missing value."""
        return self.gaps is not None and self.gaps.rule in IMPUTING

    @property
    def takes_missing(self) -> bool:
        """Whether values may be missing: they have their own code, or are replaced."""
        return self.imputed or (self.gaps is None and self.type.field is CODES)


@dataclass(frozen=True)
class Kinds:
    """Feature columns in file order, and dropped columns.

    Attributes:
        features: The columns that the model gets.
        left_out: The dropped columns.
        padded: The features whose first values are whole numbers with leading zeros.
    """

    features: tuple[Feature, ...]
    left_out: tuple[LeftOut, ...]
    padded: frozenset[str] = frozenset()

    def give_rows_of(self, assumed: Kinds) -> bool:
        """Return whether rows parsed with `assumed` are valid for these column types."""
        features, assumed_features = self.features, assumed.features
        return len(features) == len(assumed_features) and all(
            feature
            == replace(
                assumed_feature,
                missing=feature.missing,
                gaps=assumed_feature.gaps if feature.missing else feature.gaps,
            )
            for feature, assumed_feature in zip(features, assumed_features, strict=True)
        )

    def with_rules(self, options: DataOptions) -> Kinds:
        """Return a copy with a rule for missing values in every feature."""
        features = (
            replace(feature, gaps=options.gaps(feature.name, feature.kind))
            for feature in self.features
        )
        return replace(self, features=tuple(features))

    def without(self, dropped: Iterable[LeftOut]) -> Kinds:
        """Return a copy with these columns dropped."""
        left_out = {column.name: column for column in dropped}
        features = tuple(column for column in self.features if column.name not in left_out)
        return replace(self, features=features, left_out=(*self.left_out, *left_out.values()))

    @property
    def number_type(self) -> type[np.floating]:
        """The type of numbers in rows: float32 if all features are numbers without a format."""
        is_plain = all(item.type.is_direct and not item.format for item in self.features)
        return np.float32 if is_plain else np.float64

    def in_field(self, field: Field) -> list[Feature]:
        """Return the features with a value in a field of a row, in order."""
        return [item for item in self.features if item.type.field is field]

    @property
    def with_dictionaries(self) -> tuple[str, ...]:
        """The names of the features whose strings have codes in order of their first row."""
        return tuple(item.name for item in self.features if item.type.has_dictionary)


NO_KINDS = Kinds((), ())


def all_hashed(names: Iterable[str]) -> Kinds:
    """Return kinds that take any values: these columns are hashed strings."""
    return Kinds(tuple(Feature(name, _HASHED, None, 0) for name in names), ())


def _decide(
    profile: ColumnProfile, options: DataOptions, dictionary: Dictionary | None, is_whole: bool
) -> Feature | LeftOut | Problem:
    """Return the decision for a column, given its dictionary if there is one."""
    name, odd, votes = profile.name, "", profile.votes
    if dictionary:
        odd = _odd(dictionary)
        votes = votes._replace(distinct=None if dictionary.is_lost else len(dictionary.codes))
    if not profile.count and not profile.undecodable:
        return LeftOut(name, NO_VALUE)
    kind = options.kind_of(name) or _kind(profile, votes, options, is_whole)
    if isinstance(kind, Problem):
        return kind
    gaps = options.gaps(name, kind)
    if problem := _gaps_problem(name, kind, gaps):
        return problem
    if TYPES[kind].has_dictionary and (reason := odd or _unusable(profile)):
        if not is_wanted(name, options):
            return LeftOut(name, reason)
        if reason == TOO_MANY_TEXTS:
            return too_many(name)
    format = options.format_of(name) or TYPES[kind].format_in(profile.votes)
    sign, mixture = (
        TYPES[kind].sign_of_most(profile.votes) if options.format_of(name) else (None, "")
    )
    if mixture:
        return _unclear(profile, TYPES[kind], mixture, options)
    return Feature(name, kind, gaps, profile.gaps, format, sign)


def _kind(
    profile: ColumnProfile, votes: Votes, options: DataOptions, is_whole: bool
) -> str | Problem:
    """Return the type that fits a column; a problem if it may be of one that would be a guess."""
    *usual, fallback = (column_type for column_type in BY_PRECEDENCE if column_type.fits(votes))
    fitting = usual[0] if usual else fallback
    if fitting is fallback:
        for column_type in BY_PRECEDENCE:
            if reason := column_type.unclear(votes):
                if not is_whole and column_type.may_be_proven(list(profile.samples)):
                    break
                return _unclear(profile, column_type, reason, options)
    return fitting.kind


def _unusable(profile: ColumnProfile) -> str:
    """Return why a category is omitted; empty if it is used."""
    if sum(profile.counts[form] for form in LONG_FORMS) > (1 - MOST) * profile.count:
        return f"strings of more than {LONGEST:,} characters"
    if profile.texts is not None and profile.texts.is_lost:
        return TOO_MANY_TEXTS
    return ALL_DIFFERENT if profile.count >= FEWEST_IDS and profile.all_different else ""


def _unclear(
    profile: ColumnProfile, column_type: type[ColumnType], reason: str, options: DataOptions
) -> Problem:
    """Describe a column whose values are of a type, but in a form that it does not prove."""
    forms, name, texts = column_type.odd_forms, profile.name, list(profile.samples)
    file, line, value = next(profile.examples[form] for form in forms if form in profile.examples)
    readings = column_type.readings_of(texts, profile.votes)
    oddity, replacement = column_type.oddity_of(texts)
    received = f"{value!r}, and {profile.votes.of(*forms):,} of {profile.count:,} values like it"
    if mixture := column_type.sign_of_most(profile.votes)[1]:
        readings, oddity, replacement = [], mixture, "write all of them in the same way"
        examples = (
            profile.examples[form][2] for form in reversed(forms) if form in profile.examples
        )
        received = listed(map(repr, examples), _MOST_EXAMPLES)
    if len(readings) > 1:
        oddity = f"{oddity or reason}, which may be read in several ways"
    settings = [options.types_with({name: reading.format}) for reading in readings]
    fixes = [
        f"data_options.types={setting} for {reading.example}"
        for setting, reading in zip(settings, readings, strict=True)
    ]
    fix = f"name the format: {' or '.join(fixes)}" if fixes else f"write {column_type.expected}"
    return Problem(
        f"column {name!r} has {oddity or reason} ({file}, line {line})",
        received=received,
        expected=column_type.expected,
        fix=(f"{replacement}; or {fix}" if replacement and fixes else replacement or fix)
        + f"; or drop the column with {setting('data_options.drop', [name])}; for codes rather than"
        f" amounts or dates: data_options.types={options.types_with({name: 'category'})}",
        path="data_options.types",
        suggestion=settings[0] if len(settings) == 1 else "",
    )


def _at_once(problems: Sequence[Problem], options: DataOptions) -> Iterator[Problem]:
    """Yield the option that names the formats of several columns, which replaces `types`."""
    settings = [problem.suggestion for problem in problems if problem.path == "data_options.types"]
    formats = [json.loads(setting) for setting in settings if setting]
    if len(formats) > 1:
        named = {name: format for types in formats for name, format in types.items()}
        types = options.types_with(named)
        yield Example("one option names all these formats", fix=f"data_options.types={types}")


def _gaps_problem(name: str, kind: str, gaps: Gaps | None) -> Problem | None:
    """Describe a rule for missing values that does not suit its column's type."""
    if gaps is None:
        return None
    wrong = gaps.rule not in RULES_BY_KIND[kind]
    if not wrong and (
        gaps.rule != "constant" or TYPES[kind].constant(gaps.value or "") is not None
    ):
        return None
    return Problem(
        f"data_options.missing has a {'rule' if wrong else 'value'} for {name!r} that is wrong for"
        f" a {kind}",
        received=gaps.rule if wrong else repr(gaps.value),
        expected=f"one of {', '.join(RULES_BY_KIND[kind])}" if wrong else f"a {kind}",
        fix="correct data_options.missing, or the type with data_options.types"
        + ("; a missing category or text value has its own code" * (TYPES[kind].field is CODES)),
        path=f"data_options.missing.{name}",
    )


def too_many(name: str) -> Problem:
    """Describe a column that was asked for as a category and has too many different strings."""
    return Problem(
        f"the category {name!r} has too many different values",
        received=TOO_MANY_TEXTS,
        expected=f"at most {MOST_TEXTS:,}",
        fix=f"hash them into bins with {setting('data_options.types', {name: _HASHED})}, or drop"
        " this or other text columns with data_options.drop",
        path="data_options.types",
    )


def is_wanted(name: str, options: DataOptions) -> bool:
    """Return whether the options name a column, which is then a feature in any case."""
    return name in options.types or name in (options.columns or ())


def columns_of(kinds: Kinds, label: str, extra: tuple[str, ...] = ()) -> Columns:
    """Return the columns to read if their kinds are known or assumed, and `extra` ones.

    The reader parses what it can; a column of another kind comes as text, so that the kinds may be
    wrong.
    """
    features = kinds.features
    parsed = {
        feature.name: feature.type
        for feature in features
        if feature.type.arrow_type and not feature.format
    }
    texts = frozenset(
        feature.name for feature in features if feature.type.repeats and feature.name not in parsed
    )
    names = tuple(feature.name for feature in features)
    may_lack = any(feature.missing or not feature.type.is_direct for feature in features)
    return Columns(names, label, parsed, extra, texts, may_lack)


def described(kinds: Kinds) -> Iterator[str]:
    """Yield lines for the log: the columns of each kind, and those that are omitted."""
    for kind in TYPES:
        if names := [feature.name for feature in kinds.features if feature.kind == kind]:
            about = f" ({TYPES[kind].about})" * bool(TYPES[kind].about)
            yield f"{kind}{about}: {listed(names, _MOST_NAMED)}"
    for format in dict.fromkeys(feature.format for feature in kinds.features if feature.format):
        names = [feature.name for feature in kinds.features if feature.format == format]
        yield f"read in the format {format}: {listed(names, _MOST_NAMED)}"
    for column in kinds.left_out:
        yield f"dropped: {column.name!r}, {column.reason}"


def odd_dictionaries(dictionaries: Mapping[str, Dictionary]) -> dict[str, str]:
    """Return why categories are omitted unless the options name them, by their dictionaries."""
    reasons = {name: _odd(dictionary) for name, dictionary in dictionaries.items()}
    return {name: reason for name, reason in reasons.items() if reason}


def _odd(dictionary: Dictionary) -> str:
    """Return why a category is omitted, by its dictionary; empty if it is used."""
    if dictionary.is_lost:
        return TOO_MANY_TEXTS
    is_id = dictionary.all_different and dictionary.rows >= FEWEST_IDS
    return ALL_DIFFERENT if is_id else ""


def decide(
    profiles: Iterable[ColumnProfile],
    options: DataOptions,
    dictionaries: Mapping[str, Dictionary] = MappingProxyType({}),
    is_whole: bool = True,
) -> tuple[Kinds, list[Problem]]:
    """Return the types of all columns, and the problems of columns without a usable type.

    Args:
        profiles: The columns' values, counted.
        options: The typed `data_options`.
        dictionaries: Of the categories.
        is_whole: Whether the profiles cover all values. If not, later values may prove a format.
    """
    outcomes = [
        _decide(column, options, dictionaries.get(column.name), is_whole) for column in profiles
    ]
    features = tuple(outcome for outcome in outcomes if isinstance(outcome, Feature))
    indirect = sum(not feature.type.is_direct for feature in features)
    if indirect > MOST_OTHERS:
        return NO_KINDS, [too_many_others(indirect)]
    if all(_is_complete(feature, options) for feature in features):
        # The model of such a table takes float32, and no missing value.
        features = tuple(replace(feature, gaps=None) for feature in features)
    left_out = tuple(outcome for outcome in outcomes if isinstance(outcome, LeftOut))
    problems = [outcome for outcome in outcomes if isinstance(outcome, Problem)]
    shown_problems = first(problems, _MOST_PROBLEMS, "columns are like these")
    return Kinds(features, left_out), [*shown_problems, *_at_once(problems, options)]


def _is_complete(feature: Feature, options: DataOptions) -> bool:
    """Return whether a feature has plain numbers, without a missing value that a value stands for.

    A rule in data_options.missing that fills missing values makes a model that accepts them.
    """
    has_rule = feature.name in options.missing or EVERY_COLUMN in options.missing
    is_filled = feature.imputed and (feature.missing or has_rule)
    return feature.type.is_direct and not (feature.format or is_filled)
