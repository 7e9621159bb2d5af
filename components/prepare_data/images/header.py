"""Checks the bytes of an image file, without decoding them unless the options ask for it.

Called for every image by the reader of images.
"""

from __future__ import annotations

import io
import warnings

from kfp_tfjob.features import image_header
from kfp_tfjob.features.image_header import CMYK, Header, Unusable
from kfp_tfjob.options.image_options import ImageOptions

from ..source.files import LARGEST_CONTENT, SourceFile
from ..source.foreign_files import HEAD, recognise


def check(file: SourceFile, content: bytes | None, options: ImageOptions) -> Header | Unusable:
    """Return a file's header, or why the file cannot be used with these options.

    Args:
        file: Of the source.
        content: Its bytes; None if there are too many.
        options: The typed `data_options.images`.
    """
    if content is None:
        expected = f"at most {LARGEST_CONTENT >> 20} MiB"
        return Unusable("bytes", f"{file.size / 2**20:,.0f} MiB, {expected}")
    header = look(content)
    if isinstance(header, Unusable):
        return header
    if header.width * header.height > options.max_megapixels * 1e6:
        return Unusable("pixels", f"{header.width:,} x {header.height:,} pixels")
    if header.mode == CMYK and options.channels == 1:
        return Unusable("channels", "data_options.images.channels is 1")
    fault = decoding_fault(content) if options.verify == "decode" else ""
    return Unusable("broken", fault) if fault else header


def look(content: bytes) -> Header | Unusable:
    """Return a whole file's header, or why the file cannot be used, with the format of others."""
    header = image_header.look(content)
    if isinstance(header, Unusable) and header.rule == "picture":
        kind = recognise(content[:HEAD])
        return Unusable(header.rule, kind[0]) if kind else header
    return header


def decoding_fault(content: bytes) -> str:
    """Return why an image whose size has been checked cannot be decoded; empty if it can."""
    from PIL import Image, ImageFile

    Image.MAX_IMAGE_PIXELS = None  # the limit is data_options.images.max_megapixels
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as picture:
                picture.load()
    except MemoryError:
        raise
    except Exception as error:  # decoders of damaged files raise many
        return f"{type(error).__name__}: {error}"[:200]
    return ""
