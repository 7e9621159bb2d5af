"""Cuts a source into parts, which are read one by one, in any order and anywhere.

The cut depends on the source alone, never on who reads the parts. A part is a range of a large
file, a file that can only be read as a whole, or several small files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kfp_tfjob.components.prepare_data.source.files import Source
from kfp_tfjob.components.prepare_data.source.readers.byte_range import Span
from kfp_tfjob.components.prepare_data.source.readers.registry import spans_of
from kfp_tfjob.options.data import DataOptions

PART_BYTES = 32 << 20


@dataclass(frozen=True)
class Part:
    """What one task reads.

    Attributes:
        number: Its place in the source, from 0.
        first: The first file, as an index of the files of the source.
        last: The last file.
        span: The range of the only file; None if files are read as a whole.
        is_text: Whether the range is one of bytes, whose first record must be looked for.
        size: About how many bytes of the source it has.
    """

    number: int
    first: int
    last: int
    span: Span | None = None
    is_text: bool = False
    size: int = 0

    @property
    def follows(self) -> bool:
        """Whether it must begin where the part before has ended."""
        return self.is_text and self.span is not None and self.span.start > 0


def parts_of(source: Source, options: DataOptions, size: int = PART_BYTES) -> list[Part]:
    """Return the parts of a source.

    Args:
        source: The files; large ones are opened.
        options: The typed `data_options`.
        size: About the bytes of a part.
    """
    found = _ranges(source, options, size)
    return [Part(i, *part) for i, part in enumerate(found)]


def _ranges(
    source: Source, options: DataOptions, size: int
) -> Iterator[tuple[int, int, Span | None, bool, int]]:
    start, held = 0, 0  # small files that are waiting
    for i, file in enumerate(source.files):
        if held and held + file.size > size:
            yield start, i - 1, None, False, held
            start, held = i, 0
        if file.size < size + size // 2:
            start, held = start if held else i, held + max(file.size, 1)
            continue
        spans, is_text = spans_of(source, file, options, size)
        if len(spans) < 2:
            yield i, i, None, False, file.size
        else:
            for span in spans:
                yield i, i, span, is_text, file.size // len(spans)
    if held:
        yield start, len(source.files) - 1, None, False, held
