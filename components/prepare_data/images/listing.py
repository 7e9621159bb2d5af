"""Finds the pictures of `data_uri`: a folder with a folder for each class.

    pictures/cat/1.jpg             the class is cat
    pictures/cat/2024/07/1.jpg     so it is here: folders below a class have no meaning
    pictures/train/cat/1.jpg       in the split train, if the top folders name splits

Every file in the folder of a class is a row, whatever its name. Names that begin with a dot, and
those that systems leave behind (Thumbs.db, desktop.ini, __MACOSX), do not count. Links are
followed; one that leads back to a folder above itself is left out.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kfp_tfjob.components.prepare_data.images.file_list import FileList
from kfp_tfjob.components.prepare_data.images.folders import Folders, class_name
from kfp_tfjob.components.prepare_data.source.files import SPLITS, Source, mark
from kfp_tfjob.components.prepare_data.source.listing import is_pattern, walk
from kfp_tfjob.options.data import suffixes
from kfp_tfjob.options.pictures import FORMAT, SUFFIXES
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import DataError, Problem
from kfp_tfjob.storage.formatting import listed
from kfp_tfjob.storage.store import Store

_OF_SYSTEMS = frozenset({"thumbs.db", "desktop.ini", "__macosx", "$recycle.bin"})
_SHOWN = 5


@dataclass
class _Tree:
    """The files and folders below an address, by their names there."""

    files: FileList
    folders: list[str] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


def find(store: Store, data_uri: str, format: str = "auto") -> Source | None:
    """Return the pictures of a folder; None if it is something else.

    Args:
        store: The store of s3:// addresses.
        data_uri: As in the form.
        format: `data_options.format`. With `auto`, a folder has pictures if no file in it has the
            ending of a table, and one has that of a picture.

    Raises:
        DataError: `format` asks for pictures, and there are none; or a name cannot be read.
    """
    asked = format == FORMAT
    if not asked and format != "auto":
        return None
    tree = _tree(store, data_uri.strip(), () if asked else suffixes())
    if not asked and not (tree and any(map(_is_named, tree.files.names()))):
        return None
    if not tree or not tree.files:
        raise _none(data_uri, "a folder without files" if tree else "no folder")
    names = tree.files.names  # may be too many for a list
    _check_names(names(), tree.broken)
    depth = int(_are_splits({name.partition("/")[0] for name in names() if "/" in name}))
    inside = bytearray(name.count("/") > depth for name in names())
    outside = sorted(name for name, is_row in zip(names(), inside, strict=True) if not is_row)
    above = {
        tuple(name.split("/", depth + 1)[: depth + 1])
        for name, is_row in zip(names(), inside, strict=True)
        if is_row
    }
    folders = Folders(
        tuple(sorted({class_name(parts[depth]) for parts in above})),
        depth,
        tuple(filter(_is_named, outside)),
        tuple(name for name in outside if not _is_named(name)),
        tuple(_empty(tree.folders, {"/".join(parts) for parts in above}, depth)),
        tuple(sorted(tree.loops)),
    )
    tree.files.close(inside, bool(depth))
    return Source(data_uri, tree.files, store, pictures=folders)


def _are_splits(tops: set[str]) -> bool:
    """Tell whether the top folders name splits, and are no classes."""
    known = {SPLITS[top.lower()] for top in tops if top.lower() in SPLITS}
    return {"train"} < known or (bool(tops) and all(top.lower() in SPLITS for top in tops))


def _is_named(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def _counts(name: str) -> bool:
    return not name.startswith(".") and name.lower() not in _OF_SYSTEMS


def _empty(folders: list[str], used: set[str], depth: int) -> Iterator[str]:
    """Yield the folders of a class in which no file is, at any depth."""
    for name in sorted(set(folders)):
        if name.count("/") == depth and name not in used:
            yield name


def _tree(store: Store, address: str, tables: tuple[str, ...]) -> _Tree | None:
    """Return what is below an address; None if it is no folder, or has a table."""
    scheme, separator, _ = address.partition("://")
    try:
        if separator:
            return _objects(store, address, tables) if scheme == "s3" else None
        top = Path(address).expanduser()
        return _local(top, tables) if top.is_dir() else None
    except _TableError:
        return None


class _TableError(Exception):
    """A file has the ending of a table."""


def _look(name: str, tables: tuple[str, ...]) -> None:
    if name.lower().endswith(tables):
        raise _TableError


def _objects(store: Store, address: str, tables: tuple[str, ...]) -> _Tree | None:
    folder = S3Address.parse(address.rstrip("/"), "data_uri")
    if is_pattern(folder.key) or "://" in folder.key:  # a pattern, or several addresses
        return None
    start, tree = len(folder.key) + 1 if folder.key else 0, _Tree(FileList(folder))
    for item in store.list(folder):
        name = item.address.key[start:]
        *above, last = name.split("/")
        if not all(map(_counts, filter(None, (*above, last)))):
            continue
        if not last:  # the mark of a folder
            tree.folders.append("/".join(above))
            continue
        _look(name, tables)
        tree.files.add(name, item.size, item.etag)
    return tree


def _local(top: Path, tables: tuple[str, ...]) -> _Tree:
    top = top.absolute()
    tree = _Tree(FileList(os.fspath(top).rstrip("/")))
    for name, status, is_loop in walk(top, _counts):
        if status is None:
            tree.broken.append(name)
        elif is_loop:
            tree.loops.append(name)
        elif stat.S_ISDIR(status.st_mode):
            tree.folders.append(name)
        elif stat.S_ISREG(status.st_mode):
            _look(name, tables)
            tree.files.add(name, status.st_size, mark(status))
    return tree


def _check_names(names: Iterable[str], broken: list[str]) -> None:
    """Refuse links to nothing and names that are not UTF-8.

    Raises:
        DataError: There is one.
    """
    wrong = [ascii(name) for name in names if not name.isascii() and not _is_utf8(name)]
    found = {
        "data_uri has names that are not UTF-8": wrong,
        "data_uri has links to files that do not exist": sorted(broken),
    }
    DataError.raise_if(
        Problem(
            what,
            received=listed(some, _SHOWN),
            fix="rename or remove them",
            path="data_uri",
        )
        for what, some in found.items()
        if some
    )


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _none(data_uri: str, received: str) -> DataError:
    return DataError(
        Problem(
            "data_uri has no pictures, which data_options.format asks for",
            received=f"{data_uri!r}, {received}",
            expected="one folder with a folder for each class: pictures/cat/1.jpg",
            fix="correct data_uri",
            path="data_uri",
        )
    )
