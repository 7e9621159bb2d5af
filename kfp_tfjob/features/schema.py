"""schema.json of a dataset: which columns, classes and shards it has, and how rows are encoded.

Its digest covers the columns, the classes and the encoding, which make two models comparable, but
not the counts. Publish copies the file into the model's version, so every reader also reads the
documents of earlier versions. Written by prepare_data; called by every later step and the server to
read it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.options.image_options import ImageOptions
from kfp_tfjob.storage import documents
from kfp_tfjob.storage.documents import InvalidDocumentError
from kfp_tfjob.storage.layout import CODEC_LAYOUT, CODEC_VERSION, SCHEMA_FORMAT

from .coding import Coding
from .image_decoding import ImageInput
from .types import BY_SCHEMA_TYPE
from .types.base import ColumnType, Learned

DROP = "data_options.drop"  # the reason for leaving out a column that the user has dropped
_OPTIONAL = (
    "coding",
    "formats",
    "null_values",
    "weight",
    "group",
    "left_out",
    "picture",
    "max_megapixels",
)


@dataclass(frozen=True)
class SchemaFeature:
    """A column: its name, and the `schema_type` of its type."""

    name: str
    type: str

    @property
    def column_type(self) -> type[ColumnType]:
        """Its type; raises KeyError if this version does not have it."""
        return BY_SCHEMA_TYPE[self.type]


@dataclass(frozen=True)
class SchemaLabel:
    """The label column, and the classes in the order of their numbers; None for a regression."""

    name: str
    classes: tuple[str, ...] | None = None

    def numbers_of(self, names: pa.DictionaryArray) -> np.ndarray:
        """Return each row's class number: int64 of shape [rows], -1 without a class."""
        classes = pa.array(self.classes or (), pa.string())
        numbers = pc.index_in(names.dictionary, value_set=classes).fill_null(-1)
        codes = names.indices.fill_null(len(numbers)).to_numpy()
        return np.append(numbers.to_numpy(), -1).astype(np.int64)[codes]


@dataclass(frozen=True)
class SchemaSplit:
    """A split of a dataset.

    Attributes:
        rows: How many rows it has.
        shards: The names of its shards, below the dataset.
        digests: The hash of the rows of each shard; none before codec 5.
    """

    rows: int = 0
    shards: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()


@dataclass(frozen=True)
class SchemaWeight:
    """The column with the weights of the rows."""

    name: str


@dataclass(frozen=True)
class LeftOut:
    """A column that the model does not get, and why."""

    name: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The content of schema.json.

    Attributes:
        format: SCHEMA_FORMAT.
        task: `classification` or `regression`.
        features: The columns, in the order of the table.
        label: The label.
        split: The keys of data_options.split that decide, and `fractions` by split.
        schema_digest: What `digest` returns.
        coding: What was learned from train, by feature; none for images and, before codec 3, for
            numbers without missing values.
        formats: How the source writes columns; the model takes numbers and dates.
        null_values: The strings that mean a missing value in the source, besides the empty one.
        weight: The column of weights, if there is one.
        group: The column of the test rows with the hash of each row's group; empty unless the split
            is by group.
        left_out: What the model does not get.
        picture: The model's input, if the rows are images.
        max_megapixels: The limit of `data_options.images` if it is not the default.
        codec: `version` and `layout` of the shards.
        splits: The splits by name.
    """

    format: str = SCHEMA_FORMAT
    task: str
    features: tuple[SchemaFeature, ...]
    label: SchemaLabel
    split: Mapping[str, Any] = field(default_factory=dict)
    schema_digest: str = ""
    coding: tuple[Learned, ...] = ()
    formats: Mapping[str, str] = field(default_factory=dict)
    null_values: tuple[str, ...] = ()
    weight: SchemaWeight | None = None
    group: str = ""
    left_out: tuple[LeftOut, ...] = ()
    picture: ImageInput | None = None
    max_megapixels: float | None = None
    codec: Mapping[str, int | str] = field(default_factory=dict)
    splits: Mapping[str, SchemaSplit] = field(default_factory=dict)

    @classmethod
    def from_bytes(cls, data: bytes) -> Schema:
        """Read it back; it grows with columns and classes, so no limit of documents applies.

        Raises:
            InvalidDocumentError: It is not JSON, a key is missing, or a value has another type.
        """
        return documents.read(cls, data, None)

    def to_bytes(self) -> bytes:
        """Return the document as JSON."""
        body = asdict(replace(self, coding=())) | {"coding": self.coding}
        body = {key: value for key, value in body.items() if value or key not in _OPTIONAL}
        return (json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()

    @property
    def names(self) -> list[str]:
        """The columns."""
        return [feature.name for feature in self.features]

    def type_of(self, name: str) -> type[ColumnType]:
        """Return a column's type."""
        return next(feature.column_type for feature in self.features if feature.name == name)

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes; none for a regression."""
        return self.label.classes or ()

    @property
    def megapixel_limit(self) -> float:
        """The most megapixels of an image with which the model was trained."""
        return self.max_megapixels or ImageOptions().max_megapixels

    @property
    def rows(self) -> dict[str, int]:
        """The rows by split."""
        return {name: split.rows for name, split in self.splits.items()}

    def digest(self) -> str:
        """Return the SHA-256 of task, features, label and split, which comparable models share."""
        body = asdict(replace(self, coding=()))
        body = {key: body[key] for key in ("task", "features", "label", "split")}
        return sha256(json.dumps(body, sort_keys=True, ensure_ascii=False).encode()).hexdigest()

    @cached_property
    def encoding(self) -> Coding:
        """The encoding of rows; raises InvalidDocumentError if the document is damaged."""
        learned = self.coding or ({},) * len(self.features)
        if len(learned) != len(self.features):
            features = len(self.features)
            raise InvalidDocumentError(f"{features} features with {len(learned)} codings")
        pairs = zip(self.features, learned, strict=True)
        return Coding.of_plain({**vars(feature), **coding} for feature, coding in pairs)

    def check_codec(self, dataset: str) -> None:
        """Reject a dataset of another version, whose shards this one does not read.

        Args:
            dataset: The address of the dataset.

        Raises:
            DataError: It has another codec, or another layout: the TFRecord files of images.
        """
        version, layout = self.codec.get("version"), self.codec.get("layout", CODEC_LAYOUT)
        if (version, layout) != (CODEC_VERSION, CODEC_LAYOUT):
            is_layout = version == CODEC_VERSION
            raise DataError(
                Problem(
                    f"{dataset or 'the dataset'} was prepared by another version",
                    received=f"codec {version}" + f" with the layout {layout!r}" * is_layout,
                    expected=f"codec {CODEC_VERSION}" + f" with {CODEC_LAYOUT!r}" * is_layout,
                    fix="prepare the data with this version, which gives it a name of its own; a"
                    " run of the whole pipeline does so",
                )
            )

    @property
    def has_columns(self) -> bool:
        """Whether the shards contain columns that this version can read; False for images."""
        try:
            return self.picture is None and bool(self.encoding.names)
        except InvalidDocumentError:
            return False
