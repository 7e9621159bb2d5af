"""Splits the path of a key, such as `train_options.seed`, with the help of the declared types.

The keys of some dicts are names that a user chooses: classes, columns, node labels. They may
contain dots, as in `train_options.class_weight.1.0`, so dots alone do not separate keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from kfp_tfjob.options.parse import Group
from kfp_tfjob.storage.formatting import nearest


def split_keys(declared: Any, parts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the keys in a path, and the parts that the declared type does not have.

    Args:
        declared: The type of the value to which the path belongs.
        parts: The path, divided at each dot.

    Returns:
        The keys; a user's name is one key. The rest is an unknown key, or the index of an item.
    """
    if not parts:
        return [], []
    types = list(_types(declared))
    for it in types:
        if it is Any:
            return list(parts), []
        if _is_group(it) and parts[0] in it.model_fields:
            keys, rest = split_keys(it.model_fields[parts[0]].annotation, parts[1:])
            return [parts[0], *keys], rest
    for it in types:
        if get_origin(it) is dict:
            return _split_name(get_args(it)[1], parts)
    return [], list(parts)


def _split_name(declared: Any, parts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split a path that begins with a user's name; `declared` is the type of its value."""
    for end in range(1, len(parts)):
        keys, rest = split_keys(declared, parts[end:])
        if not rest:
            return [".".join(parts[:end]), *keys], []
    known = [key for it in _types(declared) if _is_group(it) for key in it.model_fields]
    if len(parts) > 1 and nearest(parts[-1], known):  # a misspelled key, not part of the name
        return [".".join(parts[:-1])], [parts[-1]]
    return [".".join(parts)], []


def _types(declared: Any) -> Iterator[Any]:
    """Yield the types that a declaration allows."""
    origin = get_origin(declared)
    if origin is Annotated:
        yield from _types(get_args(declared)[0])
    elif origin in (Union, UnionType):
        for it in get_args(declared):
            yield from _types(it)
    else:
        yield declared


def _is_group(declared: Any) -> bool:
    return isinstance(declared, type) and issubclass(declared, Group)
