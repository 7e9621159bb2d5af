"""Renders the report of an evaluation as one self-contained HTML file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from kfp_tfjob.components.evaluate.plots import plots
from kfp_tfjob.judging.estimates import Measured
from kfp_tfjob.judging.predictions import ClassPredictions
from kfp_tfjob.judging.scored import Scored
from kfp_tfjob.judging.text import chance, number, rough
from kfp_tfjob.options.metric_names import PER_CLASS
from kfp_tfjob.pages.template import render as fill
from kfp_tfjob.trainer.serving import Task

_MOST_SLICES = 100


class _Class(NamedTuple):
    name: str
    rows: int
    measured: list[Measured]


def render(verdict: Mapping[str, Any], task: Task, scored: Mapping[str, Scored]) -> str:
    """Return the report as HTML, below 1 MB and without external references.

    Args:
        verdict: The content of verdict.json.
        task: What the model must predict.
        scored: `model`, `baseline`, and the champion by its name if it was compared.
    """
    return fill(
        "components/evaluate/report.html.j2",
        title=f"Evaluation of {verdict['model_name']}",
        verdict=verdict,
        scored=scored,
        plots=plots(task, scored),
        classes=_classes(task, scored["model"]),
        kinds=PER_CLASS,
        number=number,
        rough=rough,
        chance=chance,
        interval=_interval,
        finite=math.isfinite,
        threshold=_threshold,
        most_slices=_MOST_SLICES,
    )


def _classes(task: Task, model: Scored) -> list[_Class]:
    if not model.classes or not isinstance(model.predictions, ClassPredictions):
        return []
    support = model.predictions.confusion().sum(axis=1).tolist()
    return [
        _Class(name, rows, [model.classes[f"{kind}/{name}"] for kind in PER_CLASS])
        for name, rows in zip(task.classes, support, strict=True)
    ]


def _interval(low: float | None, high: float | None) -> str:
    known = low is not None and math.isfinite(low)
    return f"{number(low)} to {number(high)}" if known else "–"


def _threshold(held: float | str | Mapping[str, float] | None) -> str:
    if isinstance(held, Mapping):
        return ", ".join(f"{name} {value:g}" for name, value in held.items())
    return "" if held is None else held if isinstance(held, str) else f"{held:g}"
