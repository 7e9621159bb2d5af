"""The typed form of the parameter `data_options`.

Parsed by preflight and prepare_data, and read throughout prepare_data.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    Discriminator,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from kfp_tfjob.storage.layout import CODEC_VERSION

from . import image_options
from .data_contract import Contract
from .image_options import ImageOptions
from .parse import Group, Text, Texts, option
from .table_formats import FORMAT_NAMES
from .value_format import ValueFormat

_DIGEST_LENGTH = 32  # hexadecimal digits: 128 bits name a dataset
_SALT_BYTES = 64  # the longest key of blake2b
# Spreadsheets and pandas write these for a missing value.
NULL_VALUES = ("", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL")


AUTO = "auto"
BLANKS = "blanks"  # the delimiter of aligned columns
DELIMITER_WORDS = {"tab": "\t", "\\t": "\t", "space": " "}


IMPUTING = ("median", "mean", "most_frequent", "constant")
_RULES = ("fail", "drop", *IMPUTING)


@dataclass(frozen=True)
class ColumnType:
    """A column type.

    Attributes:
        name: In `types`, and in stored files.
        module: Its file in kfp_tfjob/features/types.
        class_name: Its class there.
        rules: The rules that `missing` may give it; empty for a type that `types` cannot name.
        default: The rule if `missing` does not name one; empty if a missing value has its own code.
    """

    name: str
    module: str
    class_name: str
    rules: tuple[str, ...]
    default: str = ""


# In the order of reports.
COLUMN_TYPES = (
    ColumnType("number", "number", "Number", _RULES, "median"),
    ColumnType("boolean", "boolean", "Boolean", ("fail", "drop", *IMPUTING[2:]), "most_frequent"),
    ColumnType("category", "category", "Category", ("fail", "drop")),
    ColumnType("date", "date", "Date", _RULES, "median"),
    ColumnType("text", "string", "String", ("fail", "drop")),
    ColumnType("words", "words", "Words", ("fail", "drop")),
    ColumnType(image_options.PICTURE, "image", "Image", ()),
)
RULES_BY_KIND = {column.name: column.rules for column in COLUMN_TYPES if column.rules}
KINDS = tuple(RULES_BY_KIND)
EVERY_COLUMN = "*"  # in data_options.missing
_DEFAULT_RULES = {column.name: column.default for column in COLUMN_TYPES}


class Split(Group):
    """How rows are divided."""

    train: float = option(0.7, "Share of the rows to train on.", gt=0, lt=1)
    validation: float = option(
        0.15, "Share of the rows that decide when training stops.", gt=0, lt=1
    )
    test: float = option(0.15, "Share of the rows on which models are compared.", gt=0, lt=1)
    salt: Text = option(
        "0",
        "Changing this string changes the split. While it stays the same, new rows never move an"
        " existing row to another split.",
    )

    column: Text | None = option(
        None, "A column that names each row's split: `train`, `validation` or `test`."
    )
    group: Text | None = option(
        None, "A column, such as a patient ID, whose equal values stay in one split."
    )
    time: Text | None = option(
        None,
        "A column of dates or numbers: the newest rows are the test split, those before them"
        " validation. Rows with the same time stay together.",
    )
    folders: bool = option(
        True,
        "Whether folders named `train`, `validation` and `test` in `data_uri` are the splits.",
    )

    @field_validator("salt")
    @classmethod
    def _key(cls, salt: str) -> str:
        if not 1 <= len(salt.encode()) <= _SALT_BYTES:
            raise ValueError(f"a string of 1 to {_SALT_BYTES} bytes")
        return salt

    @model_validator(mode="after")
    def _sum(self) -> Split:
        total = self.train + self.validation + self.test
        if abs(total - 1) > 1e-9:  # 0.7 + 0.2 + 0.1 is not exactly 1
            raise ValueError(
                "train, validation and test that sum to 1, not to"
                f" {self.train:g} + {self.validation:g} + {self.test:g} = {total:g}"
            )
        return self

    @model_validator(mode="after")
    def _one_rule(self) -> Split:
        if len(self.extra) > 1:
            raise ValueError(f"one of {', '.join(self.extra)}")
        return self

    @property
    def extra(self) -> dict[str, str]:
        """The column that decides about the split, by its key: `column`, `group` or `time`."""
        columns = {"column": self.column, "group": self.group, "time": self.time}
        return {key: name for key, name in columns.items() if name is not None}

    @property
    def fractions(self) -> dict[str, float]:
        """The shares by the split's name, in the order in which they divide the hashes."""
        return {"train": self.train, "validation": self.validation, "test": self.test}


class Gaps(Group):
    """The rule, the value for the rule `constant`, and whether to mark missing values."""

    rule: Literal[_RULES] = option(  # pyright: ignore[reportInvalidTypeForm]
        ...,
        "`fail`: the row is invalid, see `on_bad_row`; `drop`: the row is dropped; otherwise, the"
        " statistic of train or the constant `value` replaces a missing value.",
    )
    value: Text | None = option(
        None,
        "For the rule `constant`: a number, `true` or `false`, or a date such as 2024-12-31.",
    )
    indicator: bool = option(
        False, "Whether the model also gets a number that is 1 for a missing value, otherwise 0."
    )

    @model_validator(mode="before")
    @classmethod
    def _rule(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if value not in _RULES:
            raise ValueError(f"one of {', '.join(_RULES)}, or a dict with rule, value, indicator")
        return {"rule": value}

    @field_validator("value", mode="before")
    @classmethod
    def _word(cls, value: Any) -> Any:
        return str(value).lower() if isinstance(value, bool) else value

    @model_validator(mode="after")
    def _constant(self) -> Gaps:
        if (self.rule == "constant") != (self.value is not None):
            raise ValueError(
                'a value with the rule "constant", and with no other rule, for example'
                ' {"rule": "constant", "value": 0}'
            )
        if self.indicator and self.rule not in IMPUTING:
            raise ValueError(f"an indicator only with the rules {', '.join(IMPUTING)}")
        return self


_Kind = Literal[(*KINDS, image_options.PATHS)]  # pyright: ignore[reportInvalidTypeForm]
_Type = Annotated[
    Annotated[_Kind, Tag("type")] | Annotated[ValueFormat, Tag("format")],
    Discriminator(lambda value: "type" if isinstance(value, str) else "format"),
]


class WordsOptions(Group):
    """The part of a column of the type `words` that the model gets."""

    vocabulary: int = option(
        20_000,
        "Number of words that get a code of their own: those that occur in the most training rows."
        " All other words share the code for an unknown word.",
        ge=2,
        le=2**22,
    )
    length: int | None = option(
        None,
        "Number of words that the model gets from the beginning of a value. Default: enough for all"
        " words of 95% of the training rows, up to 256.",
        ge=1,
        le=4096,
    )


class DataOptions(Group):
    """The keys of `data_options`."""

    former_keys: ClassVar[Mapping[str, str]] = {image_options.FORMER_NAME: "images"}

    task: Literal["auto", "classification", "regression"] = option(
        "auto", "Whether to predict classes or numbers; `auto` decides by the label's values."
    )
    columns: Texts | None = option(
        None,
        "The feature columns, in the model's order. Default: all except the label and the dropped"
        " ones, in the file's order.",
    )
    drop: Texts = option((), "Columns to drop.")
    split: Split = option(Split(), "How rows are divided into train, validation and test.")
    on_bad_row: Literal["fail", "drop"] = option(
        "fail", "Whether an invalid row ends the run or is dropped."
    )
    max_bad_fraction: float = option(0.1, "Largest share of rows that may be dropped.", ge=0, le=1)
    delimiter: str = option(
        AUTO,
        "The character between two values in a CSV, or the word `tab` or `space`; `blanks` means"
        " any number of spaces and tabs, as in aligned columns. `auto` means a comma, unless the"
        " first line contains none and another delimiter gives each of the first rows the same"
        " number of values.",
    )
    sheet: Text | None = option(
        None, "The sheet of Excel files that is the table, by its name. Default: the first one."
    )
    names: Texts | None = option(
        None,
        "The names of all columns of CSV files without a header, in their order: the first line is"
        " a row.",
    )
    header: bool | None = option(
        None,
        "`true` if the first line of a CSV is its header although it looks like a row; by default,"
        " such a file is rejected.",
    )
    format: Literal["auto", *FORMAT_NAMES, image_options.FORMAT] = option(  # pyright: ignore[reportInvalidTypeForm]
        "auto",
        "Format of the files. `auto` decides by each file's first bytes; a folder with images and"
        " no table is `images`.",
    )
    null_values: Texts = option(
        NULL_VALUES,
        "Strings that mean a missing value. The default applies to CSV only; a list of your own"
        " applies to every format, and its numbers to columns of numbers, too.",
    )

    weight: Text | None = option(
        None,
        "A column of numbers of 0 or more: a row of weight 2 counts like two equal rows. It is"
        " not a feature.",
    )
    reader: Text | None = option(
        None,
        "Your own function that reads the files, in any form that `model_code` allows. It takes a"
        " stream of a file's bytes, and the file's name, and yields pyarrow record batches.",
    )
    encoding: str = option(
        "auto",
        "Encoding of text files, for example `cp1252`; `auto` reads UTF-8, and UTF-16 with a"
        " byte order mark.",
    )
    types: dict[Text, _Type] = option(  # pyright: ignore[reportInvalidTypeForm]
        {},
        f"Column types by column name, to override the inferred ones: `{'`, `'.join(KINDS)}`."
        " A `text` is hashed as a whole into one bin; for free text, whose single words matter, use"
        f" `words`. `{image_options.PATHS}` is a column with the paths of images relative to the"
        " table; it must be the only feature. A dict is the format of the"
        ' values in the files: `{"number": {"decimal": ",", "thousands": "."}}`, which also ignores'
        ' a currency or percent sign, or `{"date": "%d.%m.%Y"}`, with the directives of Python\'s'
        " `strptime` or a list of such strings. The label and the columns of `split.time` and"
        " `split.group` may also have a format.",
    )
    missing: dict[Text, Gaps] = option(
        {},
        "What to do with missing values, by column name, or `*` for all others: `fail`, `drop`,"
        " `median`, `mean`, `most_frequent`, or a dict."
        " Default: `median` for numbers and dates, `most_frequent` for booleans; in categories and"
        " texts, a missing value has its own code.",
    )
    min_count: int = option(
        2,
        "Number of training rows in which a category or a word must occur to get its own code;"
        " rarer ones count as unknown.",
        ge=1,
    )
    hash_bins: int = option(
        1024,
        "Number of bins into which the values of a `text` column are hashed.",
        ge=2,
        le=2**22,
    )
    words: WordsOptions = option(
        WordsOptions(), "The part of a column of the type `words` that the model gets."
    )
    contract: Contract = option(Contract(), "How far the data may differ from the champion's data.")
    dask: str = option(
        "",
        "The scheduler of a Dask cluster that does prepare_data's work, for example"
        " `tls://scheduler:8786`; empty to use the step's pod.",
    )

    images: ImageOptions = option(
        ImageOptions(), "How images are checked and converted for the model."
    )

    @field_validator("format", mode="before")
    @classmethod
    def _format(cls, name: Any) -> Any:
        return image_options.FORMAT if name == image_options.FORMER_NAME else name

    @field_validator("columns", "drop", "names")
    @classmethod
    def _each_once(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if names is not None and len(set(names)) < len(names):
            raise ValueError("each name only once")
        return names

    @field_validator("columns")
    @classmethod
    def _some(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if names is not None and not names:
            raise ValueError("at least one column; omit the key to use all columns")
        return names

    @field_validator("names")
    @classmethod
    def _complete(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if names is not None and not (
            names and all(name and name == name.strip() for name in names)
        ):
            raise ValueError("a name for each column, not empty and without blanks around it")
        return names

    @field_validator("header")
    @classmethod
    def _no_other_names(cls, header: bool | None, info: ValidationInfo) -> bool | None:
        if "names" not in info.data:  # they are invalid, which another problem reports
            return header
        if header and info.data["names"] is not None:
            raise ValueError("no `true` beside data_options.names, by which there is no header")
        if header is False and info.data["names"] is None:
            raise ValueError("true; without a header, list the columns in data_options.names")
        return header

    @field_validator("delimiter")
    @classmethod
    def _one_character(cls, value: str) -> str:
        value = DELIMITER_WORDS.get(value, value)
        if value not in (AUTO, BLANKS) and (
            len(value) != 1 or not value.isascii() or value in '"\r\n\0'
        ):
            raise ValueError(
                'one character such as "," or ";", or the word "auto", "tab", "space" or "blanks"'
            )
        return value

    @field_validator("encoding")
    @classmethod
    def _python_codec(cls, value: str) -> str:
        if value == "auto":
            return value
        # Codecs such as base64 convert bytes, not text, and have names of the same kind.
        try:
            codec = codecs.lookup(value.strip())
            if "a,1\n".encode(codec.name).decode(codec.name) == "a,1\n":
                return codec.name
        except (LookupError, ValueError):
            pass  # reported below, as for a codec that does not return the text
        raise ValueError("an encoding that Python supports, such as utf-8 or cp1252")

    @field_validator("dask")
    @classmethod
    def _address(cls, address: str) -> str:
        if address and not re.fullmatch(r"(tcp|tls)://(\[[0-9a-fA-F:]+\]|[\w.-]+):\d+", address):
            raise ValueError("tcp://HOST:PORT or tls://HOST:PORT")
        return address

    @model_validator(mode="after")
    def _no_contradiction(self) -> DataOptions:
        if repeated := sorted(set(self.columns or ()) & set(self.drop)):
            raise ValueError(
                f"no column in both columns and drop; {', '.join(repeated)} is in both"
            )
        unsuitable = [
            f"for the {kind} {name!r} one of {', '.join(RULES_BY_KIND[kind])}, not {gaps.rule}"
            for name, gaps in self.missing.items()
            if (kind := self.kind_of(name)) in RULES_BY_KIND
            and gaps.rule not in RULES_BY_KIND[kind]
        ]
        if unsuitable:
            raise ValueError(f"in missing, {'; '.join(unsuitable)}")
        paths = [name for name in self.types if self.kind_of(name) == image_options.PATHS]
        if len(paths) > 1:
            raise ValueError(
                f"one column of the type {image_options.PATHS}, not {', '.join(map(repr, paths))}"
            )
        return self

    @property
    def known_delimiter(self) -> str:
        """The delimiter; a comma for `auto`, unless `source.delimiter` has set another one."""
        return "," if self.delimiter == AUTO else self.delimiter

    @property
    def separator(self) -> str:
        """The character between two values of a CSV; for `blanks`, a space, which replaces them."""
        return " " if self.delimiter == BLANKS else self.known_delimiter

    def kind_of(self, name: str) -> str:
        """Return the type that `types` gives a column; empty if it is inferred."""
        declared = self.types.get(name, "")
        return declared.kind if isinstance(declared, ValueFormat) else declared

    @property
    def path_column(self) -> str:
        """The column with the paths of images; empty without one."""
        columns = (name for name in self.types if self.kind_of(name) == image_options.PATHS)
        return next(columns, "")

    def types_with(self, added: Mapping[str, Any]) -> str:
        """Return the JSON of `types` with more columns, for a message that suggests them."""
        types = self.model_dump(mode="json", include={"types"}, exclude_none=True)["types"]
        return json.dumps({**types, **added}, ensure_ascii=False)

    def format_of(self, name: str) -> str:
        """Return the string of a column's format in `types`; empty if `types` gives it none."""
        declared = self.types.get(name)
        return str(declared) if isinstance(declared, ValueFormat) else ""

    def gaps(self, name: str, kind: str) -> Gaps | None:
        """Return a column's rule for missing values; None if they have their own code.

        The rule for `*` applies to columns whose type allows it.
        """
        rule = self.missing.get(name)
        every = self.missing.get(EVERY_COLUMN)
        if rule is None and every and every.rule in RULES_BY_KIND[kind]:
            rule = every
        default = _DEFAULT_RULES.get(kind)
        return rule or (Gaps(rule=default) if default else None)

    def dropping(self, columns: Iterable[str], label: str) -> frozenset[str]:
        """Return the columns of a table whose missing values drop the row.

        Args:
            columns: The names of the table's columns.
            label: The label column, to which the rule for `*` does not apply.
        """
        names = {name for name, treatment in self.missing.items() if treatment.rule == "drop"}
        if EVERY_COLUMN in names:
            names |= set(columns) - self.missing.keys() - {label, self.weight}
        return frozenset(names)

    def dataset_digest(self, source_digest: str, label: str) -> str:
        """Return the name of the dataset that these options create.

        Args:
            source_digest: The digest of the files (`source.digest.source_digest`).
            label: The label column.

        Returns:
            32 hexadecimal digits; they depend only on the data, the label, the options and the
            codec.
        """
        options = self.model_dump(mode="json")
        del options["reader"]  # its code is part of source_digest, wherever it is
        del options["contract"]  # it checks the data and does not change it
        del options["dask"]  # the same rows result, wherever the work is done
        del options["header"]  # it permits a file and does not change the rows
        options["drop"] = sorted(options["drop"])
        options["null_values"] = sorted(set(options["null_values"]))
        body = {"source": source_digest, "label": label, "options": options, "codec": CODEC_VERSION}
        text = json.dumps(body, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]
