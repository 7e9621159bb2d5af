"""Small copies of the test images that the model gets wrong, for the report.

A person sees at once whether a model confuses images that are hard, badly cropped or labeled
wrongly; no metric shows this. The images are read again after the evaluation, because all of a
split do not fit into memory, and they are few and small, because a report is sent by mail. They are
decoded by the operation that the model's own input pipeline uses. Called by evaluate's engine and
by its report.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from kfp_tfjob.common.escaping import short
from kfp_tfjob.judging.predictions import ClassPredictions, Predictions
from kfp_tfjob.judging.rows import TestData
from kfp_tfjob.options.image_options import PICTURE

MOST_IMAGES = 12
_SIDE = 96  # pixels
_QUALITY = 80  # of a JPEG: 3 kB for each image
_MOST_NAME = 40  # characters of a class


@dataclass(frozen=True)
class WrongImage:
    """A test image with a wrong prediction.

    Attributes:
        address: A `data:` address with a JPEG of at most 96 by 96 pixels.
        true: The name of its class.
        predicted: The name of the predicted class.
        probability: The predicted class's probability.
    """

    address: Markup
    true: str
    predicted: str
    probability: float


@dataclass(frozen=True)
class WrongImages:
    """Some of the wrong images, those with the least probable true class first.

    Attributes:
        images: At most 12 images.
        total: The number of all test images with a wrong prediction.
    """

    images: tuple[WrongImage, ...] = ()
    total: int = 0

    @classmethod
    def read(cls, data: TestData, predictions: Predictions, classes: Sequence[str]) -> WrongImages:
        """Read the wrong images of a test split; none of a table.

        Args:
            data: The test rows.
            predictions: The model's predictions for them, in the same order.
            classes: The names of the classes.
        """
        if not data.schema.picture or not isinstance(predictions, ClassPredictions):
            return cls()
        if not predictions.finite:
            return cls()
        wrong = np.flatnonzero(predictions.predicted != predictions.labels)
        order = np.argsort(predictions.true_probability[wrong], kind="stable")
        rows = wrong[order[:MOST_IMAGES]].tolist()
        contents = _contents(data, rows)
        images = []
        for row in rows:
            if address := _thumbnail(contents[row]):
                label, predicted = int(predictions.labels[row]), int(predictions.predicted[row])
                images.append(
                    WrongImage(
                        address,
                        short(classes[label], _MOST_NAME),
                        short(classes[predicted], _MOST_NAME),
                        _probability(predictions, row),
                    )
                )
        return cls(tuple(images), len(wrong))


def _contents(data: TestData, rows: Sequence[int]) -> dict[int, bytes]:
    """Return the files of some rows by the rows' numbers."""
    contents: dict[int, bytes] = {}
    first = 0
    if not rows:
        return contents
    for batch in data.batches():
        files = batch.features[PICTURE]
        for row in rows:
            if first <= row < first + len(files):
                contents[row] = files[row - first]
        first += len(files)
        if first > max(rows):
            break
    return contents


def _probability(predictions: ClassPredictions, row: int) -> float:
    if predictions.confidence is not None:
        return float(predictions.confidence[row])
    score = float(predictions.scores[row, 0])  # of class 1 of two
    return max(score, 1 - score)


def _thumbnail(content: bytes) -> Markup:
    """Return the address of a small copy of an image; empty if TensorFlow cannot decode it.

    It is markup, because a page shortens text, and base64 contains nothing to escape.
    """
    import tensorflow as tf

    try:
        pixels = tf.io.decode_jpeg(content, 3, dct_method="INTEGER_ACCURATE")  # decodes PNG too
    except tf.errors.InvalidArgumentError:
        return Markup()
    height, width = pixels.shape[:2]
    scale = min(_SIDE / max(height, width), 1.0)
    size = [max(1, math.floor(height * scale)), max(1, math.floor(width * scale))]
    small = tf.image.resize(pixels, size, "bilinear", antialias=True)
    rounded = tf.cast(tf.clip_by_value(tf.round(small), 0, 255), tf.uint8)
    jpeg = tf.io.encode_jpeg(rounded, quality=_QUALITY, chroma_downsampling=False)
    return Markup("data:image/jpeg;base64," + base64.b64encode(jpeg.numpy()).decode())
