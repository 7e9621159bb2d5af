"""Names files that cannot be read, by their first bytes: what people have in place of data."""

from __future__ import annotations

import re
import zlib

from kfp_tfjob.options.data import FORMAT_WORDS

_TABLE = f"write it as {FORMAT_WORDS}"
_PACKED = "use gzip, zstd, Parquet or no compression"
_PICTURE = "set data_uri to the folder that contains one folder of images per class"
_LOOK = "open it, because it may be an error page, and download it again"
# What a file is and what to do with it in a table's place, by its first bytes.
_KINDS = {
    b"PK\x03\x04": ("a zip, npz or Excel file", _TABLE),
    b"BZh": ("compressed with bzip2", _PACKED),
    b"\xfd7zXZ": ("compressed with xz", _PACKED),
    b"\x04\x22\x4d\x18": ("compressed with lz4", _PACKED),
    b"Obj\x01": ("Avro", _TABLE),
    b"ARROW1": ("Arrow or Feather", _TABLE),
    b"\xff\xff\xff\xff": ("an Arrow stream", _TABLE),
    b"ORC": ("ORC", _TABLE),
    b"\x89HDF": ("HDF5", _TABLE),
    b"\x93NUMPY": ("a NumPy array", _TABLE),
    b"SQLite format 3": ("an SQLite database", _TABLE),
    b"\xd0\xcf\x11\xe0": ("an old Excel or Office file", _TABLE),
    b"%PDF": ("a PDF", _TABLE),
    b"\xff\xd8\xff": ("a picture", _PICTURE),
    b"\x89PNG": ("a picture", _PICTURE),
    b"GIF8": ("a GIF", _PICTURE),
    b"II*\0": ("a TIFF", _PICTURE),
    b"MM\0*": ("a TIFF", _PICTURE),
    b"version https://git-lfs": (
        "a pointer of Git LFS",
        "download the file itself with git lfs pull",
    ),
}
# Pages and answers of web servers and stores, in place of the file that was asked for.
_MARKUP = re.compile(rb"\s*<(!doctype|html|svg|\?xml|head|body|error)\b", re.IGNORECASE)
_TAR_AT, _TAR = 257, b"ustar"
_ZLIB = (b"\x78\x01", b"\x78\x9c", b"\x78\xda")


def recognise(head: bytes) -> tuple[str, str] | None:
    """Return what a file is that is no table, and what to do with it; None if it may be one.

    Args:
        head: Its first bytes, some hundred.
    """
    if _MARKUP.match(head):
        what = " ".join(head[:60].decode(errors="replace").split())
        return f"HTML or XML: {what}", _LOOK
    if head.startswith(_TAR, _TAR_AT):
        return "a tar archive", "unpack it, and set data_uri to its folder or files"
    if head.startswith(_ZLIB) and _is_zlib(head):
        return "compressed with zlib", _PACKED
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "a WebP", _PICTURE
    if head[4:8] == b"ftyp":
        brand = head[8:12].decode(errors="replace").strip().upper()
        return f"a video, HEIF or AVIF ({brand})", _PICTURE
    return next((found for magic, found in _KINDS.items() if head.startswith(magic)), None)


def _is_zlib(head: bytes) -> bool:
    """Tell whether bytes unpack; a text in Latin-1 may begin with those of a packed file."""
    try:
        return bool(zlib.decompressobj().decompress(head, 1))
    except zlib.error:
        return False
