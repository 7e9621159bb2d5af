"""`kfp-tfjob models`: champions, versions, and their history."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kfp_tfjob.judging.formatting import number
from kfp_tfjob.pipelines.commands.group import Group
from kfp_tfjob.pipelines.commands.models_changes import promote, prune, rollback, sync
from kfp_tfjob.pipelines.commands.output import age, as_json, show, show_json, show_table
from kfp_tfjob.pipelines.commands.store import Models, with_models
from kfp_tfjob.storage.formatting import listed, sized
from kfp_tfjob.storage.layout import SAVED_MODEL

if TYPE_CHECKING:
    from kfp_tfjob.registry.view import Shown
    from kfp_tfjob.storage.champion import Champion


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

    found = list(view.rows(place.store, place.layout))
    if json_:
        show_json(found)
        return
    if not found:
        show(f"no run has published a model in {place.layout.root} yet")
        return
    cells = [
        (
            it.name,
            it.version or "",
            it.serving or "",
            it.run_id,
            age(it.at),
            it.versions,
            it.trouble
            or "  ".join(f"{name} {number(value)}" for name, value in in_short(it.metrics).items()),
        )
        for it in found
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
    found = view.show(place.store, place.layout, model, last)
    show_json(found) if json_ else _show(found, place)


for command in (rollback, promote, prune, sync):
    models.add_command(command)


def _show(found: Shown, place: Models) -> None:
    champion = found.champion
    if champion is None:
        show(found.proof or f"{found.name} has no champion yet")
    else:
        facts = {
            "champion": f"version {champion.version} of run {champion.run_id}",
            "files": champion.version_uri,
            "verdict": champion.verdict_uri,
            "served as": _served(found, champion, place),
            "records": "agree" if not found.proof else found.proof,
        }
        for name, text in facts.items():
            show(f"{name + ':':<10} {text}")
        metrics = "  ".join(f"{name} {number(value)}" for name, value in champion.metrics.items())
        show(f"{'metrics:':<10} {metrics}")
    show("")
    rows = [
        (it.version, it.state, it.run_id, sized(it.size) if it.size else "")
        for it in found.versions
    ]
    show_table(("version", "state", "run", "size"), rows)
    show("")
    events = [
        (it.at, it.action, it.version, it.serving or "", it.by or it.run_id, it.why[:200])
        for it in found.history
    ]
    show_table(("time", "what", "version", "served as", "who", "why"), events)


def _served(found: Shown, champion: Champion, place: Models) -> str:
    if found.serving_uri:
        return f"{champion.served_as}, below {found.serving_base}"
    if found.proof:
        return f"{champion.served_as}, not checked: the records do not agree"
    fix = f"kfp-tfjob models sync {found.name}{place.options}"
    if SAVED_MODEL in found.not_served:
        return f"not yet: {fix}"
    return f"{champion.served_as}, but altered: {listed(found.not_served, 3)}. Fix: {fix}"
