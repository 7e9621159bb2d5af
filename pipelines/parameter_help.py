"""Explains the keys of the dict parameters in Markdown: meaning, values and default.

The text comes from the declarations that also check the values, so it cannot be outdated. Called by
`explain.py`, and by the generator of docs/parameters.md.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping

from pydantic.fields import FieldInfo

from kfp_tfjob.options.parse import Group, inner_group
from kfp_tfjob.options.wording import expected


def explain(name: str, group: type[Group]) -> dict[str, str]:
    """Return the explanation of each key of a dict parameter in Markdown, by the key's path.

    Args:
        name: The parameter.
        group: Its typed form, whose inner groups are explained too.
    """
    return dict(_keys(name, group, {}))


def _keys(path: str, group: type[Group], explained: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the path and explanation of each key of a group.

    Args:
        path: The group's path.
        group: The group.
        explained: Keys to omit, and the path of the group in which each was explained.
    """
    meanings = _meanings(group)
    # The keys of inner groups that were explained, and the path of that group: the pod settings of
    # several roles have the same keys.
    explained_inside: dict[str, str] = {}
    for name, field in group.model_fields.items():
        inner_path = f"{path}.{name}"
        meaning = meanings.get(name, "")
        inner = inner_group(field.annotation)
        if name in explained:
            continue
        if inner is None:
            values = _values(group, name, meaning)
            yield inner_path, _join_sentences(meaning, values, _default(field))
        elif inner is not field.annotation or not _meanings(inner):
            keys = f"Keys: {', '.join(f'`{key}`' for key in inner.model_fields)}."
            yield inner_path, _join_sentences(meaning or _docstring(inner), keys)
        else:
            earlier = {
                earlier_path
                for key, earlier_path in explained_inside.items()
                if key in inner.model_fields
            }
            if earlier:
                paths = ", ".join(f"`{earlier_path}`" for earlier_path in sorted(earlier))
                yield inner_path, _join_sentences(meaning, f"Keys as in {paths}.")
            yield from _keys(inner_path, inner, explained_inside)
            explained_inside |= {
                key: inner_path for key in inner.model_fields if key not in explained_inside
            }


def _meanings(group: type[Group]) -> dict[str, str]:
    """Return the declared meanings of a group's keys, each on one line."""
    return {
        name: _on_one_line(field.description)
        for name, field in group.model_fields.items()
        if field.description
    }


def _docstring(group: type[Group]) -> str:
    """Return the docstring of a group on one line."""
    return _on_one_line(inspect.cleandoc(group.__doc__ or ""))


def _values(group: type[Group], name: str, meaning: str) -> str:
    """Return a sentence with a key's allowed values; empty if its meaning or default shows them."""
    words = expected(group.model_json_schema(), [name])
    choices = [first or second for first, second in re.findall(r'"([^"]+)"|(\d+)', words)]
    is_clear = '"' in words and all(f"`{choice}`" in meaning for choice in choices)
    unspecific = ("a string", "a list", "an object")
    if words == "true or false" or words.startswith(unspecific) or is_clear:
        return ""
    return f"Value: {words.removeprefix('a whole number from ')}."


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "Required."
    return "" if field.default in (None, (), {}) else f"Default: `{json.dumps(field.default)}`."


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


def _join_sentences(*sentences: str) -> str:
    return " ".join(sentence for sentence in sentences if sentence)
