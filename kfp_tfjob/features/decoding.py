"""Decodes pictures to the input of a model, in the input pipeline and in the exported signature.

Both call the same operations with the same settings, so a model sees the same values when it is
trained and when it is served.
"""

from __future__ import annotations

import tensorflow as tf

from kfp_tfjob.features.pictures import PictureInput

_AT_ONCE = 16  # pictures that are decoded at the same time


def decode(encoded: tf.Tensor, wanted: PictureInput) -> tf.Tensor:
    """Return (batch, height, width, channels) float32, values from 0 to 255.

    Args:
        encoded: (batch,) string, the bytes of JPEG or PNG files.
        wanted: The input of the model.
    """
    return tf.map_fn(
        lambda one: _decoded(one, wanted),
        encoded,
        fn_output_signature=tf.TensorSpec(wanted.shape, tf.float32),
        parallel_iterations=_AT_ONCE,
    )


def _decoded(content: tf.Tensor, wanted: PictureInput) -> tf.Tensor:
    # The operation takes PNG too. 16 bits become 8, a palette its colours, and alpha is dropped.
    pixels = tf.io.decode_jpeg(content, wanted.channels, dct_method="INTEGER_ACCURATE")
    size = (wanted.height, wanted.width)
    if wanted.resize == "pad":
        resized = tf.image.resize_with_pad(pixels, *size, wanted.interpolation, antialias=True)
    else:
        if wanted.resize == "crop":
            pixels = _cropped(pixels, wanted)
        resized = tf.image.resize(pixels, size, wanted.interpolation, antialias=True)
    found = tf.clip_by_value(tf.cast(resized, tf.float32), 0.0, 255.0)
    return tf.ensure_shape(found, wanted.shape)


def _cropped(pixels: tf.Tensor, wanted: PictureInput) -> tf.Tensor:
    """Return the largest part around the middle that has the shape of the input."""
    height, width = tf.shape(pixels)[0], tf.shape(pixels)[1]
    new_height = tf.maximum(tf.minimum(height, width * wanted.height // wanted.width), 1)
    new_width = tf.maximum(tf.minimum(width, height * wanted.width // wanted.height), 1)
    top, left = (height - new_height) // 2, (width - new_width) // 2
    return pixels[top : top + new_height, left : left + new_width]
