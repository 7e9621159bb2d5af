"""Models with a champion in the store, judged and published by the real engines."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kfp_tfjob.components.publish import engine as publish
from kfp_tfjob.components.step import Step
from kfp_tfjob.features.coding import Coding
from kfp_tfjob.features.schema import Schema
from kfp_tfjob.options.gate import DEFAULT_GATE
from kfp_tfjob.registry.promotion import promote
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.champion import ROLLBACK, Champion, read_record
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader import push
from tests.local import mixed_dataset

CLASSES = ("cat", "dog", "owl")
COLUMNS = tuple(f"column {number}" for number in range(6))
ROWS = 900
PEOPLE, PETS, TUTORIAL = "people", "pets", "tutorial"


class Publisher:
    """Trains and publishes small models below one output_uri."""

    def __init__(self, store: Store, base: S3Address, folder: Path) -> None:
        self.store, self.layout, self.folder = store, Layout(base), folder
        self._datasets: dict[str, S3Address] = {}
        self._runs = 0

    def pets(self) -> int:
        """Publish a model of numbers without missing values; returns its version."""
        rng = np.random.default_rng(11)
        weights = rng.normal(size=(len(COLUMNS), len(CLASSES))).astype(np.float32)
        features = rng.normal(size=(ROWS, len(COLUMNS))).astype(np.float32)
        scores = features @ weights + 0.3 * rng.gumbel(size=(ROWS, len(CLASSES)))
        if PETS not in self._datasets:
            self._datasets[PETS] = self._pets(features, scores.argmax(axis=1))
        self._runs += 1
        other = np.random.default_rng(self._runs).normal(size=weights.shape)
        found = weights + 0.3 * other
        return self._publish(PETS, lambda folder: _packed(found.astype(np.float32), folder))

    def tutorial(self, write: str) -> np.ndarray:
        """Publish the model that a program with Keras 2 leaves, and return its weights.

        Args:
            write: `export`, or `save` with its traces of training.
        """
        name = f"{TUTORIAL}-{write}"
        self._datasets[name] = self._datasets[PETS]
        self._runs += 1
        weights = np.random.default_rng(11).normal(size=(len(COLUMNS), len(CLASSES)))
        self._publish(name, lambda folder: _of_keras_2(weights, write, folder))
        return weights

    def roll_back(self, model_name: str, version: int) -> Champion:
        """Make an earlier version the champion again."""
        numbers = self.store.numbers(self.layout.model(model_name).champions)
        records = [read_record(self.store, self.layout, model_name, it) for it in numbers]
        old = next(it for it in records if it.version == version)
        again = replace(old, number=numbers[-1] + 1, action=ROLLBACK, why="a test", by="a test")
        return promote(self.store, self.layout, model_name, again)

    def people(self) -> int:
        """Publish a model of columns of every type with missing values; returns its version."""
        folder = self.folder / PEOPLE
        if PEOPLE not in self._datasets:
            dataset = mixed_dataset.prepare(self.store, self.layout.root, folder)
            self._datasets[PEOPLE] = dataset
        self._runs += 1
        seed = self._runs
        return self._publish(PEOPLE, lambda to: _mixed(folder, seed, to))

    def _pets(self, features: np.ndarray, labels: np.ndarray) -> S3Address:
        from kfp_tfjob.components.prepare_data.tfrecord import Encoder

        folder = self.folder / "pets"
        folder.mkdir()
        encoded = Encoder(len(COLUMNS), len(CLASSES)).encode(features, labels)
        (folder / "test-00000.tfrecord").write_bytes(encoded)
        schema = {
            "format": "kfp-tfjob/schema/1",
            "task": "classification",
            "features": [{"name": name, "type": "float32"} for name in COLUMNS],
            "label": {"name": "species", "classes": CLASSES},
            "splits": {"test": {"rows": ROWS, "shards": ["test-00000.tfrecord"]}},
            "schema_digest": "6" * 64,
        }
        counts = dict(zip(CLASSES, np.bincount(labels).tolist(), strict=True))
        statistics = {"label": {"counts": {"train": counts}}}
        (folder / "schema.json").write_text(json.dumps(schema))
        (folder / "statistics.json").write_text(json.dumps(statistics))
        address = self.layout.dataset("pets-1")
        push(self.store, folder, address, "dataset", details={"schema_digest": "6" * 64})
        return address

    def _publish(self, model_name: str, export: Callable[[Path], None]) -> int:
        from kfp_tfjob.components.evaluate import engine as evaluate

        run_id = f"{model_name}-run-{self._runs}"
        folder = self.folder / run_id
        export(folder / "output" / "model")
        run = self.layout.run(run_id)
        push(self.store, folder, run.base, "output", run_id, 1)
        step = Step("test", run_id, self.layout, self.store)
        dataset, model = str(self._datasets[model_name]), str(run.model)
        # Whatever is better by however little may follow.
        options = DEFAULT_GATE | {"mode": "non_inferior", "margin": 0.9}
        done = evaluate.run(step, dataset, model_name, model, options)
        assert done.blessed, json.loads(self.store.read(run.verdict))["reasons"]
        return publish.run(step, model_name, model, str(run.verdict), dataset).version


def _of_keras_2(weights: np.ndarray, write: str, folder: Path) -> None:
    import tf_keras

    layers = [
        tf_keras.Input((len(COLUMNS),)),
        tf_keras.layers.Dense(len(CLASSES), "softmax", use_bias=False),
    ]
    model = tf_keras.Sequential(layers)
    model.compile("adam", "sparse_categorical_crossentropy")
    if write == "save":  # as after some training
        model.fit(np.zeros((8, len(COLUMNS))), np.zeros(8), verbose=0)
    model.set_weights([weights])
    getattr(model, write)(str(folder))


def _packed(weights: np.ndarray, folder: Path) -> None:
    """Export as the trainer does for a table of numbers without missing values."""
    import tensorflow as tf

    from kfp_tfjob.features.signature_columns import COLUMNS as MAPPING
    from kfp_tfjob.features.signature_columns import argument_names, to_json

    module = tf.Module()
    module.weights = tf.Variable(weights)
    names = argument_names(COLUMNS)

    def outputs(features: tf.Tensor) -> dict[str, tf.Tensor]:
        scores = tf.nn.softmax(features @ module.weights)
        classes = tf.gather(tf.constant(CLASSES), tf.argmax(scores, axis=1))
        return {"probabilities": scores, "class": classes}

    packed = tf.function(
        outputs, input_signature=[tf.TensorSpec([None, len(COLUMNS)], tf.float32, "features")]
    )

    @tf.function
    def serve(**columns: tf.Tensor) -> dict[str, tf.Tensor]:
        return outputs(tf.stack([columns[name] for name in names], axis=1))

    specs = {name: tf.TensorSpec([None], tf.float32, name) for name in names}
    served = serve.get_concrete_function(**specs)
    signatures = {"serve": served, "serving_default": served, "serve_packed": packed}
    tf.saved_model.save(module, str(folder), signatures=signatures)
    (folder / MAPPING).parent.mkdir(exist_ok=True)
    (folder / MAPPING).write_text(to_json(COLUMNS))


def _mixed(dataset: Path, seed: int, folder: Path) -> None:
    """Export a model of raw columns, as the trainer does for a table with a coding.

    Least squares over the test rows find its weights; the seed adds a little noise.
    """
    import tensorflow as tf
    from pyarrow import parquet

    from kfp_tfjob.features.raw_columns import RawColumns, type_of
    from kfp_tfjob.features.signature_columns import COLUMNS as MAPPING
    from kfp_tfjob.features.signature_columns import argument_names, to_json

    declared = Schema.from_bytes((dataset / "schema.json").read_bytes()).encoding
    module = tf.Module()
    module.raw_columns = RawColumns(declared)
    columns = [feature.name for feature in declared.features]
    names = argument_names(columns)
    table = parquet.read_table(dataset / mixed_dataset.RAW)
    raw = [
        tf.constant(table[feature.name].to_pylist(), type_of(feature))
        for feature in declared.features
    ]
    rows = _spread(module.raw_columns.pack(raw), declared).numpy()
    truth = np.asarray(table["income"]) * 2.0 - 1
    found = np.linalg.lstsq(rows, truth, rcond=1e-6)[0]
    found += np.random.default_rng(seed).normal(size=found.shape) * 1e-3
    module.weights = tf.Variable(found.astype(np.float32)[:, None])

    @tf.function
    def serve(**given: tf.Tensor) -> dict[str, tf.Tensor]:
        packed = module.raw_columns.pack([given[name] for name in names])
        score = tf.sigmoid(4 * _spread(packed, declared) @ module.weights)
        return {"probabilities": tf.concat([1 - score, score], axis=1)}

    specs = {
        name: tf.TensorSpec([None], type_of(feature), name)
        for name, feature in zip(names, declared.features, strict=True)
    }
    served = serve.get_concrete_function(**specs)
    signatures = {"serve": served, "serving_default": served}
    tf.saved_model.save(module, str(folder), signatures=signatures)
    (folder / MAPPING).parent.mkdir(exist_ok=True)
    (folder / MAPPING).write_text(to_json(columns, [it.kind for it in declared.features]))


def _spread(packed: Any, declared: Coding) -> Any:
    """Return packed rows with their codes one-hot, and small numbers."""
    import tensorflow as tf

    numbers = tf.math.tanh(packed[:, : declared.numbers] / 50)
    places = [
        tf.one_hot(tf.cast(packed[:, column.start], tf.int32), column.size)
        for column in declared.columns
        if column.size
    ]
    return tf.concat([numbers, *places], axis=1)
