"""Names the files of a folder that are not read, if they may be what the user means.

Called when data_uri is resolved and where the dataset's suspicions are collected.
"""

from __future__ import annotations

from kfp_tfjob.common.errors import Problem
from kfp_tfjob.common.formatting import counted, listed
from kfp_tfjob.options.image_options import FORMAT, PATHS, SUFFIXES

from .files import Source

_LARGE = 0.1  # of the bytes that are read; a description of the data is smaller
_MOST_FILES = 10  # in a line
_AS_IMAGES = (
    f"to train on images, in a folder for each class, set data_options.format={FORMAT}, which"
    f" ignores the tables; if a column of a table has their paths, give it the type {PATHS} in"
    " data_options.types"
)


def large_unread_files(source: Source) -> list[str]:
    """Return a line if files that are not read are large, so they may be parts of the table."""
    if not source.unread or sum(file.size for file in source.unread) < _LARGE * source.size:
        return []
    images = _images(source)
    unread = [file.name for file in source.unread if file.name not in images]
    notes = []
    if images:
        count = counted(len(images), "image")
        notes.append(f"{count} of data_uri not read, because it has tables: {_AS_IMAGES}")
    if unread:
        notes.append(
            "files of data_uri are not read, because of their endings:"
            f" {listed(unread, _MOST_FILES)}; if they are parts of the table, name them with a"
            " pattern such as DATA/*; if not, remove them"
        )
    return notes


def no_label_beside_images(source: Source, data_label: str) -> Problem | None:
    """Describe the missing data_label of a folder with tables and images, read as tables."""
    images = _images(source)
    if data_label.strip() or not images:
        return None
    return Problem(
        "data_label, the column to predict, is missing",
        received=f"nothing, and {counted(len(images), 'image')} beside {source.files[0].name}",
        expected="a column of the tables",
        fix=f"set data_label (--label); {_AS_IMAGES}",
        path="data_label",
    )


def _images(source: Source) -> list[str]:
    return [file.name for file in source.unread if file.name.lower().endswith(SUFFIXES)]
