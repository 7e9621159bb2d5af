"""A whole run on a folder of images, without any option."""

import json
from pathlib import Path

import pytest

from examples import pictures
from tests.local.local_run import Run

MOBILE_NET = """
import keras

def build_model(dataset):
    network = keras.applications.MobileNetV2(
        input_shape=dataset.input_shape, weights=None, classes=dataset.num_classes
    )
    inputs = keras.Input(dataset.input_shape)
    outputs = network(keras.layers.Rescaling(1 / 127.5, offset=-1)(inputs))
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model
"""


@pytest.mark.slow
def test_a_model_of_keras_applications_trains_on_two_replicas(tmp_path: Path) -> None:
    """Its 52 BatchNormalization layers need no option."""
    pictures.write(tmp_path / "tiles")
    (tmp_path / "net.py").write_text(MOBILE_NET)
    model = ("--model", f"{tmp_path}/net.py:build_model", "--epochs", "1", "--workers", "1")
    # After one epoch, the verdict does not matter.
    done = Run(tmp_path / "home", "--data", str(tmp_path / "tiles"), *model, "--set", "gate={}")
    assert done.wait() == 0, done.text
    (path,) = (tmp_path / "home/runs").glob("2*/output/progress.jsonl")
    final = json.loads(path.read_text().splitlines()[-1])
    assert (final["event"], final["replicas"]) == ("final", 2)
    assert final["step"] == final["steps"] == 5  # of the 364 images to train on
    assert "over all 2 replicas" in done.text and "and 49 more" in done.text


@pytest.mark.slow
def test_a_folder_of_pictures_trains_without_options(tmp_path: Path) -> None:
    import tensorflow as tf

    pictures.write(tmp_path / "tiles")
    done = Run(tmp_path / "home", "--data", str(tmp_path / "tiles"))
    assert done.wait() == 0, done.text
    assert "verdict    blessed:" in done.text
    assert float(done.text.split("test       accuracy ")[1].split(",")[0]) >= 0.85
    done.assert_nothing_left()

    published = tmp_path / "home/models/tiles/1"
    serve = tf.saved_model.load(str(published / "model")).signatures["serve"]
    files = [(tmp_path / "tiles" / name).read_bytes() for name in ("temple/000-000.png",)]
    answer = serve(picture=tf.constant(files))
    assert answer["class"].numpy().tolist() == [b"temple"]
    assert answer["probabilities"].numpy().sum(axis=1) == pytest.approx([1])
