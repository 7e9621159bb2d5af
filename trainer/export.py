"""Exports the model: model.keras for further training, and a SavedModel for serving.

    serve          one argument (batch,) for each raw column; columns.json has their names
    serve_packed   features (batch, n) float32, the columns in the order of the schema

For images, `serve` takes `picture` (batch,) string: the bytes of JPEG or PNG files, which it
decodes and resizes as training did. There is no `serve_packed`.

In a table of numbers without missing values, the arguments of `serve` are float32. Otherwise,
they have the types of features/types, and there is no `serve_packed`, because packed rows mean
something only with the vocabularies of one dataset. `serving_default`, the default signature of
servers, is `serve`. All return `probabilities` (batch, classes) and `class` (batch,) text, or
`prediction` (batch,). Called by `__main__.py`.
"""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.distribute.values import SyncOnReadVariable  # not in the public API

from kfp_tfjob.common import files
from kfp_tfjob.features.raw_columns import RawColumns, type_of
from kfp_tfjob.features.signature_columns import COLUMNS, argument_names, to_json
from kfp_tfjob.storage.layout import KERAS_MODEL, MODEL

from .dataset import CLASSIFICATION, Dataset
from .prediction import to_probabilities
from .replicas import Replicas


def export(model: keras.Model, dataset: Dataset, output: Path, logits: bool) -> None:
    """Write `model.keras` and `model/`; each appears complete or not at all.

    Args:
        model: The model, trained and compiled.
        dataset: The training data.
        output: OUTPUT_DIR.
        logits: Whether a classifier's outputs are logits, as `probabilities.check` returns it.
    """
    output.mkdir(parents=True, exist_ok=True)
    keras_ending = output / f".{KERAS_MODEL}"  # Keras rejects other suffixes
    holder, signatures = with_signatures(model, dataset, logits)
    with readable_alone(holder), files.atomic_write(output / KERAS_MODEL, keras_ending) as file:
        model.save(file)
    names = [column.name for column in dataset.columns]
    kinds = [column.kind for column in dataset.columns]
    with readable_alone(holder), files.atomic_write(output / MODEL) as folder:
        tf.saved_model.save(holder, str(folder), signatures)
        (folder / COLUMNS).parent.mkdir(exist_ok=True)
        (folder / COLUMNS).write_text(to_json(names, kinds), encoding="utf-8")
        shutil.rmtree(output / MODEL, ignore_errors=True)


def with_signatures(
    model: keras.Model, dataset: Dataset, logits: bool
) -> tuple[tf.Module, dict[str, Any]]:
    """Return the trackable object to save in `model/`, and its signatures by name."""
    arguments = argument_names([column.name for column in dataset.columns])
    outputs = _outputs(model, dataset, logits)
    holder = holder_of(model)
    if picture := dataset.picture:
        types, pack = [tf.string], lambda columns: picture.decode(columns[0])
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


def settle(model: keras.Model, replicas: Replicas) -> None:
    """Combine variables that each replica has for itself; every process must call this.

    They are the state of metrics in a layer, and tf.Variables with ON_READ. Afterwards, the export
    of this process alone has their values over all replicas.
    """
    if replicas.count > 1:
        for variable in _per_replica_variables(holder_of(model)):
            if variable.aggregation in (tf.VariableAggregation.SUM, tf.VariableAggregation.MEAN):
                variable._primary.assign(variable.read_value())


@contextmanager
def readable_alone(holder: tf.Module) -> Iterator[None]:
    """Make this process read its own value of variables that each replica has for itself.

    TensorFlow would combine all values whenever it saves one, and wait for the other processes.
    """
    variables = _per_replica_variables(holder)
    for variable in variables:
        vars(variable)["_get_cross_replica"] = partial(getattr, variable, "_primary")
    try:
        yield
    finally:
        for variable in variables:
            del vars(variable)["_get_cross_replica"]


def _per_replica_variables(holder: tf.Module) -> list[Any]:
    """Return the variables that have another value on each replica, without repetitions."""
    objects = tf.train.TrackableView(holder).descendants()
    values = (item.value if isinstance(item, keras.Variable) else item for item in objects)
    variables = (value for value in values if isinstance(value, SyncOnReadVariable))
    return list({id(variable): variable for variable in variables}.values())


def holder_of(model: keras.Model) -> tf.Module:
    """Return an object that holds all of a model's state except its optimizer's."""
    holder = tf.Module()
    holder.layers = list(model.layers)
    metrics = [variable for layer in model.layers for variable in layer.metrics_variables]
    holder.weights = [*model.variables, *metrics]
    # A user's subclass of keras.Model may also hold a lookup table or a tf.Variable.
    keras_types = (
        *(keras.Layer, keras.Metric, keras.Variable, keras.optimizers.Optimizer),
        *(list, dict),
    )
    children = model._trackable_children().items()
    if own := {name: child for name, child in children if not isinstance(child, keras_types)}:
        holder.own = own
    return holder


def _outputs(model: keras.Model, dataset: Dataset, logits: bool) -> Any:
    """Return the function from (batch, n) packed rows to a signature's outputs by name."""
    if dataset.task != CLASSIFICATION:
        return lambda rows: {
            "prediction": tf.cast(tf.reshape(model(rows, training=False), [-1]), tf.float32)
        }
    classes = tf.constant(dataset.class_names)

    def classify(rows: tf.Tensor) -> dict[str, tf.Tensor]:
        probabilities = to_probabilities(model(rows, training=False), logits)
        return {
            "probabilities": probabilities,
            "class": tf.gather(classes, tf.argmax(probabilities, axis=1)),
        }

    return classify
