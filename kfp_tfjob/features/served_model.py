"""Predicts rows with any SavedModel.

A model takes each raw column by name, in the type of its kind, or the bytes of image
files. For a table of numbers without missing values, it may also take all columns as one packed
input, as `serve_packed` of the trainer's own export does. Any other input is rejected. Called by
evaluate, the model server, and the trainer's test of its export.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.common.escaping import uncolored
from kfp_tfjob.common.formatting import listed

from . import signature_columns
from .schema import Schema

# A program that overwrites its model file by file may be stopped between two files.
EXPORT_AGAIN = (
    "write each export to $OUTPUT_DIR/model.tmp, delete $OUTPUT_DIR/model and rename model.tmp to"
    " model; then start a new run, because a retry evaluates the same files"
)
SIGNATURES = ("serve_packed", "serve", "serving_default")
_OUTPUTS = {"classification": "probabilities", "regression": "prediction"}
# Half precision rounds a softmax over many classes to sums that differ from 1 in the third digit.
_SUM_TOLERANCE = 1e-2


if TYPE_CHECKING:
    import tensorflow as tf

    Feed: TypeAlias = Callable[[Mapping[str, np.ndarray]], dict[str, tf.Tensor]]


class ServedModel:
    """A loaded SavedModel.

    Args:
        folder: The folder of the SavedModel.
        schema: The schema of the data that it predicts.
        name: Its name in messages, for example `the model`.

    Raises:
        DataError: It cannot be loaded, or its signature does not fit the task.
    """

    def __init__(self, folder: Path, schema: Schema, name: str) -> None:
        import tensorflow as tf

        self.schema, self.name = schema, name
        self._columns = schema.encoding.features
        # Whether it may take all columns as one input: they are numbers without missing values.
        self._is_packed = schema.encoding.is_identity
        try:
            self._loaded = tf.saved_model.load(str(folder))  # keeps variables alive
        except MemoryError:
            raise
        except Exception as error:
            raise self._unusable("cannot be loaded", error, EXPORT_AGAIN) from error
        self._mapping = signature_columns.read(folder)
        signatures = self._loaded.signatures
        usable = SIGNATURES if self._is_packed else SIGNATURES[1:]
        signature = next((key for key in usable if key in signatures), None)
        if signature is None:
            raise DataError(
                Problem(
                    f"{name} has no signature to predict with",
                    received=f"signatures {sorted(signatures) or 'none'}",
                    expected=f"one of {', '.join(usable)}",
                    fix="export the model with model.export(), or rename its signature",
                )
            )
        self._signature, self._call = signature, signatures[signature]
        self._feed = self._fed(signature)

    def example(self, rows: int) -> dict[str, np.ndarray]:
        """Return rows with one value in every column, as `predict` takes them."""
        return {column.name: column.read([column.usual()] * rows)[0] for column in self._columns}

    def predict(self, features: Mapping[str, np.ndarray]) -> np.ndarray:
        """Predict one batch.

        Args:
            features: By column, a (batch,) array or tensor of one of the `raw_types` of
                its type.

        Returns:
            (batch, classes) float32 probabilities, or (batch,) values of a regression.

        Raises:
            DataError: The model failed, or its output does not fit the task.
            MemoryError: It needs more memory.
        """
        import tensorflow as tf

        arguments = self._feed(features)
        try:
            outputs = self._call(**arguments)
        except tf.errors.ResourceExhaustedError as error:
            raise MemoryError(str(error)) from error
        except Exception as error:  # the model may contain any operation
            fix = "load it with tf.saved_model.load, and call `serve` with a few rows"
            raise self._unusable("failed to predict", error, fix) from error
        values, rows = self._output(outputs), int(next(iter(features.values())).shape[0])
        if self.schema.task == "regression":
            return self._shaped(values, (rows,), (rows, 1))
        return self._probabilities(values, rows)

    def _fed(self, signature: str) -> Feed:
        """Return the function from raw columns to the arguments of a signature."""
        inputs = dict(self._loaded.signatures[signature].structured_input_signature[1])
        columns = _columns(self.schema.names, inputs, self._mapping)
        if columns:
            return self._fed_by_column(signature, inputs, columns)
        if self._is_packed and len(inputs) == 1:
            ((name, spec),) = inputs.items()
            shape = _row_shape(spec, len(self.schema.names))
            if shape is not None:
                return lambda features: self._packed(features, name, spec, shape)
        raise DataError(self._other_columns(signature, inputs))

    def _packed(
        self, features: Mapping[str, np.ndarray], name: str, spec: Any, shape: list[int]
    ) -> dict[str, tf.Tensor]:
        """Return all columns as one argument."""
        import tensorflow as tf

        rows = np.stack([features[column] for column in self.schema.names], axis=1)
        return {name: tf.reshape(tf.cast(rows, spec.dtype), [-1, *shape])}

    def _fed_by_column(
        self, signature: str, inputs: dict[str, tf.TensorSpec], columns: dict[str, int]
    ) -> Feed:
        """Return the function from raw columns to one argument for each."""
        import tensorflow as tf

        wrong = []
        for name, at in sorted(columns.items(), key=lambda item: item[1]):
            column, spec = self._columns[at], inputs[name]
            fits = spec.dtype.name in column.raw_types and _is_one_value(spec.shape)
            if not fits and not self._is_packed:
                types = " or ".join(column.raw_types)
                wrong.append(
                    Problem(
                        f"the signature {signature} of {self.name} takes {column.name!r} with a"
                        f" type or shape that does not fit a {column.kind}",
                        received=f"{name}: {spec.shape} {spec.dtype.name}",
                        expected=f"{name}: (batch,) {types}",
                        fix="export the model with the expected input, or set data_options.types to"
                        " the type that the model takes",
                    )
                )
        DataError.raise_if(wrong)
        fed = [
            (name, self._columns[at].name, inputs[name].dtype, inputs[name].shape.rank)
            for name, at in columns.items()
        ]

        def feed(rows: Mapping[str, np.ndarray]) -> dict[str, tf.Tensor]:
            tensors = {name: tf.cast(rows[column], dtype) for name, column, dtype, _ in fed}
            for name, _, _, rank in fed:
                if rank is not None and rank > 1:
                    tensors[name] = tf.reshape(tensors[name], [-1] + [1] * (rank - 1))
            return tensors

        return feed

    def _other_columns(self, signature: str, inputs: dict[str, tf.TensorSpec]) -> Problem:
        """Describe a signature without one input for each raw column."""
        names = signature_columns.argument_names(self.schema.names)
        expected_names = {*names, *self.schema.names, *self._mapping.values()}
        missing = [
            column
            for column, name in zip(self.schema.names, names, strict=True)
            if not {column, name, self._mapping.get(column, "")} & set(inputs)
        ]
        foreign = sorted(set(inputs) - expected_names)
        received = [f"no input for {_few(missing)}"] if missing else []
        received += [f"{_few(foreign)} besides"] if foreign else []
        received += [_few([f"{n}: {s.shape} {s.dtype.name}" for n, s in inputs.items()])]
        expected = _few([f"{column.name}: {column.raw_type}" for column in self._columns])
        packed = f"one of shape (batch, {len(names)}), or " if self._is_packed else ""
        return Problem(
            f"the signature {signature} of {self.name} does not take the columns of the data",
            received="; ".join(received),
            expected=f"{packed}one input (batch,) for each column: {expected}",
            fix="export the model with such a signature; if an input's name differs from its"
            f" column's name, map the column to it in {signature_columns.COLUMNS}",
        )

    def _output(self, outputs: Any) -> np.ndarray:
        """Return the one output of the signature that is the prediction."""
        name = _OUTPUTS[self.schema.task]
        if name in outputs:
            return np.asarray(outputs[name])
        if len(outputs) == 1:
            return np.asarray(next(iter(outputs.values())))
        raise DataError(
            Problem(
                f"{self.name} has several outputs, and none is named {name}",
                received=", ".join(f"{n}: {v.shape}" for n, v in sorted(outputs.items())),
                expected=f"one output, or one named {name}",
                fix=f"name the output of the signature {name}",
            )
        )

    def _shaped(self, values: np.ndarray, *shapes: tuple[int, ...]) -> np.ndarray:
        """Return values in the first of several shapes."""
        if values.shape not in shapes:
            raise DataError(
                Problem(
                    f"the output shape of {self.name} is wrong for {self.schema.task}",
                    received=f"shape {values.shape}",
                    expected=f"shape {' or '.join(map(str, shapes))}",
                    fix="train and export the model for the classes and the label of this data",
                )
            )
        return values.reshape(shapes[0])

    def _probabilities(self, values: np.ndarray, rows: int) -> np.ndarray:
        classes = len(self.schema.classes)
        if values.shape in ((rows,), (rows, 1)) and classes == 2:
            second = values.reshape(rows).astype(np.float32)
            values = np.stack([1 - second, second], axis=1)
        values = self._shaped(values, (rows, classes)).astype(np.float32)
        wrong = not_probabilities(values)
        if wrong.any():
            row = values[wrong][0]
            raise DataError(
                Problem(
                    f"{self.name} does not return probabilities",
                    received=f"a row with the values {_few([f'{value:.4g}' for value in row])}",
                    expected="values from 0 to 1 with a sum of 1",
                    fix="end the model with a softmax, or with a sigmoid for two classes",
                )
            )
        values[np.isinf(values)] = np.nan  # which would be clipped to 0 or 1
        return np.clip(values, 0, 1, out=values)  # the report's curves end at 1

    def _unusable(self, defect: str, error: Exception, fix: str) -> DataError:
        received = f"{type(error).__name__}: {uncolored(str(error)).strip()[:500]}"
        return DataError(
            Problem(
                f"{self.name} {defect}",
                received=received,
                expected="a SavedModel that predicts the test rows",
                fix=fix,
            )
        )


def not_probabilities(values: np.ndarray) -> np.ndarray:
    """Return which finite rows are not from 0 to 1 with a sum of 1.

    Args:
        values: (rows, classes) float32.

    Returns:
        (rows,) bool; False for rows that are not finite.
    """
    with np.errstate(invalid="ignore"):
        sums = values.sum(axis=1)
    wrong = (values < -_SUM_TOLERANCE).any(axis=1) | (np.abs(sums - 1) > _SUM_TOLERANCE)
    return wrong & np.isfinite(sums)


def _columns(
    features: Sequence[str], inputs: dict[str, tf.TensorSpec], mapping: dict[str, str]
) -> dict[str, int]:
    """Return the column of each input; empty if they do not match one to one.

    Args:
        features: The names of the columns.
        inputs: The inputs of the signature, by name.
        mapping: The input of each column according to the model. Without it, an input may have its
            column's name, the trainer's name for the column, or TensorFlow's name, in which `_`
            replaces each character that is invalid in Python names.
    """
    ways = [[mapping.get(name, "") for name in features]] if mapping else []
    replaced = [re.sub(r"\W", "_", name, flags=re.ASCII) for name in features]
    for names in (*ways, features, signature_columns.argument_names(features), replaced):
        columns = {name: index for index, name in enumerate(names)}
        if set(columns) == set(inputs) and len(columns) == len(features):
            return columns
    return {}


def _is_one_value(shape: Any) -> bool:
    """Return whether an input takes one value of each row: (batch,), or (batch, 1)."""
    return shape.rank is None or (shape.rank >= 1 and all(size == 1 for size in shape[1:]))


def _row_shape(spec: Any, width: int) -> list[int] | None:
    """Return the shape of one row of an input that takes packed rows of `width`, or None."""
    if spec.shape.rank is None:
        return [width]
    row = spec.shape.as_list()[1:]
    if row in ([width], [None]):
        return [width]
    if row and None not in row and math.prod(row) == width:
        return row  # for example an image with its pixels as columns
    return None


def _few(names: Any) -> str:
    return listed(names, 10)
