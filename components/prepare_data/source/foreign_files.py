"""Recognizes files that cannot be read, such as archives, by their first bytes.

Called by readers that cannot parse a file, for the message.
"""

from __future__ import annotations

import re

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.options.table_formats import FORMAT_WORDS

HEAD = 512  # bytes by which a file is recognized
READER = "write a function that reads it, and name the function in data_options.reader"
_TABLE = f"write it as {FORMAT_WORDS}, or {READER}"
_PACKED = "compress it with gzip or zstd, do not compress it, or write it as Parquet"
_PICTURE = "set data_uri to the folder that contains one folder of images per class"
CONVERT = "convert images to JPEG or PNG, for example with Pillow: Image.open(OLD).save('NEW.png')"
_LOOK = "open it: if it is an error page, download the file again; if it is a table, save it as CSV"
_UNPACK = "unpack it, and set data_uri to its folder or files"
_PULL = "download the file itself with git lfs pull"
READABLE = "a JPEG or PNG"
_PICKLES = (
    b"\x04\x95",
    b"\x05\x95",
    *(bytes([version]) + opcode for version in (2, 3) for opcode in (b"]", b"}", b"c")),
)
# The releases of Stata 8 to 12, the byte order, and two bytes that are always the same.
_OLD_STATA = tuple(
    bytes([release, order, 1, 0]) for release in (0x71, 0x72, 0x73) for order in (1, 2)
)
_HEIC = (b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1")
# Where bytes are in a file, the bytes, what the file is, and what to do in a table's place.
_KNOWN = (
    (0, b"BZh", "compressed with bzip2", _PACKED),
    (0, b"\xfd7zXZ", "compressed with xz", _PACKED),
    (0, b"\x04\x22\x4d\x18", "compressed with lz4", _PACKED),
    (0, b"\xff\x06\0\0sNaPpY", "compressed with snappy", _PACKED),
    # Of a TFRecord file with the option ZLIB; what begins with a third level, x^, may be text.
    *((0, bytes([0x78, level]), "compressed with zlib", _PACKED) for level in (0x01, 0x9C, 0xDA)),
    (0, b"Obj\x01", "Avro", _TABLE),
    (0, b"ORC", "ORC", _TABLE),
    (0, b"\x89HDF", "HDF5", _TABLE),
    (0, b"\x93NUMPY", "a NumPy array", _TABLE),
    (0, b"SQLite format 3", "an SQLite database", _TABLE),
    (8, b"DUCK", "a DuckDB database", _TABLE),
    (0, b"FEA1", "an old Feather file", _TABLE),
    (0, b"RDX", "a file of R", _TABLE),
    (0, b"X\n\0\0\0", "a file of R", _TABLE),
    (0, b"MATLAB 5.0", "a MATLAB file", _TABLE),
    (0, b"<stata_dta>", "a Stata file", _TABLE),
    *((0, begin, "a Stata file", _TABLE) for begin in _OLD_STATA),
    (0, b"$FL2", "an SPSS file", _TABLE),
    (12, b"\xc2\xea\x81\x60\xb3\x14", "a SAS file", _TABLE),
    *((0, b"\x80" + begin, "a pickle of Python", _TABLE) for begin in _PICKLES),
    (0, b"Rar!\x1a\x07", "a RAR archive", _UNPACK),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", _UNPACK),
    (0, b"%PDF", "a PDF", _TABLE),
    (257, b"ustar", "a tar archive", _UNPACK),
    (0, b"\xff\xd8\xff", READABLE, _PICTURE),
    (0, b"\x89PNG", READABLE, _PICTURE),
    (0, b"GIF8", "a GIF", CONVERT),
    (0, b"II*\0", "a TIFF", CONVERT),
    (0, b"MM\0*", "a TIFF", CONVERT),
    (8, b"WEBP", "a WebP", CONVERT),
    (4, b"ftypavif", "an AVIF", CONVERT),
    (4, b"ftypavis", "an AVIF", CONVERT),
    *((4, b"ftyp" + brand, "a HEIC", CONVERT) for brand in _HEIC),
    (4, b"ftyp", "a video", READER),
    (0, b"\0\0\0\x0cjP  ", "a JPEG 2000", CONVERT),
    (0, b"\0\0\0\x0cJXL ", "a JPEG XL", CONVERT),
    (0, b"\xff\x0a", "a JPEG XL", CONVERT),
    (128, b"DICM", "a DICOM", CONVERT),
    (0, b"version https://git-lfs", "a pointer of Git LFS", _PULL),
)
_BITMAP = re.compile(rb"BM.{4}\0{4}.{4}[\x0c(@l|]\0\0\0", re.DOTALL)  # BM alone may be text
# Pages and answers of web servers and stores, in place of the file that was asked for.
_MARKUP = re.compile(
    rb"\s*<(!doctype|html|svg|\?xml|head|body|error|meta|table|style|div)\b", re.IGNORECASE
)
# Other tables of text, with comments before the first line of ARFF.
_ARFF = re.compile(rb"(?:\s++|%[^\n]*+\n)*+@relation\b", re.IGNORECASE)
_SPARSE = re.compile(rb"[-+]?[0-9.]+( qid:[0-9]+)?( +[0-9]+:[-+0-9.eE]+)+ *(#[^\n]*)?\r?\n")


def unreadable(name: str, kind: str, fix: str) -> DataError:
    """Return the error for a file that is not a table, given what it is instead, and the fix."""
    expected = f"{FORMAT_WORDS}; text may be compressed with gzip or zstd"
    return DataError(Problem(f"{name} cannot be read", f"a file that is {kind}", expected, fix))


def recognise(head: bytes) -> tuple[str, str] | None:
    """Return the format of a file that is not a table, and the fix; None if it may be a table.

    Args:
        head: The first few hundred bytes of the file.
    """
    if _MARKUP.match(head):
        beginning = " ".join(head[:60].decode(errors="replace").split())
        return f"HTML or XML: {beginning}", _LOOK
    if _ARFF.match(head):
        return "ARFF", _TABLE
    if _SPARSE.match(head):
        return "a table of LIBSVM or SVMlight", _TABLE
    if _BITMAP.match(head):
        return "a BMP", CONVERT
    matches = (
        (beginning, fix) for at, magic, beginning, fix in _KNOWN if head.startswith(magic, at)
    )
    return next(matches, None)
