"""Makes an example of a request: usual values of the columns, as the signature takes them."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from typing import Any

from kfp_tfjob.features.pictures import ONE_PIXEL, PICTURE

_SIGNATURE = "serving_default"


def usual_values(schema: Mapping[str, Any], statistics: Mapping[str, Any]) -> dict[str, Any]:
    """Return a usual value of each column of a table, as the model takes it; empty for pictures.

    Args:
        schema: The content of schema.json.
        statistics: The content of statistics.json.
    """
    if PICTURE in schema:
        return {}
    from kfp_tfjob.features.coding import BOOLEAN, CATEGORY, DATE, TEXT, Coding

    columns = statistics.get("features", {})
    found: dict[str, Any] = {}
    for feature in Coding.of_schema(schema).features:
        if feature.missing:
            value = feature.missing.value
        else:
            value = columns.get(feature.name, {}).get("mean")
        if feature.kind == CATEGORY:
            found[feature.name] = feature.vocabulary[0] if feature.vocabulary else ""
        elif feature.kind == TEXT:
            found[feature.name] = "a text"
        elif feature.kind == BOOLEAN:
            found[feature.name] = "true" if value else "false"
        else:
            found[feature.name] = int(value or 0) if feature.kind == DATE else float(value or 0)
    return found


def request(
    schema: Mapping[str, Any], statistics: Mapping[str, Any], arguments: Mapping[str, str]
) -> str:
    """Return a request of one row for the REST interface of model servers (V1), as JSON.

    Args:
        schema: The content of schema.json.
        statistics: The content of statistics.json.
        arguments: The argument of each column in the signature of the model.

    Returns:
        The request; empty if the model does not list its columns, or has others than the data.
    """
    values = usual_values(schema, statistics)
    if PICTURE in schema:
        values = {PICTURE: {"b64": base64.b64encode(ONE_PIXEL).decode()}}
    if not arguments or not arguments.keys() <= values.keys():
        return ""
    row = {argument: _plain(values[column]) for column, argument in arguments.items()}
    body = {"signature_name": _SIGNATURE, "instances": [row]}
    return json.dumps(body, indent=1, ensure_ascii=False) + "\n"


def _plain(value: Any) -> Any:
    """Return a value with few digits; JSON has no NaN."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else 0.0
