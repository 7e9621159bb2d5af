"""Reads the header of a JPEG or PNG file, without decoding the pixels.

Pillow tells size and mode of a file too, but takes five times as long, and does not look for the
end of the image (docs/measured.md). A small file may claim a size whose pixels take gigabytes, so
training and the server check the size first. Called for every image that prepare_data reads, and
by `types/image.py` for every image of a request.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

JPEG, PNG = "JPEG", "PNG"
CMYK = "CMYK"
_JPEG_MODES = {1: "grey", 3: "colour", 4: CMYK}  # by the number of channels
_PALETTE = 3
_PNG_MODES = {
    0: "grey",
    2: "colour",
    _PALETTE: "palette",
    4: "grey with alpha",
    6: "colour with alpha",
}
JPEG_START, _JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"
PNG_START, _PNG_END = b"\x89PNG\r\n\x1a\n", b"\0\0\0\0IEND\xaeB`\x82"
# Baseline, extended and progressive, all with Huffman coding: what every decoder reads.
_FRAMES = frozenset({0xC0, 0xC1, 0xC2})
_OTHER_FRAMES = frozenset(range(0xC3, 0xD0)) - {0xC4, 0xC8, 0xCC}
_FRAME = struct.Struct(">BHHB")
_START_OF_SCAN, _APP1 = 0xDA, 0xE1
_ORIENTATION = 0x0112  # the tag of EXIF
_UPRIGHT = 1


class Header(NamedTuple):
    """The properties in an image's header.

    Attributes:
        format: One of FORMATS.
        width: In pixels.
        height: In pixels.
        mode: One of MODES.
        is_turned: Whether EXIF asks viewers to rotate or mirror it.
    """

    format: str
    width: int
    height: int
    mode: str
    is_turned: bool = False


class Unusable(NamedTuple):
    """Why a file cannot be used as an image.

    Attributes:
        rule: A key of `RULES` in prepare_data's faults.py.
        value: The file's defect, as text.
    """

    rule: str
    value: str


def look(content: bytes) -> Header | Unusable:
    """Return a whole file's header, or why the file cannot be used."""
    try:
        if content.startswith(JPEG_START):
            return _jpeg(content)
        if content.startswith(PNG_START):
            return _png(content)
    except (struct.error, IndexError):
        return Unusable("truncated", f"{len(content):,} bytes, which end within the header")
    if not content:
        return Unusable("empty", "0 bytes")
    return Unusable("picture", f"a file that begins with {content[:16]!r}")


def _jpeg(content: bytes) -> Header | Unusable:
    at, turned, is_whole = 2, False, content.endswith(_JPEG_END)
    frame: Header | None = None
    while True:
        if content[at] != 0xFF:
            return Unusable("broken", f"no marker at byte {at:,}")
        marker = content[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        if marker == 0x01 or 0xD0 <= marker <= 0xD7:  # without a segment
            at += 2
            continue
        if marker in (0x00, 0xD8, 0xD9):
            return Unusable("broken", f"the marker {marker:02X} at byte {at:,}")
        length = content[at + 2] << 8 | content[at + 3]
        if length < 2:
            return Unusable("broken", f"a segment of {length} bytes at byte {at:,}")
        if marker in _FRAMES:
            bits, height, width, inks = _FRAME.unpack_from(content, at + 4)
            if bits != 8:
                return Unusable("coding", f"a JPEG with {bits} bits")
            if inks not in _JPEG_MODES or not width or not height:
                return Unusable("broken", f"{width} x {height} pixels of {inks} channels")
            frame = Header(JPEG, width, height, _JPEG_MODES[inks], turned)
            if is_whole:
                return frame
        elif marker in _OTHER_FRAMES:
            kind = "arithmetic" if marker >= 0xC9 else "lossless or hierarchical"
            return Unusable("coding", f"a JPEG with {kind} coding")
        elif marker == _APP1 and content[at + 4 : at + 10] == b"Exif\0\0":
            turned = _is_turned(content[at + 10 : at + 2 + length])
        elif marker == _START_OF_SCAN:
            break
        at += 2 + length
    if frame is None:
        return Unusable("broken", "no size before the pixels")
    # Coded pixels never have these two bytes, but a preview in the header may.
    if content.rfind(_JPEG_END, at) < 0:
        return Unusable("truncated", f"{len(content):,} bytes without the end of the JPEG")
    return frame


def _png(content: bytes) -> Header | Unusable:
    length, kind, width, height, bits, colour = struct.unpack_from(">I4sIIBB", content, 8)
    (checksum,) = struct.unpack_from(">I", content, 29)
    if kind != b"IHDR" or length != 13 or zlib.crc32(content[12:29]) != checksum:
        return Unusable("broken", "no valid IHDR")
    if colour not in _PNG_MODES or not width or not height:
        return Unusable("broken", f"{width} x {height} pixels of color type {colour}")
    if not content.endswith(_PNG_END) and content.rfind(_PNG_END) < 0:
        return Unusable("truncated", f"{len(content):,} bytes without the end of the PNG")
    chunks = dict(_png_chunks(content))
    mode = _PNG_MODES[colour]
    if b"tRNS" in chunks and "alpha" not in mode:
        mode += " with alpha"
    if bits == 16 and colour != _PALETTE:
        mode += ", 16 bits"
    return Header(PNG, width, height, mode, _is_turned(chunks.get(b"eXIf", b"")))


def _png_chunks(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield type and data of the chunks between the header and the pixels."""
    at = 33
    while at + 8 <= len(content):
        length, kind = struct.unpack_from(">I4s", content, at)
        if kind in (b"IDAT", b"IEND"):
            return
        yield kind, content[at + 8 : at + 8 + length]
        at += 12 + length


def _is_turned(exif: bytes) -> bool:
    """Return whether the first directory of an EXIF block has an orientation other than upright."""
    try:
        order = {b"II": "<", b"MM": ">"}[exif[:2]]
        (at,) = struct.unpack_from(f"{order}I", exif, 4)
        (entries,) = struct.unpack_from(f"{order}H", exif, at)
        for i in range(min(entries, 200)):
            tag, _, _, value = struct.unpack_from(f"{order}HHIH", exif, at + 2 + 12 * i)
            if tag == _ORIENTATION:
                return _UPRIGHT < value <= 8
    except (KeyError, struct.error):
        pass
    return False
