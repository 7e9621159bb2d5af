"""Reads images as rows: the bytes of each file, and its class.

A task has thousands of files, so they are rows of a few chunks rather than tables of their own.
Called by tasks.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
import pyarrow as pa

from kfp_tfjob.features.types.image import FORMATS, MODES, PROPERTIES
from kfp_tfjob.options.data import DataOptions

from ..faults import FileFaults
from ..source.files import Source, SourceFile
from ..source.readers.arrow_table import Chunk, Images
from .header import Unusable, check


def chunks_of(
    source: Source, files: Sequence[SourceFile], label: str, options: DataOptions
) -> Iterator[tuple[str, Chunk]]:
    """Yield images, and the split that their folder names; a chunk has files of one split.

    Args:
        source: The source.
        files: Some of its files, sorted by name.
        label: The name of the label.
        options: The typed `data_options`.

    Raises:
        DataError: A file changed since it was listed, or cannot be read.
    """
    for split, of_split in groupby(files, key=lambda file: file.split):
        yield split, _chunk(source, list(of_split), label, options)


def _chunk(source: Source, files: list[SourceFile], label: str, options: DataOptions) -> Chunk:
    """Return a row for each file; an unusable image is marked as invalid, with empty content."""
    faults = FileFaults([(file.name, file.row) for file in files])
    contents, properties = [], np.zeros(len(files), PROPERTIES)
    for row, (file, content) in enumerate(zip(files, source.contents(files), strict=True)):
        header = check(file, content, options.images)
        if isinstance(header, Unusable):
            faults.mark_file(row, header.rule, header.value)
            contents.append(b"")
            continue
        assert content is not None
        contents.append(content)
        format, mode = FORMATS.index(header.format), MODES.index(header.mode)
        shape = (header.width, header.height)
        properties[row] = (len(content), *shape, format, mode, header.is_turned)
    columns = {label: pa.array([file.label for file in files]).dictionary_encode()}
    for name in options.split.extra.values():  # a column of the table that lists the images
        columns[name] = pa.array([file.row.split_value if file.row else "" for file in files])
    size = sum(map(len, contents))
    return Chunk(columns, faults, size, images=Images(contents, properties))
