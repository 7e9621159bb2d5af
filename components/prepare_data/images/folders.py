"""Recognises a folder of pictures: it has a folder for each class.

    pictures/cat/1.jpg             the class is cat
    pictures/cat/2024/07/1.jpg     so it is here: folders below a class have no meaning
    pictures/train/cat/1.jpg       in the split train, if the top folders name splits

Every file in the folder of a class is a row, whatever its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kfp_tfjob.components.prepare_data.source.files import SPLITS, Folders, SourceFile
from kfp_tfjob.components.prepare_data.source.listing import Listing, check_links
from kfp_tfjob.options.data import suffixes
from kfp_tfjob.options.pictures import FORMAT, SUFFIXES
from kfp_tfjob.storage.errors import DataError, Problem


def find(listings: Sequence[Listing], format: str) -> tuple[list[SourceFile], Folders] | None:
    """Return the pictures of a folder and their classes; None if it is something else.

    Args:
        listings: What is at each address of data_uri.
        format: `data_options.format`. With `auto`, a folder has pictures if no file in it has the
            ending of a table, and one has that of a picture.

    Raises:
        DataError: `format` asks for pictures, and there are none; or there is a link to nothing.
    """
    asked, listing = format == FORMAT, listings[0]
    if not asked and format != "auto":
        return None
    is_folder = len(listings) == 1 and listing.is_folder
    if not asked and not (is_folder and _has_pictures(listing.files)):
        return None
    if not is_folder or not listing.files:
        raise _none(listing.address, "a folder without files" if is_folder else "no folder")
    check_links(listing.broken)
    tops = {file.name.partition("/")[0] for file in listing.files if "/" in file.name}
    depth = int(_are_splits(tops))
    class_of = Folders((), depth).class_of
    rows, outside = [], []
    for file in listing.files:
        if file.name.count("/") > depth:
            # Without splits, a class may be called train.
            rows.append(file if depth or not file.split else replace(file, split=""))
        else:
            outside.append(file.name)
    folders = Folders(
        tuple(sorted({class_of(file.name) for file in rows})),
        depth,
        tuple(filter(_is_picture, outside)),
        tuple(name for name in outside if not _is_picture(name)),
    )
    return rows, folders


def _are_splits(tops: set[str]) -> bool:
    """Tell whether the top folders name splits, and are no classes."""
    known = {SPLITS[top.lower()] for top in tops if top.lower() in SPLITS}
    return {"train"} < known or (bool(tops) and all(top.lower() in SPLITS for top in tops))


def _has_pictures(files: Sequence[SourceFile]) -> bool:
    tables = suffixes()
    names = [file.name.lower() for file in files]
    return any(map(_is_picture, names)) and not any(name.endswith(tables) for name in names)


def _is_picture(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def _none(address: str, received: str) -> DataError:
    return DataError(
        Problem(
            "data_uri has no pictures, which data_options.format asks for",
            received=f"{address!r}, {received}",
            expected="one folder with a folder for each class: pictures/cat/1.jpg",
            fix="correct data_uri",
            path="data_uri",
        )
    )
