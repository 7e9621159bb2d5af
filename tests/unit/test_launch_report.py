"""Progress lines, and the page that is made of them."""

import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from kfp_tfjob.components.launch_tfjob.report import TrainingHistory, curves_html, parse


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
    final |= {"trained_weights_sha256": "a1"}
    found = parse(lines(epoch(1, loss=float("inf"), auc=0.5), final))
    assert (found.final, found.trained_weights_sha256) == ({"auc": 1.0}, "a1")
    assert found.dropped == ("loss", "mae")
    assert found.epochs[0].metrics == {"auc": 0.5}


def test_lines_of_a_foreign_program_do_no_harm():
    assert (
        parse('hello\n[1]\n{"event": "epoch"}\n{"event": 3, "metrics": 4}\n') == TrainingHistory()
    )


def test_the_page_shows_where_attempts_began_and_how_the_chief_spent_its_time() -> None:
    final = {"event": "final", "epoch": 4, "step": 40, "metrics": {"loss": 0.1}}
    final |= {"seconds": {"start": 2.0, "compute": 6.0, "export": 0.0}}
    epochs = [epoch(n, loss=1 / n, accuracy=n / 4, learning_rate=0.1**n) for n in range(1, 5)]
    history = replace(parse(lines(*epochs, final)), resumed={2: 15, 3: 30})
    assert [history.epoch_at(step) for step in (0, 15, 30, 99)] == [0, 1.5, 3, 4]
    page = curves_html(history, "Training")
    root = ElementTree.fromstring(page.removeprefix("<!doctype html>"))
    names = [caption.text for caption in root.iter("figcaption")]
    assert names == ["loss", "learning_rate", "accuracy"]
    for figure in root.iter("figure"):
        texts = [text.text for text in figure.iter("text")]
        assert "attempt 2" in texts and "attempt 3" in texts
        marks = [line for line in figure.iter("line") if line.get("class") == "line dashed c"]
        assert len(marks) == 2 and all(line.get("x1") == line.get("x2") for line in marks)
    (bar,) = root.findall("body/svg")
    widths = [float(rect.get("width", "")) for rect in bar.iter("rect")]
    assert widths[0] == pytest.approx(3 * widths[1], rel=0.05)  # the longest first
    assert len(widths) == 3 and widths[2] == 0
    table = root.findall("body/table")[0]
    cells = [["".join(cell.itertext()) for cell in row] for row in table.findall("tr")[1:]]
    assert cells == [
        ["compute", "6.0 s", "75.0%"],
        ["start", "2.0 s", "25.0%"],
        ["export", "0.0 s", "0.0%"],
    ]


def test_steps_that_are_unknown_give_no_marks() -> None:
    events = [{"event": "epoch", "epoch": n, "metrics": {"loss": 1.0}} for n in (1, 2)]
    history = replace(parse(lines(*events)), resumed={2: 15})
    assert history.epoch_at(15) is None and TrainingHistory().epoch_at(3) is None
    assert ">attempt 2<" not in curves_html(history, "Training")
