"""Recognizes a folder of images, which has a folder for each class.

    pictures/cat/1.jpg             the class is cat
    pictures/cat/2024/07/1.jpg     also cat: folders below a class are ignored
    pictures/train/cat/1.jpg       in the split train, if the top folders name splits

Every file in a class's folder is a row, regardless of its name. Called when data_uri is resolved.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.common.formatting import listed
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.image_options import FORMAT, PICTURE, SUFFIXES
from kfp_tfjob.options.table_formats import suffixes
from kfp_tfjob.storage.store import Store

from ..faults import FileFaults
from ..source.files import SPLITS, Folders, Source, SourceFile
from ..source.foreign_files import CONVERT, HEAD, READABLE, recognise
from ..source.listing import Listing
from ..split_rules import folder_problems
from .header import Unusable, check


def find(listings: Sequence[Listing], format: str) -> tuple[list[SourceFile], Folders] | None:
    """Return the images of a folder and their classes; None if it is something else.

    Args:
        listings: The files at each address of data_uri.
        format: `data_options.format`. With `auto`, a folder contains images if at least one file
            name ends like an image's and none ends like a table's.

    Raises:
        DataError: `format` asks for images, and there are none.
    """
    is_required, listing = format == FORMAT, listings[0]
    if not is_required and format != "auto":
        return None
    is_folder = len(listings) == 1 and listing.is_folder
    if not is_required and not (is_folder and _has_pictures(listing.files)):
        return None
    if not is_folder or not listing.files:
        raise _none(listing.address, "a folder without files" if is_folder else "no folder")
    tops = {file.name.partition("/")[0] for file in listing.files if "/" in file.name}
    depth = int(are_splits(tops))
    classes: dict[str, str] = {}
    rows, outside = [], []
    for file in listing.files:
        if file.name.count("/") <= depth:
            outside.append(file.name)
            continue
        folder = file.name.split("/", depth + 1)[depth]
        # Systems write a letter in different ways.
        label = classes.setdefault(folder, unicodedata.normalize("NFC", folder))
        # Without splits, a class may be called train.
        split = file.split if depth else ""
        rows.append(SourceFile(file.name, file.size, file.location, file.tag, split, label))
    folders = Folders(
        tuple(sorted({*classes.values()})),
        depth=depth,
        stray=tuple(filter(_is_picture, outside)),
        unread=tuple(name for name in outside if not _is_picture(name)),
    )
    return rows, folders


def refuse_other_images(listings: Sequence[Listing], store: Store) -> None:
    """Reject a folder whose files are images, not tables, regardless of their names.

    Raises:
        DataError: There are images in another format, or with names that do not end like an
            image's.
    """
    tables, (listing, *further) = suffixes(), listings
    files = [file for file in listing.files if file.size]
    if (
        further
        or not listing.is_folder
        or any(file.name.lower().endswith(tables) for file in files)
    ):
        return
    # First the files whose names end like an image's, then the others.
    files.sort(key=lambda file: not file.name.lower().endswith(_OTHER_IMAGES))
    source, kinds = Source(listing.address, files, store), {}
    for file in files[:_LOOKED]:
        with source.raw(file) as stream:
            kind, fix = recognise(stream.read(HEAD)) or ("", "")
        if kind == READABLE or fix == CONVERT:
            kinds.setdefault(kind, file.name)
    if not kinds:
        return
    is_readable = READABLE in kinds
    raise DataError(
        Problem(
            "data_uri contains images whose file names do not have an image's suffix"
            if is_readable
            else "data_uri contains images that are neither JPEG nor PNG",
            received=listed((f"{name}, {kind}" for kind, name in kinds.items()), _SHOWN),
            expected=f"JPEG and PNG files that end in {', '.join(SUFFIXES)}",
            fix=f"set data_options.format={FORMAT} to read all files as images"
            if is_readable
            else CONVERT,
            path="data_options.format" if is_readable else "data_uri",
            suggestion=FORMAT if is_readable else "",
        )
    )


def are_splits(tops: set[str]) -> bool:
    """Return whether the top folders name splits, and are no classes."""
    splits = {SPLITS[top.lower()] for top in tops if top.lower() in SPLITS}
    return {"train"} < splits or (bool(tops) and all(top.lower() in SPLITS for top in tops))


def _has_pictures(files: Sequence[SourceFile]) -> bool:
    tables = suffixes()
    names = [file.name.lower() for file in files]
    return any(map(_is_picture, names)) and not any(name.endswith(tables) for name in names)


def _is_picture(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def _none(address: str, received: str) -> DataError:
    return DataError(
        Problem(
            "data_uri contains no images, but data_options.format requests them",
            received=f"{address!r}, {received}",
            expected="one folder that contains a folder for each class: pictures/cat/1.jpg",
            fix="correct data_uri",
            path="data_uri",
        )
    )


LABEL = "class"  # the name of the label if data_label is empty
_LOOKED = 20  # files
_OTHER_IMAGES = (".webp", ".avif", ".heic", ".heif", ".tif", ".tiff", ".gif", ".bmp", ".jxl")
_SHOWN = 5
# The options that do not apply to tables alone.
_OF_IMAGES = frozenset(
    {"task", "split", "on_bad_row", "max_bad_fraction", "format", "contract", "dask", "images"}
)


def problems_of(source: Source, options: DataOptions, label: str = "") -> list[Problem]:
    """Return every problem of the folders, the options, and the first bytes of some files.

    Args:
        source: The images.
        options: The typed `data_options`.
        label: The name of the label; empty for LABEL.
    """
    problems = [*option_problems(options), *_folders(source), *folder_problems(source, options)]
    if label.strip() == PICTURE:
        problems.append(_label_named_as_images(label))
    return problems or first_file_problems(source, options)


def _label_named_as_images(label: str) -> Problem:
    return Problem(
        "data_label is the name of the dataset's column of images",
        received=repr(label),
        expected=f"a different name for the column of classes, such as {LABEL!r}",
        fix=f"remove data_label, which is {LABEL!r} by default",
        path="data_label",
        suggestion=LABEL,
    )


def option_problems(
    options: DataOptions,
    further: frozenset[str] = frozenset(),
    by: str = "with the folders train/, validation/ and test/",
    split_keys: Sequence[str] = (),
) -> list[Problem]:
    """Return a problem for each option that does not apply to images.

    Args:
        options: The typed `data_options`.
        further: More keys that apply to this source.
        by: How else to split the images.
        split_keys: The keys of `data_options.split` that may name a column.
    """
    fields = type(options).model_fields
    wrong: dict[str, tuple[object, str]] = {
        name: (value, f"remove data_options.{name}")
        for name, value in options
        if name not in _OF_IMAGES | further and value != fields[name].default
    }
    wrong |= {
        f"split.{key}": (name, f"split them {by}, or by their hash")
        for key, name in options.split.extra.items()
        if key not in split_keys
    }
    if options.task == "regression":
        wrong["task"] = (options.task, "remove data_options.task")
    return [
        Problem(
            f"data_options.{name} applies to tables, but the rows of data_uri are images",
            received=repr(value),
            expected="only options that apply to images",
            fix=fix,
            path=f"data_options.{name}",
        )
        for name, (value, fix) in wrong.items()
    ]


def _folders(source: Source) -> list[Problem]:
    folders = source.pictures
    assert isinstance(folders, Folders)
    where = "train/CLASS/" if folders.depth else "CLASS/"
    expected = f"{where}1.jpg below data_uri, with a folder for each class"
    problems = []
    if folders.stray:
        problems.append(
            Problem(
                "data_uri contains images outside the classes' folders",
                received=f"{len(folders.stray):,}: {listed(folders.stray, _SHOWN)}",
                expected=expected,
                fix="move them into the folders of their classes"
                if folders.classes
                else "set data_uri to the parent folder if this is one of several classes",
                path="data_uri",
            )
        )
    if len(folders.classes) == 1 or not (folders.classes or folders.stray):
        above = source.files[0].name.split("/")[: folders.depth + 1] if source.files else []
        inner = "/".join([source.uri.rstrip("/"), *above])
        problems.append(
            Problem(
                "data_uri has fewer than two classes",
                received=f"one folder with images: {folders.classes[0]}"
                if folders.classes
                else "no folder with an image",
                expected=expected,
                fix="set data_uri to the folder that contains the classes' folders, such as"
                f" {inner} or a parent of data_uri, or add a folder with images of another class"
                if above
                else "correct data_uri",
                path="data_uri",
            )
        )
    return problems


def first_file_problems(source: Source, options: DataOptions) -> list[Problem]:
    """Check some files without decoding them, but only if an invalid one ends the run."""
    if options.on_bad_row != "fail":
        return []
    step = max(1, len(source.files) // _LOOKED)
    files = source.files[::step][:_LOOKED]
    pictures = options.images.model_copy(update={"verify": "header"})
    faults = FileFaults([(file.name, file.row) for file in files])
    for row, (file, content) in enumerate(zip(files, source.contents(files), strict=True)):
        header = check(file, content, pictures)
        if isinstance(header, Unusable):
            faults.mark_file(row, header.rule, header.value)
    faults.options = options
    return faults.image_problems(len(source.files)) if faults.bad else []
