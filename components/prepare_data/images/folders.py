"""What the folders of a source of pictures say: classes, splits, and what was left out."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

from kfp_tfjob.storage.formatting import listed


@dataclass(frozen=True)
class Folders:
    """What the folders of a source of pictures say.

    Attributes:
        classes: The names of the classes, sorted.
        depth: The folders above that of a class: 1 where the top folders name splits.
        stray: Pictures outside the folder of a class.
        unread: Other files outside the folder of a class, which are not read.
        empty: Folders of a class without a file.
        loops: Links that lead back to a folder above them.
    """

    classes: tuple[str, ...]
    depth: int
    stray: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    loops: tuple[str, ...] = ()

    def class_of(self, name: str) -> str:
        """Return the class of a file by its name below data_uri."""
        return class_name(name.split("/", self.depth + 1)[self.depth])

    @property
    def notes(self) -> list[str]:
        """What was left out, in sentences."""
        found = {
            "files outside the folder of a class, which are not read": self.unread,
            "folders without a file, which are no classes": self.empty,
            "links to a folder above themselves, which are not followed": self.loops,
        }
        return [f"{what}: {listed(names, 10)}" for what, names in found.items() if names]


def class_name(folder: str) -> str:
    """Return the class of a folder: systems write the same letters in different ways."""
    return unicodedata.normalize("NFC", folder)
