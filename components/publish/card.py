"""The model card: what a person wants to know about a published version, in Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from components.publish.champion import Champion
from storage.text import code, prose, row


def render(model_name: str, champion: Champion, verdict: Mapping[str, Any]) -> str:
    """Return the card of a version.

    Args:
        model_name: Of the model.
        champion: The record of the version.
        verdict: The content of verdict.json.
    """
    rows = [
        row(code(name), f"{value:.6g}", _interval(verdict["intervals"].get(name)))
        for name, value in champion.metrics.items()
    ]
    reasons = [part for reason in verdict["reasons"] for part in (prose(reason), "")]
    level = f"{verdict['confidence'] * 100:g} % interval"
    return "\n".join(
        [
            f"# {code(model_name)}, version {champion.version}",
            "",
            f"Trained by run `{champion.run_id}`. Measured on {verdict['rows']} test rows of"
            f" dataset `{champion.dataset_digest}`.",
            "",
            f"| metric | value | {level} |",
            "|---|---|---|",
            *rows,
            "",
            "Why it was promoted:",
            "",
            *reasons,
            "| | |",
            "|---|---|",
            f"| files | `{champion.version_uri}` |",
            f"| verdict | `{champion.verdict_uri}` |",
            f"| weights | `{champion.weights_digest}` |",
            f"| schema | `{champion.schema_digest}` |",
            "",
            "`model/` is the SavedModel, `schema.json` names the columns it takes and its classes,"
            " `manifest.json` proves every file.",
            "",
        ]
    )


def _interval(interval: list[float | None] | None) -> str:
    if not interval or None in interval:
        return "unknown"
    return f"{interval[0]:.6g} to {interval[1]:.6g}"
