"""statistics.json of a dataset: sums over its rows, over train unless stated otherwise.

Publish copies the file into the model's version, so every reader also reads the documents of
earlier versions, which may lack anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from pydantic import PlainValidator

from kfp_tfjob.storage import documents
from kfp_tfjob.storage.layout import is_for_training

from .types import TYPES
from .types.base import ColumnMoments, ColumnStatistics

SPLITS = ("train", "validation", "test")
TRAINING_SPLITS = tuple(split for split in SPLITS if is_for_training(f"{split}/"))


def _column(body: Any) -> ColumnStatistics:
    statistics: ColumnStatistics = documents.adapter(ColumnStatistics).validate_python(body)
    if not (column_type := TYPES.get(statistics.kind)):
        return statistics  # a later version's column type
    return documents.adapter(column_type.statistics).validate_python(body)


@dataclass(frozen=True, kw_only=True)
class LabelStatistics:
    """For classes, their rows by split; for a number, its moments over train and by split."""

    name: str = ""
    counts: Mapping[str, Mapping[str, int]] | None = None
    count: int | None = None
    mean: float | None = None
    std: float | None = None
    min: float | None = None
    max: float | None = None
    zeros: int | None = None
    histogram: list[int] | None = None
    train: ColumnMoments | None = None
    validation: ColumnMoments | None = None
    test: ColumnMoments | None = None

    @classmethod
    def of_classes(cls, name: str, classes: Sequence[str], rows: np.ndarray) -> LabelStatistics:
        """Return the statistics of a label with classes; called by prepare_data.

        Args:
            name: The label.
            classes: Its classes.
            rows: (splits, classes) the number of rows, in the order of SPLITS.
        """
        counts = (dict(zip(classes, class_rows, strict=True)) for class_rows in rows.tolist())
        return cls(name=name, counts=dict(zip(SPLITS, counts, strict=True)))


@dataclass(frozen=True)
class BadRows:
    """How many bad rows were dropped, and how many by each rule; a row may break several."""

    dropped: int = 0
    rules: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class WeightedLabel:
    """For classes, the sums of the weights; for a number, its weighted mean."""

    counts: Mapping[str, float] | None = None
    mean: float | None = None


@dataclass(frozen=True)
class SplitWeights:
    """The weights of a split's rows; `zero` of them are 0."""

    rows: int = 0
    mean: float = 0.0
    min: float = 0.0
    max: float = 0.0
    zero: int = 0
    label: WeightedLabel = WeightedLabel()


@dataclass(frozen=True)
class WeightStatistics:
    """The column with the weights of the rows, and these weights by split."""

    name: str
    splits: Mapping[str, SplitWeights]


@dataclass(frozen=True, kw_only=True)
class StatisticsDocument:
    """The content of statistics.json.

    Attributes:
        features: The columns.
        label: The label.
        rows: The number of rows that were `read`, and of each split's rows.
        duplicates: Rows with the features of an earlier row.
        conflicts: Such rows with another label.
        bad_rows: What was dropped because it is wrong.
        warnings: What a person should look at.
        suspicions: Those of them that every page with the verdict shows; None if there are none.
        rows_left_out: Rows without a value that data_options.missing requires, by column.
        weight: The weights of the rows.
        also_in_train: Rows of other splits that are in train, too; None if that cannot be.
    """

    features: Mapping[str, Annotated[ColumnStatistics, PlainValidator(_column)]] = field(
        default_factory=dict
    )
    label: LabelStatistics = LabelStatistics()
    rows: Mapping[str, int] = field(default_factory=dict)
    duplicates: int = 0
    conflicts: int = 0
    bad_rows: BadRows = BadRows()
    warnings: tuple[str, ...] = ()
    suspicions: tuple[str, ...] | None = None
    rows_left_out: Mapping[str, int] | None = None
    weight: WeightStatistics | None = None
    also_in_train: Mapping[str, int] | None = None

    @classmethod
    def from_bytes(cls, data: bytes) -> StatisticsDocument:
        """Read it back; it grows with columns and classes, so no limit of documents applies.

        Raises:
            InvalidDocumentError: It is not JSON, or a value has another type.
        """
        return documents.read(cls, data, None)

    def to_bytes(self) -> bytes:
        """Return the document as JSON, without empty fields."""
        return documents.to_bytes(self, sparse=True)
