"""Progress lines, and the page that is made of them."""

import json

from kfp_tfjob.components.launch_tfjob.report import TrainingHistory, parse


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
