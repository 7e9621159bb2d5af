"""Loads the prepared dataset for a model: names, statistics, classes, rows.

`Dataset` is the argument of a user's `build_model`, so its public attributes stay.
`encoded_rows.py` encodes the rows, and `inputs.py` reads them. Called by `__main__.py`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kfp_tfjob.common.errors import ConfigurationError, DataError, Problem
from kfp_tfjob.common.formatting import listed
from kfp_tfjob.common.names import below
from kfp_tfjob.features.coding import Coding, Column
from kfp_tfjob.features.image_decoding import ImageInput
from kfp_tfjob.features.records import prepare_again
from kfp_tfjob.features.schema import Schema
from kfp_tfjob.features.statistics import StatisticsDocument
from kfp_tfjob.features.types import TYPES
from kfp_tfjob.features.types.base import ColumnMoments
from kfp_tfjob.features.types.image import LARGEST
from kfp_tfjob.options.image_options import PICTURE
from kfp_tfjob.storage.documents import InvalidDocumentError
from kfp_tfjob.storage.layout import SCHEMA, SCHEMA_FORMAT, STATISTICS

from .encoded_rows import EncodedRows, encode_rows

if TYPE_CHECKING:
    import keras

CLASSIFICATION, REGRESSION = "classification", "regression"


@dataclass(frozen=True)
class RowWeights:
    """A dataset's weights: how much each row counts, by the column data_options.weight.

    Records have the weight of their row as it was in the table. A loss is a mean over the rows of a
    batch, so a split's weights are divided by their mean: a row of weight 2 then counts like
    the same row twice, and the learning rate keeps its meaning. No batch is divided by the sum of
    its own weights, so the sum over replicas is the same however a batch is divided.

    Attributes:
        name: The column.
        means: The mean weight by split; 0 for a split without rows, or with weights of 0 only.
    """

    name: str
    means: Mapping[str, float]

    @classmethod
    def of(cls, schema: Schema, statistics: StatisticsDocument) -> RowWeights | None:
        """Return the weights that schema.json and statistics.json declare, or None."""
        if not schema.weight:
            return None
        if not statistics.weight:
            raise InvalidDocumentError("no statistics of the weights")
        means = {name: weights.mean for name, weights in statistics.weight.splits.items()}
        return cls(schema.weight.name, means)

    def scaled(self, split: str, weights: np.ndarray) -> np.ndarray:
        """Return (rows,) float32 weights with a mean of 1 over the split."""
        mean = self.means.get(split, 0.0)
        return weights if not mean else (weights / mean).astype(np.float32)


@dataclass(frozen=True)
class Dataset:
    """The argument of `build_model(dataset, ...)`.

    Attributes:
        folder: The folder of its files on this machine, without the shards.
        task: `classification` or `regression`.
        feature_names: The packed columns, which are the model's input, in order; `picture` for
            images.
        mean: (packed columns,) float32 means of the training rows; 0 for codes.
        std: (packed columns,) float32 deviations; 1 for codes and for a constant column.
        class_names: The classes in the order of their numbers; empty for a regression.
        label_name: The label column.
        label_mean: Mean in the training rows; 0 for a classification.
        label_std: Deviation in the training rows; 1 for a classification or a constant label.
        rows: Number of rows by split: `train`, `validation`, `test`.
        shard_names: The names of the shards by split; they are deleted once encoded.
        digest: SHA-256 of its manifest; empty without a manifest.
        uri: Its address in the store; empty if it is not in the store.
        coding: The encoding of the table's columns in packed rows; None for images.
        picture: The shape of an image as the model gets it; None for tables.
        row_weights: How much each row counts; None if all rows count the same.
        encoded: The folder of the encoded rows.
    """

    folder: Path
    task: str
    feature_names: tuple[str, ...]
    mean: np.ndarray
    std: np.ndarray
    class_names: tuple[str, ...]
    label_name: str
    label_mean: float
    label_std: float
    rows: Mapping[str, int]
    shard_names: Mapping[str, tuple[str, ...]]
    digest: str = ""
    uri: str = ""
    coding: Coding | None = None
    picture: ImageInput | None = None
    row_weights: RowWeights | None = None
    encoded: Path = Path()
    _read: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    @classmethod
    def load(
        cls,
        folder: Path,
        digest: str = "",
        uri: str = "",
        encode: Callable[[Schema], EncodedRows] | None = None,
    ) -> Dataset:
        """Read schema.json and statistics.json of a folder, and encode the rows.

        Args:
            folder: The folder of the files.
            digest: SHA-256 of their manifest.
            uri: The dataset's address.
            encode: Encodes the rows, given their schema. By default, the encoded rows go to
                `FOLDER-encoded`.

        Raises:
            DataError: They do not have the format that this trainer reads.
        """
        try:
            schema = Schema.from_bytes((folder / SCHEMA).read_bytes())
            statistics = StatisticsDocument.from_bytes((folder / STATISTICS).read_bytes())
            if schema.format != SCHEMA_FORMAT or schema.task not in (CLASSIFICATION, REGRESSION):
                raise InvalidDocumentError(f"format {schema.format!r}, task {schema.task!r}")
            schema.check_codec(uri)
            coding = None if schema.picture else schema.encoding
            label = ColumnMoments(mean=0.0, std=1.0)
            if schema.task == REGRESSION and not (label := statistics.label.train):
                raise InvalidDocumentError("no statistics of the label")
            row_weights = RowWeights.of(schema, statistics)
        except (OSError, InvalidDocumentError) as error:
            raise DataError(
                Problem(
                    "the dataset cannot be read",
                    received=f"{type(error).__name__}: {error}",
                    expected=f"schema.json in the format {SCHEMA_FORMAT}, and statistics.json",
                    fix=f"{prepare_again(uri)}; use the same version of it as of the trainer",
                    name="dataset-unreadable",
                )
            ) from error
        if encode:
            rows = encode(schema)
        else:
            rows = encode_rows(folder, folder.with_name(f"{folder.name}-encoded"), schema)
        columns = rows.columns
        return cls(
            folder=folder,
            task=schema.task,
            feature_names=tuple(column.name for column in columns),
            mean=np.array([column.mean for column in columns], np.float32),
            std=_scale([column.std for column in columns]),
            class_names=schema.classes,
            label_name=schema.label.name,
            label_mean=label.mean,
            label_std=float(_scale([label.std])[0]),
            rows=schema.rows,
            shard_names={name: split.shards for name, split in schema.splits.items()},
            digest=digest,
            uri=uri,
            coding=coding,
            picture=schema.picture,
            row_weights=row_weights,
            encoded=rows.folder,
        )

    @property
    def schema(self) -> Mapping[str, Any]:
        """The content of schema.json."""
        return json.loads((self.folder / SCHEMA).read_bytes())

    @cached_property
    def statistics(self) -> Mapping[str, Any]:
        """The content of statistics.json."""
        return json.loads((self.folder / STATISTICS).read_bytes())

    @property
    def num_features(self) -> int:
        """Number of values in a row: the packed columns, or all values of an image."""
        return math.prod(self.input_shape)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of a row: (packed columns,), or (height, width, channels) of an image."""
        return self.picture.shape if self.picture else (len(self.feature_names),)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The table's columns, each with its column type and its offset in a packed row."""
        self._read.add("columns")
        return self._columns

    @property
    def not_numbers(self) -> tuple[Column, ...]:
        """The columns whose column type is not `number`."""
        return tuple(column for column in self._columns if not TYPES[column.kind].is_direct)

    @property
    def ignored_codes(self) -> tuple[str, ...]:
        """The columns with codes, if `columns` and `encode` have not been used yet."""
        if self._read:
            return ()
        return tuple(column.name for column in self._columns if column.size)

    def encode(self, inputs: keras.KerasTensor) -> keras.KerasTensor:
        """Return (batch, n) float32 inputs of a network for packed rows.

        Images keep their shape; their values become -1 to 1.

        In a table, numbers are normalized. A column of up to 16 codes becomes a one-hot vector. A
        column with more codes becomes an embedding; its width is the square root of their number,
        at most 32. A column of words becomes the mean of such embeddings,
        of which training drops half.

        Args:
            inputs: (batch, *input_shape) float32, `keras.Input(dataset.input_shape)`.
        """
        from kfp_tfjob.features.input_layers import centred, encode

        self._read.add("encode")
        if self.picture:
            return centred(inputs)
        return encode(inputs, self._columns, self.mean, self.std)

    def example(self, rows: int) -> np.ndarray:
        """Return (rows, *input_shape) float32 random rows with this dataset's codes and moments."""
        random = np.random.default_rng(0)
        if self.picture:
            return random.uniform(0, LARGEST, (rows, *self.input_shape)).astype(np.float32)
        noise = random.normal(size=(rows, self.num_features))
        features = (self.mean + self.std * noise).astype(np.float32)
        for column in self._columns:
            if column.size:
                codes = TYPES[column.kind].example_codes(column.size, column.width, rows, random)
                features[:, column.start : column.start + column.width] = codes
        return features

    @property
    def _columns(self) -> tuple[Column, ...]:
        if self.coding is not None:
            return self.coding.columns
        return (Column(PICTURE, PICTURE, 0, self.num_features, 0),)

    @property
    def num_classes(self) -> int:
        """Number of classes; 0 for a regression."""
        return len(self.class_names)

    def shards(self, split: str) -> list[Path]:
        """Return the shards of a split; an empty list for a split without rows."""
        return [below(self.folder, name) for name in self.shard_names.get(split, ())]

    def class_weights(
        self,
        option: Mapping[str, float] | str,
        labels: np.ndarray,
        weights: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return (classes,) float32 weights of the classes in the loss.

        Args:
            option: `balanced`, or weights by class name; other classes get 1.
            labels: (rows,) the class of every training row.
            weights: (rows,) how much each of them counts; None if all count the same.

        Raises:
            ConfigurationError: This is a regression, or a class does not exist.
        """
        if self.task != CLASSIFICATION:
            raise ConfigurationError(
                Problem(
                    "train_options.class_weight needs classes",
                    received=f"a {self.task}",
                    expected=f"a {CLASSIFICATION}",
                    fix="remove class_weight",
                    name="invalid-value",
                )
            )
        if not isinstance(option, Mapping):
            counts = np.bincount(labels, weights, self.num_classes)
            balanced = counts.sum() / (self.num_classes * np.where(counts, counts, 1))
            return np.where(counts, balanced, 0).astype(np.float32)
        ConfigurationError.raise_if(
            Problem(
                f"train_options.class_weight names a class that does not exist: {name!r}",
                received=name,
                expected=f"one of {listed(self.class_names, 20)}",
                fix="correct train_options.class_weight",
                name="invalid-value",
            )
            for name in option
            if name not in self.class_names
        )
        return np.array([option.get(name, 1.0) for name in self.class_names], np.float32)


def _scale(deviations: list[float]) -> np.ndarray:
    """Return the float32 divisors that normalize columns; 1 for a constant column."""
    divisors = np.array(deviations, np.float32)
    return np.where(
        np.isfinite(divisors) & (divisors >= np.finfo(np.float32).tiny), divisors, np.float32(1)
    )
