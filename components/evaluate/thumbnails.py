"""Makes small copies of pictures for the report."""

from __future__ import annotations

import base64

SIDE = 112  # pixels of the longer side
_QUALITY = 82


def thumbnail(content: bytes) -> str:
    """Return a picture as the address of an image, with the picture itself in it.

    Args:
        content: The bytes of a JPEG or PNG file.

    Returns:
        `data:image/jpeg;base64,...`, about 5 kB; empty if the picture cannot be decoded.
    """
    import tensorflow as tf

    try:
        pixels = tf.io.decode_jpeg(content, 3)  # takes PNG, too
        height, width = pixels.shape[:2]
        scale = SIDE / max(height, width)
        size = (max(round(height * scale), 1), max(round(width * scale), 1))
        resized = tf.image.resize(pixels, size, "area" if scale < 1 else "nearest")
        drawn = tf.cast(tf.clip_by_value(tf.round(resized), 0, 255), tf.uint8)
        encoded = tf.io.encode_jpeg(drawn, quality=_QUALITY).numpy()
    except tf.errors.InvalidArgumentError:
        return ""
    return f"data:image/jpeg;base64,{base64.b64encode(encoded).decode()}"
