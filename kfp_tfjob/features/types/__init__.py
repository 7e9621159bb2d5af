"""The column types: one file for each, and its line in COLUMN_TYPES of options/data.py."""

from __future__ import annotations

from importlib import import_module

from kfp_tfjob.features.types.base import ColumnType
from kfp_tfjob.options.data import COLUMN_TYPES

TYPES: dict[str, type[ColumnType]] = {
    it.name: getattr(import_module(f"kfp_tfjob.features.types.{it.module}"), it.class_name)
    for it in COLUMN_TYPES
}
BY_PRECEDENCE = sorted(TYPES.values(), key=lambda it: it.precedence)
BY_SCHEMA_TYPE = {it.schema_type: it for it in TYPES.values()}
