"""A model's identity and outputs: the digest of its weights, and its predictions of a batch.

Two exports of the same model differ in their bytes, so models are identified by their variables.
Called by `scoring.py` for the challenger, by `champion_scoring.py`, and by the server's
`loaded_model.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.features.schema import Schema
from kfp_tfjob.features.served_model import EXPORT_AGAIN
from kfp_tfjob.storage.layout import SAVED_MODEL

from .predictions import ClassPredictions, Predictions, ValuePredictions
from .rows import Batch


def predictions_of(schema: Schema, batch: Batch, outputs: np.ndarray) -> Predictions:
    """Return the predictions of a batch.

    Args:
        schema: The content of schema.json, which says whether the task is a regression.
        batch: The test rows.
        outputs: `ServedModel.predict` of these rows.
    """
    kind = ValuePredictions if schema.task == "regression" else ClassPredictions
    return replace(kind.of(batch.labels, outputs, batch.weights), groups=batch.groups)


def exported_weights_sha256(folder: Path) -> str:
    """Return the SHA-256 of the variables in a SavedModel; equal models have equal digests.

    The digest covers the name, type, shape and bytes of every variable, in order of name. For a
    model without variables, it covers the graph.

    Raises:
        DataError: The variables cannot be read.
    """
    import tensorflow as tf

    digest = hashlib.sha256()
    names: list[str] = []
    if (folder / "variables" / "variables.index").exists():
        with _translate_read_errors():
            reader = tf.train.load_checkpoint(str(folder / "variables" / "variables"))
            shapes = reader.get_variable_to_shape_map()
        # The object graph is stored among the variables, but it is not a weight.
        names = sorted(name for name in shapes if name != "_CHECKPOINTABLE_OBJECT_GRAPH")
    for name in names:
        with _translate_read_errors():
            tensor = reader.get_tensor(name)
        value = np.ascontiguousarray(tensor)
        data = repr(value.tolist()).encode() if value.dtype == object else value.tobytes()
        digest.update(f"{name}\0{value.dtype}\0{value.shape}\0{len(data)}\0".encode())
        digest.update(data)
    if not names:
        with _translate_read_errors():
            digest.update((folder / SAVED_MODEL).read_bytes())
    return digest.hexdigest()


@contextmanager
def _translate_read_errors() -> Iterator[None]:
    """Turn TensorFlow's errors about a model's files into a DataError."""
    import tensorflow as tf

    try:
        yield
    except (tf.errors.OpError, RuntimeError, OSError, ValueError) as error:
        raise DataError(
            Problem(
                "the model's variables cannot be read",
                received=f"{type(error).__name__}: {str(error).strip()[:500]}",
                expected="a SavedModel with all files of one export",
                fix=EXPORT_AGAIN,
            )
        ) from error
