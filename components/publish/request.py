"""Makes an example of a request: usual values of the columns, as the signature takes them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from kfp_tfjob.features.schema import Schema
from kfp_tfjob.features.statistics import StatisticsDocument

_SIGNATURE = "serving_default"


def request(schema: Schema, statistics: StatisticsDocument, arguments: Mapping[str, str]) -> str:
    """Return a request of one row for the REST interface of model servers (V1), as JSON.

    Args:
        schema: The content of schema.json.
        statistics: The content of statistics.json.
        arguments: The argument of each column in the signature of the model.

    Returns:
        The request; empty if the model does not list its columns, or has others than the data.
    """
    columns = statistics.features
    values = {it.name: it.usual(columns.get(it.name)) for it in schema.encoding.features}
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
