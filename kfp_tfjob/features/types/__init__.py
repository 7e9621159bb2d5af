"""The column types: one file for each, and its line in COLUMN_TYPES of options/data.py."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from kfp_tfjob.features.types.base import ColumnType
from kfp_tfjob.options.data import COLUMN_TYPES

TYPES: dict[str, type[ColumnType]] = {
    it.name: getattr(import_module(f"kfp_tfjob.features.types.{it.module}"), it.class_name)
    for it in COLUMN_TYPES
}
BY_PRECEDENCE = sorted(TYPES.values(), key=lambda it: it.precedence)
_BY_SCHEMA = {it.schema_type: it for it in TYPES.values()}


def type_in_schema(feature: Mapping[str, Any]) -> type[ColumnType]:
    """Return the type of an entry in `features` of schema.json.

    Raises:
        KeyError: There is no such type.
    """
    return _BY_SCHEMA[feature["type"]]
