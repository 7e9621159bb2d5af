"""A table with every kind of column is read, trained, exported and scored."""

import dataclasses
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kfp_tfjob.common.errors import ConfigurationError
from kfp_tfjob.features.coding import Column
from kfp_tfjob.features.input_layers import encode
from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.trainer.dataset import Dataset
from kfp_tfjob.trainer.rows import Rows
from tests.local import mixed_dataset


@pytest.fixture(scope="module")
def dataset(s3: Server, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("data") / "people"
    mixed_dataset.prepare(s3.store(), S3Address("test", "mixed"), folder)
    return Dataset.load(folder)


@pytest.fixture(scope="module")
def exported(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from kfp_tfjob.trainer import models, user_model
    from kfp_tfjob.trainer.export import export

    output = tmp_path_factory.mktemp("output")
    model = user_model.build(models.mlp, dataset, {"hidden": [16]})
    user_model.check(model, models.mlp, dataset, replicas=1)
    export(model, dataset, output, logits=True)
    return output


def _rows(dataset: Dataset, split: str) -> tuple[np.ndarray, np.ndarray]:
    return Rows(dataset, split).take(np.arange(dataset.rows[split]))


def test_the_model_sees_packed_rows(dataset: Dataset) -> None:
    assert dataset.feature_names[:3] == ("age", "age.missing", "signed up.year")
    assert dataset.num_features == len(dataset.mean) == len(dataset.std) == 12
    assert [column.kind for column in dataset.columns] == [
        "number", "category", "category", "date", "boolean", "text",
    ]  # fmt: skip
    rows, _ = _rows(dataset, "train")
    assert not np.isnan(rows).any()
    numbers = slice(0, dataset.coding.numbers)
    np.testing.assert_allclose(dataset.mean[numbers], rows[:, numbers].mean(0, float), rtol=1e-6)
    assert rows[:, 1].mean() == pytest.approx(0.1, abs=0.02)  # age.missing
    for column in dataset.columns:
        if column.size:
            codes = rows[:, column.start]
            assert 0 <= codes.min() <= codes.max() < column.size


def test_random_rows_have_codes_that_exist(dataset: Dataset) -> None:
    rows = dataset.example(100_000)
    for column in dataset.columns:
        if column.size:
            codes = rows[:, column.start]
            assert set(codes.tolist()) == set(range(column.size))


def test_training_and_further_training_take_packed_rows(dataset: Dataset, exported: Path) -> None:
    import keras

    model = keras.saving.load_model(exported / "model.keras")
    rows, labels = _rows(dataset, "train")
    before = model.evaluate(rows, labels, verbose=0)[0]
    model.fit(rows, labels, verbose=0)
    assert model.evaluate(rows, labels, verbose=0)[0] < before


def test_the_image_model_refuses_categories(dataset: Dataset) -> None:
    from kfp_tfjob.trainer import models

    with pytest.raises(ConfigurationError) as caught:
        models.cnn(dataset)
    assert "job (category)" in caught.value.problems[0].received


def test_a_model_that_ignores_the_kinds_is_warned_about(
    dataset: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    import keras

    from kfp_tfjob.trainer import models, user_model

    def plain(dataset: Dataset) -> keras.Model:
        layers = [keras.Input((dataset.num_features,)), keras.layers.Dense(2)]
        model = keras.Sequential(layers)
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    with caplog.at_level(logging.WARNING):
        user_model.build(plain, dataclasses.replace(dataset), {})
    assert "job, city, note" in caplog.text
    caplog.clear()
    user_model.build(models.mlp, dataclasses.replace(dataset), {})
    assert not caplog.text


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_codes_and_dates_survive_16_bits(dataset: Dataset, policy: str) -> None:
    import keras

    from kfp_tfjob.trainer import models

    keras.mixed_precision.set_global_policy(policy)
    try:
        model = models.mlp(dataset)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    table = next(layer for layer in model.layers if getattr(layer, "input_dim", 0) == 5001)
    rows = dataset.example(2)
    rows[:, -1] = 4097, 4098  # of 16 bits, neither
    values = np.zeros(table.embeddings.shape)
    values[4097], values[4098] = 1, 2
    table.embeddings.assign(values)
    assert keras.Model(model.input, table.output)(rows).numpy()[:, 0, 0].tolist() == [1, 2]
    for output in keras.Model(model.input, [layer.output for layer in model.layers])(rows):
        assert np.isfinite(keras.ops.convert_to_numpy(keras.ops.cast(output, "float32"))).all()


@pytest.mark.parametrize(
    ("form", "codes", "mean", "said"),
    [
        ("sequential", 40, 40, ""),
        ("sequential", 258, 40, "received: street in 8 bits"),
        ("sequential", 257, 40, ""),
        ("sequential", 40, 2011, "received: year in 8 bits"),
        ("subclass", 258, 40, "received: street in 8 bits"),
        ("exact subclass", 258, 2011, ""),
        ("normalization", 40, 2011, "received: year in 8 bits"),
        ("encode", 5000, 2011, ""),
        ("float32", 5000, 2011, ""),
    ],
)
def test_a_model_whose_rows_16_bits_would_round_is_told(
    form: str, codes: int, mean: float, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    import keras

    from kfp_tfjob.trainer import user_model

    columns = (Column("year", "number", 0, 1, 0), Column("street", "category", 1, 1, codes))
    dataset = SimpleNamespace(
        picture=None,
        columns=columns,
        num_features=2,
        feature_names=("year", "street"),
        mean=np.array([mean, codes / 2]),
        std=np.array([7, codes / 4]),
    )

    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.table = keras.layers.Embedding(codes, 4)
            self.autocast = form != "exact subclass"

        def call(self, inputs: Any) -> Any:
            return self.table(inputs[:, 1])

    keras.mixed_precision.set_global_policy("float32" if form == "float32" else "mixed_bfloat16")
    try:
        inputs = keras.Input((2,))
        if form == "encode":
            encoded = encode(inputs, columns, dataset.mean, dataset.std)
            model = keras.Model(inputs, keras.layers.Dense(1)(encoded))
        elif form == "normalization":
            model = keras.Model(inputs, keras.layers.Normalization(mean=1, variance=1)(inputs))
        elif form in ("sequential", "float32"):
            model = keras.Sequential([inputs, keras.layers.Dense(1)])
        else:
            model = Own()
            seen = model(np.array([[0, codes - 1]], np.float32)).numpy()
            exact = model.table(np.array([codes - 1])).numpy()
            assert np.array_equal(seen, exact) == (not said)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    try:
        user_model._check_rounding(model, dataset)
        found = caplog.text
    except ConfigurationError as error:
        assert codes > 257
        found = str(error)
    assert said in found.lower() if said else not found
