"""The model card: what a person wants to know about a published version, in Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kfp_tfjob.storage.champion import Champion
from kfp_tfjob.storage.text import code, prose, row
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
        model_name: Of the model.
        champion: The record of the version.
        verdict: The content of verdict.json.
        arguments: The argument of each column in the model's signature `serve`; empty for a model
            that does not say.
        statistics: The content of statistics.json.
    """
    rows = [
        row(code(name), f"{value:.6g}", _interval(verdict["intervals"].get(name)))
        for name, value in champion.metrics.items()
    ]
    reasons = [part for reason in verdict["reasons"] for part in (prose(reason), "")]
    # The columns.json of a user's own program may name others: that model gets no example.
    has_example = arguments and arguments.keys() <= statistics["features"].keys()
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
            f"| SHA-256 of the exported weights | `{champion.exported_weights_sha256}` |",
            f"| schema | `{champion.schema_digest}` |",
            "",
            "`model/` is the SavedModel, `schema.json` names the columns it takes and its classes,"
            " `manifest.json` in the store proves every file.",
            "",
            *(_example(arguments, statistics) if has_example else ()),
        ]
    )


def _example(arguments: Mapping[str, str], statistics: Mapping[str, Any]) -> list[str]:
    """Return how to ask the model about one row: here the means of the training rows."""
    row = [
        f"    {name!r}: {statistics['features'][name]['mean']:.6g},"
        for name in list(arguments)[:_MOST_COLUMNS]
    ]
    more = len(arguments) - len(row)
    row += [f"    # and {counted(more, 'more column')}"] if more else []
    return [
        "Ask it about a row, by the names of the columns and with raw values; `columns.json` says"
        " what its signature calls them:",
        "",
        "```python",
        "import json",
        "import tensorflow as tf",
        "",
        'model = tf.saved_model.load("model")',
        f'columns = json.load(open("model/{COLUMNS}", encoding="utf-8"))',
        'arguments = {item["column"]: item["argument"] for item in columns}',
        "row = {",
        *row,
        "}",
        'serve = model.signatures["serve"]',
        "print(serve(**{arguments[name]: tf.constant([float(row[name])]) for name in row}))",
        "```",
        "",
    ]


def _interval(interval: list[float | None] | None) -> str:
    if not interval or None in interval:
        return "unknown"
    return f"{interval[0]:.6g} to {interval[1]:.6g}"
