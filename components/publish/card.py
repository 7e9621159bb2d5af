"""Renders the model card of a published version in Markdown."""

from __future__ import annotations

from collections.abc import Mapping

from kfp_tfjob.components.publish.request import usual_values
from kfp_tfjob.features.schema import Schema
from kfp_tfjob.features.signature_columns import COLUMNS
from kfp_tfjob.features.statistics import StatisticsDocument
from kfp_tfjob.options.pictures import PICTURE
from kfp_tfjob.pages.template import Markdown
from kfp_tfjob.pages.template import render as fill
from kfp_tfjob.storage.champion import Champion
from kfp_tfjob.storage.formatting import counted
from kfp_tfjob.storage.layout import REQUEST, SERVING, VERSIONS
from kfp_tfjob.storage.verdict_record import ModelVerdict

_MOST_COLUMNS = 10  # in the example


def render(
    model_name: str,
    champion: Champion,
    verdict: ModelVerdict,
    arguments: Mapping[str, str],
    statistics: StatisticsDocument,
    schema: Schema,
) -> str:
    """Return the card of a version.

    Args:
        model_name: The name of the model.
        champion: The record of the version.
        verdict: The verdict on it.
        arguments: The argument of each column in the model's signature `serve`; empty if the model
            does not list them.
        statistics: The content of statistics.json.
        schema: The content of schema.json.
    """
    raw = not schema.picture and not schema.encoding.is_identity
    values = {} if schema.picture else usual_values(schema, statistics)
    # The columns.json of a user's own program may name other columns: then there is no example.
    has_example = arguments and arguments.keys() <= values.keys()
    shown = list(arguments)[:_MOST_COLUMNS] if has_example else []
    more = len(arguments) - len(shown)
    return fill(
        "components/publish/card.md.j2",
        model_name=model_name,
        champion=champion,
        verdict=verdict,
        interval=_interval,
        example={name: values[name] for name in shown},
        raw=raw,
        argument=arguments.get(PICTURE, "") if schema.picture else "",
        more=counted(more, "more column") if more else "",
        columns=f"model/{COLUMNS}",
        request=REQUEST if has_example or (schema.picture and arguments) else "",
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
