"""Renders the model card of a published version, and an example of a request.

The card stays with the version, so it contains what a user needs without the run: the verdict, the
data, the columns, and a request that the model answers. Called by `version_files.py`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from kfp_tfjob.features.schema import Schema
from kfp_tfjob.features.signature_columns import COLUMNS
from kfp_tfjob.features.statistics import StatisticsDocument
from kfp_tfjob.options.metric_names import labelled
from kfp_tfjob.pages.template import Markdown
from kfp_tfjob.pages.template import render as fill
from kfp_tfjob.registry.champion import Champion
from kfp_tfjob.registry.verdict_record import ModelVerdict
from kfp_tfjob.storage.layout import REQUEST, SERVING, VERSIONS


def render(
    champion: Champion,
    verdict: ModelVerdict,
    has_request: bool,
    suspicious: str,
    classes: Sequence[str] = (),
) -> str:
    """Return the card of a version.

    Args:
        champion: The version's record.
        verdict: The verdict on it.
        has_request: Whether the version has an example of a request.
        suspicious: What prepare_data found about columns that reveal the label.
        classes: The classes of the label; none of a regression.
    """
    model_name = verdict.model_name
    return fill(
        "components/publish/card.md.j2",
        model_name=model_name,
        champion=champion,
        verdict=verdict,
        suspicious=suspicious,
        interval=_interval,
        labels={name: labelled(name, classes) for name in champion.metrics},
        columns=f"model/{COLUMNS}",
        request=REQUEST if has_request else "",
        ask=Markdown(
            f"curl --data-binary @{REQUEST} \\\n  http://HOST:PORT/v1/models/{model_name}:predict"
        ),
        server=f"kfp-tfjob serve {model_name}",
        base=champion.version_uri.rpartition(f"/{VERSIONS}/")[0] + f"/{SERVING}",
    )


def _interval(interval: tuple[float | None, float | None] | None) -> str:
    if not interval or None in interval:
        return "unknown"
    return f"{interval[0]:.6g} to {interval[1]:.6g}"


def request(schema: Schema, statistics: StatisticsDocument, arguments: Mapping[str, str]) -> str:
    """Return a request (V1) of one row with the usual values of the columns, as JSON.

    Args:
        schema: The content of schema.json.
        statistics: The content of statistics.json.
        arguments: The argument of each column in the model's signature.

    Returns:
        The request; empty if the model does not list its columns, or has others than the data.
    """
    columns = statistics.features
    features = schema.encoding.features
    values = {feature.name: feature.usual(columns.get(feature.name)) for feature in features}
    if not arguments or not arguments.keys() <= values.keys():
        return ""
    row = {argument: _plain(values[column]) for column, argument in arguments.items()}
    body = {"signature_name": "serving_default", "instances": [row]}
    return json.dumps(body, indent=1, ensure_ascii=False) + "\n"


def _plain(value: Any) -> Any:
    """Return a value with few digits, and 0 for NaN and infinity, which JSON cannot represent."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else 0.0
