"""Names the arguments of a signature after columns, and writes the file that maps them.

TensorFlow keeps an argument's name only if it starts with an ASCII letter, continues with ASCII
letters, digits and _, is not a Python keyword, and differs from the others by more than its case.
Called by the trainer's `export.py`, which writes the file, and by evaluate, publish and the server,
which read it.
"""

from __future__ import annotations

import json
import keyword
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from kfp_tfjob.common.errors import DataError, Problem

COLUMNS = "assets.extra/columns.json"  # below the folder of a SavedModel


def argument_names(columns: Sequence[str]) -> list[str]:
    """Return the argument of each column: its own name, if TensorFlow keeps it.

    In other names, letters lose their accents, other characters outside ASCII become their code
    points, and the rest except for letters, digits and _ becomes _. A name that does not start with
    a letter gets the prefix `arg_`. If two columns would have the same name, the alphabetically
    later one gets a number, so the order of the columns does not matter.

    Args:
        columns: The names of the columns, without duplicates.
    """
    plain_names = {column: _plain(column) for column in columns}
    own = [column for column in columns if plain_names[column] == column]
    times = Counter(column.lower() for column in own)
    arguments = {column: column for column in own if times[column.lower()] == 1}
    used = {column.lower() for column in arguments}
    numbers: Counter[str] = Counter()
    for column in [*sorted(own), *sorted(columns)]:
        if column in arguments:
            continue
        name = plain = plain_names[column]
        while name.lower() in used:
            numbers[plain.lower()] += 1
            name = f"{plain}_{numbers[plain.lower()]}"
        arguments[column] = name
        used.add(name.lower())
    return [arguments[column] for column in columns]


def to_json(columns: Sequence[str], kinds: Sequence[str] = ()) -> str:
    """Return the content of COLUMNS.

    Args:
        columns: The names of the columns.
        kinds: Their kinds, if the type of an argument depends on them.
    """
    mapping = [
        {"column": column, "argument": name}
        for column, name in zip(columns, argument_names(columns), strict=True)
    ]
    if kinds:
        mapping = [item | {"kind": kind} for item, kind in zip(mapping, kinds, strict=True)]
    return json.dumps(mapping, indent=1, ensure_ascii=False) + "\n"


def read(model: Path) -> dict[str, str]:
    """Return the argument of each column of a SavedModel; empty without the file COLUMNS.

    Args:
        model: The folder of the SavedModel.

    Raises:
        DataError: COLUMNS is damaged.
    """
    path = model / COLUMNS
    if not path.exists():
        return {}
    try:
        return {
            str(item["column"]): str(item["argument"]) for item in json.loads(path.read_bytes())
        }
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(
            Problem(
                f"{COLUMNS} of the model cannot be read",
                received=f"{type(error).__name__}: {error}",
                expected='a list of {"column": NAME, "argument": NAME}',
                fix="export the model again, or remove this file",
            )
        ) from error


def _plain(column: str) -> str:
    """Return a name that TensorFlow keeps; other columns may get the same one."""
    text = "".join(map(_ascii, column))
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    if not name[:1].isalpha() or keyword.iskeyword(name) or name.lower() == "self":
        return f"arg_{name}"
    return name


def _ascii(character: str) -> str:
    if character.isascii():
        return character
    plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return plain or f"u{ord(character):x}"
