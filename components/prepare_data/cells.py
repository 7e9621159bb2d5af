"""The values of one column of a chunk: as texts, numbers or dates, each worked out at most once.

Both the counting of the values and their conversion use them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kfp_tfjob.components.prepare_data import values
from kfp_tfjob.components.prepare_data.source.readers.arrow_table import Chunk
from kfp_tfjob.features import dates

MANY = 1_000  # columns; in wider tables with few rows, a call for each would cost the most


def cells_of(chunk: Chunk, name: str) -> Cells:
    """Return the values of a column of a chunk, always the same for a chunk.

    Args:
        chunk: The chunk.
        name: The column.
    """
    if name not in chunk.cells:
        chunk.cells[name] = Cells(chunk.columns[name], chunk.nulls)
    return chunk.cells[name]


def parse_together(chunk: Chunk, names: Iterable[str]) -> None:
    """Parse the texts of many columns at once, where each alone would take longer than its values.

    Columns with anything else than numbers and missing values are parsed one by one, later.
    """
    texts = [name for name in names if pa.types.is_binary(chunk.columns[name].type)]
    texts = [name for name in texts if name not in chunk.cells]
    rows = len(chunk.faults.lines)
    if not texts or not rows:
        return
    text, wrong = values.text_of(pa.concat_arrays([chunk.columns[name] for name in texts]))
    numbers, known = values.parse_all(text)
    gaps = pc.is_in(text, value_set=chunk.nulls).to_numpy(zero_copy_only=False)
    numbers[gaps] = np.nan
    good = (((known & np.isfinite(numbers)) | gaps) & ~wrong).reshape(len(texts), rows).all(1)
    for j, name in enumerate(texts):
        part = slice(j * rows, (j + 1) * rows)
        cells = cells_of(chunk, name)
        cells._texts, cells.gaps = (text[part], None, wrong[part]), gaps[part]
        if good[j]:
            cells.numbers = numbers[part]


class Cells:
    """The values of a column; all but `floats` are those of a column of texts.

    Args:
        column: An array of shape [rows].
        nulls: The texts that mean a missing value, and the empty one.
    """

    def __init__(self, column: pa.Array, nulls: pa.Array) -> None:
        self.column, self.nulls = column, nulls

    @cached_property
    def floats(self) -> np.ndarray:
        """A column of a numeric type as float64 of shape [rows], NaN for a gap."""
        kind = self.column.type
        exact = self.column if pa.types.is_float64(kind) else self.column.cast(pa.float64(), False)
        return exact.to_numpy(zero_copy_only=False)

    @cached_property
    def _texts(self) -> tuple[pa.Array, np.ndarray | None, np.ndarray]:
        """Texts without blanks, the index of the text of each row, and which are not UTF-8.

        A dictionary has each text once, and the index is -1 for null; otherwise it has all rows,
        and the index is None.
        """
        if isinstance(self.column, pa.DictionaryArray):
            return values.distinct(self.column)
        text, wrong = values.text_of(self.column)
        return text, None, wrong

    @cached_property
    def texts(self) -> pa.Array:
        """The texts without blanks around them: of each row, or each once in a dictionary."""
        return self._texts[0]

    @cached_property
    def gaps(self) -> np.ndarray:
        """Which of `texts` are gaps."""
        return pc.is_in(self.texts, value_set=self.nulls).to_numpy(zero_copy_only=False)

    def read_as(self, format: str) -> Cells:
        """Return the same values with those of a format written as plain numbers or ISO dates."""
        found = Cells(self.column, self.nulls)
        day_first = format == dates.DAY_FIRST
        plain = dates.of_dotted(self.texts) if day_first else values.ungrouped(self.texts, format)
        found._texts, found.gaps = (plain, *self._texts[1:]), self.gaps
        return found

    @cached_property
    def present(self) -> pa.Array:
        """`texts` with null for a gap."""
        return pc.if_else(pa.array(self.gaps), None, self.texts) if self.gaps.any() else self.texts

    def by_row(self, found: np.ndarray, null: float | bool) -> np.ndarray:
        """Return what was found for each of `texts`, for each row."""
        codes = self._texts[1]
        return found if codes is None else np.append(found, found.dtype.type(null))[codes]

    @cached_property
    def wrong(self) -> np.ndarray:
        """Bool of shape [rows]: the values that are not UTF-8; their texts are not used."""
        return self.by_row(self._texts[2], False)

    @cached_property
    def numbers(self) -> np.ndarray | None:
        """Each of `texts` as float64, NaN for a gap; None if some are not numbers of float32."""
        return values.parse_quickly(self.present)

    @cached_property
    def dates(self) -> np.ndarray | None:
        """Each of `texts` as a date, NO_DATE for a gap; None if some are not dates of one form."""
        return dates.parse_quickly(self.present)

    @cached_property
    def distinct(self) -> tuple[pa.Array, np.ndarray]:
        """The different texts in the order in which they occur first, and the index of each row.

        The index is -1 for a gap.
        """
        encoded = self.present.dictionary_encode()
        places = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        return encoded.dictionary, self.by_row(places, -1)

    @cached_property
    def words(self) -> list[str]:
        """The texts of `distinct`."""
        return self.distinct[0].to_pylist()
