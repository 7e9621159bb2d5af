"""Splits the path of a key, such as `train_options.seed`, with the help of the declared types.

The keys of some dicts are names that a user chooses: classes, columns, node labels. They may
contain dots, as in `train_options.class_weight.1.0`, so dots alone do not separate keys. Called by
the command line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from kfp_tfjob.common.formatting import nearest

from .parse import Group


def split_keys(declared: Any, parts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the keys in a path, and the remaining parts, which the declared type does not have.

    Args:
        declared: The type of the value to which the path belongs.
        parts: The path, divided at each dot.

    Returns:
        The keys, where a name that a user chose is one key, and the remaining parts: an unknown
        key, or an index in a list.
    """
    if not parts:
        return [], []
    types = list(_alternatives(declared))
    for alternative in types:
        if alternative is Any:
            return list(parts), []
        if _is_group(alternative) and parts[0] in alternative.model_fields:
            annotation = alternative.model_fields[parts[0]].annotation
            keys, remaining = split_keys(annotation, parts[1:])
            return [parts[0], *keys], remaining
    # A group's keys come before a user's names: a name may be spelled like a key.
    for alternative in types:
        if get_origin(alternative) is dict:
            return _split_name(get_args(alternative)[1], parts)
    return [], list(parts)


def _split_name(declared: Any, parts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split a path that begins with a user's name; `declared` is the type of the name's value."""
    # The shortest name after which every part is a key of the value.
    for end in range(1, len(parts)):
        keys, remaining = split_keys(declared, parts[end:])
        if not remaining:
            return [".".join(parts[:end]), *keys], []
    groups = filter(_is_group, _alternatives(declared))
    group_keys = [key for group in groups for key in group.model_fields]
    if len(parts) > 1 and nearest(parts[-1], group_keys):  # a misspelled key, not part of the name
        return [".".join(parts[:-1])], [parts[-1]]
    return [".".join(parts)], []


def _alternatives(declared: Any) -> Iterator[Any]:
    """Yield the types of a union, without annotations; a single type for other declarations."""
    origin = get_origin(declared)
    if origin is Annotated:
        yield from _alternatives(get_args(declared)[0])
    elif origin in (Union, UnionType):
        for alternative in get_args(declared):
            yield from _alternatives(alternative)
    else:
        yield declared


def _is_group(declared: Any) -> bool:
    return isinstance(declared, type) and issubclass(declared, Group)
