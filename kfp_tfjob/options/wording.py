"""Describes the allowed values of a key, from its declaration, for messages and tables.

The words come from the JSON schema of the typed form, so a message never names a limit that the
check does not have. Called by `parse.py` for errors, and by `parameter_help.py` for the reference.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

_TYPE_WORDS = {
    "boolean": "true or false",
    "string": "a string",
    "integer": "a whole number",
    "number": "a number",
    "null": "null",
}
Schema = Mapping[str, Any]


def expected(root: Schema, path: Iterable[str | int] = ()) -> str:
    """Return the allowed values of a key, in words; empty if all values are allowed.

    Args:
        root: The JSON schema of the group.
        path: The keys and indices that lead from the group to the value.
    """
    schema: Schema = root
    for part in path:
        schema = _inner(root, schema, part)
    return in_words(root, schema)


def in_words(root: Schema, schema: Schema) -> str:
    """Return the allowed values of a part of the schema `root`."""
    if several := schema.get("anyOf") or schema.get("oneOf"):
        # An empty string means that nothing is set.
        *first, last = [
            in_words(root, alternative) for alternative in several if alternative.get("const") != ""
        ]
        return f"{', '.join(first)}{',' if ',' in first[-1] else ''} or {last}" if first else last
    if constants := [schema["const"]] if "const" in schema else schema.get("enum", ()):
        *first, last = [json.dumps(constant) for constant in constants if constant != ""]
        return f"{', '.join(first)} or {last}" if first else last
    schema = _resolved(root, schema)
    kind = schema.get("type", "")
    if kind == "array":
        return f"a list of {_plural(root, schema.get('items', {}))}"
    if kind == "object":
        if "properties" in schema:
            return f"an object with the keys {', '.join(schema['properties'])}"
        return f"an object of {_plural(root, schema.get('additionalProperties', {}))}"
    return _TYPE_WORDS.get(kind, "") + _range(schema)


def _plural(root: Schema, schema: Any) -> str:
    """Return the allowed values of several items, for example `strings`."""
    words = in_words(root, schema) if isinstance(schema, Mapping) else ""
    plurals = {"a string": "strings", "a number": "numbers", "": "values"}
    for singular, plural in plurals.items():
        if words == singular or singular and words.startswith(f"{singular},"):
            return words.replace(singular, plural, 1) if singular else plural
    return f"values: {words}"


def _range(schema: Schema) -> str:
    least, most = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if schema.get("type") == "integer" and below is not None:
        most, below = below - 1, None
    if least is not None and most is not None:
        return f" from {least} to {most}"
    if above is not None and below is not None:
        return f" between {above:g} and {below:g}"
    ends = {"{:g} or more": least, "{:g} or less": most, "above {:g}": above, "below {:g}": below}
    return "".join(f", {words.format(end)}" for words, end in ends.items() if end is not None)


def _resolved(root: Schema, schema: Schema) -> Schema:
    name = schema.get("$ref", "").rpartition("/")[2]
    return root["$defs"][name] if name else schema


def _inner(root: Schema, schema: Schema, part: str | int) -> Schema:
    """Return the schema of a key or an item, from the first alternative that contains it."""
    for alternative in schema.get("anyOf") or schema.get("oneOf") or [schema]:
        declared = _resolved(root, alternative)
        if part in declared.get("properties", {}):
            return declared["properties"][part]
        inner = declared.get("items" if isinstance(part, int) else "additionalProperties")
        if isinstance(inner, Mapping):
            return inner
    return {}
