"""Decodes image files into the pixels that a model of images gets, in its own size and channels.

The same graph runs in training, in evaluate and in the served model, so they see the same pixels.
Called by the trainer's dataset and, through the schema, by the served model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_AT_ONCE = 16  # images that are decoded at the same time


@dataclass(frozen=True)
class ImageInput:
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
            resized = self._padded(pixels)
        else:
            if self.resize == "crop":
                pixels = self._cropped(pixels)
            resized = tf.image.resize(pixels, size, self.interpolation, antialias=True)
        pixels = tf.clip_by_value(tf.cast(resized, tf.float32), 0.0, 255.0)
        return tf.ensure_shape(pixels, self.shape)

    def _padded(self, pixels: Any) -> Any:
        """Return the whole image in the size of the input, with black bars around it.

        Published models depend on the sizes of `tf.image.resize_with_pad`, which float32 rounds
        down. That function fails for a side that rounds to 0; here, such a side gets one pixel.
        """
        import tensorflow as tf

        sides = tf.cast(tf.shape(pixels)[:2], tf.float32)
        input_sides = tf.constant([self.height, self.width], tf.float32)
        # TensorFlow replaces `/` with a multiplication in the served graph, but not in training.
        # That rounds differently, so the served model would get other pixels.
        ratio = tf.reduce_max(tf.math.divide_no_nan(sides, input_sides))
        fitting = sides / ratio
        top, leftmost = tf.unstack(tf.cast((input_sides - fitting) / 2, tf.int32))
        size = tf.maximum(tf.cast(fitting, tf.int32), 1)
        resized = tf.image.resize(pixels, size, self.interpolation, antialias=True)
        return tf.image.pad_to_bounding_box(resized, top, leftmost, self.height, self.width)

    def _cropped(self, pixels: Any) -> Any:
        """Return the largest part around the middle that has the shape of the input."""
        import tensorflow as tf

        height, width = tf.shape(pixels)[0], tf.shape(pixels)[1]
        new_height = tf.maximum(tf.minimum(height, width * self.height // self.width), 1)
        new_width = tf.maximum(tf.minimum(width, height * self.width // self.height), 1)
        top, leftmost = (height - new_height) // 2, (width - new_width) // 2
        return pixels[top : top + new_height, leftmost : leftmost + new_width]
