"""The typed form of `data_options.images`.

Called by prepare_data, the trainer and evaluate.
"""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from .parse import Group, option

PICTURE = "picture"  # the column of an image dataset: its type and its name

PATHS = "image"  # in data_options.types: a column of paths, whose files become PICTURE

FORMAT = "images"  # of data_options.format
FORMER_NAME = "pictures"  # of the format, and of this key of data_options
SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png")


class ImageOptions(Group):
    """How images are checked, and what the model gets of them."""

    height: int = option(
        0,
        "Height of the model's input in pixels. 0 means the images' own height if all have the same"
        " size of at most 256 by 256, otherwise 128.",
        ge=0,
        le=4096,
    )
    width: int = option(
        0, "Width of the model's input in pixels; set both or neither.", ge=0, le=4096
    )
    channels: Literal[0, 1, 3] = option(
        0, "1 for grayscale, 3 for color. 0 means 1 if every image is grayscale, otherwise 3."
    )
    resize: Literal["stretch", "crop", "pad"] = option(
        "stretch",
        "How to fit an image of another shape: `stretch` it, `crop` both ends of the longer"
        " side, or"
        " `pad` the shorter side with black.",
    )
    interpolation: Literal["bilinear", "bicubic", "nearest", "area"] = option(
        "bilinear", "How pixels are computed when the size changes."
    )
    verify: Literal["header", "decode"] = option(
        "header",
        "How to check each image: only its `header` and its end, or `decode` all of it, which takes"
        " about ten times as long.",
    )
    max_megapixels: float = option(
        100.0, "An image with more megapixels is an invalid row.", gt=0, le=1000
    )

    @model_validator(mode="after")
    def _both(self) -> ImageOptions:
        if bool(self.height) != bool(self.width):
            raise ValueError("height and width together, or neither")
        return self
