"""Models with a champion in the store, judged and published by the real engines."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from kfp_tfjob.components.publish import engine as publish
from kfp_tfjob.components.step import Step
from kfp_tfjob.features.types.base import NO_DATE
from kfp_tfjob.options.gate import DEFAULT_GATE
from kfp_tfjob.registry.champion import ROLLBACK, Champion, read_record
from kfp_tfjob.registry.promotion import promote
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader import push
from tests.local import mixed_dataset, tiny_dataset

COLUMNS = tiny_dataset.FEATURES
PEOPLE, PETS, TUTORIAL = "people", "pets", "tutorial"


class Publisher:
    """Publishes small untrained models below one output_uri."""

    def __init__(self, store: Store, base: S3Address, folder: Path) -> None:
        self.store, self.layout, self.folder = store, Layout(base), folder
        self._datasets: dict[str, S3Address] = {}
        self._runs = 0

    def pets(self) -> int:
        """Publish a model of numbers without missing values; returns its version."""
        folder = self.folder / PETS
        if PETS not in self._datasets:
            tiny_dataset.write(folder)
            counts = {"train": dict.fromkeys(tiny_dataset.CLASSES, 1)}
            _add(folder / "schema.json", schema_digest="6" * 64)
            _add(folder / "statistics.json", label={"counts": counts})
            self._datasets[PETS] = self.layout.dataset("pets-1")
            details = {"schema_digest": "6" * 64}
            push(self.store, folder, self._datasets[PETS], "dataset", details=details)
        return self._publish(PETS, lambda to: self._export(folder, to))

    def people(self) -> int:
        """Publish a model of columns of every type with missing values; returns its version."""
        folder = self.folder / PEOPLE
        if PEOPLE not in self._datasets:
            dataset = mixed_dataset.prepare(self.store, self.layout.root, folder)
            self._datasets[PEOPLE] = dataset
        return self._publish(PEOPLE, lambda to: self._export(folder, to))

    def tutorial(self, write: str) -> np.ndarray:
        """Publish a model as `export` or `save` of Keras 2 writes it; return its weights."""
        name = f"{TUTORIAL}-{write}"
        self._datasets[name] = self._datasets[PETS]
        shape = len(COLUMNS), len(tiny_dataset.CLASSES)
        weights = np.random.default_rng(11).normal(size=shape)
        self._publish(name, lambda folder: _of_keras_2(weights, write, folder))
        return weights

    def roll_back(self, model_name: str, version: int) -> Champion:
        numbers = self.store.numbers(self.layout.model(model_name).champions)
        records = [read_record(self.store, self.layout, model_name, it) for it in numbers]
        old = next(it for it in records if it.version == version)
        again = replace(old, number=numbers[-1] + 1, action=ROLLBACK, why="a test", by="a test")
        return promote(self.store, self.layout, model_name, again)

    def _export(self, dataset: Path, folder: Path) -> None:
        """Export as the trainer does, with other weights in each run."""
        import keras

        from kfp_tfjob.trainer.dataset import Dataset
        from kfp_tfjob.trainer.export import export
        from kfp_tfjob.trainer.models import mlp

        keras.utils.set_random_seed(self._runs)
        loaded = Dataset.load(dataset)
        export(mlp(loaded), loaded, folder.parent, logits=True)

    def _publish(self, model_name: str, export: Callable[[Path], None]) -> int:
        from kfp_tfjob.components.evaluate import engine as evaluate

        self._runs += 1
        run_id = f"{model_name}-run-{self._runs}"
        folder = self.folder / run_id
        export(folder / "output" / "model")
        run = self.layout.run(run_id)
        push(self.store, folder, run.base, "output", run_id, 1)
        step = Step("test", run_id, self.layout, self.store)
        dataset, model = str(self._datasets[model_name]), str(run.model)
        # Whatever is better by however little may follow.
        options = DEFAULT_GATE | {"mode": "non_inferior", "margin": 0.9, "first_model": "accept"}
        done = evaluate.run(step, dataset, model_name, model, options)
        assert done.blessed, json.loads(self.store.read(run.verdict))["reasons"]
        return publish.run(step, model_name, model, str(run.verdict), dataset).version


def as_sent(people: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return the raw columns of `mixed_dataset.people` as the rows that a client sends."""

    def value(name: str, raw: Any) -> Any:
        if name == "age":
            return None if np.isnan(raw) else float(raw)
        if name == "signed up":
            epoch, passed = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=int(raw))
            return None if raw == NO_DATE else (epoch + passed).isoformat()
        return {"true": True, "false": False, "": None}.get(raw, raw)

    columns = [[value(name, raw) for raw in column] for name, column in people.items()]
    return [dict(zip(people, row, strict=True)) for row in zip(*columns, strict=True)]


def _add(document: Path, **keys: object) -> None:
    document.write_text(json.dumps(json.loads(document.read_text()) | keys))


def _of_keras_2(weights: np.ndarray, write: str, folder: Path) -> None:
    import tf_keras

    shape = weights.shape
    layers = [
        tf_keras.Input((shape[0],)),
        tf_keras.layers.Dense(shape[1], "softmax", use_bias=False),
    ]
    model = tf_keras.Sequential(layers)
    model.compile("adam", "sparse_categorical_crossentropy")
    if write == "save":  # as after some training
        model.fit(np.zeros((8, shape[0])), np.zeros(8), verbose=0)
    model.set_weights([weights])
    getattr(model, write)(str(folder))
