"""Every page is one valid, small file that fetches nothing, and text on it stays text."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from jinja2 import DictLoader
from markdown_it import MarkdownIt
from markupsafe import Markup

from kfp_tfjob.checks.finding import warning
from kfp_tfjob.common.errors import Problem
from kfp_tfjob.common.escaping import html, prose
from kfp_tfjob.components.evaluate import report as evaluation
from kfp_tfjob.components.evaluate.wrong_images import WrongImage, WrongImages
from kfp_tfjob.components.launch_tfjob.report import Epoch, TrainingHistory, curves_html, job_html
from kfp_tfjob.components.launch_tfjob.task import TaskReport
from kfp_tfjob.components.prepare_data import report as dataset
from kfp_tfjob.components.prepare_data.data_validation import Comparison, Validation
from kfp_tfjob.components.prepare_data.distributions import ColumnRows, DistributionsDocument, Drift
from kfp_tfjob.components.prepare_data.leaking_columns import Suspicious
from kfp_tfjob.components.prepare_data.reference import Reference
from kfp_tfjob.features.statistics import LabelStatistics, StatisticsDocument
from kfp_tfjob.pages import template
from kfp_tfjob.registry.verdict_record import VerdictSlice
from tests.typed_schema import statistics_of, typed
from tests.unit.test_escaping import PROPERTY, TEXT, is_safe
from tests.unit.test_evaluate_report import CASES, evaluated

HOSTILE = "</title><script src='http://x/y.js'>\x1b[2J\u202e\"' onload=x {{ 7 * 7 }}"
ELEMENTS = {
    *("html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "br"),
    *("ul", "li", "span", "div"),
    *("table", "tr", "th", "td", "code", "pre", "a", "figure", "figcaption", "dfn", "img"),
    *("svg", "text", "rect", "line", "polyline", "circle", "path"),
}
ATTRIBUTES = {"class", "href", "lang", "charset", "name", "content", "colspan", "http-equiv"}
ROOT = Path(__file__).parents[2]


NUMBERS = dict(count=1, mean=1.5, std=0.0, min=-1e300, max=2, zeros=5)
HISTOGRAM = {"histogram": [1] * 20}
_HEAD = {"count": 9, "missing": 1_234}
_TOP = [[f"{HOSTILE} {at}", 10 - at] for at in range(10)]
_MISSING = {"missing": {"rule": "constant", "value": 1}}
_DATE = _MISSING | {"origin": 0}
# The type in the schema, what the encoding learned, and the statistics of a column of every kind.
KINDS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("float32", _MISSING, _HEAD | {"kind": "number"} | NUMBERS | HISTOGRAM),
    (
        "category",
        {"dictionary": [HOSTILE], "vocabulary": []},
        _HEAD | {"kind": "category", "distinct": 99, "vocabulary": 9, "rare": 2, "top": _TOP},
    ),
    ("boolean", _MISSING, _HEAD | {"kind": "boolean", "true": 4, "false": 5}),
    ("date", _DATE, _HEAD | {"kind": "date", "min": "2015-01-02", "max": "2024-12-28"} | HISTOGRAM),
    ("date", _DATE, {"kind": "date", "count": 0, "min": None, "max": None, "histogram": []}),
    ("text", {"bins": 7}, _HEAD | {"kind": "text", "bins": 7}),
]


def data_page(numbers: int, classes: int, judged: bool = False) -> str:
    """Return the page of a dataset with columns of every kind in which every name is hostile.

    With `judged`, it is compared with another one.
    """
    columns = {f"{HOSTILE} {at}": it for at, it in enumerate([KINDS[0]] * numbers + KINDS)}
    names = [f"{HOSTILE} {at}" for at in range(classes)]
    splits = {"train": {"rows": 80}, "validation": {"rows": 10}, "test": {"rows": 10}}
    label: dict[str, Any] = dict.fromkeys(splits, NUMBERS) | {"histogram": [0, 3, 1]}
    if classes:
        label = {"counts": {split: dict.fromkeys(names, 7) for split in splits}}
    schema = {
        "task": "classification" if classes else "regression",
        "label": {"name": HOSTILE, "classes": names or None},
        "features": [{"name": name, "type": kind} for name, (kind, _, _) in columns.items()],
        "coding": [learned for _, learned, _ in columns.values()],
        "splits": splits,
        "split": {"fractions": {"train": 0.8, "validation": 0.1, "test": 0.1}},
    }
    statistics = {
        "rows": {"read": 100},
        "bad_rows": {"dropped": 0},
        "duplicates": 0,
        "warnings": [HOSTILE],
        "label": label,
        "features": {name: it for name, (_, _, it) in columns.items()},
    }
    validation = judgement(list(columns), classes) if judged else Validation()
    return dataset.render(
        typed(schema), statistics_of(statistics), reused=bool(classes), validation=validation
    )


def judgement(names: list[str], classes: int) -> Validation:
    """Return the validation of a dataset in which everything is hostile and everything is wrong."""
    figures = [10**6 + 977 * i for i in range(20)]
    counts = {"train": figures, "validation": figures, "test": figures[::-1]}
    gaps, edges = dict.fromkeys(counts, 0), tuple(range(19))
    one = ColumnRows(name="", kind="number", edges=edges, gaps=gaps, counts=counts)
    columns = DistributionsDocument(columns=tuple(replace(one, name=name) for name in names))
    label = LabelStatistics(counts={"train": {HOSTILE: 3}} if classes else None)
    before = StatisticsDocument(label=label)
    reference = Reference(HOSTILE, 3, HOSTILE, "d" * 32, {}, before, columns)
    problem = Problem(HOSTILE, received=HOSTILE, expected=HOSTILE, fix=HOSTILE)
    drift = Drift(1.5, 0.1)
    comparison = Comparison(
        reference,
        changes=[problem] * 30,
        beyond=[problem] * 30,
        gaps={name: (0.1, 0.5) for name in names},
        drift=dict.fromkeys(names, drift),
        label=drift,
        now=columns,
        obstacle=HOSTILE,
    )
    suspicious = [Suspicious(name, "AUC", 0.999) for name in names]
    return Validation(columns, comparison, "", suspicious, 0.25)


def evaluation_page(case: str, nasty: bool = False) -> str:
    """Return the page of an evaluation; with `nasty`, everything in it is hostile."""
    labels, verdict, scored = evaluated(case)
    slices = tuple(
        VerdictSlice(
            name=HOSTILE,
            column=HOSTILE,
            rows=9,
            state=state,
            metric=HOSTILE,
            value=value,
            interval=(None, None),
            champion=value,
            gain=None,
            chance=None,
            thresholds={HOSTILE: 0.5},
        )
        for state, value in (("fail", 0.5), ("pass", 0.7), ("insufficient", None)) * 40
    )
    if not nasty:
        return evaluation.render(verdict, labels, scored)
    image = WrongImage(Markup(f"data:image/jpeg;base64,{'/9j/' * 1000}"), HOSTILE, HOSTILE, 0.9)
    verdict = replace(verdict, reasons=(HOSTILE,), slices=slices)
    return evaluation.render(verdict, labels, scored, HOSTILE, WrongImages((image,) * 12, 1_234))


def training_page() -> str:
    metrics = {n: {HOSTILE: 1 / n, f"val_{HOSTILE}": 1e308 * (-1) ** n} for n in (1, 2, 9)}
    epochs = tuple(Epoch(n, values, 10 * n) for n, values in metrics.items())
    seconds = {f"{HOSTILE} {n}": float(n) for n in range(12)}
    resumed = {2: 0, 3: 15, 4: 10**6}
    history = TrainingHistory(epochs, {HOSTILE: 0.5}, seconds, dropped=(HOSTILE,), resumed=resumed)
    return curves_html(history, HOSTILE)


PAGES = {
    **{f"evaluation of {case}": lambda case=case: evaluation_page(case) for case in CASES},
    "evaluation of hostile names": lambda: evaluation_page("ten classes", nasty=True),
    "dataset, classification": lambda: data_page(250, 120),
    "dataset, regression": lambda: data_page(3, 0),
    "dataset, judged": lambda: data_page(250, 120, judged=True),
    "dataset, judged, two classes": lambda: data_page(3, 2, judged=True),
    "dataset, judged, regression": lambda: data_page(3, 0, judged=True),
    "training": training_page,
    "training without epochs": lambda: curves_html(TrainingHistory(), HOSTILE),
    "job": lambda: job_html(
        {"kind": "TFJob", "metadata": {"name": HOSTILE}, "spec": [HOSTILE] * 3},
        HOSTILE,
        TaskReport({"env": {HOSTILE: HOSTILE}}, [HOSTILE], [warning(HOSTILE)]),
    ),
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_one_small_valid_file_that_fetches_nothing(name: str) -> None:
    page = PAGES[name]()
    assert len(page.encode()) < 1_000_000
    assert page.startswith("<!doctype html>\n")
    root = ElementTree.fromstring(page.removeprefix("<!doctype html>"))  # every element is closed
    assert [part.tag for part in root] == ["head", "body"]
    assert [len(root.findall(path)) for path in ("head/title", "head/style", "body/h1")] == [1] * 3
    plots = {part for svg in root.iter("svg") for part in svg.iter()}
    for part in root.iter():
        assert part.tag in ELEMENTS
        if part.tag == "img":
            assert set(part.attrib) == {"src", "alt"} and is_safe(part.get("alt"))
            assert re.fullmatch(r"data:image/jpeg;base64,[A-Za-z0-9+/=]{4000}", part.get("src"))
            continue
        assert part in plots or set(part.attrib) <= ATTRIBUTES
        assert not any(key.startswith("on") or key in ("src", "style") for key in part.attrib)
        assert not any("url(" in value for value in part.attrib.values())
        assert part.tag == "style" or is_safe((part.text or "").replace("\n", ""))
        assert is_safe(part.get("aria-label", ""))
        if part.tag == "a":
            assert re.fullmatch(r"[a-z-]+\.(html|md|log)", part.get("href"))
    for row in root.iter("tr"):
        heads = [head.text for head in row.findall("th") if head.text]
        assert len(heads) == len(set(heads)), heads
    (policy,) = (it.get("content") for it in root.iter("meta") if it.get("http-equiv"))
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; ")
    (style,) = root.iter("style")
    assert not re.search(r"url\(|@import|https?:", style.text)
    assert "prefers-color-scheme: dark" in style.text and "@media print" in style.text
    values = [value for part in plots for value in part.attrib.values()]
    assert not re.search(r"\b(nan|inf)\b", " ".join(values))


@PROPERTY
@given(TEXT)
def test_a_template_does_to_text_what_the_project_does_to_text_for_html(text: str) -> None:
    environment = template._ENVIRONMENT
    source = "{% macro m(x) %}{{ x }}{% endmacro %}<p title='{{ t }}'>{{ t }}</p>{{ m(t) }}"
    source += "{{ [t] | join }}"
    shown = environment.from_string(source).render(t=text)
    safe = html(text)
    assert shown == f"<p title='{safe}'>{safe}</p>{safe}{safe}"


def test_text_in_a_markdown_template_is_prose() -> None:
    name = "on_bad_row | <b>*x*"
    source = "{{ name }}\n{{ name | code }}\n{{ row(name | code, 'b') }}\n{{ 1.5 }}"
    environment = template._ENVIRONMENT.overlay(loader=DictLoader({"a.md.j2": source}))
    text = environment.get_template("a.md.j2").render(name=name)
    assert text.split("\n")[0] == prose(name)
    assert "<b>" not in MarkdownIt("commonmark").render(text)
    assert "| `on_bad_row \\| <b>*x*` | b |" in text


def test_templates_do_not_go_around_what_makes_text_safe() -> None:
    """In `a ~ b` Jinja escapes by itself, and only for HTML."""
    found = [path for path in ROOT.rglob("*.j2") if ".venv" not in path.parts]
    assert len(found) >= 6
    for path in found:
        for expression in re.findall(r"{[{%].*?[%}]}", path.read_text(), re.S):
            assert not re.search(r"~|\|\s*safe|Markup|autoescape", expression)
