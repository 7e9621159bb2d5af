"""The column types: one file for each, and its line in COLUMN_TYPES of options/data.py."""

from __future__ import annotations

from importlib import import_module

from kfp_tfjob.options.data import COLUMN_TYPES

from .base import ColumnType

TYPES: dict[str, type[ColumnType]] = {
    column_type.name: getattr(
        import_module(f"kfp_tfjob.features.types.{column_type.module}"), column_type.class_name
    )
    for column_type in COLUMN_TYPES
}
BY_PRECEDENCE = sorted(TYPES.values(), key=lambda column_type: column_type.precedence)
BY_SCHEMA_TYPE = {column_type.schema_type: column_type for column_type in TYPES.values()}
