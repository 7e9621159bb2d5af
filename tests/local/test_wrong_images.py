"""The report's copies of the images that a model gets wrong, from datasets prepared here."""

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kfp_tfjob.components.evaluate.wrong_images import MOST_IMAGES, WrongImages
from kfp_tfjob.components.prepare_data import engine
from kfp_tfjob.components.step import Step
from kfp_tfjob.judging.predictions import ClassPredictions
from kfp_tfjob.judging.rows import TestData as Rows
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.unit.picture_files import animals, drawn, encoded, tree

CLASSES = ("cat", "dog")


def prepared_split(store: Store, base: S3Address, folder: Path, files: dict[str, bytes]) -> Rows:
    step = Step("prepare_data", "r1", Layout(base), store)
    done = engine.run(step, str(tree(folder / "images", files)), "", {})
    return Rows.fetch(store, S3Address.parse(done.dataset_uri), folder / "data")


def predictions_for(data: Rows, wrong: set[int]) -> ClassPredictions:
    """Return predictions that name the other class in these rows, the surer the later the row."""
    labels = np.concatenate([batch.labels for batch in data.batches()])
    probabilities = np.empty((len(labels), 2))
    for row, label in enumerate(labels):
        of_true = 0.4 - 0.01 * row if row in wrong else 0.9
        probabilities[row, label], probabilities[row, 1 - label] = of_true, 1 - of_true
    return ClassPredictions.of(labels, probabilities)


def pixels(address: str) -> Image.Image:
    head, _, content = address.partition(",")
    assert head == "data:image/jpeg;base64"
    return Image.open(io.BytesIO(base64.b64decode(content)))


def test_the_surest_mistakes_are_first_and_few_and_small(
    store: Store, base: S3Address, tmp_path: Path
) -> None:
    # Grey, transparent, tall and large images beside plain ones; a hundred test rows or more take
    # two batches.
    files = animals(400)
    for number in range(60):
        files[f"dog/large-{number}.png"] = encoded(drawn(number, (40, 300)).convert("LA"), "PNG")
    data = prepared_split(store, base, tmp_path, files)
    wrong_rows = {1, 3, 5, *range(data.rows - 20, data.rows)}
    predictions = predictions_for(data, wrong_rows)
    wrong = WrongImages.read(data, predictions, CLASSES)
    assert wrong.total == len(wrong_rows) > MOST_IMAGES == len(wrong.images)
    probabilities = [image.probability for image in wrong.images]
    assert probabilities == sorted(probabilities, reverse=True)
    assert all(image.true != image.predicted for image in wrong.images)
    rows = sorted(wrong_rows, reverse=True)[:MOST_IMAGES]
    labels = [int(label) for batch in data.batches() for label in batch.labels]
    assert [image.true for image in wrong.images] == [CLASSES[labels[row]] for row in rows]
    assert all(len(image.address) < 20_000 for image in wrong.images)
    contents = [file for batch in data.batches() for file in batch.features["picture"]]
    for row, image in zip(rows, wrong.images, strict=True):
        original, small = Image.open(io.BytesIO(contents[row])), pixels(image.address)
        assert small.mode == "RGB" and max(small.size) <= 96
        assert small.size == original.size or max(small.size) == 96
        assert small.width / small.height == pytest.approx(original.width / original.height, 0.1)
        color = np.asarray(original.convert("RGB").resize(small.size, Image.Resampling.BILINEAR))
        assert np.abs(np.asarray(small, float) - color).mean() < 12  # the same image
    again = WrongImages.read(data, predictions, CLASSES)
    assert again == wrong


def test_a_model_without_mistakes_and_one_without_numbers_have_no_images(
    store: Store, base: S3Address, tmp_path: Path
) -> None:
    data = prepared_split(store, base, tmp_path, animals(40))
    assert WrongImages.read(data, predictions_for(data, set()), CLASSES) == WrongImages()
    labels = np.zeros(data.rows, int)
    broken = ClassPredictions.of(labels, np.full((data.rows, 2), np.nan))
    assert WrongImages.read(data, broken, CLASSES) == WrongImages()
