"""Renders the report of an evaluation as one self-contained HTML file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from kfp_tfjob.components.evaluate.changes import BASELINE, SAMPLED_ROWS, Gain, changes
from kfp_tfjob.components.evaluate.plots import confusions, curves
from kfp_tfjob.judging.estimates import Measured
from kfp_tfjob.judging.formatting import chance, difference, known_rows, number, rough
from kfp_tfjob.judging.predictions import ClassPredictions
from kfp_tfjob.judging.scored import Scored
from kfp_tfjob.options.metric_names import PER_CLASS
from kfp_tfjob.options.parse import whole_numbers
from kfp_tfjob.pages import small
from kfp_tfjob.pages.template import render as fill
from kfp_tfjob.storage.escaping import html, short
from kfp_tfjob.storage.verdict_record import ModelVerdict, VerdictCheck, VerdictSlice

_MOST_BYTES = 1_000_000
_MOST_REASONS = 20
_MOST_CHECKS = 200
_MOST_SLICES = 100
_MOST_OF_GATE = 60_000  # bytes on the page
_LONGEST = 60  # characters of the name of a class or a metric
_NOT_FINITE = "the model predicts numbers that are not finite"
_TOO_LARGE = "the page would be too large"
_WIDTH = 96  # characters of a line of code
_COMPARISONS = ("champion", "baseline", "slices")
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


class _Class(NamedTuple):
    name: str
    rows: int
    measured: list[Measured]
    champion: float
    drawn: Markup


def render(verdict: ModelVerdict, classes: Sequence[str], scored: Mapping[str, Scored]) -> str:
    """Return the report as HTML, below 1 MB and without external references.

    Args:
        verdict: The content of verdict.json.
        classes: The names of the classes; none for a regression.
        scored: `model`, `baseline`, and the champion by its name if it was compared.
    """
    gate = whole_numbers(verdict.gate)
    changed = changes(scored, verdict.confidence, verdict.primary_metric)
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
    values: dict[str, Any] = dict(
        title=f"Evaluation of {verdict.model_name}",
        verdict=verdict,
        most_reasons=_MOST_REASONS,
        checks=checks[:_MOST_CHECKS],
        more_checks=len(checks[_MOST_CHECKS:]),
        longest=_LONGEST,
        known_rows=known_rows(verdict.also_in_train, verdict.rows),
        direction={"minimize": "lower", "maximize": "higher"}.get(gate.get("direction"), ""),
        sampled=SAMPLED_ROWS if verdict.rows > SAMPLED_ROWS and champion else 0,
        confidence=f"{verdict.confidence * 100:g}%",
        against=changed.against,
        changed=changed,
        tiles=_tiles(verdict, changed.against, _primary(verdict, scored, changed.gains)),
        baseline={} if changed.against == BASELINE else scored[BASELINE].measured,
        same_weights=same_weights,
        confusions=confusions(classes, scored["model"]),
        curves=curves(classes, scored),
        no_curves=_NOT_FINITE,
        classes=_classes(classes, scored, changed.against),
        kinds=PER_CLASS,
        slice_drawn=_slice_drawing(verdict),
        facts=_facts(verdict),
        margin=gate.get("margin"),
        gate=shown_gate,
        check_value=lambda check: _check_value(check, verdict.metrics),
        number=number,
        difference=difference,
        rough=rough,
        chance=chance,
        percent=lambda share: f"{share:.1%}",
        interval=_interval,
        finite=math.isfinite,
        threshold=_threshold,
        most_slices=_MOST_SLICES,
    )
    fewer: tuple[dict[str, Any], ...] = (
        {},
        {"curves": [], "no_curves": _TOO_LARGE},
        {"confusions": []},
    )
    page = ""
    for less in fewer:
        values |= less
        page = fill("components/evaluate/report.html.j2", **values)
        if len(page.encode()) < _MOST_BYTES:
            break
    return page


def _primary(verdict: ModelVerdict, scored: Mapping[str, Scored], gains: Sequence[Gain]) -> Gain:
    """Return the primary metric of both models; of one without a value, only its name."""
    metric = verdict.primary_metric
    nothing = Measured(math.nan, math.nan, math.nan)
    known = {gain.metric: gain for gain in gains}
    if metric in known:
        decided = (it.interval for it in verdict.checks if it.name in _COMPARISONS[:2])
        low, high = (_known(end) for end in next(decided, (None, None)))
        return known[metric]._replace(low=low, high=high) if math.isfinite(low) else known[metric]
    model = scored["model"].classes.get(metric, nothing)
    against = next((who for who in scored if who not in ("model", BASELINE)), BASELINE)
    other = scored[against].classes.get(metric, nothing)
    return Gain(metric, model, other, model.value - other.value, math.nan, math.nan)


def _tiles(verdict: ModelVerdict, against: str, primary: Gain) -> Iterator[_Tile]:
    """Yield the numbers that one looks for first."""
    model, other = primary.model, primary.other
    yield _Tile(
        short(primary.metric, _LONGEST), number(model.value), _interval(model.low, model.high)
    )
    yield _Tile(against, number(other.value), _interval(other.low, other.high))
    yield _Tile(
        "gain", primary.text, primary.bounds, "" if primary.style == "quiet" else primary.style
    )
    judged = [it for it in verdict.slices if it.state != "insufficient"]
    if judged:
        failed = sum(it.state == "fail" for it in judged)
        note = f"of {len(judged):,} evaluated"
        yield _Tile("slices that fail", f"{failed:,}", note, "bad" if failed else "")


def _classes(classes: Sequence[str], scored: Mapping[str, Scored], against: str) -> list[_Class]:
    model = scored["model"]
    if not model.classes or not isinstance(model.predictions, ClassPredictions):
        return []
    cells = model.measures.cells
    support = cells.by_label(cells.counts.astype(float)).astype(int).tolist()
    theirs = {} if against == BASELINE else scored[against].classes
    found = []
    for name, rows in zip(classes, support, strict=True):
        each = [model.classes[f"{kind}/{name}"] for kind in PER_CLASS]
        f1, other = each[-1], theirs.get(f"f1/{name}")
        champion = math.nan if other is None else other.value
        drawn = small.estimate(f1.value, (f1.low, f1.high), (0.0, 1.0), champion)
        found.append(_Class(short(name, _LONGEST), rows, each, champion, drawn))
    return found


def _slice_drawing(verdict: ModelVerdict) -> Any:
    """Return the function that draws a slice, on one scale for all."""
    ends = _ends(
        value
        for it in verdict.slices[:_MOST_SLICES]
        for value in (it.value, it.champion, *it.interval)
    )
    everyone = verdict.metrics.get(verdict.primary_metric)

    def draw(it: VerdictSlice) -> Markup:
        mark = everyone if it.champion is None else it.champion
        style = "bad" if it.state == "fail" else ""
        interval = (_known(it.interval[0]), _known(it.interval[1]))
        return small.estimate(_known(it.value), interval, ends, _known(mark), style)

    return draw


def _ends(values: Iterable[float | None]) -> tuple[float, float]:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return min(known, default=0.0), max(known, default=1.0)


def _known(value: float | None) -> float:
    return math.nan if value is None else value


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


def _check_value(check: VerdictCheck, metrics: Mapping[str, float | None]) -> str:
    """Return the value of a check; that of a comparison is a gain."""
    if check.name in _COMPARISONS:
        return difference(check.value, metrics.get(check.metric))
    return number(check.value)


def _threshold(held: float | str | Mapping[str, float] | None) -> str:
    if isinstance(held, Mapping):
        return ", ".join(f"{name} {value:g}" for name, value in held.items())
    return "" if held is None else held if isinstance(held, str) else f"{held:g}"
