"""The pages of a training run, and the chief's progress reports that they show.

Each page is one HTML file. The reports are `output/progress.jsonl` in the store.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from kfp_tfjob.components.launch_tfjob.task import TaskReport
from kfp_tfjob.jobs.manifest import to_yaml
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.pages import charts
from kfp_tfjob.pages.template import render
from kfp_tfjob.storage.errors import DataError, ObjectNotFoundError
from kfp_tfjob.storage.layout import RunLayout
from kfp_tfjob.storage.store import Store

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Epoch:
    """One epoch, from 1, as the chief reported it; its metrics are finite."""

    number: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class TrainingHistory:
    """A whole training.

    Attributes:
        epochs: In order; the last report of an epoch that was repeated after a restart counts.
        final: The exported model's metrics; without a final event, the last epoch's metrics.
        seconds: The chief's time by activity since its last start; empty without a final event.
        dropped: Names of values that are not finite numbers; reports cannot show them.
        trained_weights_sha256: Digest of the trained weights; empty without a final event.
    """

    epochs: tuple[Epoch, ...] = ()
    final: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    trained_weights_sha256: str = ""


def curves_html(progress: TrainingHistory, title: str) -> str:
    """Return a page with a chart for each metric, the final values and the time by activity."""
    series: dict[str, dict[str, list[charts.Point]]] = {}
    for epoch in progress.epochs:
        for name, value in epoch.metrics.items():
            kind = "validation" if name.startswith("val_") else "training"
            points = series.setdefault(name.removeprefix("val_"), {}).setdefault(kind, [])
            points.append((epoch.number, value))
    names = sorted(series, key=lambda name: (name != "loss", name))
    return render(
        "components/launch_tfjob/training.html.j2",
        title=title,
        plots={name: charts.by_epoch(name, dict(sorted(series[name].items()))) for name in names},
        final={name: f"{value:.4g}" for name, value in progress.final.items()},
        seconds={name: f"{seconds:.1f} s" for name, seconds in progress.seconds.items()},
        dropped=progress.dropped,
    )


def job_html(manifest: Object, tensorboard: str, task: TaskReport) -> str:
    """Return a page with the TensorBoard command, what the task sets, and the TFJob as YAML."""
    return render(
        "components/launch_tfjob/tfjob.html.j2",
        title=f"{manifest['kind']} {manifest['metadata']['name']}",
        tensorboard=tensorboard,
        task=task,
        lines=to_yaml(manifest).splitlines(),
    )


def read(store: Store, run: RunLayout) -> TrainingHistory:
    """Return a run's progress; a user's own program may have written none."""
    try:
        return parse(store.read(run.progress).decode(errors="replace"))
    except ObjectNotFoundError:
        return TrainingHistory()
    except DataError as error:
        log.warning("training progress is not shown: %s", error)
        return TrainingHistory()


def parse(text: str) -> TrainingHistory:
    """Read the lines of progress.jsonl; a truncated line is skipped."""
    epochs: dict[int, Epoch] = {}
    final: Mapping[str, float] = {}
    seconds: Mapping[str, float] = {}
    weights = ""
    dropped: set[str] = set()
    for line in text.splitlines():
        try:
            event = json.loads(line)
            kind, metrics = event["event"], _numbers(event.get("metrics"))
            finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
            if kind == "epoch":
                epochs[int(event["epoch"])] = Epoch(int(event["epoch"]), finite)
            elif kind == "final":
                final, seconds = finite, _numbers(event.get("seconds"))
                weights = str(event.get("trained_weights_sha256", ""))
            dropped |= set(metrics) - set(finite)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            continue
    ordered = tuple(epochs[number] for number in sorted(epochs))
    if not final:
        final = dict(ordered[-1].metrics) if ordered else {}
    return TrainingHistory(ordered, final, seconds, tuple(sorted(dropped)), weights)


def _numbers(values: Mapping[str, object] | None) -> dict[str, float]:
    """Return the numbers; null is a number that JSON cannot express and becomes NaN."""
    items = ((name, math.nan if value is None else value) for name, value in (values or {}).items())
    return {str(name): float(value) for name, value in items if isinstance(value, int | float)}
