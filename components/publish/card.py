"""Renders the model card of a published version in Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kfp_tfjob.pages.template import render as fill
from kfp_tfjob.storage.champion import Champion
from kfp_tfjob.storage.words import counted
from kfp_tfjob.trainer.signature_columns import COLUMNS

_MOST_COLUMNS = 10  # in the example


def render(
    model_name: str,
    champion: Champion,
    verdict: Mapping[str, Any],
    arguments: Mapping[str, str],
    statistics: Mapping[str, Any],
) -> str:
    """Return the card of a version.

    Args:
        model_name: The name of the model.
        champion: The record of the version.
        verdict: The content of verdict.json.
        arguments: The argument of each column in the model's signature `serve`; empty if the model
            does not list them.
        statistics: The content of statistics.json.
    """
    # The columns.json of a user's own program may name other columns: then there is no example.
    has_example = arguments and arguments.keys() <= statistics["features"].keys()
    shown = list(arguments)[:_MOST_COLUMNS] if has_example else []
    more = len(arguments) - len(shown)
    return fill(
        "components/publish/card.md.j2",
        model_name=model_name,
        champion=champion,
        verdict=verdict,
        interval=_interval,
        example={name: statistics["features"][name]["mean"] for name in shown},
        more=counted(more, "more column") if more else "",
        columns=f"model/{COLUMNS}",
    )


def _interval(interval: list[float | None] | None) -> str:
    if not interval or None in interval:
        return "unknown"
    return f"{interval[0]:.6g} to {interval[1]:.6g}"
