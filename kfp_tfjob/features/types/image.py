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

from kfp_tfjob.options.image_options import PICTURE

from ..image_header import CMYK, JPEG, JPEG_START, PNG, PNG_START, Unusable, look
from .base import CONTENTS, ColumnStatistics, ColumnType, Read, text_of

FORMATS = (JPEG, PNG)
MODES = (
    "grey",
    "colour",
    CMYK,
    "palette",
    "grey with alpha",
    "colour with alpha",
    "grey, 16 bits",
    "colour, 16 bits",
    "grey with alpha, 16 bits",
    "colour with alpha, 16 bits",
    "palette with alpha",
)
# The content of an image's header.
PROPERTIES = np.dtype(
    [
        ("bytes", "<u4"),
        ("width", "<u4"),  # in pixels
        ("height", "<u4"),
        ("format", "u1"),  # the index in FORMATS
        ("mode", "u1"),  # the index in MODES
        ("turned", "?"),  # whether EXIF asks viewers to rotate or mirror it
    ]
)
_MOST_SIZES = 10  # named in statistics.json
_FEW_SIZES = 1 << 16  # that are added before equal ones are counted together
LARGEST = 255.0  # of the values of a pixel, which begin with 0
HALF = LARGEST / 2
ONE_PIXEL = base64.b64decode(  # a grey PNG, for examples
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg=="
)
_HEADS = (JPEG_START, PNG_START)


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


class ImageProfile:
    """Counts images by their properties, in train and in all splits.

    There may be millions of images, and each may have a size of its own. So sizes are numbers in
    arrays, in which equal ones are counted together from time to time.

    Attributes:
        rows: int64 of shape [2], images of train, then of all splits, like all counts.
        formats: int64 of shape [2, formats].
        modes: int64 of shape [2, modes].
        turned: int64 of shape [2].
        file_bytes: The bytes of train's images: the fewest, the sum, and the most.
    """

    def __init__(self) -> None:
        self.rows = np.zeros(2, np.int64)
        self.formats = np.zeros((2, len(FORMATS)), np.int64)
        self.modes = np.zeros((2, len(MODES)), np.int64)
        self.turned = np.zeros(2, np.int64)
        self.file_bytes = (0, 0, 0)
        self._sizes = np.empty(0, np.uint64)  # the width, then the height in the lower 32 bits
        self._counts = np.empty((0, 2), np.int64)
        self._added: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, properties: np.ndarray, is_train: np.ndarray) -> None:
        """Add images: their PROPERTIES, and bool of shape [images], whether they are in train."""
        for at, images in enumerate((properties[is_train], properties)):
            self.rows[at] += len(images)
            self.formats[at] += np.bincount(images["format"], minlength=len(FORMATS))
            self.modes[at] += np.bincount(images["mode"], minlength=len(MODES))
            self.turned[at] += images["turned"].sum()
        if is_train.any():
            sizes = properties["bytes"][is_train]
            self._add_bytes((int(sizes.min()), int(sizes.sum(dtype=np.int64)), int(sizes.max())))
        sizes = properties["width"].astype(np.uint64) << np.uint64(32) | properties["height"]
        self._add_sizes(sizes, np.stack([is_train, np.ones_like(is_train)], 1).astype(np.int64))

    def merge(self, part: ImageProfile) -> None:
        """Add other images."""
        self.rows += part.rows
        self.formats += part.formats
        self.modes += part.modes
        self.turned += part.turned
        if part.rows[0]:
            self._add_bytes(part.file_bytes)
        self._add_sizes(*part.sizes)

    def _add_bytes(self, part: tuple[int, int, int]) -> None:
        """Add the fewest, the sum and the most bytes of further images of train."""
        least, total, most = self.file_bytes
        self.file_bytes = (
            min(least, part[0]) if total else part[0],
            total + part[1],
            max(most, part[2]),
        )

    def _add_sizes(self, sizes: np.ndarray, counts: np.ndarray) -> None:
        self._added.append((sizes, counts))
        if sum(len(sizes) for sizes, _ in self._added) > max(_FEW_SIZES, len(self._sizes)):
            self._count_together()

    def _count_together(self) -> None:
        sizes = np.concatenate([self._sizes, *(sizes for sizes, _ in self._added)])
        counts = np.concatenate([self._counts, *(counts for _, counts in self._added)])
        self._sizes, places = np.unique(sizes, return_inverse=True)
        self._counts = np.zeros((len(self._sizes), 2), np.int64)
        np.add.at(self._counts, places, counts)
        self._added = []

    @property
    def sizes(self) -> tuple[np.ndarray, np.ndarray]:
        """The distinct sizes in order, and the images of each, of shape [sizes, 2].

        A size is the width in the upper 32 bits and the height in the lower ones.
        """
        self._count_together()
        return self._sizes, self._counts

    @property
    def common_size(self) -> tuple[int, int] | None:
        """Height and width, if all images have the same; None otherwise."""
        sizes, _ = self.sizes
        return _height_and_width(int(sizes[0])) if len(sizes) == 1 else None

    @property
    def is_grey(self) -> bool:
        """Whether all images are grey."""
        return all(mode.startswith("grey") for mode in self.all_modes)

    @property
    def all_modes(self) -> dict[str, int]:
        """The images of all splits by mode."""
        return _named(self.modes[1], MODES)

    def smaller_than(self, height: int, width: int) -> int:
        """Return the images of all splits with fewer pixels in either direction."""
        sizes, counts = self.sizes
        heights, widths = sizes & np.uint64(0xFFFFFFFF), sizes >> np.uint64(32)
        return int(counts[(heights < height) | (widths < width), 1].sum())

    def described(self) -> ImageStatistics:
        """Return the formats, modes and sizes of train's images; there is at least one."""
        sizes, counts = self.sizes
        in_train = counts[:, 0] > 0
        sizes, counts = sizes[in_train], counts[in_train, 0]
        most_frequent = np.lexsort((sizes, -counts))[:_MOST_SIZES].tolist()
        ranked = [(*_height_and_width(int(sizes[at])), int(counts[at])) for at in most_frequent]
        least, total, most = self.file_bytes
        return ImageStatistics(
            kind=PICTURE,
            count=int(self.rows[0]),
            formats=_named(self.formats[0], FORMATS),
            modes=_named(self.modes[0], MODES),
            width=_span(sizes >> np.uint64(32), counts),
            height=_span(sizes & np.uint64(0xFFFFFFFF), counts),
            bytes=Span(least, total / int(self.rows[0]), most),
            distinct_sizes=len(sizes),
            sizes=[(width, height, count) for height, width, count in ranked],
            turned=int(self.turned[0]),
        )


def _height_and_width(size: int) -> tuple[int, int]:
    return size & 0xFFFFFFFF, size >> 32


def _named(counts: np.ndarray, names: tuple[str, ...]) -> dict[str, int]:
    return {name: count for name, count in zip(names, counts.tolist(), strict=True) if count}


def _span(values: np.ndarray, counts: np.ndarray) -> Span:
    values = values.astype(np.int64)
    mean = int((values * counts).sum()) / int(counts.sum())
    return Span(int(values.min()), mean, int(values.max()))


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

    @classmethod
    def unusable(cls, values: np.ndarray, max_megapixels: float) -> list[tuple[int, str]]:
        """Return the rows whose file is no usable image or has too many pixels, and why."""
        unusable = []
        for row, content in enumerate(values):
            header = look(content)
            if isinstance(header, Unusable):
                unusable.append((row, header.value))
            elif header.width * header.height > max_megapixels * 1e6:
                unusable.append((row, f"{header.width:,} x {header.height:,} pixels"))
        return unusable
