"""Explains the keys of the dict parameters in Markdown: meaning, values and default."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping

from pydantic.fields import FieldInfo

from kfp_tfjob.options.parse import Group, inner_group
from kfp_tfjob.options.wording import expected


def explain(name: str, group: type[Group]) -> dict[str, str]:
    """Explain every key of a dict parameter, nested ones too, in Markdown by its path."""
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
            values = _values(group, name, meaning)
            yield place, _joined(meaning, values, _default(field))
        elif inner is not field.annotation or not _meanings(inner):
            keys = f"Keys: {', '.join(f'`{key}`' for key in inner.model_fields)}."
            yield place, _joined(meaning or _about(inner), keys)
        else:
            earlier = {where for key, where in there.items() if key in inner.model_fields}
            if earlier:
                yield (
                    place,
                    _joined(
                        meaning,
                        f"Keys as in {', '.join(f'`{where}`' for where in sorted(earlier))}.",
                    ),
                )
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
    """Return the docstring of a group on one line."""
    return _words(inspect.cleandoc(group.__doc__ or ""))


def _values(group: type[Group], name: str, meaning: str) -> str:
    """Return the allowed values of a key, if they are not clear from its meaning or default."""
    words = expected(group.model_json_schema(), [name])
    choices = [first or second for first, second in re.findall(r'"([^"]+)"|(\d+)', words)]
    is_clear = '"' in words and all(f"`{choice}`" in meaning for choice in choices)
    others = ("a string", "a list", "an object")
    if words == "true or false" or words.startswith(others) or is_clear:
        return ""
    return f"Value: {words.removeprefix('a whole number from ')}."


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "Required."
    return "" if field.default in (None, (), {}) else f"Default: `{json.dumps(field.default)}`."


def _words(text: str) -> str:
    return " ".join(text.split())


def _joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)
