"""Rules for names that become paths: of files below a folder, of models, and of task keys.

Keys of a store and names in an archive come from strangers. One with `..` would be written outside
its folder, and one that differs from another only in its case would replace that file on a Mac.
Called by the steps, the registry and the server before they use a stranger's name.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from .errors import DataError, Problem, first

_LONGEST_PART = 255  # bytes; the limit of file systems for one file name
_LONGEST_NAME = 1024  # bytes; the limit of S3 for a key
_SHOWN = 100  # characters of a name in a message, which must stay readable
_MOST_SHOWN = 10  # names in a message; more would hide its remedy
# On other systems `a` and `A` are two files, and a run may have written both.
FOLDS_CASE = sys.platform == "darwin"
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# A job's name has at most 50 characters. This leaves room for the kind, the run and the attempt.
_LONGEST_KEY = 20
_TASK_KEY = re.compile(rf"[a-z0-9](?:[a-z0-9-]{{0,{_LONGEST_KEY - 2}}}[a-z0-9])?")


def fault(name: str) -> str:
    """Return the reason why a name cannot become a path below a folder; empty if it can.

    Args:
        name: With `/` between its parts, as in a key or a zip.
    """
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        return "it is not UTF-8"
    parts = encoded.split(b"/")
    if len(encoded) > _LONGEST_NAME:
        return f"it is longer than {_LONGEST_NAME} bytes"
    if b"\0" in encoded:
        return "it contains a zero byte"
    if encoded.startswith(b"/"):
        return "it begins with a slash, so it would be written outside its folder"
    if b".." in parts:
        return "it has the part .., so it would be written outside its folder"
    if b"" in parts or b"." in parts:
        return "it has a part that is empty or a dot"
    if max(map(len, parts)) > _LONGEST_PART:
        return f"it has a part of more than {_LONGEST_PART} bytes"
    return ""


def problems(names: Iterable[str], where: object) -> list[Problem]:
    """Return the problems of names that are to become files in one folder.

    Args:
        names: The names of all files in the folder.
        where: Their source, for messages.
    """
    files: dict[str, str] = {}
    faults: list[tuple[str, str]] = []
    for name in names:
        if reason := fault(name):
            faults.append((name, reason))
        elif _folded(name) in files:
            faults.append((name, f"it is the same file as {_quoted(files[_folded(name)])}"))
        else:
            files[_folded(name)] = name
    for key, name in files.items():
        parts = key.split("/")
        ancestors = ("/".join(parts[:end]) for end in range(1, len(parts)))
        if folder := next((ancestor for ancestor in ancestors if ancestor in files), None):
            faults.append((name, f"{_quoted(files[folder])} is a file and cannot hold it"))
    invalid = [
        Problem(
            f"{where} contains an invalid file name",
            received=f"{_quoted(name)}: {reason}",
            expected="a relative path with / between its parts, and no file that is also a folder",
            fix="rename it; if you did not choose this name, do not use the files, because someone"
            " may have altered them",
        )
        for name, reason in faults
    ]
    return first(invalid, _MOST_SHOWN, f"names of {where} are like these")


def below(folder: Path, name: str) -> Path:
    """Return the path of a name below a folder; every download and every unzip uses this.

    Raises:
        DataError: The name would lead out of the folder, or no file can have it.
    """
    if fault(name):
        raise DataError(*problems([name], folder))
    return folder / name


def _folded(name: str) -> str:
    """Return a key that is equal for two names of the same file on this system."""
    return unicodedata.normalize("NFC", name).casefold() if FOLDS_CASE else name


def _quoted(name: str) -> str:
    return repr(name if len(name) <= _SHOWN else f"{name[:_SHOWN]}...")


def check_model_name(name: str) -> list[Problem]:
    """Return the problems of a model name, which becomes a folder in the store."""
    if _MODEL.fullmatch(name):
        return []
    return [
        Problem(
            "model_name is not valid" if name else "model_name is missing",
            received=repr(name),
            expected="1 to 100 letters, digits, '.', '_' or '-', the first a letter or digit",
            fix="set model_name to such a name, for example churn-eu",
            path="model_name",
            name="invalid-value",
        )
    ]


def check_task_key(key: str) -> list[Problem]:
    """Return the problems of a task key, which becomes a folder and a label; "" is valid."""
    if not key or _TASK_KEY.fullmatch(key):
        return []
    return [
        Problem(
            "task_key is not valid",
            received=repr(key),
            expected=f"at most {_LONGEST_KEY} lowercase letters, digits and -, with a letter or"
            " digit at the ends; or nothing",
            fix="set task_key to such a name, for example eu",
            path="task_key",
        )
    ]
