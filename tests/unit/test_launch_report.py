"""Progress lines, and the page that is made of them."""

import json
from html.parser import HTMLParser
from xml.etree import ElementTree

from kfp_tfjob.components.launch_tfjob.report.pages import curves_html
from kfp_tfjob.components.launch_tfjob.report.progress import TrainingHistory, parse


def lines(*events: dict) -> str:
    return "".join(json.dumps(event) + "\n" for event in events)


def epoch(number: int, **metrics: float) -> dict:
    return {"event": "epoch", "epoch": number, "step": number * 10, "metrics": metrics}


def test_a_repeated_epoch_counts_as_it_was_last():
    text = lines(epoch(1, loss=1.0), epoch(2, loss=0.9), epoch(2, loss=0.5))
    found = parse(text + '{"event": "epoch", "ep')
    assert [(item.number, item.metrics["loss"]) for item in found.epochs] == [(1, 1.0), (2, 0.5)]
    assert found.final == {"loss": 0.5}


def test_values_that_are_not_finite_are_dropped_and_named():
    # null is what the trainer writes; a program of one's own may write NaN.
    metrics = {"loss": None, "mae": float("nan"), "auc": 1}
    final = {"event": "final", "epoch": 1, "step": 1, "metrics": metrics}
    found = parse(lines(epoch(1, loss=float("inf"), auc=0.5), final))
    assert found.final == {"auc": 1.0}
    assert found.dropped == ("loss", "mae")
    assert found.epochs[0].metrics == {"auc": 0.5}


def test_lines_of_a_foreign_program_do_no_harm():
    assert (
        parse('hello\n[1]\n{"event": "epoch"}\n{"event": 3, "metrics": 4}\n') == TrainingHistory()
    )


def _svgs(page: str) -> list[ElementTree.Element]:
    found = []
    for part in page.split("<svg")[1:]:
        found.append(ElementTree.fromstring("<svg" + part.split("</svg>")[0] + "</svg>"))
    return found


def test_the_page_needs_nothing_from_outside_and_shows_every_metric():
    events = [epoch(n, loss=1 / n, val_loss=2 / n, accuracy=1 - 1 / n) for n in range(1, 8)]
    final = {"event": "final", "epoch": 7, "step": 70, "metrics": {"loss": 0.125}}
    final["seconds"] = {"start": 12.34, "data": 1, "compute": "?"}
    page = curves_html(parse(lines(*events, final)), "Training of <digits>")
    HTMLParser().feed(page)
    assert "http:" not in page and "https:" not in page and "<script" not in page
    assert "Training of &lt;digits&gt;" in page and "0.125" in page
    assert "<tr><td>data</td><td>1.0 s</td></tr>\n<tr><td>start</td><td>12.3 s</td></tr>" in page
    svgs = _svgs(page)
    assert [svg.get("aria-label") for svg in svgs] == ["loss by epoch", "accuracy by epoch"]
    assert [len(svg.findall("polyline")) for svg in svgs] == [2, 1]
    width, height = float(svgs[0].get("width")), float(svgs[0].get("height"))
    legend = max(
        float(mark.get("y")) for mark in svgs[0].findall("text") if mark.text == "training"
    )
    for line in svgs[0].findall("polyline"):
        points = [tuple(map(float, point.split(","))) for point in line.get("points").split()]
        assert len(points) == 7
        assert all(0 <= x <= width and legend < y <= height for x, y in points)
        # The loss falls, and down is up in SVG.
        assert [y for _, y in points] == sorted(y for _, y in points)


def test_one_epoch_and_none_make_a_page_too():
    assert _svgs(curves_html(parse(lines(epoch(1, loss=0.0))), "t"))[0].find("circle") is not None
    assert "no epochs" in curves_html(TrainingHistory(), "t")
