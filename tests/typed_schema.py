"""Schemas and statistics of which only some keys matter to a test."""

import json
from collections.abc import Mapping
from typing import Any

from kfp_tfjob.features.coding import Coding
from kfp_tfjob.features.schema import Schema
from kfp_tfjob.features.statistics import StatisticsDocument


def typed(body: Mapping[str, Any]) -> Schema:
    """Return a schema with these keys of schema.json, and what every one has.

    Features may be given as the type of each name.
    """
    usual = {"task": "classification", "features": [], "label": {"name": "label"}} | dict(body)
    if isinstance(usual["features"], Mapping):
        types = usual["features"].items()
        usual["features"] = [{"name": name, "type": type} for name, type in types]
    return Schema.from_bytes(json.dumps(usual).encode())


def statistics_of(body: Mapping[str, Any]) -> StatisticsDocument:
    return StatisticsDocument.from_bytes(json.dumps(body).encode())


def keys_of(coding: Coding) -> dict[str, Any]:
    """Return the keys of schema.json that describe columns."""
    return {
        "features": [{"name": it.name, "type": it.schema_type} for it in coding.features],
        "coding": [it.learned for it in coding.features],
    }
