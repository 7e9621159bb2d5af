"""The base class of the column types, with one subclass for each type.

A class is a column type, and an instance is the encoding of one column of it, as it was learned
from the training rows. Everything about a type is in its file: how values are parsed, what is
learned, how numpy encodes a column for training and the TensorFlow graph for serving, how requests
and reports use it. Nothing else in the product asks which type a column has, because a mistake in
one of many tables would silently make training and serving differ.

While prepare_data works, a row has one value of each column, in one of four lists (`FIELDS`). The
encoded rows that the trainer reads have the first three. Called by prepare_data, the trainer,
evaluate and the server.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np
import pyarrow as pa

from kfp_tfjob.common.formatting import sized
from kfp_tfjob.options.data import DataOptions, Gaps

from ..cells import BLANKS, LONGEST, NO_DATE, Cells, Parsed, Texts
from ..imputation import Missing, fill_value

_FLAG_SHARE = 0.01  # with this share of missing values, a column of one value is a flag
MOST = 0.9  # of the values make a column a number or a date
# The values of a column of a request of shape [rows], and the wrong rows with what their value is.
Read = tuple[np.ndarray, list[tuple[int, str]]]
Learned = Mapping[str, Any]  # the fields of a column type without the name


class Field(NamedTuple):
    """A list of a row, and the type of its values."""

    name: str
    type: type[np.generic]


FLOATS = Field("features", np.float32)  # NaN is a missing value
CODES = Field("codes", np.int32)  # 0 is a missing value
WHOLES = Field("dates", np.int64)  # NO_DATE is a missing value
CONTENTS = Field("contents", np.bytes_)  # the bytes of a file; none is missing
FIELDS = (FLOATS, CODES, WHOLES, CONTENTS)


def missing_in(values: np.ndarray) -> np.ndarray:
    """Tell which values are missing: NaN, NO_DATE in int64, 0 in other whole numbers, or b""."""
    if values.dtype.kind == "f":
        return np.isnan(values)
    if values.dtype.kind == "i":
        return values == (NO_DATE if values.dtype.itemsize == 8 else 0)
    return values == b""


class Reading(NamedTuple):
    """A format by which strings are values of a type.

    Attributes:
        format: As in `data_options.types`.
        example: One of the strings and what it means.
    """

    format: Mapping[str, Any]
    example: str


class Votes(NamedTuple):
    """How a column's values are written, which decides about its type.

    Attributes:
        forms: The values by form, without missing ones.
        total: All of them.
        only_bits: Whether every number is 0 or 1.
        distinct: How many of them differ; None if these are too many to be counted.
        probes: The beginnings of some different values in one of the types' `probed_forms`.
    """

    forms: Mapping[str, int]
    total: int
    only_bits: bool
    distinct: int | None = 0
    probes: Collection[str] = ()

    def of(self, *forms: str) -> int:
        """Return the values of some forms."""
        return sum(self.forms.get(form, 0) for form in forms)

    def are_most(self, *forms: str) -> bool:
        """Return whether these forms make up nine in ten values."""
        return self.of(*forms) >= MOST * self.total


@dataclass(frozen=True, kw_only=True)
class ColumnMoments:
    """Of the values that are not missing; `std` is the population standard deviation."""

    count: int = 0
    mean: float
    std: float
    min: float = 0.0
    max: float = 0.0
    zeros: int = 0


@dataclass(frozen=True, kw_only=True)
class ColumnStatistics:
    """A column's entry in statistics.json, over train; `count` excludes missing values."""

    kind: str = "number"
    count: int = 0
    missing: int = 0

    @property
    def is_constant(self) -> bool:
        """Whether there is one value."""
        return False

    @property
    def words(self) -> str:
        """A string for reports, of at least one value."""
        return f"{self.count:,} values"


class Tally(Protocol):
    """Counts over the strings of a column in train, for a type that `learns_from_strings`."""

    def add(self, texts: Sequence[str], codes: np.ndarray, labels: np.ndarray) -> None:
        """Add rows.

        Args:
            texts: Distinct strings.
            codes: Whole numbers of shape [rows], the index of each row's string; -1 if missing.
            labels: Of shape [rows], the number of each row's class, or a numeric label.
        """

    def merge(self, part: Self) -> None:
        """Add the counts of the rows that follow."""


@dataclass(frozen=True)
class Summary:
    """A column's values over train.

    Attributes:
        count: How many are not missing.
        moments: Of a type with floats; zeros of others.
        least: The smallest value, exact; None without a value.
        most: The largest one.
        sample: Values of some rows, without missing ones.
        rows: Of a type with codes: the rows by code, from 1.
        tally: Of a type that learns from its strings: their counts.
    """

    count: int
    moments: ColumnMoments
    least: Any
    most: Any
    sample: np.ndarray
    rows: np.ndarray
    tally: Tally | None = None


@dataclass(frozen=True)
class TrainValues:
    """A column's values in train, used to learn its encoding.

    Attributes:
        gaps: The rule for missing values; None if there is none.
        sample: Values of some rows, sorted, without missing ones.
        first: The smallest whole number; 0 without a value.
        dictionary: The strings by their code, from 1.
        rows: The rows by code, from 0.
        tally: The counts over the strings, of a type that learns from them.
    """

    gaps: Gaps | None
    sample: np.ndarray
    first: int = 0
    dictionary: tuple[str, ...] = ()
    rows: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    tally: Tally | None = None


HISTOGRAM_BARS = 20


def bars_of(values: np.ndarray, low: float, high: float) -> list[int]:
    """Return the values in each of HISTOGRAM_BARS bars of equal width between two values."""
    if high <= low:
        return [len(values)]
    bar = ((values - low) / (high - low) * HISTOGRAM_BARS).astype(np.int64)
    counts = np.bincount(np.clip(bar, 0, HISTOGRAM_BARS - 1), minlength=HISTOGRAM_BARS)
    return counts.tolist()


@dataclass(frozen=True)
class ColumnType:
    """A column type; an instance is the encoding of one column.

    Attributes:
        name: The column.
        missing: What happens to a missing value; None if it has its own code or, in a table of
            numbers without missing values, is invalid. A type with codes has it only for the rules
            `fail` and `drop`.
    """

    name: str
    missing: Missing | None = None

    # The type.
    kind: ClassVar[str]  # its name in `data_options.types` and in stored files
    schema_type: ClassVar[str]  # its `type` in schema.json
    field: ClassVar[Field] = CODES  # where its value is in a row
    is_hashed: ClassVar[bool] = False  # an encoded row has only a hash of its string
    has_dictionary: ClassVar[bool] = False  # its strings have codes in the order of their first row
    learns_from_strings: ClassVar[bool] = False  # of all rows of train, which `tally` counts
    most_bytes: ClassVar[int] = 0  # of a string; 0 for at most LONGEST characters
    is_direct: ClassVar[bool] = False  # a numeric column without missing values is its values
    value_type: ClassVar[type] = int  # of the fill value

    # How files write values. A value has one form; a reader may parse or repeat strings by itself.
    precedence: ClassVar[int] = 2  # of two types that fit a column, the smaller number wins
    forms: ClassVar[tuple[str, ...]] = ()
    parsed_forms: ClassVar[tuple[str, ...]] = ()  # not compared with other strings of the column
    odd_forms: ClassVar[tuple[str, ...]] = ()  # may make a column unclear, so an example is kept
    probed_forms: ClassVar[tuple[str, ...]] = ()  # `fits` looks at some of these strings
    long_forms: ClassVar[tuple[str, ...]] = ()  # of strings with more than LONGEST characters
    expected: ClassVar[str] = ""  # the usual form, where a column is unclear
    arrow_type: ClassVar[pa.DataType | None] = None  # for pyarrow's parser, if `are_valid` agrees
    repeats: ClassVar[bool] = True  # its strings may repeat, so a reader may make a dictionary

    # The model: packed rows, and the raw columns that a signature takes.
    parts: ClassVar[tuple[str, ...]] = ("",)  # endings of the names of its packed columns
    has_layer: ClassVar[bool] = False  # `embed` encodes its codes for a network
    raw_types: ClassVar[tuple[str, ...]] = ("string",)  # our export takes the first
    raw_missing: ClassVar[Any] = ""  # a missing value of that type

    # Requests.
    datatypes: ClassVar[tuple[str, ...]] = ("BYTES",)  # of tensors in V2; metadata has the first
    written: ClassVar[str] = "a text"  # how a value is written in JSON
    example: ClassVar[Any] = "a"  # such a value
    whole: ClassVar[str] = ""  # what only the model can check; empty if requests are checked
    is_sampled: ClassVar[bool] = True  # the server may keep values for the monitor
    sample_type: ClassVar[pa.DataType] = pa.string()  # of kept values, which prepare_data reads

    # Slices, statistics, drift and reports.
    edge_type: ClassVar[type | None] = None  # what divides values into ranges, in `gate.slices`
    nouns: ClassVar[tuple[str, str]]  # one value, and several
    about: ClassVar[str] = ""  # for the log, if the name of the type does not say it
    statistics: ClassVar[type[ColumnStatistics]] = ColumnStatistics
    figures: ClassVar[tuple[str, ...]] = ()  # its keys that reports show, instead of `words`
    # Bins by `edges` between ranges or by frequent `values`; empty to count only missing values.
    drift_bins: ClassVar[str] = ""
    fixed_edges: ClassVar[tuple[float, ...]] = ()  # of all columns, instead of quantiles of train
    moves_on: ClassVar[bool] = False  # values change over time, so drift is expected

    def __post_init__(self) -> None:
        """Reject what was learned if it cannot be."""
        needs_rule = self.field in (FLOATS, WHOLES) and not self.is_direct
        if needs_rule and self.missing is None:
            raise ValueError(f"{self.name!r} has no rule for missing values")

    @classmethod
    def readings_of(cls, texts: Sequence[str], votes: Votes | None = None) -> list[Reading]:
        """Return the formats by which most strings are values, one for each meaning.

        Args:
            texts: Strings of `odd_forms`, each once.
            votes: Those of their column, which the formats should read as well.
        """
        return []

    @classmethod
    def oddity_of(cls, texts: Sequence[str]) -> tuple[str, str]:
        """Describe strings of a column that are not in the usual form.

        Returns:
            The oddity, and the fix. Both are empty if there is no oddity. The fix is also empty if
            a format reads the strings.
        """
        return "", ""

    @classmethod
    def named_formats(
        cls, column: str, texts: Sequence[str], options: DataOptions, votes: Votes | None = None
    ) -> str:
        """Return, for a message, the options that name the formats of a column's strings.

        Args:
            column: The column.
            texts: As for `readings_of`.
            options: The typed `data_options`, whose other types stay in the named option.
            votes: As for `readings_of`.
        """
        return " or ".join(
            f"data_options.types={options.types_with({column: reading.format})}"
            f" for {reading.example}"
            for reading in cls.readings_of(texts, votes)
        )

    @property
    def learned(self) -> Learned:
        """Its entry in `coding` of schema.json."""
        entry = {declared.name: getattr(self, declared.name) for declared in fields(self)[1:]}
        if self.missing:
            entry["missing"] = asdict(self.missing)
        return {key: value for key, value in entry.items() if value is not None}

    @classmethod
    def fit(cls, name: str, values: TrainValues, options: DataOptions) -> Self:
        """Return the encoding of a column, learned from train."""
        return cls(name, cls.learn_missing(values))

    @classmethod
    def tally(cls, classes: Sequence[str]) -> Tally | None:
        """Return the counts of no rows, if the type learns from its strings.

        Args:
            classes: The label's classes; none if it is a number.
        """
        return None

    @classmethod
    def learn_missing(cls, values: TrainValues) -> Missing | None:
        """Return the rule for missing values and what stands for one."""
        if (gaps := values.gaps) is None:
            return None
        if gaps.rule in ("fail", "drop"):
            return Missing(gaps.rule, None, False)
        if gaps.rule == "constant":
            value = cls.constant(gaps.value or "")
        else:
            value = fill_value(gaps.rule, values.sample, cls.median)
        return Missing(gaps.rule, cls.value_type(value), gaps.indicator)

    @classmethod
    def constant(cls, text: str) -> float | int | None:
        """Return the value of `missing` in data_options that stands for missing ones, if it is one.

        It is as in a row.
        """
        return None

    @classmethod
    def median(cls, sample: np.ndarray) -> Any:
        """Return the median of sorted values, which is one of them."""
        return sample[(len(sample) - 1) // 2]

    @property
    def size(self) -> int:
        """The number of codes; 0 for a type that becomes numbers."""
        return 0

    @property
    def group(self) -> Hashable:
        """Columns of a type are encoded together if this is equal."""
        return None

    @property
    def endings(self) -> tuple[str, ...]:
        """`parts`, unless their number depends on the column; columns of a group share it."""
        return self.parts

    @property
    def packed_names(self) -> tuple[str, ...]:
        """The names of its columns in a packed row."""
        names = [self.name + ending for ending in self.endings]
        if self.missing and self.missing.indicator:
            names.append(f"{self.name}.missing")
        return tuple(names)

    @property
    def raw_type(self) -> str:
        """The type of its argument in the signature of the own export."""
        return self.raw_types[0]

    @property
    def takes_missing(self) -> bool:
        """Whether the model takes a missing value, which then has a code or another value."""
        if self.missing is None:
            return self.field is CODES
        return self.missing.value is not None

    def usual(self, column: ColumnStatistics | None = None) -> Any:
        """Return a usual value for a request."""
        return self.example

    # Statistics and reports.

    @property
    def strings(self) -> tuple[str, ...]:
        """The strings by their code in a row, which starts at 1."""
        return ()

    def codes_of(self, texts: Sequence[str]) -> np.ndarray:
        """Return (texts,) int32, the code of each string in rows: 0 for an unknown one."""
        codes = {text: 1 + at for at, text in enumerate(self.strings)}
        return np.array([codes.get(text, 0) for text in texts], np.int32)

    @property
    def frequent(self) -> tuple[str, ...]:
        """The strings that have a packed code of their own, the most frequent first."""
        return ()

    def describe(self, column: Summary) -> ColumnStatistics:
        """Return the column's entry in statistics.json, without the numbers of values."""
        return ColumnStatistics()

    @classmethod
    def warnings(
        cls, columns: Mapping[str, ColumnStatistics], samples: Mapping[str, np.ndarray]
    ) -> list[str]:
        """Return warnings about columns of this type.

        Args:
            columns: The entry of each column in statistics.json.
            samples: Values of each in some rows of train.
        """
        return []

    def suspicions(
        self, values: Summary, column: ColumnStatistics, options: DataOptions
    ) -> list[str]:
        """Return why the model may learn little or nothing from this column.

        Args:
            values: Its values over train.
            column: What statistics.json says of it.
            options: The typed `data_options`.
        """
        missing = self.missing
        if missing is None or missing.value is None or missing.indicator or not values.count:
            return []
        is_flag = values.least == values.most == missing.value
        if not is_flag or column.missing < _FLAG_SHARE * (column.missing + values.count):
            return []
        rule = json.dumps({self.name: {"rule": "most_frequent", "indicator": True}})
        return [
            f"the only value of {self.name!r} is {self.shown(values.least)}, and missing values"
            f" become the same, so the column tells nothing; if a missing value means something,"
            f" mark it with data_options.missing={rule}"
        ]

    # Profile.

    @classmethod
    def count(cls, cells: Cells) -> dict[str, int] | None:
        """Return the values by form of a block that is of this type as a whole; None for others.

        The strings are not looked at one by one.
        """
        return None

    @classmethod
    def forms_of(cls, texts: pa.Array, short: np.ndarray) -> list[tuple[str, np.ndarray]]:
        """Return masks of the strings in each of `forms`; a later mask replaces an earlier one.

        Args:
            texts: Strings of shape [values].
            short: Bool of shape [values]: True for strings of at most LONGEST characters.
        """
        return []

    @classmethod
    def like(cls, texts: pa.Array) -> np.ndarray:
        """Return bool of shape [texts]: the strings that have one of `forms`."""
        masks = (mask for _, mask in cls.forms_of(texts, np.ones(len(texts), bool)))
        return np.any([np.zeros(len(texts), bool), *masks], axis=0)

    @classmethod
    def fits(cls, votes: Votes) -> bool:
        """Return whether a column is of this type."""
        return False

    @classmethod
    def sign_of_most(cls, votes: Votes) -> tuple[str | None, str]:
        """Return the sign of most values if the others are invalid, or an oddity of mixed signs.

        The sign is None, and the oddity is empty, where they do not apply. Only a named format
        allows signs.
        """
        return None, ""

    @classmethod
    def unclear(cls, votes: Votes) -> str:
        """Describe a column that no type fits, if it may be of this type; empty otherwise."""
        return ""

    @classmethod
    def may_be_proven(cls, texts: Sequence[str]) -> bool:
        """Return whether other values may prove the format of these strings of `odd_forms`."""
        return False

    @classmethod
    def format_in(cls, votes: Votes) -> str:
        """Return how files write the values, if they prove a format that is not the usual one."""
        return ""

    # Parsing.

    @classmethod
    def plain(cls, texts: pa.Array, written: str, sign: str | None = None) -> pa.Array:
        """Rewrite strings in the format `written` for `parse`; make others invalid.

        Args:
            texts: Strings of shape [values].
            written: The format.
            sign: The result of `sign_of_most`.
        """
        return texts

    @classmethod
    def parse(cls, cells: Cells) -> Parsed:
        """Return a column's values in one block, and its invalid values by rule; here, strings."""
        texts, codes, invalid = cells.written()
        if max(map(len, texts), default=0) > (cls.most_bytes // 4 or LONGEST):
            long = np.array([*map(cls.is_long, texts), False])
            invalid["large" if cls.most_bytes else "long"] = long[codes]
        return Parsed(Texts(texts, (codes + 1).astype(np.int32)), invalid)

    @classmethod
    def is_long(cls, text: str) -> bool:
        """Return whether a string is longer than a value may be."""
        if not cls.most_bytes:
            return len(text) > LONGEST
        return 4 * len(text) > cls.most_bytes and len(text.encode()) > cls.most_bytes

    @classmethod
    def are_valid(cls, column: pa.Array) -> bool:
        """Return whether all values of a column of `arrow_type` are valid."""
        return True

    # Encoding: of columns with an equal `group`, their values side by side.

    @classmethod
    def tables(cls, columns: Sequence[Self]) -> tuple[Any, ...]:
        """Return the lookup tables of TensorFlow that the graph needs."""
        return ()

    @classmethod
    def stored(cls, values: Any, tables: tuple[Any, ...]) -> Any:
        """Return raw columns (batch, columns) in the graph, with missing values as in rows.

        Args:
            values: A tensor of the type `raw_type`.
            tables: Those of `tables`.
        """
        return values

    @classmethod
    def graph(cls, columns: Sequence[Self], values: Any, tables: tuple[Any, ...]) -> list[Any]:
        """Return (rows, columns) for each of `endings`, as the model gets them.

        One tensor may have several of them side by side.

        Args:
            columns: The columns.
            values: The tensor of `stored`, with missing values replaced unless they have a code.
            tables: Those of `tables`.
        """
        return [values]

    # The layer of `dataset.encode`, if the type has one of its own; otherwise each packed code
    # becomes a one-hot vector or an embedding.

    @classmethod
    def embed(cls, codes: Any, size: int, width: int) -> Any:
        """Return (batch, n) float32 for a network, with Keras's own layers only.

        Args:
            codes: (batch, packed columns) int32, the packed codes of one column.
            size: The number of codes.
            width: The usual width of an embedding of so many codes.
        """
        raise NotImplementedError

    @classmethod
    def example_codes(
        cls, size: int, width: int, rows: int, random: np.random.Generator
    ) -> np.ndarray:
        """Return (rows, width) random packed codes of a column with `size` codes, for tests."""
        return random.integers(0, size, (rows, width))

    def to_arrow(self, values: np.ndarray) -> pa.Array:
        """Return (rows,) values of rows as a column of a dataset's Parquet file; null if missing.

        A type with codes does not need it: its strings are kept as they are.
        """
        return pa.array(np.ascontiguousarray(values), mask=missing_in(values))

    @classmethod
    def raw_values(cls, column: pa.Array) -> np.ndarray:
        """Return (rows,) a column of a dataset's Parquet file as the signature takes it."""
        kind = pa.type_for_alias(cls.raw_types[0])
        if not isinstance(column, pa.DictionaryArray):
            return column.cast(kind).fill_null(cls.raw_missing).to_numpy(zero_copy_only=False)
        # Each string once: a Python object for each row would take 60 bytes.
        strings = column.dictionary.cast(kind).to_pylist()
        codes = column.indices.fill_null(len(strings)).to_numpy()
        return np.array([*strings, cls.raw_missing], object)[codes]

    # Requests.

    @classmethod
    def read(cls, values: Sequence[Any]) -> Read:
        """Return a column's values in a request, as the signature takes them.

        Here, UTF-8 without blanks around it, as prepare_data reads strings; b"" if missing.

        Args:
            values: As JSON or the tensors of V2 have them.
        """
        values_read, wrong = np.empty(len(values), object), []
        for row, value in enumerate(values):
            try:
                if value is None:
                    values_read[row] = b""
                elif isinstance(value, str):
                    values_read[row] = value.strip(BLANKS).encode()
                elif isinstance(value, bytes) and value.decode() is not None:
                    values_read[row] = value.strip(BLANKS.encode())
                else:
                    wrong.append((row, f"{named(value)} instead of a string"))
                    continue
                if cls.most_bytes and len(values_read[row]) > cls.most_bytes:
                    wrong.append((row, f"longer than {sized(cls.most_bytes)}"))
            except UnicodeError:
                wrong.append((row, "not UTF-8"))
        return values_read, wrong

    @classmethod
    def unusable(cls, values: np.ndarray, max_megapixels: float) -> list[tuple[int, str]]:
        """Return the rows whose values the model must not decode, and why.

        Args:
            values: The result of `read`, all valid.
            max_megapixels: The largest image with which the model was trained.
        """
        return []

    @classmethod
    def sample_column(cls, values: Sequence[Any]) -> pa.Array:
        """Return values of `read` as an Arrow array of `sample_type`; null is missing."""
        kind = pa.type_for_alias(cls.raw_types[0])
        sampled = np.array(values, object if pa.types.is_string(kind) else kind.to_pandas_dtype())
        return pa.array(sampled, mask=missing_in(sampled)).cast(kind).cast(cls.sample_type)

    @classmethod
    def shown(cls, value: Any) -> str:
        """Return a raw value for a person."""
        return str(value.decode(errors="replace") if isinstance(value, bytes) else value)


def text_of(value: Any) -> str | None:
    """Return a string of a request, even if it came as bytes; None for anything else."""
    if isinstance(value, str):
        return value
    return value.decode(errors="replace") if isinstance(value, bytes) else None


def named(value: Any) -> str:
    """Return the words for a request's value in messages."""
    if isinstance(value, bool | np.bool_):
        return "true or false"
    if isinstance(value, int | float | np.number):
        return "a number"
    if isinstance(value, str | bytes):
        return "a text"
    return "a list" if isinstance(value, list) else "an object"


def vocabulary_table(vocabularies: Sequence[Sequence[str]], first: int, default: int) -> Any:
    """Return a table of TensorFlow from the strings of columns to codes.

    The number of the column and a colon precede each string.

    Args:
        vocabularies: The strings of each column, in the order of their codes.
        first: The code of a column's first string.
        default: The code of any other string.
    """
    codes = {
        f"{number}:{text}": first + place
        for number, vocabulary in enumerate(vocabularies)
        for place, text in enumerate(vocabulary)
    }
    return lookup_table(codes, default)


def lookup_table(values: Mapping[str, float], default: float) -> Any:
    """Return a table of TensorFlow from strings to numbers; others have the default.

    The numbers are int64 if the default is a whole number, otherwise float64.
    """
    import tensorflow as tf

    dtype = tf.int64 if isinstance(default, int) else tf.float64
    # A table cannot be empty; no string is looked up by this one.
    keys = [text.encode() for text in values] or [b""]
    numbers = tf.constant(list(values.values()) or [default], dtype)
    initializer = tf.lookup.KeyValueTensorInitializer(tf.constant(keys), numbers)
    return tf.lookup.StaticHashTable(initializer, tf.constant(default, dtype))
