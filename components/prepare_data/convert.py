"""Turns the columns of a chunk into rows, each column by its kind; marks every value that is not.

A gap is NaN among the numbers and booleans, NO_DATE among the dates and code 0 among the texts. It
is a fault only if the rule of the column says so.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kfp_tfjob.components.prepare_data import values
from kfp_tfjob.components.prepare_data.cells import MANY, Cells, cells_of, parse_together
from kfp_tfjob.components.prepare_data.faults import BlockFaults
from kfp_tfjob.components.prepare_data.kinds import Feature, Kinds
from kfp_tfjob.components.prepare_data.rows import Rows, Texts
from kfp_tfjob.components.prepare_data.source.readers.arrow_table import (
    ArrowTable,
    Chunk,
    as_texts,
    numeric,
    temporal,
    undamaged,
)
from kfp_tfjob.features import dates
from kfp_tfjob.features.coding import (
    BOOLEAN,
    CATEGORY,
    DATE,
    FALSE_TEXTS,
    NO_DATE,
    NUMBER,
    TEXT,
    TRUE_TEXTS,
)

_Found = dict[str, np.ndarray]  # bool of shape [values], by rule


class Converter:
    """Converts the chunks of a source.

    Args:
        kinds: The kinds of its features.
        label: The label column.
    """

    def __init__(self, kinds: Kinds, label: str) -> None:
        self._kinds, self._label = kinds, label
        self._names = tuple(item.name for item in kinds.features)
        self._is_plain = bool(self._names) and kinds.of(NUMBER) == self._names
        self._convert: dict[str, Callable[[Cells, str, BlockFaults], np.ndarray]] = {
            NUMBER: self._numbers,
            BOOLEAN: self._booleans,
            DATE: self._dates,
        }

    def rows(self, table: ArrowTable, chunk: Chunk) -> Rows:
        """Return the good rows of a chunk.

        Args:
            table: The table of the chunk.
            chunk: All features and the label.
        """
        faults = chunk.faults
        count = len(faults.lines)
        found: dict[str, list] = {kind: [] for kind in (NUMBER, DATE, TEXT)}
        with undamaged(faults.file):
            block = chunk.numbers
            whole = block.rows if self._is_plain and block.names == self._names else None
            if len(self._names) > MANY:
                parse_together(chunk, self._names)
            for feature in self._kinds.features if whole is None else ():
                if feature.kind == NUMBER and feature.name in block.places:
                    found[NUMBER].append(block.rows[:, block.places[feature.name]])
                    continue
                column, raw = self.column(chunk, feature), chunk.columns[feature.name]
                if isinstance(column, Texts):
                    self._gaps(feature, column.codes, raw, faults)
                    found[TEXT].append(column)
                    continue
                self._gaps(feature, column, raw, faults)
                found[DATE if feature.kind == DATE else NUMBER].append(column)
        labels, codes = table.labels(chunk, self._label)
        return Rows(
            _columns(found[NUMBER], count, np.float32) if whole is None else whole,
            labels,
            codes,
            faults.lines,
            faults,
            chunk.size,
            tuple(found[TEXT]),
            _columns(found[DATE], count, np.int64),
        ).good

    def column(self, chunk: Chunk, feature: Feature) -> np.ndarray | Texts:
        """Return one feature of all rows of a chunk, bad ones too; mark what is not of its kind.

        Args:
            chunk: A chunk with the column.
            feature: The feature; its rule for gaps plays no part.

        Returns:
            Numbers and booleans as float64, NaN for a gap; dates as int64, NO_DATE for a gap.
        """
        cells = cells_of(chunk, feature.name)
        if feature.format and not (numeric(cells.column.type) or temporal(cells.column.type)):
            cells = cells.read_as(feature.format)
        if feature.kind in (CATEGORY, TEXT):
            return self._texts(cells, feature.name, chunk.faults)
        return self._convert[feature.kind](cells, feature.name, chunk.faults)

    def _gaps(
        self, feature: Feature, found: np.ndarray, column: pa.Array, faults: BlockFaults
    ) -> None:
        """Mark the gaps of a column that must not have any."""
        is_text = feature.kind in (CATEGORY, TEXT)
        if feature.imputed or (is_text and feature.gaps is None):
            return
        if is_text:
            gaps = found == 0
        else:
            gaps = found == NO_DATE if feature.kind == DATE else np.isnan(found)
        faults.mark(gaps, "missing", feature.name, lambda i: _shown(column, i))

    def _numbers(self, cells: Cells, name: str, faults: BlockFaults) -> np.ndarray:
        """Return float64 of shape [rows]; 0 for a fault."""
        if temporal(cells.column.type):
            return self._refused(cells.column, name, "text", np.nan, faults)
        if numeric(cells.column.type):
            numbers = cells.floats
            large = np.abs(numbers) > values.LARGEST
            faults.mark(large, "not finite", name, lambda i: str(numbers[i]))
            return np.where(large, 0, numbers) if large.any() else numbers
        if cells.numbers is not None:
            return self._by_row(cells, cells.numbers, np.nan, name, {}, faults)
        numbers, found = values.numbers(cells.texts, cells.nulls, np.float64)
        numbers[found["not finite"]] = 0  # float32 could not hold them
        found = {rule: found[rule] & ~cells.gaps for rule in ("not finite", "text")}
        numbers = np.where(cells.gaps, np.nan, numbers)
        return self._by_row(cells, numbers, np.nan, name, found, faults)

    def _booleans(self, cells: Cells, name: str, faults: BlockFaults) -> np.ndarray:
        """Return 0, 1 or NaN of shape [rows]; 0 for a fault."""
        column = cells.column
        if temporal(column.type):
            return self._refused(column, name, "boolean", np.nan, faults)
        if numeric(column.type):
            numbers = cells.floats
        else:
            encoded, codes = self._distinct(cells, name, faults)
            words = np.array([_boolean(text.lower()) for text in encoded] + [np.nan])
            numbers = words[codes]
        wrong = ~np.isnan(numbers) & (numbers != 0) & (numbers != 1)
        faults.mark(wrong, "boolean", name, lambda i: _shown(column, i))
        return np.where(wrong, 0, numbers)

    def _dates(self, cells: Cells, name: str, faults: BlockFaults) -> np.ndarray:
        """Return int64 of shape [rows]; 0 for a fault."""
        column = cells.column
        if temporal(column.type):
            found, wrong = dates.of_typed(column)
            faults.mark(wrong, "date", name, lambda i: _shown(column, i))
            return np.where(wrong, 0, found) if wrong.any() else found
        if numeric(column.type):
            return self._refused(column, name, "date", NO_DATE, faults)
        if cells.dates is not None:
            return self._by_row(cells, cells.dates, NO_DATE, name, {}, faults)
        encoded = cells.present.dictionary_encode()
        parsed, good = dates.parse_all(encoded.dictionary)
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        wrong = ~np.append(good, True)[codes]
        found = np.where(wrong, 0, np.append(parsed, NO_DATE)[codes])
        return self._by_row(cells, found, NO_DATE, name, {"date": wrong}, faults)

    def _by_row(
        self,
        cells: Cells,
        found: np.ndarray,
        gap: float,
        name: str,
        wrong: _Found,
        faults: BlockFaults,
    ) -> np.ndarray:
        """Return what was found for each text, for each row, and mark the faults of texts."""
        for rule, rows in {
            "encoding": cells.wrong,
            **{rule: cells.by_row(mask, False) for rule, mask in wrong.items()},
        }.items():
            faults.mark(rows, rule, name, lambda i: _shown(cells.column, i))
        return cells.by_row(found, gap)

    def _texts(self, cells: Cells, name: str, faults: BlockFaults) -> Texts:
        words, codes = self._distinct(cells, name, faults)
        if max(map(len, words), default=0) > values.LONGEST_LABEL:
            long = np.array([*(len(text) > values.LONGEST_LABEL for text in words), False])
            faults.mark(long[codes], "long", name, lambda i: _shown(cells.column, i))
        return Texts(words, (codes + 1).astype(np.int32))

    def _distinct(
        self, cells: Cells, name: str, faults: BlockFaults
    ) -> tuple[list[str], np.ndarray]:
        """Return the distinct texts of a column of any type, and the index of each row, -1 if none.

        The texts are in the order in which they occur first.
        """
        column = cells.column
        if not temporal(column.type) and not numeric(column.type):
            faults.mark(cells.wrong, "encoding", name, lambda i: _shown(column, i))
            return cells.words, cells.distinct[1]
        if temporal(column.type):
            found, beyond = dates.of_typed(column)
            faults.mark(beyond, "date", name, lambda i: _shown(column, i))
            text = pa.array([None if x == NO_DATE else dates.shown(x) for x in found.tolist()])
            text = text.cast(pa.string())
        else:
            encoded, _ = as_texts(column)
            text = encoded.dictionary.take(encoded.indices)
            text = pc.if_else(pc.equal(text, ""), None, text)
        encoded = text.dictionary_encode()
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        return encoded.dictionary.to_pylist(), codes

    def _refused(
        self, column: pa.Array, name: str, rule: str, gap: float, faults: BlockFaults
    ) -> np.ndarray:
        """Mark every value of a column whose type cannot be of its kind, and return gaps."""
        present = column.is_valid().to_numpy(zero_copy_only=False)
        faults.mark(present, rule, name, lambda i: _shown(column, i))
        return np.full(len(column), gap)  # pandas writes a column without a value as float64


def _boolean(text: str) -> float:
    """Return 0 or 1, and 2 for a text that is neither."""
    return float(text in TRUE_TEXTS) if text in TRUE_TEXTS or text in FALSE_TEXTS else 2


def _columns(columns: list[np.ndarray], rows: int, kind: type) -> np.ndarray:
    """Return columns as the contiguous rows of a matrix."""
    found = np.empty((rows, len(columns)), kind)
    for j, column in enumerate(columns):
        found[:, j] = column
    return found


def _shown(column: pa.Array, i: int) -> str:
    """Return a value for a message."""
    try:
        value = column[i].as_py()
    except UnicodeDecodeError:
        return ""
    if isinstance(value, bytes):
        return value.decode(errors="replace").strip(values.BLANKS)
    return "" if value is None or value != value else str(value)
