"""Decodes a picture to find out whether it can be decoded; needs Pillow."""

from __future__ import annotations

import io
import warnings


def decoding_fault(content: bytes) -> str:
    """Return why a picture cannot be decoded; empty if it can.

    Args:
        content: All bytes of the file; its size in pixels has been checked.
    """
    from PIL import Image, ImageFile

    Image.MAX_IMAGE_PIXELS = None  # the limit is data_options.pictures.max_megapixels
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as picture:
                picture.load()
    except Exception as error:  # decoders of damaged files raise many
        return f"{type(error).__name__}: {error}"[:200]
    return ""
