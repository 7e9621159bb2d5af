"""The pages of a training run, and the chief's progress reports that they show.

Each page is one HTML file. The reports are `output/progress.jsonl` in the store. Called by
launch_tfjob's engine.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from markupsafe import Markup

from kfp_tfjob.common.errors import DataError, ObjectNotFoundError
from kfp_tfjob.jobs.manifest import to_yaml
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.pages import charts
from kfp_tfjob.pages.stacked import key, stacked_bar
from kfp_tfjob.pages.template import render
from kfp_tfjob.storage.layout import RunLayout
from kfp_tfjob.storage.store import Store

from .task import TaskReport

log = logging.getLogger(__name__)
# The names under which Keras' callbacks report it.
_LEARNING_RATES = ("learning_rate", "lr")


@dataclass(frozen=True)
class Epoch:
    """One epoch, from 1, as the chief reported it; its metrics are finite.

    `step` is the last step of the epoch, counted over the whole training; 0 if unknown.
    """

    number: int
    metrics: Mapping[str, float]
    step: int = 0


@dataclass(frozen=True)
class TrainingHistory:
    """A whole training.

    Attributes:
        epochs: In order; the last report of an epoch that was repeated after a restart counts.
        final: The exported model's metrics; without a final event, the last epoch's metrics.
        seconds: The chief's time by activity since its last start; empty without a final event.
        dropped: Names of values that are not finite numbers; reports cannot show them.
        trained_weights_sha256: Digest of the trained weights; empty without a final event.
        resumed: The newest step in the store when each later attempt began, by its number.
    """

    epochs: tuple[Epoch, ...] = ()
    final: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    trained_weights_sha256: str = ""
    resumed: Mapping[int, int] = field(default_factory=dict)

    def epoch_at(self, step: int) -> float | None:
        """Return the epoch that ends at a step, with a fraction; None if steps are unknown."""
        before, number_before = 0, float(self.epochs[0].number - 1) if self.epochs else 0.0
        for epoch in self.epochs:
            if epoch.step <= before:
                return None
            if step <= epoch.step:
                part = (step - before) / (epoch.step - before)
                return number_before + part * (epoch.number - number_before)
            before, number_before = epoch.step, float(epoch.number)
        return number_before or None


@dataclass(frozen=True)
class TimePart:
    """A row of the table of the chief's time: its color in the bar, name, seconds and share."""

    key: Markup
    name: str
    text: str
    share: str


def curves_html(progress: TrainingHistory, title: str) -> str:
    """Return a page with a plot for each metric, the time by activity, and the final values."""
    series: dict[str, dict[str, list[charts.Point]]] = {}
    for epoch in progress.epochs:
        for name, value in epoch.metrics.items():
            kind = "validation" if name.startswith("val_") else "training"
            points = series.setdefault(name.removeprefix("val_"), {}).setdefault(kind, [])
            points.append((epoch.number, value))
    marks = {
        f"attempt {attempt}": epoch
        for attempt, step in progress.resumed.items()
        if (epoch := progress.epoch_at(step)) is not None
    }
    names = sorted(series, key=_plot_rank)
    # The longest first, so that the large parts of the bar have the strongest colors.
    parts = dict(sorted(progress.seconds.items(), key=lambda part: (-part[1], part[0])))
    return render(
        "components/launch_tfjob/training.html.j2",
        title=title,
        plots={
            name: charts.by_epoch(name, dict(sorted(series[name].items())), marks) for name in names
        },
        resumed=progress.resumed,
        final={name: f"{value:.4g}" for name, value in progress.final.items()},
        time_bar=stacked_bar("the chief's time", _positive(parts)),
        seconds=_time_parts(parts),
        dropped=progress.dropped,
    )


def _plot_rank(metric: str) -> tuple[int, str]:
    """Return the place of a metric's plot: the loss, then the learning rate, then the others."""
    return (0 if metric == "loss" else 1 if metric in _LEARNING_RATES else 2), metric


def _positive(parts: Mapping[str, float]) -> dict[str, float]:
    return {name: max(part, 0.0) for name, part in parts.items()}


def _time_parts(parts: Mapping[str, float]) -> list[TimePart]:
    """Return the rows of the table of the chief's time, in the order of the bar's parts.

    Args:
        parts: The seconds by activity; a negative number has a share of 0.
    """
    total = sum(_positive(parts).values())
    return [
        TimePart(
            key=key(index),
            name=name,
            text=f"{seconds:.1f} s",
            share=f"{max(seconds, 0.0) / total:.1%}" if 0 < total < math.inf else "",
        )
        for index, (name, seconds) in enumerate(parts.items())
    ]


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
                number, step = int(event["epoch"]), event.get("step")
                step = step if isinstance(step, int) else 0
                epochs[number] = Epoch(number, finite, step)
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
