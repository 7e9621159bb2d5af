"""Writes run parameters as YAML, with a comment above each part that differs from the job.

The comments stand where a user edits the file, so no difference is overlooked. Called by
`import_job.py`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from kfp_tfjob.common.escaping import line

from .report import Note, Path

_WIDTH = 100  # characters of a comment's line
_UNFOLDED = 1 << 20  # characters of a line: folded strings are hard to edit


def to_yaml(parameters: Mapping[str, Any], notes: Iterable[Note], title: str) -> str:
    """Return parameters as a YAML file that `--params` reads.

    Args:
        parameters: The run parameters.
        notes: The notes. If the parameter of a note is missing, its comment stands at the nearest
            key above it.
        title: The first line of the file.
    """
    placed: dict[Path, list[Note]] = {}
    for note in notes:
        path = note.anchor
        while path and not _has(parameters, path):
            path = path[:-1]
        placed.setdefault(path, []).append(note)
    head = [f"# {line(title)}", *_comments(placed.get((), ()), "")]
    return "\n".join([*head, *_lines(parameters, (), placed)]) + "\n"


def _has(parameters: Mapping[str, Any], path: Path) -> bool:
    value: Any = parameters
    for part in path:
        if not isinstance(value, Mapping) or part not in value:
            return False
        value = value[part]
    return True


def _lines(values: Mapping[str, Any], parent: Path, placed: Mapping[Path, list[Note]]) -> list[str]:
    """Return the lines of a mapping, each key below its comments.

    Args:
        values: The mapping.
        parent: The path of the mapping.
        placed: The notes by the path of their key.
    """
    indent, lines = "  " * len(parent), []
    for name, value in values.items():
        path = (*parent, name)
        lines += _comments(placed.get(path, ()), indent)
        # Deeper mappings, such as a role's env, do not have comments of their own keys.
        is_nested = isinstance(value, Mapping) and value and len(path) < 3
        if is_nested:
            lines.append(f"{indent}{_dump(name)}:")
            lines += _lines(value, path, placed)
        else:
            text = _dump({name: value})
            lines += [f"{indent}{part}" if part else "" for part in text.split("\n")]
    return lines


def _comments(notes: Iterable[Note], indent: str) -> list[str]:
    lines = []
    for note in notes:
        reason, instead = line(note.reason), line(note.instead)
        instead = f" Instead: {instead}." if instead else ""
        lines += textwrap.wrap(
            f"{line(note.field)}. {reason[0].upper()}{reason[1:]}.{instead}",
            _WIDTH,
            initial_indent=f"{indent}# ",
            subsequent_indent=f"{indent}#   ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return lines


def _dump(value: Any) -> str:
    import yaml

    text = yaml.dump(
        value,
        Dumper=_dumper(),
        sort_keys=False,
        allow_unicode=True,
        width=_UNFOLDED,
        default_flow_style=False,
    )
    return text.removesuffix("\n...\n").rstrip("\n")


@cache
def _dumper() -> Any:
    """Return a YAML dumper that quotes each string that `--params` would read as another type."""
    import yaml

    from ..commands.parameters import loader

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: Any, value: str) -> Any:
        style = "|" if "\n" in value.strip() else None
        try:
            is_text = yaml.load(value, loader()) == value
        except yaml.YAMLError:
            is_text = False  # a plain string would not even be YAML, so it is quoted
        if not is_text and not style:
            style = '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    return Dumper
