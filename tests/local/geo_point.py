"""A column type that the product does not have: a place such as `48.137, 11.575`.

Shards have a place as one whole number of millionths of a degree.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa

from kfp_tfjob.features.cells import BLANKS, NO_DATE, Cells, Parsed, matches
from kfp_tfjob.features.types.base import (
    WHOLES,
    ColumnStatistics,
    ColumnType,
    Read,
    Summary,
    Votes,
    text_of,
)

_DEGREES = r"[+-]?[0-9]{1,3}(\.[0-9]{1,6})?"
_PLACE = rf"^{_DEGREES} *, *{_DEGREES}$"
_SPAN = 360_000_001  # longitudes


@dataclass(frozen=True, kw_only=True)
class GeoPointStatistics(ColumnStatistics):
    """The northernmost and southernmost latitude."""

    south: float
    north: float

    @property
    def words(self) -> str:
        """The range of latitudes."""
        return f"latitudes {self.south:.1f} to {self.north:.1f}"


class GeoPoint(ColumnType):
    """Latitude and longitude."""

    kind = "geo point"
    schema_type = "geo_point"
    field = WHOLES
    parts = (".latitude", ".longitude")
    written = 'a text such as "48.137, 11.575"'
    example = "48.137, 11.575"
    nouns = ("a geo point", "geo points")
    statistics = GeoPointStatistics
    forms = parsed_forms = ("geo point",)

    @classmethod
    def forms_of(cls, texts: pa.Array, short: np.ndarray) -> list[tuple[str, np.ndarray]]:
        """Return which strings are places."""
        return [(cls.kind, _parsed(texts)[1])]

    @classmethod
    def fits(cls, votes: Votes) -> bool:
        """Tell whether most values are places."""
        return votes.are_most(cls.kind)

    @classmethod
    def parse(cls, cells: Cells) -> Parsed:
        """Return whole numbers."""
        texts, codes, invalid = cells.written()
        found, good = _parsed(pa.array(texts, pa.string()))
        found, good = np.append(found, NO_DATE)[codes], np.append(good, True)[codes]
        return Parsed(np.where(good, found, 0), {**invalid, cls.kind: ~good})

    @classmethod
    def constant(cls, text: str) -> int | None:
        """Return the place."""
        found, good = _parsed(pa.array([text]))
        return int(found[0]) if good[0] else None

    @classmethod
    def stored(cls, values: Any, tables: tuple[Any, ...]) -> Any:
        """Return whole numbers."""
        import tensorflow as tf

        good = tf.strings.regex_full_match(values, _PLACE[1:-1])
        both = tf.strings.regex_replace(tf.where(good, values, "0,0"), " ", "")
        parts = [tf.strings.regex_replace(both, it, "") for it in (",.*", ".*,")]
        north, east = (
            tf.cast(tf.round(tf.strings.to_number(it, tf.float64) * 1e6), tf.int64) for it in parts
        )
        found = (north + 90_000_000) * _SPAN + east + 180_000_000
        return tf.where(good, found, tf.constant(NO_DATE, tf.int64))

    @classmethod
    def graph(cls, columns: Sequence[Self], values: Any, tables: tuple[Any, ...]) -> list[Any]:
        """Return degrees."""
        import tensorflow as tf

        return [
            tf.cast(values // _SPAN - 90_000_000, tf.float64) / 1e6,
            tf.cast(values % _SPAN - 180_000_000, tf.float64) / 1e6,
        ]

    def to_arrow(self, values: np.ndarray) -> pa.Array:
        """Return strings."""
        north, east = _degrees(values)
        pairs = zip(values.tolist(), north.tolist(), east.tolist(), strict=True)
        texts = [None if it == NO_DATE else f"{a:.6f}, {b:.6f}" for it, a, b in pairs]
        return pa.array(texts, pa.string())

    @classmethod
    def read(cls, values: Sequence[Any]) -> Read:
        """Return strings."""
        texts = ["" if it is None else text_of(it) for it in values]
        texts = ["?" if it is None else it.strip(BLANKS) for it in texts]
        good = _parsed(pa.array(texts, pa.string()))[1]
        wrong = [(row, "no place") for row, text in enumerate(texts) if text and not good[row]]
        return np.array([it.encode() for it in texts], object), wrong

    def describe(self, column: Summary) -> GeoPointStatistics:
        """Return the northernmost and southernmost latitude."""
        ends = [column.least, column.most] if column.count else []
        south, *north = _degrees(np.array(ends or [0]))[0].tolist()
        return GeoPointStatistics(south=south, north=[south, *north][-1])


def _degrees(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the latitudes and longitudes of whole numbers."""
    return (values // _SPAN - 90_000_000) / 1e6, (values % _SPAN - 180_000_000) / 1e6


def _parsed(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return places as whole numbers, and which strings are places."""
    good = matches(texts, _PLACE)
    known = zip(texts.to_pylist(), good.tolist(), strict=True)
    pairs = [text.split(",") if ok else ("0", "0") for text, ok in known]
    north, east = (
        np.rint(np.array([float(pair[at]) for pair in pairs] or [0.0]) * 1e6).astype(np.int64)
        for at in (0, 1)
    )
    found = ((north + 90_000_000) * _SPAN + east + 180_000_000)[: len(texts)]
    good = good & ((np.abs(north) <= 90_000_000) & (np.abs(east) <= 180_000_000))[: len(texts)]
    return np.where(good, found, NO_DATE), good
