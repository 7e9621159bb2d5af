"""Renders the model card of a published version in Markdown."""

from __future__ import annotations

from kfp_tfjob.features.signature_columns import COLUMNS
from kfp_tfjob.pages.template import Markdown
from kfp_tfjob.pages.template import render as fill
from kfp_tfjob.storage.champion import Champion
from kfp_tfjob.storage.layout import REQUEST, SERVING, VERSIONS
from kfp_tfjob.storage.verdict_record import ModelVerdict


def render(model_name: str, champion: Champion, verdict: ModelVerdict, has_request: bool) -> str:
    """Return the card of a version.

    Args:
        model_name: The name of the model.
        champion: The record of the version.
        verdict: The verdict on it.
        has_request: Whether the version has an example of a request.
    """
    return fill(
        "components/publish/card.md.j2",
        model_name=model_name,
        champion=champion,
        verdict=verdict,
        interval=_interval,
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
