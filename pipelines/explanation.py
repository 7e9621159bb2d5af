"""The keys of the dict parameters in words: what each means, what it may be, what it is unsaid."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from kfp_tfjob.options.parse import Group, inner_group


def explain(name: str, group: type[Group]) -> dict[str, str]:
    """Explain every key of a dict parameter, also those of dicts in it.

    Args:
        name: The parameter, for instance `train_options`.
        group: Its typed form.

    Returns:
        A text for each key, by its path: `train_options.seed`.
    """
    return dict(_keys(name, group, {}))


def _keys(path: str, group: type[Group], known: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Explain the keys of a group; those in `known` are explained at the path given there."""
    meanings = _meanings(group)
    there: dict[str, str] = {}  # keys of the groups in this one, and where they were explained
    for name, field in group.model_fields.items():
        place = f"{path}.{name}"
        meaning = meanings.get(name, "")
        inner = inner_group(field.annotation)
        if name in known:
            continue
        if inner is None:
            yield place, _joined(meaning, _choices(field.annotation), _default(field))
        elif inner is not field.annotation or not _meanings(inner):
            keys = f"Keys: {', '.join(inner.model_fields)}."
            yield place, _joined(meaning, _about(inner), keys)
        else:
            earlier = {where for key, where in there.items() if key in inner.model_fields}
            if earlier:
                yield place, _joined(meaning, f"As {', '.join(sorted(earlier))}.")
            yield from _keys(place, inner, there)
            there |= {key: place for key in inner.model_fields if key not in there}


def _meanings(group: type[Group]) -> dict[str, str]:
    """Return the meanings of the keys of a group that have one."""
    return {
        name: _words(field.description)
        for name, field in group.model_fields.items()
        if field.description
    }


def _about(group: type[Group]) -> str:
    """Return what the docstring of a group says of it as a whole."""
    return _words(inspect.cleandoc(group.__doc__ or ""))


def _choices(annotation: Any) -> str:
    """Return the values a key may have, where they are few."""
    kinds = [annotation] if get_origin(annotation) is Literal else get_args(annotation)
    values: list[Any] = []
    for kind in kinds or [annotation]:
        if get_origin(kind) is Literal:
            values += get_args(kind)
        elif kind is bool:
            values += [True, False]
        elif kind is not NoneType:
            return ""
    return f"One of {', '.join(map(json.dumps, values))}." if values else ""


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "Needed."
    return "" if field.default in (None, (), {}) else f"Default: {json.dumps(field.default)}."


def _words(text: str) -> str:
    return " ".join(text.replace("`", "").split())


def _joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)
