"""Exports the model: model.keras for further training, and a SavedModel for serving.

    serve          one argument (batch,) for each raw column; columns.json has their names
    serve_packed   features (batch, n) float32, the columns in the order of the schema

Of images, `serve` takes `picture` (batch,) string: the bytes of JPEG or PNG files, which it
decodes and resizes as training did. There is no `serve_packed`.

In a table of numbers without missing values, the arguments of `serve` are float32. Otherwise,
they have the types of features/types, and there is no `serve_packed`, because packed rows mean
something only with the vocabularies of one dataset. `serving_default`, the default signature of
servers, is `serve`. All return `probabilities` (batch, classes) and `class` (batch,) text, or
`prediction` (batch,).
"""

from __future__ import annotations

import inspect
import shutil
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kfp_tfjob.features.raw_columns import RawColumns, type_of
from kfp_tfjob.features.signature_columns import COLUMNS, argument_names, to_json
from kfp_tfjob.storage import files
from kfp_tfjob.storage.layout import KERAS_MODEL, MODEL
from kfp_tfjob.trainer.dataset import CLASSIFICATION, Dataset

_ROWS = 64  # random rows for a model with an unknown output shape


def export(model: keras.Model, dataset: Dataset, output: Path) -> None:
    """Write `model.keras` and `model/`; each appears complete or not at all.

    Args:
        model: The model, trained and compiled.
        dataset: The training data.
        output: OUTPUT_DIR.
    """
    output.mkdir(parents=True, exist_ok=True)
    keras_ending = output / f".{KERAS_MODEL}"  # Keras rejects other suffixes
    with files.written(output / KERAS_MODEL, keras_ending) as partial:
        model.save(partial)
    names = [column.name for column in dataset.columns]
    kinds = [column.kind for column in dataset.columns]
    with files.written(output / MODEL) as folder:
        holder, signatures = with_signatures(model, dataset)
        tf.saved_model.save(holder, str(folder), signatures)
        (folder / COLUMNS).parent.mkdir(exist_ok=True)
        (folder / COLUMNS).write_text(to_json(names, kinds), encoding="utf-8")
        shutil.rmtree(output / MODEL, ignore_errors=True)


def with_signatures(model: keras.Model, dataset: Dataset) -> tuple[tf.Module, dict[str, Any]]:
    """Return what `model/` contains: an object that holds the model, and its signatures."""
    arguments = argument_names([column.name for column in dataset.columns])
    outputs = _outputs(model, dataset)
    holder = tf.Module()
    # Not the model itself, because that would include the state of its optimizer.
    holder.layers = list(model.layers)
    metrics = [variable for layer in model.layers for variable in layer.metrics_variables]
    holder.weights = [*model.variables, *metrics]
    # What a user's own model holds besides layers: a lookup table, a tf.Variable.
    of_keras = (keras.Layer, keras.Metric, keras.Variable, keras.optimizers.Optimizer, list, dict)
    others = model._trackable_children().items()
    if own := {name: item for name, item in others if not isinstance(item, of_keras)}:
        holder.own = own
    if wanted := dataset.picture:
        types, pack = [tf.string], lambda columns: wanted.decode(columns[0])
    else:
        assert dataset.coding is not None
        holder.raw_columns = RawColumns(dataset.coding)
        types = [type_of(feature) for feature in dataset.coding.features]
        pack = holder.raw_columns.pack

    def serve(*columns: tf.Tensor) -> dict[str, tf.Tensor]:
        return outputs(pack(columns))

    def serve_packed(features: tf.Tensor) -> dict[str, tf.Tensor]:
        return outputs(features)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    serve.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in arguments])
    specs = [
        tf.TensorSpec([None], dtype, name) for dtype, name in zip(types, arguments, strict=True)
    ]
    packed = [tf.TensorSpec([None, dataset.num_features], tf.float32, "features")]
    # Saving traces them. If traced earlier, a function that sets a variable, such as the
    # state of random numbers, would refer to all replicas and could not be saved.
    serve_columns = tf.function(serve, input_signature=specs)
    signatures = {"serve": serve_columns, "serving_default": serve_columns}
    if dataset.coding and dataset.coding.is_identity:
        signatures["serve_packed"] = tf.function(serve_packed, input_signature=packed)
    return holder, signatures


def _outputs(model: keras.Model, dataset: Dataset) -> Any:
    """Return the function from packed rows to the outputs of a signature."""
    if dataset.task != CLASSIFICATION:
        return lambda rows: {
            "prediction": tf.cast(tf.reshape(model(rows, training=False), [-1]), tf.float32)
        }
    logits = gives_logits(model, dataset)
    classes = tf.constant(dataset.class_names)

    def classify(rows: tf.Tensor) -> dict[str, tf.Tensor]:
        scores = tf.cast(model(rows, training=False), tf.float32)
        if scores.shape[1] == 1:
            positive = tf.sigmoid(scores) if logits else scores
            probabilities = tf.concat([1 - positive, positive], axis=1)
        else:
            probabilities = tf.nn.softmax(scores) if logits else scores
        return {
            "probabilities": probabilities,
            "class": tf.gather(classes, tf.argmax(probabilities, axis=1)),
        }

    return classify


def gives_logits(model: keras.Model, dataset: Dataset) -> bool:
    """Return whether a model ends in logits, by its loss, its last activation or its outputs."""
    loss = model.loss
    if isinstance(loss, str):
        return False  # the named losses of Keras take probabilities
    if hasattr(loss, "from_logits"):
        return bool(loss.from_logits)
    outputs = getattr(model, "outputs", None)  # a user's subclass has none
    last: Any = outputs[0]._keras_history.operation if outputs else None
    # Such a layer only casts, in mixed precision: the one before it says what the numbers are.
    while isinstance(last, keras.layers.Activation) and last.activation is keras.activations.linear:
        last = last.input._keras_history.operation
    name = getattr(getattr(last, "activation", None), "__name__", "")
    if name in ("linear", "softmax", "sigmoid"):
        return name == "linear"
    scores = tf.cast(model(dataset.example(_ROWS), training=False), tf.float32).numpy()
    shares = ((scores >= 0) & (scores <= 1)).all()
    return not (shares and (scores.shape[1] == 1 or np.allclose(scores.sum(1), 1, atol=1e-2)))
