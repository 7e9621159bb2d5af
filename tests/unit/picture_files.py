"""Images of every kind, and files that only look like one."""

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SIZE = (40, 30)  # width, height


def drawn(seed: int = 0, size: tuple[int, int] = SIZE) -> Image.Image:
    """Return an image in colour; equal seeds give equal images."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 6, 3)).astype(np.uint8)
    return Image.fromarray(coarse).resize(size)


def encoded(picture: Image.Image, format: str = "JPEG", **options: Any) -> bytes:
    """Return the bytes of the file of an image."""
    stream = io.BytesIO()
    picture.save(stream, format, **options)
    return stream.getvalue()


def deep(size: tuple[int, int] = SIZE) -> bytes:
    """Return a grey PNG of 16 bits."""
    values = np.linspace(0, 65535, size[0] * size[1]).astype(np.uint16)
    return encoded(Image.fromarray(values.reshape(size[1], size[0])), "PNG")


def png_of_size(width: int, height: int) -> bytes:
    """Return a PNG that declares a size and has one pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(4))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def tree(top: Path, files: dict[str, bytes]) -> Path:
    """Write files below a folder and return it."""
    for name, content in files.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return top


def animals(each: int = 30, first: int = 0) -> dict[str, bytes]:
    """Return images of two classes: dark cats and bright dogs, by their names."""
    found = {}
    for i in range(each):
        for name, low in (("cat", 0), ("dog", 128)):
            values = np.random.default_rng(1000 * low + first + i).integers(
                low, low + 128, (6, 6, 3)
            )
            picture = Image.fromarray(values.astype(np.uint8)).resize((24, 24))
            found[f"{name}/{i:03d}.jpg"] = encoded(picture)
    return found
