"""Images: the bytes of JPEG or PNG files, which the model's own input pipeline decodes.

`picture` in schema.json declares what a model gets of an image. The input pipeline and the exported
signature decode with the same operations and settings, so a model sees the same values when it is
trained and when it is served.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from kfp_tfjob.features.types.base import CONTENTS, ColumnStatistics, ColumnType, Read, text_of
from kfp_tfjob.options.pictures import PICTURE

LARGEST = 255.0  # of the values of a pixel, which begin with 0
HALF = LARGEST / 2
ONE_PIXEL = base64.b64decode(  # a grey PNG, for examples
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg=="
)
_HEADS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")  # of JPEG and PNG
_AT_ONCE = 16  # images that are decoded at the same time


@dataclass(frozen=True)
class PictureInput:
    """The input of a model of images.

    Attributes:
        height: In pixels.
        width: In pixels.
        channels: 1 for grey, 3 for red, green and blue.
        resize: `stretch`, `crop` or `pad`, for an image of another shape.
        interpolation: `bilinear`, `bicubic`, `nearest` or `area`.
    """

    height: int
    width: int
    channels: int
    resize: str = "stretch"
    interpolation: str = "bilinear"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels."""
        return self.height, self.width, self.channels

    def decode(self, encoded: Any) -> Any:
        """Return (batch, height, width, channels) float32, values from 0 to 255.

        Args:
            encoded: (batch,) string tensor, the bytes of JPEG or PNG files.
        """
        import tensorflow as tf

        return tf.map_fn(
            self._decoded,
            encoded,
            fn_output_signature=tf.TensorSpec(self.shape, tf.float32),
            parallel_iterations=_AT_ONCE,
        )

    def _decoded(self, content: Any) -> Any:
        import tensorflow as tf

        # The operation takes PNG too. 16 bits become 8, a palette its colors; alpha is dropped.
        pixels = tf.io.decode_jpeg(content, self.channels, dct_method="INTEGER_ACCURATE")
        size = (self.height, self.width)
        if self.resize == "pad":
            resized = tf.image.resize_with_pad(pixels, *size, self.interpolation, antialias=True)
        else:
            if self.resize == "crop":
                pixels = self._cropped(pixels)
            resized = tf.image.resize(pixels, size, self.interpolation, antialias=True)
        pixels = tf.clip_by_value(tf.cast(resized, tf.float32), 0.0, 255.0)
        return tf.ensure_shape(pixels, self.shape)

    def _cropped(self, pixels: Any) -> Any:
        """Return the largest part around the middle that has the shape of the input."""
        import tensorflow as tf

        height, width = tf.shape(pixels)[0], tf.shape(pixels)[1]
        new_height = tf.maximum(tf.minimum(height, width * self.height // self.width), 1)
        new_width = tf.maximum(tf.minimum(width, height * self.width // self.height), 1)
        top, leftmost = (height - new_height) // 2, (width - new_width) // 2
        return pixels[top : top + new_height, leftmost : leftmost + new_width]


@dataclass(frozen=True)
class Span:
    """The smallest number, the mean and the largest one."""

    min: int
    mean: float
    max: int


@dataclass(frozen=True, kw_only=True)
class ImageStatistics(ColumnStatistics):
    """The images by format, mode and size; `turned` of them have an EXIF rotation."""

    formats: Mapping[str, int]
    modes: Mapping[str, int]
    width: Span
    height: Span
    bytes: Span
    distinct_sizes: int
    sizes: list[tuple[int, int, int]]  # width, height and images of the most frequent ones
    turned: int

    @property
    def words(self) -> str:
        """The formats, modes and sizes as a string."""
        kinds = {**self.formats, **self.modes}
        sizes = ", ".join(f"{width} x {height} ({n:,})" for width, height, n in self.sizes[:5])
        further = f" and {self.distinct_sizes - 5:,} more" if self.distinct_sizes > 5 else ""
        counts = ", ".join(f"{name} {count:,}" for name, count in kinds.items())
        return f"{counts}; width x height: {sizes}{further}"


class Image(ColumnType):
    """An image, the only column of its dataset."""

    kind = PICTURE
    schema_type = PICTURE
    field = CONTENTS
    written = 'the bytes of a JPEG or PNG file in base64, as a string or {"b64": STRING}'
    example = {"b64": base64.b64encode(ONE_PIXEL).decode()}
    whole = "whole JPEG or PNG files in base64"
    is_sampled = False
    nouns = ("a picture", "pictures")
    statistics = ImageStatistics

    @property
    def takes_missing(self) -> bool:
        """False: there is no row without an image."""
        return False

    @classmethod
    def raw_values(cls, column: pa.Array) -> np.ndarray:
        """Return (rows,) the bytes of the files in a column of a dataset's Parquet file."""
        contents = np.empty(len(column), object)
        contents[:] = column.to_pylist()
        return contents

    @classmethod
    def read(cls, values: Sequence[Any]) -> Read:
        """Return the bytes of the files."""
        contents, wrong = np.empty(len(values), object), []
        for row, value in enumerate(values):
            if isinstance(value, dict) and value.keys() == {"b64"}:
                value = value["b64"]
            data = value if isinstance(value, bytes) and value.startswith(_HEADS) else b""
            text = text_of(value)
            if not data and text:
                try:
                    data = base64.b64decode(text, validate=True)
                except (binascii.Error, ValueError):
                    wrong.append((row, "not base64"))
                    continue
            if not data.startswith(_HEADS):
                wrong.append((row, "not a JPEG or PNG"))
            contents[row] = data
        return contents, wrong
