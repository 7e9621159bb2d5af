"""Reads a table that lists images: a column of paths, and the label of each image.

    path,class
    scans/1.jpg,cat       the image is in the folder scans, next to the table
    scans/2.jpg,dog

Many archives have such a list in place of a folder for each class. Its rows become the files of an
image source, as a folder's files do. Later code does not distinguish the two, so the same images
give the same dataset. A row that names no image is an invalid row. Called when data_uri is
resolved, and by preflight for a table that lists images.
"""

from __future__ import annotations

import json
import posixpath
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.common.formatting import listed, setting
from kfp_tfjob.features.cells import LONGEST
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.image_options import PATHS, PICTURE, SUFFIXES
from kfp_tfjob.storage.address import S3Address

from ..columns_to_rows import texts_of
from ..faults import Faults, FileFaults, ListRow
from ..labels import MOST_CLASSES
from ..source.column_names import Columns, choose, no_rows
from ..source.delimiter import with_delimiter
from ..source.files import ImageClasses, Source, SourceFile
from ..source.first_line import first_line_problem
from ..source.listing import files_named, split_of
from ..source.readers.arrow_table import ArrowTable, Chunk
from ..source.readers.open_table import open_table
from ..split_rules import SplitRules, folder_problems
from .folders import are_splits, first_file_problems, option_problems

_SHOWN = 10  # columns, or classes
# The options that say how a table is read and which of its columns are left.
_OF_TABLES = frozenset(
    {"columns", "delimiter", "drop", "encoding", "header", "names", "null_values", "reader"}
    | {"sheet", "types"}
)
_OF_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|\\\\")  # a path from the top of a drive or a server
_SPLIT_KEYS = ("column", "group")
_BY_COLUMN = (
    "with a column that names the split (data_options.split.column) or a group"
    " (data_options.split.group)"
)


class _Listed(NamedTuple):
    """A row of a table that may name an image.

    Attributes:
        table: The table.
        path: Relative to the table, without `.` and `..`.
        label: The image's class.
        row: Where the row is.
    """

    table: SourceFile
    path: str
    label: str
    row: ListRow

    @property
    def name(self) -> str:
        """The image's path relative to data_uri."""
        return posixpath.join(posixpath.dirname(self.table.name), self.path)


def with_images(source: Source, label: str, options: DataOptions) -> Source:
    """Return the source of the images that a table lists; return any other source as it is.

    All tables are read, and all images are looked up, but not opened.

    Args:
        source: The tables, from `list_source`.
        label: The label column.
        options: The typed `data_options`; one of its `types` is `image`.

    Raises:
        DataError: The options do not suit a list of images, a table cannot be read or has other
            features, or no row names an image.
    """
    if source.pictures or not options.path_column:
        return source
    problems = option_problems(options, _OF_TABLES, _BY_COLUMN, _SPLIT_KEYS)
    if problems:
        raise DataError(*problems)
    options = with_delimiter(source, options)
    faults, rows = Faults(options=options), []
    for table in source.files:
        with open_table(source, table, options) as opened:
            columns = _columns(opened, label, options)
            for chunk in opened.chunks(columns):
                rows += _listed(source, table, chunk, label, options)
                faults.merge(chunk.faults)
    files, file_faults = _files(source, rows)
    faults.merge(file_faults)
    faults.seen = faults.bad  # the others are counted when they are read
    if not files:
        raise DataError(*(faults.image_problems() if faults.bad else [no_rows()]))
    classes = tuple(sorted({file.label for file in files}))
    pictures = ImageClasses(classes, tables=source.files, faults=faults)
    return replace(source, files=files, pictures=pictures, unread=())


def problems_of(source: Source, options: DataOptions, label: str) -> list[Problem]:
    """Return every problem of the rows, the classes, and the first bytes of some images.

    Args:
        source: The images.
        options: The typed `data_options`.
        label: The label column.
    """
    pictures = source.pictures
    assert pictures and pictures.faults
    problems = [*folder_problems(source, options), *_class_problems(pictures.classes, label)]
    if label == PICTURE:
        problems.append(_label_named_as_images(label))
    if pictures.faults.bad and options.on_bad_row == "fail":
        rows = pictures.faults.bad + len(source.files)
        problems += replace(pictures.faults, seen=rows).image_problems()
    return problems or first_file_problems(source, options)


def column_of_paths(source: Source, label: str, names: Sequence[str], options: DataOptions) -> str:
    """Return the first column whose strings all end like the names of images; empty for none.

    Only the first block of the first table is read.

    Args:
        source: The tables.
        label: The label column.
        names: Columns of the first table.
        options: The typed `data_options`.
    """
    with open_table(source, source.first, options) as table:
        present = [name for name in names if name in table.names]
        for chunk in table.chunks(Columns((), label, extra=tuple(present))):
            for name in present:
                texts = [text for text in texts_of(chunk, name)[0] if text]
                if texts and all(text.lower().endswith(SUFFIXES) for text in texts):
                    return name
            break
    return ""


def _columns(table: ArrowTable, label: str, options: DataOptions) -> Columns:
    """Return the columns to read from a table.

    Raises:
        DataError: It lacks one of them, or has other features.
    """
    if problem := first_line_problem(table, options, label):
        raise DataError(problem)
    chosen, problems = choose(table.header, label, options, table.name)
    problems += table.problems(chosen) if chosen else []
    path = options.path_column
    extra = [name for name in chosen.features if name != path] if chosen else []
    if extra:
        problems.append(_other_features(table.name, extra, options))
    typed = [name for name in options.types if name not in (path, *extra)]
    if chosen and typed:
        problems.append(_other_types(typed, options))
    DataError.raise_if(problems)
    return Columns((), label, extra=(path, *options.split.extra.values()))


def _listed(
    source: Source, table: SourceFile, chunk: Chunk, label: str, options: DataOptions
) -> Iterator[_Listed]:
    """Yield the rows of a chunk that have a path below the table's folder, a label and a split."""
    faults, column = chunk.faults, options.path_column
    texts, path_codes = texts_of(chunk, column)
    paths = [_below(text) for text in texts]
    is_outside = np.array(
        [bool(text) and not path for text, path in zip(texts, paths, strict=True)]
    )
    faults.mark(is_outside[path_codes], "outside", column, lambda i: texts[path_codes[i]])
    labels, label_codes = texts_of(chunk, label)
    is_long = np.array([len(text) > LONGEST for text in labels], bool)
    faults.mark(is_long[label_codes], "long", label, lambda i: labels[label_codes[i]])
    # A folder's name is normalized as well.
    labels = [unicodedata.normalize("NFC", text) for text in labels]
    values, value_codes = [""], np.zeros(len(faults.lines), np.int32)
    for name in options.split.extra.values():
        values, value_codes = texts_of(chunk, name)
        SplitRules(source, options, np.empty(0)).splits("", chunk)  # marks what names no split
    for i in np.flatnonzero(faults.good).tolist():
        line, value = int(faults.lines[i]), values[value_codes[i]]
        row = ListRow(table.name, line, column, value)
        yield _Listed(table, paths[path_codes[i]], labels[label_codes[i]], row)


def _below(text: str) -> str:
    """Return a path without `.` and `..`; empty if it does not lead below the table's folder."""
    path = posixpath.normpath(text)
    is_outside = path.startswith(("/", "../")) or path in (".", "..") or "://" in text
    return "" if is_outside or _OF_WINDOWS.match(text) else path


def _files(source: Source, rows: Sequence[_Listed]) -> tuple[list[SourceFile], FileFaults]:
    """Return the images, sorted by name, and the rows whose file is missing or named before."""
    paths: defaultdict[S3Address | str, set[str]] = defaultdict(set)
    for row in rows:
        paths[_folder(row.table)].add(row.path)
    existing = {
        (folder, file.name): file
        for folder, names in paths.items()
        for file in files_named(source.store, folder, sorted(names))
    }
    by_table = any(row.table.split for row in rows)
    by_top = not by_table and are_splits({row.name.partition("/")[0] for row in rows})
    faults = FileFaults([(row.path, row.row) for row in rows])
    files: dict[str, SourceFile] = {}
    for i, row in enumerate(rows):
        name = row.name
        file = existing.get((_folder(row.table), row.path))
        if file is None:
            is_of_windows = "\\" in row.path
            faults.mark_file(i, "absent", "write / between folders" * is_of_windows)
        elif earlier := files.get(name):
            assert earlier.row
            faults.mark_file(i, "repeated", f"{earlier.row.table}, line {earlier.row.line}")
        else:
            split = split_of(name) if by_top else row.table.split
            stored_as = (file.size, file.location, file.tag)
            files[name] = SourceFile(name, *stored_as, split, row.label, row.row)
    return sorted(files.values(), key=lambda file: file.name), faults


def _folder(table: SourceFile) -> S3Address | str:
    """Return the folder that contains a table."""
    if isinstance(table.location, S3Address):
        return S3Address(table.location.bucket, table.location.key.rpartition("/")[0])
    return str(Path(table.location).parent)


def _other_features(table: str, features: Sequence[str], options: DataOptions) -> Problem:
    drop = [*(name for name in options.drop if name != options.path_column), *features]
    return Problem(
        f"{table} lists images in {options.path_column!r} and has other features",
        received=f"the columns {listed(list(map(repr, features)), _SHOWN)}",
        expected="no feature besides the image",
        fix=f"drop them with {setting('data_options.drop', drop)}, or name the only feature with"
        f" {setting('data_options.columns', [options.path_column])}",
        path="data_options.columns",
        suggestion=json.dumps([options.path_column], ensure_ascii=False),
    )


def _other_types(names: Sequence[str], options: DataOptions) -> Problem:
    return Problem(
        "data_options.types names columns that are no features of a list of images",
        received=listed(list(map(repr, names)), _SHOWN),
        expected=f"the type of {options.path_column!r} alone; labels are classes",
        fix=f"set {setting('data_options.types', {options.path_column: PATHS})}",
    )


def _class_problems(classes: Sequence[str], label: str) -> Iterator[Problem]:
    if 1 < len(classes) <= MOST_CLASSES:
        return
    yield Problem(
        f"the label {label!r} does not divide the images into classes",
        received=f"{len(classes):,} different values, for example {classes[0]!r}",
        expected=f"2 to {MOST_CLASSES:,} classes",
        fix="choose a different data_label",
        path="data_label",
    )


def _label_named_as_images(label: str) -> Problem:
    return Problem(
        "the label has the name of the dataset's column of images",
        received=repr(label),
        expected="a different name for the column of classes",
        fix="rename the column in the table, and set data_label (--label) to its new name",
        path="data_label",
    )
