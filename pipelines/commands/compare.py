"""`kfp-tfjob compare`: what differs between runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from kfp_tfjob.judging.text import number
from kfp_tfjob.pipelines.commands.connection import with_client
from kfp_tfjob.pipelines.commands.output import as_json, show, show_json, show_table
from kfp_tfjob.storage.words import minutes

if TYPE_CHECKING:
    from kfp_tfjob.pipelines.kubeflow.client import Client
    from kfp_tfjob.pipelines.kubeflow.comparison import Compared, Comparison, Metric


@click.command()
@click.argument("runs", metavar="RUN RUN...", nargs=-1, required=True)
@with_client
@as_json
def compare(client: Client, runs: tuple[str, ...], json_: bool) -> None:
    """Compare runs: parameters, data, metrics, time, verdicts.

    RUN is an id, the beginning of one, a name, or `last`. Metrics are those of the test rows, with
    the interval that the gate computed.
    """
    found = client.compare(runs)
    show_json(found) if json_ else _show(found)


def _show(found: Comparison) -> None:
    head = ("", *(f"{it.run.name} ({it.run.run_id[:8]})" for it in found.runs))
    show_table(head, _rows(found))
    if found.same_data is False:
        show("\nThe data differs, so the metrics are of different test rows.")
    for it in found.runs:
        show(
            f"\n{it.run.name}: {it.run.verdict or it.run.state}{f' ({it.note})' if it.note else ''}"
        )
        for check in it.checks:
            show(f"  {check}")


def _rows(found: Comparison) -> Iterator[tuple[str, ...]]:
    def row(name: str, values: Iterator[Any]) -> tuple[str, ...]:
        return (name, *("" if value is None else str(value) for value in values))

    yield row("state", (it.run.state for it in found.runs))
    yield row("verdict", (it.run.verdict for it in found.runs))
    for path, values in found.parameters.items():
        yield row(path, ("default" if value is None else value for value in values))
    yield row("dataset", (it.dataset[:12] for it in found.runs))
    yield row("test rows", (it.rows for it in found.runs))
    names = dict.fromkeys(name for it in found.runs for name in it.metrics)
    for name in names:
        starred = f"{name} *" if any(it.primary == name for it in found.runs) else name
        yield row(starred, (_metric(it.metrics.get(name)) for it in found.runs))
    yield row("duration", (minutes(it.run.seconds) for it in found.runs))
    yield row("training", (_time(it) for it in found.runs))
    yield row("attempts", (it.attempts for it in found.runs))
    yield row(
        "GPU hours",
        (None if it.gpu_hours is None else f"{it.gpu_hours:.2f}" for it in found.runs),
    )


def _time(it: Compared) -> str | None:
    return None if it.training_seconds is None else minutes(it.training_seconds)


def _metric(found: Metric | None) -> str:
    if found is None or found.value is None:
        return ""
    if found.low is None or found.high is None:
        return number(found.value)
    return f"{number(found.value)} [{number(found.low)}, {number(found.high)}]"
