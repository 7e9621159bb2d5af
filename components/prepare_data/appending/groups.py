"""Cuts the files of a source into groups, which are read and written apart.

No part and no shard crosses a group, so a group that has not changed needs neither reading nor
writing. Files are taken in the order of their names. A group is complete when it has a share of the
bytes before it, so added files open new groups, and the number of groups grows slowly: 64 equal
files are 49 groups, 10,000 are 206.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from kfp_tfjob.components.prepare_data.files import Source, Within
from kfp_tfjob.components.prepare_data.rows import Columns
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.storage.layout import CODEC_VERSION

FORMAT = 2  # of what is kept of a group: raise it if its form changes, see test_append_format.py
_SHARE = 32  # a group has at least one of so many bytes before it


@dataclass(frozen=True)
class Group:
    """Files that follow each other.

    Attributes:
        number: Its place in the source, from 0.
        source: The files.
        key: A digest of everything that decides what is read from them.
    """

    number: int
    source: Source
    key: str

    @property
    def size(self) -> int:
        """Bytes of the files."""
        return self.source.size


def family_of(options: DataOptions, label: str, folder: str = "") -> str:
    """Return the digest of label, options and a folder, which appended datasets share."""
    return options.dataset_digest(folder, label)


def groups_of(
    source: Source, contents: Sequence[str], columns: Columns, options: DataOptions
) -> list[Group]:
    """Return the groups of a source.

    Args:
        source: All files.
        contents: For each file, what stands for its content (`source.contents_of`).
        columns: Those of the first file.
        options: The typed `data_options`.
    """
    within = Within(source.files[0].name, tuple(sorted(source.folder_splits)))
    common = [
        [FORMAT, CODEC_VERSION, family_of(options, columns.label)],
        source.reader and source.reader.digest,
        [list(columns.features), list(columns.extra)],
        within.folders,
    ]
    found = []
    for number, (start, end) in enumerate(ranges([file.size for file in source.files])):
        files = tuple(source.files[start:end])
        of_files = [
            [file.name, file.size, content, file.split]
            for file, content in zip(files, contents[start:end], strict=True)
        ]
        text = json.dumps([common, of_files], ensure_ascii=False)
        part = replace(source, files=files, within=within)
        found.append(Group(number, part, sha256(text.encode()).hexdigest()[:32]))
    return found


def ranges(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first file of each group, and the one after its last, by the sizes of files."""
    found = []
    before = start = held = 0
    for i, size in enumerate(sizes):
        held += max(size, 1)
        if held * _SHARE >= before:
            found.append((start, i + 1))
            before, start, held = before + held, i + 1, 0
    if held:
        found.append((start, len(sizes)))
    return found
