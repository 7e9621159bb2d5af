"""The report of an evaluation: one HTML file that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kfp_tfjob.components.evaluate import charts
from kfp_tfjob.components.evaluate.metrics import MOST_SHOWN_CLASSES, Measured, condense, roc_curve
from kfp_tfjob.components.evaluate.predictions import ClassPredictions
from kfp_tfjob.components.evaluate.scored import Scored
from kfp_tfjob.components.evaluate.text import number, rough, short
from kfp_tfjob.options.metric_names import PER_CLASS
from kfp_tfjob.storage.text import html as escape
from kfp_tfjob.trainer.serving import Task

_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 24px; color: #241f31; background: #fff; }
h1 { font-size: 22px; margin: 0 0 4px; } h2 { font-size: 16px; margin: 28px 0 8px; }
.badge { display: inline-block; padding: 2px 10px; border-radius: 10px; color: #fff; }
.yes { background: #26a269; } .no { background: #c01c28; }
td.yes, td.no { background: none; font-weight: 600; } td.yes { color: #1b7a4d; }
td.no { color: #c01c28; }
table { border-collapse: collapse; } td, th { padding: 4px 12px 4px 0; text-align: left;
border-bottom: 1px solid #deddda; vertical-align: top; }
td.n { font-variant-numeric: tabular-nums; }
.muted, .small { color: #5e5c64; } code { overflow-wrap: anywhere; }
svg text { font-size: 12px; fill: #241f31; } svg .small { font-size: 10px; }
svg .light { font-size: 10px; fill: #fff; } .frame { fill: none; stroke: #9a9996; }
.dot { fill: #1a5fb4; fill-opacity: .45; } .charts > svg { margin-right: 24px; max-width: 100%; }
"""


def render(verdict: Mapping[str, Any], task: Task, scored: Mapping[str, Scored]) -> str:
    """Return the report as HTML, below 1 MB and without any reference to the outside.

    Args:
        verdict: What verdict.json holds.
        task: What the model has to predict.
        scored: `model`, the champion by its name where it was compared, and `baseline`.
    """
    title = f"Evaluation of {verdict['model_name']}"
    blessed = verdict["blessed"]
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in verdict["reasons"])
    level = f"{verdict['confidence'] * 100:g} %"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>"
        f'<p><span class="badge {"yes" if blessed else "no"}">'
        f"{'blessed' if blessed else 'not blessed'}</span></p><ul>{reasons}</ul>"
        f"<h2>Metrics on {verdict['rows']:,} test rows</h2>{_metrics(scored)}"
        f'<p class="muted">In brackets: {level} intervals. The baseline knows only the class'
        " shares, or the mean, of the training rows.</p>"
        f"<h2>Checks</h2>{_checks(verdict)}"
        f'<div class="charts">{_charts(task, scored)}</div>'
        f"{_classes(task, scored['model'])}"
        f"<h2>What was judged</h2>{_identity(verdict)}</body></html>\n"
    )


def _metrics(scored: Mapping[str, Scored]) -> str:
    head = "".join(f"<th>{escape(who)}</th>" for who in scored)
    rows = []
    for metric in scored["model"].measured:
        cells = "".join(_measured(one.measured[metric]) for one in scored.values())
        rows.append(f"<tr><td>{escape(metric)}</td>{cells}</tr>")
    return f"<table><tr><th></th>{head}</tr>{''.join(rows)}</table>"


def _checks(verdict: Mapping[str, Any]) -> str:
    rows = []
    for check in verdict["checks"]:
        passed = check["pass"]
        interval = _interval(*check["interval"])
        held = check["threshold"]
        if isinstance(held, Mapping):
            held = ", ".join(f"{name} {value:g}" for name, value in held.items())
        elif held is not None:
            held = f"{held:g}"
        cells = [
            f"<td>{escape(check['name'])}</td><td>{escape(check['metric'])}</td>",
            f'<td class="n">{number(check["value"])}</td><td class="n">{interval}</td>',
            f'<td class="n">{escape(held or "")}</td>',
            f'<td class="{"yes" if passed else "no"}">{"pass" if passed else "fail"}</td>',
            f"<td>{escape(check['explanation'])}</td>",
        ]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    names = ("check", "metric", "value", "interval", "held against", "", "")
    head = "".join(f"<th>{name}</th>" for name in names)
    detectable = verdict["minimum_detectable_gain"]
    note = (
        "For a comparison the value is the gain, above 0 is better, and the interval its two"
        " one-sided bounds."
    )
    if detectable is not None:
        note += f" With these rows a true gain of {rough(detectable)} is noticed 8 times in 10."
    return f'<table><tr>{head}</tr>{"".join(rows)}</table><p class="muted">{escape(note)}</p>'


def _charts(task: Task, scored: Mapping[str, Scored]) -> str:
    predictions = scored["model"].predictions
    if not predictions.finite:
        return "<p>There are no charts: the model predicts numbers that are not finite.</p>"
    if not isinstance(predictions, ClassPredictions):
        plots = charts.scatter(predictions.labels, predictions.values)
        return f"<h2>Predictions</h2>{plots}{charts.histogram(predictions.errors)}"
    names, matrix = condense(predictions.confusion(), list(task.classes), MOST_SHOWN_CLASSES)
    html = f"<h2>Confusion matrix</h2>{charts.confusion_matrix(names, matrix)}"
    if len(names) < len(task.classes):
        html += '<p class="muted">The classes confused least are together in "other".</p>'
    if predictions.classes == 2 and 0 < predictions.labels.mean() < 1:
        curves = {
            who: roc_curve(one.predictions.labels, one.predictions.scores[:, 0])[:2]
            for who, one in scored.items()
            if isinstance(one.predictions, ClassPredictions) and who != "baseline"
        }
        html += f"<h2>ROC curve of {escape(short(task.classes[1], 60))}</h2>{charts.roc(curves)}"
    return html


def _classes(task: Task, model: Scored) -> str:
    if not model.classes or not isinstance(model.predictions, ClassPredictions):
        return ""
    support = model.predictions.confusion().sum(axis=1)
    rows = []
    for index, name in enumerate(task.classes):
        cells = "".join(_measured(model.classes[f"{kind}/{name}"]) for kind in PER_CLASS)
        rows.append(f'<tr><td>{escape(name)}</td><td class="n">{support[index]}</td>{cells}</tr>')
    head = "".join(f"<th>{kind}</th>" for kind in ("class", "rows", *PER_CLASS))
    return f"<h2>Classes</h2><table><tr>{head}</tr>{''.join(rows)}</table>"


def _identity(verdict: Mapping[str, Any]) -> str:
    names = (
        "run_id",
        "model_uri",
        "dataset_digest",
        "schema_digest",
        "exported_weights_sha256",
        "gate",
    )
    rows = "".join(
        f"<tr><td>{name}</td><td><code>{escape(str(verdict[name]))}</code></td></tr>"
        for name in names
    )
    return f"<table>{rows}</table>"


def _measured(item: Measured) -> str:
    text = number(item.value)
    if math.isfinite(item.low):
        text += f' <span class="small">({_interval(item.low, item.high)})</span>'
    return f'<td class="n">{text}</td>'


def _interval(low: float | None, high: float | None) -> str:
    known = low is not None and math.isfinite(low)
    return f"{number(low)} to {number(high)}" if known else "–"
