"""Columns of any name: through the export, back through the scoring of evaluate, and served."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kfp_tfjob.features import signature_columns
from kfp_tfjob.features.coding import Coding
from kfp_tfjob.features.served_model import Block, ServedModel
from kfp_tfjob.features.types.number import Number
from kfp_tfjob.trainer.dataset import Dataset
from tests.local import tiny_dataset
from tests.typed_schema import keys_of, typed

ORDINARY = [
    *("_c0", "_id", "-x", "(a)", "%", "Ärger", "나이", "年齢", "Age", "age", "AGE", "age_1"),
    *("self", "class", "None", "a.b", "a_b", "2x", "x/y", "x>y", "Größe", " ", "\t", "\U0001f600"),
    *("probabilities", "prediction", "features", "inputs", "Placeholder", "serving_default_x"),
]


def of_numbers(columns: Sequence[str]) -> Coding:
    return Coding(tuple(Number(name) for name in columns))


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return Dataset.load(tiny_dataset.write(tmp_path_factory.mktemp("values"), "regression"))


# An export takes half a second: few of them, with many names each.
@settings(max_examples=1, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.text(max_size=12), unique=True, min_size=1, max_size=60))
@example(ORDINARY)
def test_any_names_are_exported_scored_and_served(values: Dataset, columns: list[str]) -> None:
    import keras
    import tensorflow as tf

    from kfp_tfjob.trainer.export import export

    width = len(columns)
    dataset = dataclasses.replace(
        values,
        feature_names=tuple(columns),
        coding=of_numbers(columns),
        mean=np.zeros(width, np.float32),
        std=np.ones(width, np.float32),
    )
    model = keras.Sequential([keras.Input((width,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rows = np.random.default_rng(0).normal(size=(5, width)).astype(np.float32)
    expected = model(rows).numpy()[:, 0]
    schema = typed(keys_of(of_numbers(columns)) | {"task": "regression"})
    with TemporaryDirectory() as name:
        folder = Path(name)
        export(model, dataset, folder)
        scored = ServedModel(folder / "model", schema, "the model").predict(Block(columns, rows))
        np.testing.assert_allclose(scored, expected, rtol=1e-4, atol=1e-5)

        mapping = signature_columns.read(folder / "model")
        served = tf.saved_model.load(str(folder / "model")).signatures["serve"]
        row = {mapping[column]: tf.constant(rows[3:4, at]) for at, column in enumerate(columns)}
        np.testing.assert_allclose(served(**row)["prediction"], expected[3:4], rtol=1e-4, atol=1e-5)
