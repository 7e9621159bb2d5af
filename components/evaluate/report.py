"""Renders the report of an evaluation as one self-contained HTML file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kfp_tfjob.components.evaluate.plots import BASELINE, confusions, curves
from kfp_tfjob.judging.estimates import Measured
from kfp_tfjob.judging.formatting import chance, difference, known_rows, number, rough
from kfp_tfjob.judging.metrics import Measures
from kfp_tfjob.judging.predictions import ClassPredictions
from kfp_tfjob.options.metric_names import PER_CLASS, is_own
from kfp_tfjob.options.parse import whole_numbers
from kfp_tfjob.pages.template import render as fill
from kfp_tfjob.storage.escaping import html, short
from kfp_tfjob.storage.verdict_record import Check, ModelVerdict

_MOST_REASONS = 20
_MOST_CHECKS = 200
_MOST_SLICES = 100
_MOST_OF_GATE = 60_000  # bytes on the page
_LONGEST = 60  # characters of the name of a class or a metric
_WITHOUT_DIRECTION = ("mean_error",)  # neither a greater nor a smaller one is better
_WIDTH = 96  # characters of a line of code
_COMPARISONS = ("champion", "baseline", "slices")
_NOTHING = Measured(math.nan, math.nan, math.nan)
_FACTS = {
    "run_id": "run",
    "model_uri": "model",
    "model_digest": "SHA-256 of its run's manifest",
    "exported_weights_sha256": "SHA-256 of its weights",
    "dataset_uri": "dataset",
    "dataset_digest": "digest of the dataset",
    "schema_digest": "digest of its schema",
    "evaluator_digest": "digest of the code of gate.evaluator",
}


class _Tile(NamedTuple):
    name: str
    value: str
    note: str = ""
    style: str = ""


class _Metric(NamedTuple):
    name: str
    model: Measured
    other: Measured
    gain: str


class _Class(NamedTuple):
    name: str
    rows: int
    measured: list[Measured]
    champion: float


def render(verdict: ModelVerdict, classes: Sequence[str], scored: Mapping[str, Measures]) -> str:
    """Return the report as HTML, below 1 MB and without external references.

    Args:
        verdict: The content of verdict.json.
        classes: The names of the classes; none for a regression.
        scored: `model`, `baseline`, and the champion by its name if it was compared.
    """
    gate = whole_numbers(verdict.gate)
    against = next((who for who in scored if who not in ("model", BASELINE)), BASELINE)
    champion = verdict.champion
    same_weights = champion is not None and (
        champion.exported_weights_sha256 == verdict.exported_weights_sha256
    )
    shown_gate = _as_json(gate)
    if sum(len(html(line).encode()) for line in shown_gate) > _MOST_OF_GATE:
        shown_gate = [f"The gate has {len(shown_gate):,} lines: see gate in verdict.json."]
    # That the primary metric has a value says nothing that its tile does not.
    checks = [it for it in verdict.checks if it.name != "primary_metric" or not it.passed]
    if len(checks) > _MOST_CHECKS:
        checks.sort(key=lambda check: check.passed)
    return fill(
        "components/evaluate/report.html.j2",
        title=f"Evaluation of {verdict.model_name}",
        verdict=verdict,
        most_reasons=_MOST_REASONS,
        checks=checks[:_MOST_CHECKS],
        more_checks=len(checks[_MOST_CHECKS:]),
        longest=_LONGEST,
        known_rows=known_rows(verdict.also_in_train, verdict.rows),
        direction={"minimize": "lower", "maximize": "higher"}.get(gate.get("direction"), ""),
        confidence=f"{verdict.confidence * 100:g}%",
        against=against,
        metrics=_metrics(scored["model"], scored[against], verdict.primary_metric),
        tiles=_tiles(verdict, scored["model"], scored[against], against),
        baseline={} if against == BASELINE else scored[BASELINE].measured,
        same_weights=same_weights,
        confusions=confusions(classes, scored["model"]),
        curves=curves(classes, scored),
        classes=_classes(classes, scored, against),
        kinds=PER_CLASS,
        facts=_facts(verdict),
        margin=gate.get("margin"),
        gate=shown_gate,
        check_value=lambda check: _check_value(check, verdict.metrics),
        number=number,
        difference=difference,
        rough=rough,
        chance=chance,
        interval=_interval,
        finite=math.isfinite,
        threshold=_threshold,
        most_slices=_MOST_SLICES,
    )


def _metrics(model: Measures, other: Measures, primary: str) -> Iterator[_Metric]:
    """Yield the metrics of both models, the primary one first."""
    for name in sorted(model.measured, key=lambda name: name != primary):
        ours, theirs = model.measured[name], other.measured.get(name, _NOTHING)
        gain = model.estimate(name).sign * (ours.value - theirs.value)
        # Of the metrics of the user's own, only the primary one has a direction.
        if name in _WITHOUT_DIRECTION or (is_own(name) and name != primary):
            gain = math.nan
        yield _Metric(name, ours, theirs, difference(gain, theirs.value))


def _tiles(
    verdict: ModelVerdict, model: Measures, other: Measures, against: str
) -> Iterator[_Tile]:
    """Yield the numbers that one looks for first."""
    metric = verdict.primary_metric
    for name, one in ((short(metric, _LONGEST), model), (against, other)):
        found = (one.measured | one.class_metrics).get(metric, _NOTHING)
        yield _Tile(name, number(found.value), _interval(found.low, found.high))
    decided = next((it for it in verdict.checks if it.name in _COMPARISONS[:2]), None)
    if decided and decided.value is not None:
        low, high = decided.interval
        style = "good" if (low or 0) > 0 else "bad" if (high or 0) < 0 else ""
        of = (model.measured | model.class_metrics)[metric].value
        bounds = "" if low is None else f"{difference(low, of)} to {difference(high, of)}"
        yield _Tile("gain", difference(decided.value, of), bounds, style)
    judged = [it for it in verdict.slices if it.state != "insufficient"]
    if judged:
        failed = sum(it.state == "fail" for it in judged)
        note = f"of {len(judged):,} evaluated"
        yield _Tile("slices that fail", f"{failed:,}", note, "bad" if failed else "")


def _classes(classes: Sequence[str], scored: Mapping[str, Measures], against: str) -> list[_Class]:
    model = scored["model"]
    if not model.class_metrics or not isinstance(model.predictions, ClassPredictions):
        return []
    cells = model.cells
    support = cells.by_label(cells.counts.astype(float)).astype(int).tolist()
    theirs = {} if against == BASELINE else scored[against].class_metrics
    found = []
    for name, rows in zip(classes, support, strict=True):
        each = [model.class_metrics[f"{kind}/{name}"] for kind in PER_CLASS]
        champion = theirs.get(f"f1/{name}", _NOTHING).value
        found.append(_Class(short(name, _LONGEST), rows, each, champion))
    return found


def _facts(verdict: ModelVerdict) -> list[tuple[str, str]]:
    known = ((words, getattr(verdict, name)) for name, words in _FACTS.items())
    found = [(words, str(value)) for words, value in known if value]
    if champion := verdict.champion:
        whose = f"version {champion.version} of run {champion.run_id}"
        found.append(("champion", whose))
        found.append(("SHA-256 of its weights", str(champion.exported_weights_sha256)))
    return found


def _as_json(gate: Mapping[str, Any]) -> list[str]:
    """Return the lines of a gate as JSON: one for each key, if it fits."""
    lines = ["{"]
    for place, (key, value) in enumerate(gate.items(), 1):
        comma = "," * (place < len(gate))
        short = f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}{comma}"
        long = json.dumps({key: value}, indent=1, ensure_ascii=False).splitlines()[1:-1]
        lines += [short] if len(short) <= _WIDTH else [*long[:-1], long[-1] + comma]
    return [*lines, "}"]


def _interval(low: float | None, high: float | None) -> str:
    known = low is not None and math.isfinite(low)
    return f"{number(low)} to {number(high)}" if known else "–"


def _check_value(check: Check, metrics: Mapping[str, float | None]) -> str:
    """Return the value of a check; that of a comparison is a gain."""
    if check.name in _COMPARISONS:
        return difference(check.value, metrics.get(check.metric))
    return number(check.value)


def _threshold(held: float | str | Mapping[str, float] | None) -> str:
    if isinstance(held, Mapping):
        return ", ".join(f"{name} {value:g}" for name, value in held.items())
    return "" if held is None else held if isinstance(held, str) else f"{held:g}"
