"""Declares what a model gets of a picture: `picture` in schema.json.

The input pipeline and the exported signature execute it with the same operations
(decoding.py).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

PICTURE = "picture"  # the kind of the feature, its name, and its name in a record
LARGEST = 255.0  # of the values of a pixel, which begin with 0
HALF = LARGEST / 2
ONE_PIXEL = base64.b64decode(  # a grey PNG, for examples
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg=="
)


@dataclass(frozen=True)
class PictureInput:
    """The input of a model of pictures.

    Attributes:
        height: In pixels.
        width: In pixels.
        channels: 1 for grey, 3 for red, green and blue.
        resize: `stretch`, `crop` or `pad`, for a picture of another shape.
        interpolation: `bilinear`, `bicubic`, `nearest` or `area`.
    """

    height: int
    width: int
    channels: int
    resize: str = "stretch"
    interpolation: str = "bilinear"

    @classmethod
    def of_schema(cls, schema: Mapping[str, Any]) -> PictureInput | None:
        """Return the input of a dataset; None if its rows are no pictures."""
        return cls(**schema[PICTURE]) if PICTURE in schema else None

    def to_plain(self) -> dict[str, Any]:
        """Return the value of `picture` in schema.json."""
        return asdict(self)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels."""
        return self.height, self.width, self.channels
