"""Training on images, and the exported model: the same values, bit for bit."""

import io
import shutil
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from PIL import Image
from pyarrow import parquet

from kfp_tfjob.common.errors import ConfigurationError, DataError
from kfp_tfjob.components.prepare_data import engine
from kfp_tfjob.components.step import Step
from kfp_tfjob.features.image_decoding import ImageInput
from kfp_tfjob.features.schema import Schema
from kfp_tfjob.features.served_model import ServedModel
from kfp_tfjob.features.types.image import ONE_PIXEL
from kfp_tfjob.judging.rows import TestData as Rows
from kfp_tfjob.options.train import TrainerOptions
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.credentials import MOUNT_VARIABLE
from kfp_tfjob.storage.layout import MODEL, Layout
from kfp_tfjob.storage.store import Store
from kfp_tfjob.trainer import models, user_model
from kfp_tfjob.trainer.dataset import Dataset
from kfp_tfjob.trainer.encoded_rows import encode_rows
from kfp_tfjob.trainer.export import export
from kfp_tfjob.trainer.inputs import distribute, open_rows
from kfp_tfjob.uploader import pull
from tests.typed_schema import typed
from tests.unit.picture_files import animals, deep, drawn, encoded, tree

INPUTS = [
    ImageInput(24, 24, 3),
    ImageInput(32, 20, 1, "crop"),
    ImageInput(20, 32, 3, "pad"),
    ImageInput(24, 24, 3, interpolation="nearest"),
    ImageInput(16, 16, 1, interpolation="bicubic"),
]
FILES = [
    encoded(drawn(1)),
    encoded(drawn(2), progressive=True),
    encoded(drawn(3).convert("L")),
    encoded(drawn(4), "PNG"),
    encoded(drawn(5).convert("P"), "PNG"),
    encoded(drawn(6).convert("RGBA"), "PNG"),
    encoded(drawn(7).convert("LA"), "PNG"),
    deep(),
    encoded(drawn(8, (3, 50))),
    ONE_PIXEL,
]


@pytest.fixture(scope="module")
def folder(s3, tmp_path_factory) -> Path:
    data = tree(tmp_path_factory.mktemp("p"), animals(40))
    step = Step("prepare_data", "r1", Layout(S3Address("test", "pictures")), s3.store())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MOUNT_VARIABLE, str(s3.secret))
        done = engine.run(step, str(data), "", {})
    local = tmp_path_factory.mktemp("dataset")
    pull(step.store, S3Address.parse(done.dataset_uri), local)
    return local


@pytest.fixture(scope="module")
def dataset(folder: Path) -> Dataset:
    return Dataset.load(folder)


@pytest.mark.parametrize("wanted", INPUTS)
def test_pictures_of_every_mode_become_the_input(wanted: ImageInput) -> None:
    found = wanted.decode(tf.constant(FILES)).numpy()
    assert found.shape == (len(FILES), *wanted.shape) and found.dtype == np.float32
    assert found.min() >= 0 and found.max() <= 255
    one_by_one = [wanted.decode(tf.constant([one])).numpy() for one in FILES]
    assert np.array_equal(found, np.concatenate(one_by_one))


def test_a_picture_of_the_right_size_keeps_its_values() -> None:
    for content in (encoded(drawn(4), "PNG"), encoded(drawn(5).convert("P"), "PNG")):
        with Image.open(io.BytesIO(content)) as picture:
            expected = np.asarray(picture.convert("RGB"), np.float32)
        assert np.array_equal(ImageInput(30, 40, 3).decode(tf.constant([content]))[0], expected)
    with Image.open(io.BytesIO(deep())) as picture:
        expected = np.asarray(picture, np.uint16) >> 8
    found = ImageInput(30, 40, 1).decode(tf.constant([deep()]))[0, :, :, 0]
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("shape", [(1000, 20), (20, 1000), (1, 56), (56, 1)])
@pytest.mark.parametrize("resize", ["pad", "crop", "stretch"])
def test_a_long_thin_picture_keeps_a_pixel(shape: tuple[int, int], resize: str) -> None:
    content = tf.io.encode_png(np.full((*shape, 3), 128, np.uint8)).numpy()
    found = ImageInput(28, 28, 3, resize).decode(tf.constant([content])).numpy()[0]
    rows, columns = (np.flatnonzero(found.max((axis, 2))) for axis in (1, 0))
    sides = (28, 28)
    if resize == "pad":
        sides = (28, 1) if shape[0] > shape[1] else (1, 28)
    assert (len(rows), len(columns)) == sides
    assert found[np.ix_(rows, columns)] == pytest.approx(128, abs=1e-3)


@pytest.mark.parametrize("wanted", [ImageInput(28, 28, 1, "pad"), ImageInput(20, 33, 1, "pad")])
@pytest.mark.parametrize("runs", [lambda function: function, tf.function], ids=["eager", "graph"])
def test_a_padded_picture_has_the_pixels_of_tensorflow(
    wanted: ImageInput, runs: Callable[..., Callable[..., tf.Tensor]]
) -> None:
    """Models of earlier versions were trained on them; the served graph gave others."""
    size = wanted.height, wanted.width
    random = np.random.default_rng(0)
    found = runs(wanted.decode)
    for height, width in [*random.integers(12, 200, (40, 2)), size, (40, 66), (7, 7), (11, 13)]:
        pixels = random.integers(0, 256, (height, width, 1), np.uint8)
        expected = tf.image.resize_with_pad(pixels, *size, antialias=True)
        content = tf.constant([tf.io.encode_png(pixels).numpy()])
        assert np.array_equal(found(content)[0], np.clip(expected, 0, 255)), (height, width)


def test_the_input_pipeline_and_the_signature_are_equal(dataset: Dataset, tmp_path: Path) -> None:
    assert dataset.input_shape == (24, 24, 3) and dataset.columns[0].kind == "picture"
    keras.utils.set_random_seed(1)
    model = models.cnn(dataset)
    user_model.check(model, models.cnn, dataset, 1, TrainerOptions())
    opened = open_rows(dataset, "validation")
    rows = np.random.default_rng(0).permutation(len(opened))
    slices = [rows[:5], rows[5:]]
    strategy = tf.distribute.get_strategy()
    weights_of_classes = np.array([1.0, 2.0], "f")
    batches = distribute(strategy, dataset, opened, lambda: slices, None, weights_of_classes)
    again = distribute(strategy, dataset, opened, lambda: slices, None)
    export(model, dataset, tmp_path, logits=True)
    schema = typed(dataset.schema)
    served = ServedModel(tmp_path / MODEL, schema, "the model")
    assert opened.labels.tolist() == opened.take(np.arange(len(opened)))[1].tolist()
    contents, labels = opened.take(rows)
    at = 0
    for size in map(len, slices):
        features, found, weights = next(batches)
        assert np.array_equal(features, next(again)[0])
        part = slice(at, at + size)
        assert np.array_equal(found, labels[part])
        assert weights.numpy().tolist() == (labels[part] + 1.0).tolist()
        logits = model(features, training=False)
        expected = tf.nn.softmax(logits).numpy()
        assert np.array_equal(served.predict({"picture": contents[part]}), expected)
        at += size
    assert served.predict(served.example(3)).shape == (3, 2)
    signatures = tf.saved_model.load(str(tmp_path / MODEL)).signatures
    assert set(signatures) == {"serve", "serving_default"}
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    assert np.array_equal(reloaded(features, training=False), logits)


def test_evaluate_feeds_the_files(store: Store, folder: Path) -> None:
    step = Step("evaluate", "r1", Layout(S3Address("test", "pictures")), store)
    [digest] = {it.address.key.split("/")[2] for it in store.list(step.layout.root / "datasets")}
    data = Rows.fetch(store, step.layout.dataset(digest), folder / "test")
    batches = list(data.batches(4))
    assert sum(len(batch.labels) for batch in batches) == data.rows
    assert all(set(batch.features) == {"picture"} for batch in batches)
    assert batches[0].features["picture"][0].startswith(b"\xff\xd8")


def test_models_for_tables_are_refused_by_name(dataset: Dataset) -> None:
    with pytest.raises(ConfigurationError, match="use kfp_tfjob.trainer.models:cnn"):
        models.mlp(dataset)
    with pytest.raises(ConfigurationError, match="data_options.images"):
        models.cnn(dataset, height=24)

    def flat(dataset: Dataset) -> keras.Model:
        inputs = keras.Input((dataset.num_features,))
        model = keras.Model(inputs, keras.layers.Dense(2)(inputs))
        model.compile("sgd", "mse")
        return model

    with pytest.raises(ConfigurationError, match=r"keras.Input\(dataset.input_shape\)"):
        user_model.check(flat(dataset), flat, dataset, 1, TrainerOptions())


def test_a_label_that_is_no_class(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "dataset"
    shutil.copytree(folder, copy, ignore=lambda *_: ["test"])
    path = copy / "train" / "00000.parquet"
    table = parquet.read_table(path)
    parquet.write_table(table.set_column(1, "class", pa.array(["cow"] * len(table))), path)
    with pytest.raises(DataError, match="the first is 'cow'"):
        Dataset.load(copy)


def test_images_are_copied_once(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "dataset"
    shutil.copytree(folder, copy, ignore=lambda *_: ["test"])
    schema = Schema.from_bytes((copy / "schema.json").read_bytes())
    tables = {
        split: pa.concat_tables(
            parquet.read_table(copy / shard) for shard in schema.splits[split].shards
        )
        for split in ("train", "validation")
    }
    rows = encode_rows(copy, tmp_path / "encoded", schema, "d", deletes_shards=True)
    assert not list(copy.rglob("*.parquet"))
    assert encode_rows(copy, tmp_path / "encoded", schema, "d") == rows  # nothing is read again
    opened = Dataset.load(copy, "d", encode=lambda _: rows)
    for split, table in tables.items():
        split_rows = open_rows(opened, split)
        contents, labels = split_rows.take(np.arange(len(split_rows)))
        assert contents.tolist() == table["picture"].to_pylist()
        assert [opened.class_names[label] for label in labels] == table["class"].to_pylist()


def test_a_disk_without_space_for_the_images(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = Schema.from_bytes((folder / "schema.json").read_bytes())
    usage = shutil.disk_usage(tmp_path)._replace(free=10_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ConfigurationError, match="pod.all.ephemeral_storage"):
        encode_rows(folder, tmp_path / "encoded", schema)
    assert not (tmp_path / "encoded").exists()
