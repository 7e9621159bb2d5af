"""Turns the columns of a chunk into rows, each column by its type; marks every invalid value.

A missing value is NaN among the floats, NO_DATE among the whole numbers and code 0 among the
strings. It is invalid only if the rule of the column says so. Called by the tasks that read parts
of the source, and by `kfp-tfjob monitor` for sampled requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from kfp_tfjob.features.cells import (
    LONGEST,
    Cells,
    Texts,
    as_texts,
    numeric,
    shown,
    temporal,
    text_of,
)
from kfp_tfjob.features.types import TYPES
from kfp_tfjob.features.types.base import (
    CODES,
    CONTENTS,
    FIELDS,
    FLOATS,
    WHOLES,
    Field,
    missing_in,
)
from kfp_tfjob.features.types.number import is_number, parse_number
from kfp_tfjob.options.value_format import kind_in, patterns_of

from .column_profile import votes_of
from .faults import BlockFaults
from .kinds import Feature, Kinds
from .source.readers.arrow_table import Chunk, Images


@dataclass(frozen=True)
class Rows:
    """The good rows of one block.

    Attributes:
        features: float32 of shape [rows, features] in a table of plain numbers, otherwise float64;
            NaN if missing.
        labels: The distinct labels of the block, as text.
        codes: int32 of shape [rows], indices of `labels`.
        lines: int64 of shape [rows], the line where each begins.
        faults: The bad rows, which are omitted.
        texts: The columns of strings.
        dates: int64 of shape [rows, dates], microseconds since 1970 in UTC, NO_DATE if missing.
        forms: The labels by form, of bad rows too, if `data_options.types` names their format.
        lost: The labels of the omitted rows.
        images: The images; None for tables.
    """

    features: np.ndarray
    labels: list[str]
    codes: np.ndarray
    lines: np.ndarray
    faults: BlockFaults
    texts: tuple[Texts, ...] = ()
    dates: np.ndarray = field(default_factory=lambda: np.empty((0, 0), np.int64))
    forms: Mapping[str, int] = field(default_factory=dict)
    lost: frozenset[str] = frozenset()
    images: Images | None = None

    @property
    def good(self) -> Rows:
        """The rows without a marked fault."""
        keep = self.faults.good
        if keep.all():
            return self
        # A label that only bad rows have is not a class.
        used, codes = np.unique(self.codes[keep], return_inverse=True)
        lost = frozenset(self.labels[code] for code in np.unique(self.codes[~keep]).tolist())
        return Rows(
            self.features[keep],
            [self.labels[code] for code in used.tolist()],
            codes,
            self.lines[keep],
            self.faults,
            tuple(column.of(keep) for column in self.texts),
            self.dates[keep] if len(self.dates) else self.dates,
            self.forms,
            lost,
            self.images and self.images.of(keep),
        )


class Converter:
    """Converts the chunks of a source, whose label may have a format of `data_options.types`."""

    def __init__(self, kinds: Kinds, label: str, label_format: str = "") -> None:
        self._kinds, self._label, self._label_format = kinds, label, label_format
        self._names = tuple(item.name for item in kinds.features)
        # A numeric column without missing values already contains their values.
        self._direct = {item.name for item in kinds.features if item.type.is_direct}
        self._number = kinds.number_type

    def rows(self, chunk: Chunk) -> Rows:
        """Return the good rows of a chunk that has all features and the label."""
        faults = chunk.faults
        columns: dict[Field, list] = {field: [] for field in FIELDS}
        numbers = chunk.numbers
        # Most tables contain only numbers, in the features' order. Their matrix is used as it is.
        is_matrix = self._names == numbers.names and self._direct.issuperset(self._names)
        for feature in () if is_matrix else self._kinds.features:
            if feature.name in self._direct and feature.name in numbers.places:
                if self._number is np.float64:  # the matrix is float32
                    columns[FLOATS].append(chunk.cells(feature.name).floats)
                else:
                    columns[FLOATS].append(numbers.rows[:, numbers.places[feature.name]])
                continue
            if feature.type.field is CONTENTS:
                continue  # the reader has checked the images
            column = self.column(chunk, feature)
            if not feature.takes_missing:
                values = column.codes if isinstance(column, Texts) else column
                file_column = chunk.columns[feature.name]
                faults.mark(
                    missing_in(values),
                    "missing",
                    feature.name,
                    lambda i, of=file_column: shown(of, i),
                )
            columns[feature.type.field].append(column)
        if chunk.images:
            labels, label_codes = _classes(chunk, self._label)
            label_forms: Mapping[str, int] = {}
        else:
            labels, label_codes, label_forms = _labels(chunk, self._label, self._label_format)
        row_count = len(faults.lines)
        return Rows(
            features=numbers.rows
            if is_matrix and self._names
            else as_matrix(columns[FLOATS], row_count, self._number),
            labels=labels,
            codes=label_codes,
            lines=faults.lines,
            faults=faults,
            texts=tuple(columns[CODES]),
            dates=as_matrix(columns[WHOLES], row_count, np.int64),
            forms=label_forms,
            images=chunk.images,
        ).good

    def column(self, chunk: Chunk, feature: Feature) -> np.ndarray | Texts:
        """Return one feature of all rows of a chunk, bad ones too; mark what is invalid.

        Args:
            chunk: A chunk with the column.
            feature: The feature; its rule for missing values plays no part.

        Returns:
            float64, NaN if missing; int64, NO_DATE if missing; or strings.
        """
        cells = chunk.cells(feature.name)
        if patterns_of(feature.format) and cells.is_numeric:  # 20241231
            cells = Cells(as_texts(cells.column)[0], cells.nulls)
        if feature.format and not (cells.is_numeric or cells.is_temporal):
            plain = feature.type.plain(cells.texts, feature.format, feature.sign)
            cells = cells.rewritten(plain)
        values, invalid = feature.type.parse(cells)
        for rule, rows in invalid.items():
            is_other_format = kind_in(feature.format) == feature.kind and rule in ("text", "date")
            rule = "format" if is_other_format else rule
            chunk.faults.mark(rows, rule, feature.name, lambda i: shown(cells.column, i))
        return values


def texts_of(chunk: Chunk, name: str, format: str = "") -> tuple[list[str], np.ndarray]:
    """Return the distinct strings of a column and the index of each row; missing ones are invalid.

    Strings in a format of `data_options.types` become plain numbers or dates in ISO 8601; others
    are invalid.
    """
    texts, codes = _written(chunk, name, format)
    return _plain(chunk, name, format, texts, codes), codes


def _written(chunk: Chunk, name: str, format: str) -> tuple[list[str], np.ndarray]:
    """Return the result of `texts_of`, but with the strings as they are in the file."""
    column, faults = chunk.columns[name], chunk.faults
    if temporal(column.type):
        column = column.cast(pa.string())
    if pa.types.is_binary(column.type):
        text, wrong = text_of(column)
        faults.mark(wrong, "encoding", name, lambda i: shown(column, i))
        encoded = text.dictionary_encode()
    else:
        encoded, wrong = as_texts(column)
        if wrong is not None:
            faults.mark(wrong, "encoding", name, lambda i: "")
    texts, nulls = encoded.dictionary.to_pylist(), set(chunk.nulls.to_pylist())
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    absent = np.array([not text or text in nulls for text in texts], bool)
    if absent.any():
        faults.mark(absent[codes], "missing", name, lambda i: texts[codes[i]])
    return texts, codes


def _plain(chunk: Chunk, name: str, format: str, texts: list[str], codes: np.ndarray) -> list[str]:
    """Return strings in a format as plain ones, given the string of each row."""
    kind = chunk.columns[name].type
    is_typed = temporal(kind) or (numeric(kind) and not patterns_of(format))
    if not format or is_typed:
        return texts
    column_type, nulls = TYPES[kind_in(format)], set(chunk.nulls.to_pylist())
    plain = column_type.plain(pa.array(texts, pa.string()), format)
    present = np.array([bool(text) and text not in nulls for text in texts], bool)
    for wrong in column_type.parse(Cells(plain, chunk.nulls)).invalid.values():
        rows = (wrong & present)[codes]
        chunk.faults.mark(rows, "format", name, lambda i: texts[codes[i]])
    return plain.to_pylist()


def _classes(chunk: Chunk, name: str) -> tuple[list[str], np.ndarray]:
    """Return the distinct classes of images and the index of each row's; any folder is a class."""
    column = chunk.columns[name]
    return column.dictionary.to_pylist(), column.indices.to_numpy()


def _labels(
    chunk: Chunk, name: str, format: str
) -> tuple[list[str], np.ndarray, Mapping[str, int]]:
    """Return the distinct labels of a chunk and the index of each row's label; mark faults.

    The labels of a named format are also counted by the form that the file has.
    """
    missing_before = chunk.faults.rows["missing"]
    written, codes = _written(chunk, name, format)
    rows = np.bincount(codes, minlength=len(written)).tolist() if format else []
    forms = votes_of(dict(zip(written, rows, strict=True))).forms if format else {}
    texts = _plain(chunk, name, format, written, codes)
    chunk.faults.unlabelled += chunk.faults.rows["missing"] - missing_before
    long = [len(text) > LONGEST for text in texts]
    huge = [is_number(text) and parse_number(text) is None for text in texts]
    for rule, masks in (("long", long), ("not finite", huge)):
        if any(masks):
            mask = np.array(masks, bool)[codes]
            chunk.faults.mark(mask, rule, name, lambda i: texts[codes[i]])
    return texts, codes, forms


def as_matrix(columns: Sequence[np.ndarray], rows: int, kind: type) -> np.ndarray:
    """Return columns as the contiguous rows of a matrix, of shape [rows, columns]."""
    matrix = np.empty((rows, len(columns)), kind)
    for j, column in enumerate(columns):
        matrix[:, j] = column
    return matrix
