"""The report and what Kubeflow Pipelines shows: small, self-contained, escaped, finite."""

import json
import math
import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from kfp import dsl

from kfp_tfjob.common.escaping import html as escaped
from kfp_tfjob.common.escaping import short
from kfp_tfjob.components.evaluate import report
from kfp_tfjob.components.evaluate.artifacts import confusion, kfp_metrics, roc
from kfp_tfjob.judging.formatting import difference, number
from kfp_tfjob.judging.gate import ChampionResult, decide
from kfp_tfjob.judging.metric_uncertainty import Measured
from kfp_tfjob.judging.metrics import Measures
from kfp_tfjob.judging.predictions import ClassPredictions, Predictions, ValuePredictions
from kfp_tfjob.judging.verdict_document import build_verdict
from kfp_tfjob.options.gate import parse_gate
from kfp_tfjob.options.metric_names import CLASSIFICATION, PER_CLASS, REGRESSION, meaning
from kfp_tfjob.registry.champion import Champion
from kfp_tfjob.registry.verdict_record import Check, EvaluatedModel, ModelVerdict, VerdictSlice
from kfp_tfjob.storage import documents
from tests.baselines import constant_classifier, constant_regression

NASTY = '<script>alert("x")</script>&\x1b[2J'
# A threshold of the other task, which no model of this one passes.
GATES = {
    "classification": {"thresholds": {"rmse": {"min": 0.1}}},
    "regression": {"thresholds": {"log_loss": {"max": 3}}},
}


def classes(count: int) -> tuple[tuple[str, ...], Predictions, Predictions]:
    # They begin alike, and take twelve bytes of JSON for each letter.
    names = (NASTY, *(f"{'😀' * 300} {index}" for index in range(1, count)))
    rng = np.random.default_rng(count)
    labels = np.arange(3000) % count
    logits = rng.normal(size=(3000, count)) + 2 * np.eye(count)[labels]
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    baseline = constant_classifier(labels, [1] * count)
    return names, ClassPredictions.of(labels, probabilities), baseline


def broken() -> tuple[tuple[str, ...], Predictions, Predictions]:
    labels, good, baseline = classes(3)
    scores = np.full((good.rows, 3), np.nan)
    return labels, ClassPredictions.of(good.labels, scores), baseline


def regression() -> tuple[tuple[str, ...], Predictions, Predictions]:
    rng = np.random.default_rng(1)
    truth = 1e5 * rng.normal(size=20_000)
    values = ValuePredictions.of(truth, truth + 2e4 * rng.normal(size=len(truth)))
    return (), values, constant_regression(truth, 0.0)


def diverged() -> tuple[tuple[str, ...], Predictions, Predictions]:
    labels, good, baseline = regression()
    return labels, ValuePredictions.of(good.labels, np.full(good.rows, 1e30)), baseline


CASES = {
    "two classes": lambda: classes(2),
    "ten classes": lambda: classes(10),
    "thirty classes": lambda: classes(30),
    "two hundred classes": lambda: classes(200),
    "no numbers": broken,
    "regression": regression,
    "diverged regression": diverged,
}


def evaluated(case: str) -> tuple[tuple[str, ...], dict[str, Any], dict[str, Measures]]:
    """Return classes, verdict and everybody's metrics, with a champion like the baseline."""
    labels, predictions, baseline = CASES[case]()
    names, gate = list(labels), GATES["classification" if labels else "regression"]
    scored = {
        who: Measures(one, names)
        for who, one in (("model", predictions), ("champion 7", baseline), ("baseline", baseline))
    }
    rival = ChampionResult("champion 7", measures=scored["champion 7"])
    champion = Champion(4, 7, "s3://b/v", "r0", "w", "s", "d", {}, "s3://b/verdict")
    decision = decide(parse_gate(gate), scored["model"], scored["baseline"], rival)
    judged = EvaluatedModel(NASTY, "s3://b/m", "r1", "m", "w", "s3://b/d", "d", "s", gate)
    return labels, build_verdict(decision, judged, scored, champion, rival), scored


def drawings(html: str) -> list[ElementTree.Element]:
    """Return the figures of a page in order."""
    root = ElementTree.fromstring(html.removeprefix("<!doctype html>"))
    return [svg for figure in root.iter("figure") for svg in figure.iter("svg")]


def texts(svg: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in svg.iter("text")]


def gains_of_primary(table: str) -> str:
    return table.split("<tr")[2]


def test_a_gain_is_better_for_every_metric_and_the_check_has_its_bounds() -> None:
    for case in ("two classes", "regression"):
        labels, verdict, scored = evaluated(case)
        html = report.render(verdict, labels, scored)
        table = html.partition("<h2>What changed from champion 7</h2>")[2].partition("</table>")[0]
        rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in table.split("<tr")[2:]]
        gains = {row[0]: row[3] for row in rows if len(row) > 1}
        meanings = {row[0] for row in rows if len(row) == 1}
        assert meanings == {escaped(meaning(name)) for name in scored["model"].measured}
        model = scored["model"]
        labels_of = {escaped(short(model.label(name), 60)) for name in model.measured}
        assert set(gains) == labels_of
        assert any("average_precision of " in name for name in gains) is bool(labels)
        assert next(iter(gains)) == verdict.primary_metric
        assert gains.pop("mean_error", "–") == "–"  # more or less of it is not better
        assert all(gain.startswith("+") for name, gain in gains.items() if name != "ece")
        check = next(one for one in verdict.checks if one.name == "champion")
        interval = " to ".join(map(number, check.interval))
        assert f'<td class="whole">{interval}</td>' in html
        # The table and the plot show the bounds by which the gate decides.
        assert f'<div class="range">{interval}</div>' in gains_of_primary(table)
        value_plot, gain_plot = drawings(html)[:2]
        assert texts(gain_plot).count("no gain") == (1 if labels else 2) + bool(labels)
        assert any(interval in text for text in texts(gain_plot))
        shown = [text for text in texts(value_plot) if text in ("model", "champion 7")]
        assert shown == ["model", "champion 7"]


@pytest.mark.parametrize("case", CASES)
def test_page_and_metadata_are_finite_and_small(case: str) -> None:
    labels, verdict, scored = evaluated(case)
    html = report.render(verdict, labels, scored)  # test_pages.py has its form
    assert "nan" not in html.lower() and all(escaped(reason) in html for reason in verdict.reasons)
    predictions = scored["model"].predictions
    metrics, classification = dsl.Metrics(), dsl.ClassificationMetrics()
    for name, value in kfp_metrics(scored).items():
        metrics.log_metric(name, value)
    if found := confusion(scored["model"], list(labels)):
        classification.log_confusion_matrix(*found)
    if curve := roc(scored["model"]):
        classification.log_roc_curve(*curve)
    text = json.dumps([metrics.metadata, classification.metadata], allow_nan=False)
    assert len(text) < 32 * 1024
    assert found is None or len(set(found[0])) == len(found[0])
    by_class = [it for it in scored["model"].class_metrics.values() if math.isfinite(it.value)]
    kinds = ("precision/", "recall/", "f1/")
    assert sum(name.startswith(kinds) for name in metrics.metadata) == len(by_class)
    assert (curve is not None) is (case == "two classes")
    assert metrics.metadata["test_rows"] == predictions.rows
    assert documents.read(ModelVerdict, verdict.to_bytes()) == verdict
    assert verdict.blessed is False  # the threshold of the other task


def test_the_verdict_is_a_sentence_with_its_reason_or_a_list_of_reasons() -> None:
    labels, verdict, scored = evaluated("two classes")
    for reasons in (("one reason",), ("a reason", "another reason")):
        html = report.render(replace(verdict, reasons=reasons), labels, scored)
        box = html.partition('<div class="verdict bad">')[2].partition("</div>")[0]
        outcome = box.partition('class="outcome">')[2].partition("</p>")[0]
        assert "not blessed" in outcome
        listed = re.findall(r"<li>(.*?)</li>", box)
        assert listed == (list(reasons) if len(reasons) > 1 else [])
        assert len(reasons) > 1 or reasons[0] in outcome
        assert "<dfn>Not blessed</dfn>" in box
        assert "<dfn>Mode superior</dfn>" in html


def test_a_threshold_of_the_primary_metric_is_a_line_of_its_plot() -> None:
    labels, predictions, baseline = classes(2)
    scored = {
        name: Measures(part, list(labels))
        for name, part in (("model", predictions), ("baseline", baseline))
    }
    gate = {"thresholds": {"auc": {"min": 0.875}}}
    decision = decide(parse_gate(gate), scored["model"], scored["baseline"], None)
    judged = EvaluatedModel("m", "s3://b/m", "r1", "m", "w", "s3://b/d", "d", "s", gate)
    html = report.render(build_verdict(decision, judged, scored, None, None), labels, scored)
    value_plot, gain_plot = drawings(html)[:2]
    assert "min 0.875" in texts(value_plot) and "baseline" in texts(value_plot)
    # A guess that names each class as often as the model is the reference here, as in the gate.
    assert decision.blessed and "<dfn>Blessed</dfn>" in html
    assert not [line for line in gain_plot.iter("path") if line.get("class") == "line bad"]


def test_numbers_of_the_gate_may_be_strings() -> None:
    """preflight accepts them, and the report multiplied one."""
    labels, verdict, scored = evaluated("two classes")
    gate = {"mode": "non_inferior", "confidence": "0.99", "margin": "0.0100001"}
    html = report.render(replace(verdict, gate=gate), labels, scored)
    assert "99% bound" in html and "0.0100001" in html


def test_a_check_that_rounding_would_pass_has_more_digits() -> None:
    labels, verdict, scored = evaluated("two classes")
    checks = [
        Check("threshold", False, "too low", "accuracy", 0.99995, threshold={"min": limit})
        for limit in (1.0, 0.9999999)
    ]
    html = report.render(replace(verdict, checks=tuple(checks)), labels, scored)
    assert html.count("<td>0.99995</td>") == 2
    assert "<td>min 1</td>" in html and "<td>min 0.9999999</td>" in html


def test_every_metric_has_an_explanation() -> None:
    for metric in (*CLASSIFICATION, *REGRESSION, *PER_CLASS, "top_5_accuracy", "recall/a/b"):
        assert meaning(metric)
    assert not meaning("own/cost") and "7" in meaning("top_7_accuracy")


@pytest.mark.parametrize(("groups", "counts"), [(120, ["120"]), (0, [])])
def test_rows_of_one_group_count_as_one(groups: int, counts: list[str]) -> None:
    """A dataset of an earlier version has no groups, but the column."""
    labels, verdict, scored = evaluated("two classes")
    predictions = scored["model"].predictions
    if groups:
        numbers = (np.arange(predictions.rows) % groups).astype(np.uint64)
        scored["model"] = Measures(replace(predictions, groups=numbers), list(labels))
    html = report.render(replace(verdict, grouped_by="patient"), labels, scored)
    assert "same patient" in html
    assert re.findall(r"([\d,]+) groups", html) == counts
    assert ("independent" in html) is (not groups)


def test_slices_are_bars_on_one_axis() -> None:
    labels, verdict, scored = evaluated("two classes")
    values = {"half": (0.5, 0.6), "whole": (1.0, None), "unknown": (None, None)}
    slices = tuple(
        VerdictSlice(
            name=name,
            column="city",
            rows=300,
            state="insufficient" if value is None else "pass",
            metric="auc",
            value=value,
            interval=(None, None) if value is None else (value - 0.1, min(value + 0.1, 1.0)),
            champion=champion,
            gain=None,
            chance=None,
            thresholds={},
        )
        for name, (value, champion) in values.items()
    )
    html = report.render(replace(verdict, slices=slices), labels, scored)
    table = html.partition("<h2>Slices")[2].partition("</table>")[0]
    bars = [re.findall(r"<(rect|path|line) ", svg) for svg in re.findall(r"<svg.*?</svg>", table)]
    assert bars == [["rect", "path", "line"], ["rect", "path"]]
    half, whole = (float(width) for width in re.findall(r'<rect [^>]*?width="([\d.]+)"', table))
    assert half == pytest.approx(whole / 2)


def test_metrics_of_ones_own_have_values_and_no_gain() -> None:
    labels, verdict, scored = evaluated("two classes")
    for who, value in (("model", 12.5), ("champion 7", 13.25), ("baseline", math.nan)):
        scored[who].measured["own/cost"] = Measured(value, math.nan, math.nan)
    html = report.render(verdict, labels, scored)
    row = html.partition("<td>own/cost</td>")[2].partition("</tr>")[0]
    assert "12.5000" in row and "13.2500" in row
    assert "+" not in row  # whether more of it is better is not known


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.97304, "0.9730"),
        (1.0, "1.0000"),
        (0.0, "0.0000"),
        (0.00123456, "0.001235"),
        (-42.123456, "-42.1235"),
        (1411.0, "1,411"),
        (1411.26, "1,411.3"),
        (-250.0, "-250"),
        (56789.4, "56,789"),
        (3.2e12, "3.2e+12"),
        (None, "–"),
        (math.nan, "–"),
    ],
)
def test_a_metric_as_a_person_reads_it(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(-1e-17, "0.0000"), (1e-17, "0.0000"), (0.0, "0.0000"), (-0.01, "-0.0100"), (0.01, "+0.0100")],
)
def test_a_difference_that_rounds_to_zero_has_no_sign(value: float, text: str) -> None:
    assert difference(value, 0.6078) == text
