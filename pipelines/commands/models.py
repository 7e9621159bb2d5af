"""`kfp-tfjob models`: champions, versions, and their history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from kfp_tfjob.common.formatting import listed, sized
from kfp_tfjob.judging.formatting import number
from kfp_tfjob.storage.layout import SAVED_MODEL

from .group import Group
from .models_changes import promote, prune, rollback, sync
from .output import age, as_json, show, show_json, show_table
from .store import Models, with_models

if TYPE_CHECKING:
    from kfp_tfjob.registry.champion import Champion
    from kfp_tfjob.registry.view import Shown


@click.group(cls=Group)
def models() -> None:
    """List, roll back, promote and delete versions of published models.

    Without --output, these are the models of local runs. For a store, set --output and --endpoint,
    and the keys in the AWS environment.
    """


@models.command("list")
@with_models
@as_json
def list_(place: Models, json_: bool) -> None:
    """List the models and their champions."""
    from kfp_tfjob.options.metric_names import in_short
    from kfp_tfjob.registry import view

    rows = list(view.rows(place.store, place.layout))
    if json_:
        show_json(rows)
        return
    if not rows:
        show(f"no run has published a model in {place.layout.root} yet")
        return
    cells = [
        (
            row.name,
            row.version or "",
            row.serving or "",
            row.run_id,
            age(row.at),
            row.versions,
            row.trouble or _metrics_text(in_short(row.metrics)),
        )
        for row in rows
    ]
    show_table(("model", "champion", "served as", "run", "age", "versions", "metrics"), cells)


@models.command("show")
@click.argument("model")
@click.option(
    "--last",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    metavar="N",
    help="how many versions and events to show; 0 for all",
)
@with_models
@as_json
def show_(place: Models, model: str, last: int, json_: bool) -> None:
    """Show a model's champion, its versions, and who promoted them and why."""
    from kfp_tfjob.registry import view

    view.require(place.store, place.layout, model)
    details = view.show(place.store, place.layout, model, last)
    show_json(details) if json_ else _show(details, place)


for command in (rollback, promote, prune, sync):
    models.add_command(command)


def _show(details: Shown, place: Models) -> None:
    champion = details.champion
    if champion is None:
        show(details.proof or f"{details.name} has no champion yet")
    else:
        facts = {
            "champion": f"version {champion.version} of run {champion.run_id}",
            "files": champion.version_uri,
            "verdict": champion.verdict_uri,
            "served as": _describe_served(details, champion, place),
            "records": "agree" if not details.proof else details.proof,
        }
        for name, text in facts.items():
            show(f"{name + ':':<10} {text}")
        show(f"{'metrics:':<10} {_metrics_text(champion.metrics)}")
    show("")
    rows = [
        (
            version.version,
            version.state,
            version.run_id,
            sized(version.size) if version.size else "",
        )
        for version in details.versions
    ]
    show_table(("version", "state", "run", "size"), rows)
    show("")
    events = [
        (
            event.at,
            event.action,
            event.version,
            event.serving or "",
            event.by or event.run_id,
            event.why[:200],
        )
        for event in details.history
    ]
    show_table(("time", "what", "version", "served as", "who", "why"), events)


def _metrics_text(metrics: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {number(value)}" for name, value in metrics.items())


def _describe_served(details: Shown, champion: Champion, place: Models) -> str:
    """Return the champion's number for servers, or why servers do not have it, and the fix."""
    if details.serving_uri:
        return f"{champion.served_as}, below {details.serving_base}"
    if details.proof:
        return f"{champion.served_as}, not checked: the records do not agree"
    fix = f"kfp-tfjob models sync {details.name}{place.options}"
    if SAVED_MODEL in details.not_served:
        return f"not yet: {fix}"
    return f"{champion.served_as}, but altered: {listed(details.not_served, 3)}. Fix: {fix}"
