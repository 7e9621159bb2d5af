"""Turns the columns of a chunk into rows, each column by its kind; marks every value that is not.

A gap is NaN among the numbers and booleans, NO_DATE among the dates and code 0 among the texts. It
is a fault only if the rule of the column says so.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kfp_tfjob.components.prepare_data import dates, values
from kfp_tfjob.components.prepare_data.arrow_table import (
    ArrowTable,
    Chunk,
    as_texts,
    numeric,
    temporal,
    undamaged,
)
from kfp_tfjob.components.prepare_data.faults import BlockFaults
from kfp_tfjob.components.prepare_data.kinds import Feature, Kinds
from kfp_tfjob.components.prepare_data.rows import Rows, Texts
from kfp_tfjob.trainer.coding import (
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
        nulls: The texts that mean a missing value, and the empty one.
    """

    def __init__(self, kinds: Kinds, label: str, nulls: pa.Array) -> None:
        self._kinds, self._label, self._nulls = kinds, label, nulls
        self._convert: dict[str, Callable[[pa.Array, str, BlockFaults], np.ndarray]] = {
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
            for feature in self._kinds.features:
                column = chunk.columns[feature.name]
                if feature.kind in (CATEGORY, TEXT):
                    texts = self._texts(column, feature.name, faults)
                    self._gaps(feature, texts.codes == 0, faults)
                    found[TEXT].append(texts)
                    continue
                numbers = self._convert[feature.kind](column, feature.name, faults)
                gaps = numbers == NO_DATE if feature.kind == DATE else np.isnan(numbers)
                self._gaps(feature, gaps, faults)
                found[DATE if feature.kind == DATE else NUMBER].append(numbers)
        labels, codes = table.labels(chunk, self._label)
        return Rows(
            _columns(found[NUMBER], count, np.float32),
            labels,
            codes,
            faults.lines,
            faults,
            chunk.size,
            tuple(found[TEXT]),
            _columns(found[DATE], count, np.int64),
        ).good

    def _gaps(self, feature: Feature, gaps: np.ndarray, faults: BlockFaults) -> None:
        """Mark the gaps of a column whose rule is `fail` or `drop`."""
        if feature.gaps is not None and not feature.imputed and gaps.any():
            faults.mark(gaps, "missing", feature.name, lambda i: "")

    def _numbers(self, column: pa.Array, name: str, faults: BlockFaults) -> np.ndarray:
        """Return float64 of shape [rows]; 0 for a fault."""
        if temporal(column.type):
            return self._refused(column, name, "text", faults)
        if numeric(column.type):
            numbers = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
            large = np.abs(numbers) > values.LARGEST
            faults.mark(large, "not finite", name, lambda i: str(numbers[i]))
            return np.where(large, 0, numbers)
        return self._parsed(column, name, faults, self._parse_numbers, np.nan)

    def _parse_numbers(self, text: pa.Array, gaps: np.ndarray) -> tuple[np.ndarray, _Found]:
        """Return texts as numbers, NaN for a gap, and the faults."""
        if (quick := values.parse_quickly(_present(text, gaps))) is not None:
            return quick, {}
        numbers, found = values.numbers(text, self._nulls, np.float64)
        numbers[found["not finite"]] = 0  # float32 could not hold them
        return np.where(gaps, np.nan, numbers), {
            rule: found[rule] & ~gaps for rule in ("not finite", "text")
        }

    def _booleans(self, column: pa.Array, name: str, faults: BlockFaults) -> np.ndarray:
        """Return 0, 1 or NaN of shape [rows]; 0 for a fault."""
        if temporal(column.type):
            return self._refused(column, name, "boolean", faults)
        if numeric(column.type):
            numbers = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        else:
            encoded, codes = self._distinct(column, name, faults)
            texts = [text.lower() for text in encoded.to_pylist()]
            words = np.array([_boolean(text) for text in texts] + [np.nan])
            numbers = words[codes]
        wrong = ~np.isnan(numbers) & (numbers != 0) & (numbers != 1)
        faults.mark(wrong, "boolean", name, lambda i: _shown(column, i))
        return np.where(wrong, 0, numbers)

    def _dates(self, column: pa.Array, name: str, faults: BlockFaults) -> np.ndarray:
        """Return int64 of shape [rows]; 0 for a fault."""
        if temporal(column.type):
            found, wrong = dates.of_typed(column)
        elif numeric(column.type):
            return self._refused(column, name, "date", faults).astype(np.int64)
        else:
            return self._parsed(column, name, faults, self._parse_dates, NO_DATE)
        faults.mark(wrong, "date", name, lambda i: _shown(column, i))
        return np.where(wrong, 0, found)

    def _parse_dates(self, text: pa.Array, gaps: np.ndarray) -> tuple[np.ndarray, _Found]:
        """Return texts as dates, NO_DATE for a gap, and the faults."""
        present = _present(text, gaps)
        if (quick := dates.parse_quickly(present)) is not None:
            return quick, {}
        encoded = present.dictionary_encode()
        parsed, good = dates.parse_all(encoded.dictionary)
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        wrong = ~np.append(good, True)[codes]
        return np.where(wrong, 0, np.append(parsed, NO_DATE)[codes]), {"date": wrong}

    def _parsed(
        self,
        column: pa.Array,
        name: str,
        faults: BlockFaults,
        parse: Callable[[pa.Array, np.ndarray], tuple[np.ndarray, _Found]],
        gap: float,
    ) -> np.ndarray:
        """Parse a column of text; a text that a dictionary repeats is parsed once."""
        codes = None
        if isinstance(column, pa.DictionaryArray):
            text, codes, wrong = values.distinct(column)
        else:
            text, wrong = values.text_of(column)
        gaps = pc.is_in(text, value_set=self._nulls).to_numpy(zero_copy_only=False)
        numbers, found = parse(text, gaps)
        for rule, mask in {"encoding": wrong, **found}.items():
            rows = mask if codes is None else np.append(mask, False)[codes]
            faults.mark(rows, rule, name, lambda i: _shown(column, i))
        return numbers if codes is None else np.append(numbers, numbers.dtype.type(gap))[codes]

    def _texts(self, column: pa.Array, name: str, faults: BlockFaults) -> Texts:
        texts, codes = self._distinct(column, name, faults)
        long = pc.greater(pc.utf8_length(texts), values.LONGEST_LABEL)
        if pc.any(long).as_py():
            wrong = np.append(long.to_numpy(zero_copy_only=False), False)[codes]
            faults.mark(wrong, "long", name, lambda i: _shown(column, i))
        return Texts(texts.to_pylist(), np.where(codes < 0, 0, codes + 1).astype(np.int32))

    def _distinct(
        self, column: pa.Array, name: str, faults: BlockFaults
    ) -> tuple[pa.Array, np.ndarray]:
        """Return the distinct texts of a column of any type, and the index of each row, -1 if none.

        The texts are in the order in which they occur first.
        """
        if temporal(column.type):
            found, beyond = dates.of_typed(column)
            faults.mark(beyond, "date", name, lambda i: _shown(column, i))
            text = pa.array([None if x == NO_DATE else dates.shown(x) for x in found.tolist()])
            text = text.cast(pa.string())
        elif numeric(column.type):
            encoded, _ = as_texts(column)
            text = encoded.dictionary.take(encoded.indices)
            text = pc.if_else(pc.equal(text, ""), None, text)
        elif isinstance(column, pa.DictionaryArray):
            text, codes, wrong = values.distinct(column)
            faults.mark(np.append(wrong, False)[codes], "encoding", name, lambda i: "")
            gaps = pc.is_in(text, value_set=self._nulls).to_numpy(zero_copy_only=False)
            encoded = _present(text, gaps).dictionary_encode()  # blanks are gone
            places = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
            return encoded.dictionary, np.append(places, -1)[codes]
        else:
            text, wrong = values.text_of(column)
            faults.mark(wrong, "encoding", name, lambda i: _shown(column, i))
            gaps = pc.is_in(text, value_set=self._nulls).to_numpy(zero_copy_only=False)
            text = _present(text, gaps)
        encoded = text.dictionary_encode()
        return encoded.dictionary, encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)

    def _refused(self, column: pa.Array, name: str, rule: str, faults: BlockFaults) -> np.ndarray:
        """Mark every value of a column whose type cannot be of its kind."""
        present = column.is_valid().to_numpy(zero_copy_only=False)
        faults.mark(present, rule, name, lambda i: _shown(column, i))
        return np.zeros(len(column))


def _present(text: pa.Array, gaps: np.ndarray) -> pa.Array:
    """Return texts with null for each gap."""
    return pc.if_else(pa.array(gaps), None, text) if gaps.any() else text


def _boolean(text: str) -> float:
    """Return 0 or 1, and 2 for a text that is neither."""
    if text in TRUE_TEXTS or text in FALSE_TEXTS:
        return float(text in TRUE_TEXTS)
    number = values.number(text)
    return number if number in (0, 1) else 2


def _columns(columns: list[np.ndarray], rows: int, kind: type) -> np.ndarray:
    """Return columns as the contiguous rows of a matrix."""
    found = np.empty((rows, len(columns)), kind)
    for j, column in enumerate(columns):
        found[:, j] = column
    return found


def _shown(column: pa.Array, i: int) -> str:
    """Return a value for a message."""
    value = column[i].as_py()
    if isinstance(value, bytes):
        return value.decode(errors="replace").strip(values.BLANKS)
    return "" if value is None else str(value)
