"""Columns of any name: through the export, back through the scoring of evaluate, and served."""

import dataclasses
from pathlib import Path

import numpy as np

from kfp_tfjob.features import signature_columns
from kfp_tfjob.features.coding import Coding
from kfp_tfjob.features.served_model import ServedModel
from kfp_tfjob.features.types.number import Number
from kfp_tfjob.trainer.dataset import Dataset
from tests.local import tiny_dataset
from tests.typed_schema import keys_of, typed

NAMES = [
    *("_c0", "_id", "-x", "(a)", "%", "Ärger", "나이", "年齢", "Age", "age", "AGE", "age_1"),
    *("self", "class", "None", "a.b", "a_b", "2x", "x/y", "x>y", "Größe", " ", "\t", "\U0001f600"),
    *("probabilities", "prediction", "features", "inputs", "Placeholder", "serving_default_x"),
    *("", "\0", "a\nb", '"', "'\\", "\u2028", "{}", "a" * 300, "e\u0301", "é", "\u200b"),
]


def test_any_names_are_exported_scored_and_served(tmp_path: Path) -> None:
    import keras
    import tensorflow as tf

    from kfp_tfjob.trainer.export import export

    width, coding = len(NAMES), Coding(tuple(Number(name) for name in NAMES))
    dataset = dataclasses.replace(
        Dataset.load(tiny_dataset.write(tmp_path / "values", "regression")),
        feature_names=tuple(NAMES),
        coding=coding,
        mean=np.zeros(width, np.float32),
        std=np.ones(width, np.float32),
    )
    model = keras.Sequential([keras.Input((width,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rows = np.random.default_rng(0).normal(size=(5, width)).astype(np.float32)
    expected = model(rows).numpy()[:, 0]
    schema = typed(keys_of(coding) | {"task": "regression"})
    export(model, dataset, tmp_path, logits=False)
    scored = ServedModel(tmp_path / "model", schema, "the model").predict(
        dict(zip(NAMES, rows.T, strict=True))
    )
    np.testing.assert_allclose(scored, expected, rtol=1e-4, atol=1e-5)

    mapping = signature_columns.read(tmp_path / "model")
    served = tf.saved_model.load(str(tmp_path / "model")).signatures["serve"]
    row = {mapping[name]: tf.constant(rows[3:4, at]) for at, name in enumerate(NAMES)}
    np.testing.assert_allclose(served(**row)["prediction"], expected[3:4], rtol=1e-4, atol=1e-5)
