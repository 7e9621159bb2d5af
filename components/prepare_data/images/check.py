"""Checks a source of pictures before all of it is read."""

from __future__ import annotations

from kfp_tfjob.components.prepare_data.images.parts import faults_of
from kfp_tfjob.components.prepare_data.source.files import Source
from kfp_tfjob.components.prepare_data.split_rules import folder_problems
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.storage.errors import Problem
from kfp_tfjob.storage.formatting import listed

LABEL = "class"  # the name of the label if data_label is empty
_LOOKED = 20  # files
_SHOWN = 5
# What only the columns of a table have.
_OF_TABLES = (
    "columns",
    "drop",
    "delimiter",
    "null_values",
    "encoding",
    "weight",
    "types",
    "missing",
    "min_count",
    "hash_bins",
)


def problems_of(source: Source, options: DataOptions) -> list[Problem]:
    """Return every problem of the folders, the options, and the first bytes of some files.

    Args:
        source: Pictures.
        options: The typed `data_options`.
    """
    found = [*_options(options), *_folders(source), *folder_problems(source, options)]
    return found or _files(source, options)


def _options(options: DataOptions) -> list[Problem]:
    fields = type(options).model_fields
    given = [name for name in _OF_TABLES if getattr(options, name) != fields[name].default]
    found = [
        Problem(
            f"data_options.{name} is about the columns of a table, and data_uri has pictures",
            received=repr(getattr(options, name)),
            fix=f"remove data_options.{name}",
            path=f"data_options.{name}",
        )
        for name in given
    ]
    found += [
        Problem(
            f"data_options.split.{key} names a column, and pictures have none",
            received=repr(name),
            fix="divide them with the folders train/, validation/ and test/, or by their hash",
            path=f"data_options.split.{key}",
        )
        for key, name in options.split.extra.items()
    ]
    if options.task == "regression":
        found.append(
            Problem(
                "pictures in folders are a classification",
                received="data_options.task regression",
                fix="remove data_options.task",
                path="data_options.task",
            )
        )
    return found


def _folders(source: Source) -> list[Problem]:
    folders = source.pictures
    assert folders
    where = "train/CLASS/" if folders.depth else "CLASS/"
    expected = f"{where}1.jpg below data_uri, with a folder for each class"
    found = []
    if folders.stray:
        found.append(
            Problem(
                "data_uri has pictures that are not in the folder of a class",
                received=f"{len(folders.stray):,}: {listed(folders.stray, _SHOWN)}",
                expected=expected,
                fix="move them into the folders of their classes"
                if folders.classes
                else "give the folder above as data_uri if this is one class of several",
                path="data_uri",
            )
        )
    if len(folders.classes) == 1 or not (folders.classes or folders.stray):
        above = source.files[0].name.split("/")[: folders.depth + 1] if source.files else []
        inner = "/".join([source.uri.rstrip("/"), *above])
        found.append(
            Problem(
                "data_uri has fewer than two classes",
                received=f"the folders {listed(folders.classes, _SHOWN)}"
                if folders.classes
                else "no folder with a picture",
                expected=expected,
                fix=f"give {inner} as data_uri if it has the folders of the classes"
                if above
                else "correct data_uri",
                path="data_uri",
            )
        )
    return found


def _files(source: Source, options: DataOptions) -> list[Problem]:
    """Look at some files; only if a bad one fails the run, and without decoding."""
    if options.on_bad_row != "fail":
        return []
    step = max(1, len(source.files) // _LOOKED)
    files = source.files[::step][:_LOOKED]
    faults = faults_of(source, files, options)
    return faults.image_problems() if faults.bad else []
