"""Runs the model under evaluation, and computes the digest that identifies it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from kfp_tfjob.features.schema import Schema
from kfp_tfjob.features.served_model import ServedModel
from kfp_tfjob.judging.predictions import (
    ClassPredictions,
    Predictions,
    ValuePredictions,
)
from kfp_tfjob.judging.rows import Batch
from kfp_tfjob.storage.errors import DataError, Problem
from kfp_tfjob.storage.layout import SAVED_MODEL


class Scorer:
    """A loaded SavedModel.

    Args:
        folder: The folder of the SavedModel.
        schema: The schema of the data.
        name: Its name in messages, for instance `the model`.

    Attributes:
        model: The loaded model.
        folder: Its folder.

    Raises:
        DataError: The model cannot be loaded, or its signature does not match the task.
    """

    def __init__(self, folder: Path, schema: Schema, name: str) -> None:
        self.model, self.folder = ServedModel(folder, schema, name), folder

    def predict(self, batch: Batch) -> Predictions:
        """Predict one batch of test rows.

        Raises:
            DataError: The model failed, or its output does not match the task.
        """
        return self.predictions(batch, self.outputs(batch))

    def outputs(self, batch: Batch) -> np.ndarray:
        """Return the (batch, classes) probabilities, or (batch,) values, of one batch.

        Raises:
            DataError: The model failed, or its output does not match the task.
        """
        return self.model.predict(batch.features)

    def predictions(self, batch: Batch, outputs: np.ndarray) -> Predictions:
        """Return what is kept of the outputs for a batch."""
        if self.model.schema.task == "regression":
            return ValuePredictions.of(batch.labels, outputs, batch.weights)
        return ClassPredictions.of(batch.labels, outputs, batch.weights)


def exported_weights_sha256(folder: Path) -> str:
    """Return the SHA-256 of the variables in a SavedModel; equal models have equal digests.

    The digest covers the name, type, shape and bytes of every variable, in order of name. For a
    model without variables, it covers the graph.

    Raises:
        DataError: The variables cannot be read.
    """
    import tensorflow as tf

    digest = hashlib.sha256()
    try:
        shapes: dict[str, list[int]] = {}
        if (folder / "variables" / "variables.index").exists():
            reader = tf.train.load_checkpoint(str(folder / "variables" / "variables"))
            shapes = reader.get_variable_to_shape_map()
        # The object graph is stored with the variables, but it is not a weight.
        names = sorted(name for name in shapes if name != "_CHECKPOINTABLE_OBJECT_GRAPH")
        for name in names:
            value = np.ascontiguousarray(reader.get_tensor(name))
            data = repr(value.tolist()).encode() if value.dtype == object else value.tobytes()
            digest.update(f"{name}\0{value.dtype}\0{value.shape}\0{len(data)}\0".encode())
            digest.update(data)
        if not names:
            digest.update((folder / SAVED_MODEL).read_bytes())
    except Exception as error:
        raise DataError(
            Problem(
                "the variables of the model cannot be read",
                received=f"{type(error).__name__}: {str(error).strip()[:500]}",
                expected="a SavedModel",
                fix="check how the training exports the model",
            )
        ) from error
    return digest.hexdigest()
