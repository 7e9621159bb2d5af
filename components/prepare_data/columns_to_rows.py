"""Turns the columns of a chunk into rows, each column by its type; marks every invalid value.

A missing value is NaN among the floats, NO_DATE among the whole numbers and code 0 among the
strings. It is invalid only if the rule of the column says so.
"""

from __future__ import annotations

import numpy as np

from kfp_tfjob.components.prepare_data.kinds import Feature, Kinds
from kfp_tfjob.components.prepare_data.rows import Rows
from kfp_tfjob.components.prepare_data.source.readers.arrow_table import (
    ArrowTable,
    Chunk,
    undamaged,
)
from kfp_tfjob.features.cells import Texts, shown
from kfp_tfjob.features.types.base import CODES, FLOATS, WHOLES, Field, missing_in
from kfp_tfjob.features.types.number import MANY, parse_together


class Converter:
    """Converts the chunks of a source.

    Args:
        kinds: The kinds of its features.
        label: The label column.
    """

    def __init__(self, kinds: Kinds, label: str) -> None:
        self._kinds, self._label = kinds, label
        self._names = tuple(item.name for item in kinds.features)
        # Their values are those of a numeric column without missing ones.
        self._direct = {item.name for item in kinds.features if item.type.is_direct}

    def rows(self, table: ArrowTable, chunk: Chunk) -> Rows:
        """Return the good rows of a chunk.

        Args:
            table: The table of the chunk.
            chunk: All features and the label.
        """
        faults = chunk.faults
        found: dict[Field, list] = {FLOATS: [], CODES: [], WHOLES: []}
        with undamaged(faults.file):
            block = chunk.numbers
            is_whole = self._names == block.names and self._direct.issuperset(self._names)
            if len(self._names) > MANY:
                parse_together(chunk.many_cells(self._names))
            for feature in () if is_whole else self._kinds.features:
                if feature.name in self._direct and feature.name in block.places:
                    found[FLOATS].append(block.rows[:, block.places[feature.name]])
                    continue
                column = self.column(chunk, feature)
                if not feature.takes_missing:
                    values = column.codes if isinstance(column, Texts) else column
                    raw = chunk.columns[feature.name]
                    faults.mark(
                        missing_in(values), "missing", feature.name, lambda i, of=raw: shown(of, i)
                    )
                found[feature.type.field].append(column)
        labels, codes = table.labels(chunk, self._label)
        rows = len(faults.lines)
        return Rows(
            block.rows if is_whole and self._names else _columns(found[FLOATS], rows, np.float32),
            labels,
            codes,
            faults.lines,
            faults,
            chunk.size,
            tuple(found[CODES]),
            _columns(found[WHOLES], rows, np.int64),
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
        if feature.format and not (cells.is_numeric or cells.is_temporal):
            cells = cells.rewritten(feature.type.plain(cells.texts, feature.format))
        values, invalid = feature.type.parse(cells)
        for rule, rows in invalid.items():
            chunk.faults.mark(rows, rule, feature.name, lambda i: shown(cells.column, i))
        return values


def _columns(columns: list[np.ndarray], rows: int, kind: type) -> np.ndarray:
    """Return columns as the contiguous rows of a matrix."""
    found = np.empty((rows, len(columns)), kind)
    for j, column in enumerate(columns):
        found[:, j] = column
    return found
