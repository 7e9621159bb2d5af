"""How the files of a format are recognised and opened: the `FORMAT` of the module of a reader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import IO, Any

from kfp_tfjob.components.prepare_data.source.readers.arrow_table import Reader
from kfp_tfjob.components.prepare_data.source.readers.byte_range import Span
from kfp_tfjob.options.data import DataOptions

HEAD = 512  # bytes by which a format is recognised


class Content(Enum):
    """What a reader gets of a file."""

    STORED = "as it is stored"
    UNPACKED = "unpacked"
    TEXT = "unpacked, as UTF-8"


@dataclass(frozen=True)
class FileFormat:
    """How the files of a format are recognised and opened.

    Attributes:
        recognise: Tells whether a file has the format, by the first HEAD bytes of its content.
        open: Returns the reader of a stream, given the stream, the name of the file, the options,
            the bytes of text to parse at a time, and the range to read.
        content: What is in the stream.
        has_lines: Whether each line ends a record or is within one, so that a range of bytes can
            be read.
        units: Of a format whose files consist of units that can be read alone: returns the bytes
            of each, given a stream and the name of the file. A range is one of units then.
    """

    recognise: Callable[[bytes], bool]
    open: Callable[[Any, str, DataOptions, int, Span | None], Reader]
    content: Content
    has_lines: bool = False
    units: Callable[[IO[bytes], str], list[int]] | None = None
