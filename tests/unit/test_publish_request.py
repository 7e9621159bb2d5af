"""The example of a request that every version has, and the card that shows how to send it."""

import base64
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from kfp_tfjob.components.publish.card import render, request
from kfp_tfjob.features.imputation import Missing
from kfp_tfjob.features.statistics import StatisticsDocument
from kfp_tfjob.features.types.date import Date
from kfp_tfjob.features.types.number import NumberStatistics
from kfp_tfjob.registry.champion import Champion
from tests.typed_schema import statistics_of, typed

CHAMPION = Champion(1, 1, "s3://b/models/m/versions/1", "r", "w", "s", "d", {}, "s3://b/v.json")
VERDICT = SimpleNamespace(
    model_name="m", blessed=True, reasons=[], confidence=0.95, intervals={}, rows=1
)
NUMBERS = typed({"features": {"a": "float32", "b c": "float32"}})
SIZE = {"height": 2, "width": 2, "channels": 1}
PICTURE = typed({"features": {"picture": "picture"}, "picture": SIZE})


@pytest.mark.parametrize(
    ("schema", "statistics", "arguments", "row"),
    [
        (
            NUMBERS,
            {"features": {"a": {"mean": 1 / 3, "std": 1}, "b c": {"mean": float("nan"), "std": 1}}},
            {"a": "a", "b c": "b_c"},
            {"a": 0.333333, "b_c": 0.0},
        ),
        (PICTURE, {}, {"picture": "picture"}, None),
    ],
)
def test_a_request_of_one_row(schema, statistics, arguments, row):
    statistics = statistics_of(statistics)
    body = json.loads(request(schema, statistics, arguments))
    (found,) = body["instances"]
    assert body["signature_name"] == "serving_default"
    if row is None:
        assert base64.b64decode(found["picture"]["b64"]).startswith(b"\x89PNG")
    else:
        assert found == row


def test_the_card_says_how_to_send_it():
    card = render(CHAMPION, VERDICT, True, "")
    assert "curl --data-binary @request.json" in card and "s3://b/models/m/serving" in card
    assert all(not part or part.startswith("\n") for part in card.split("\n```\n")[1::2])
    assert "```" not in render(CHAMPION, VERDICT, False, "")
    assert "SUSPICIOUS" not in card
    told = render(CHAMPION, VERDICT, True, "'a_b' tells the label")
    assert "\n**SUSPICIOUS:** 'a_b' tells the label.\n" in told.replace("`", "'").replace("''", "'")


def test_the_card_names_the_class_of_an_average_precision():
    """Of `bad` and `good`, it is that of `good`, which a reader would not guess."""
    champion = replace(CHAMPION, metrics={"auc": 0.5, "average_precision": 0.93})
    for classes, label in (
        (("bad", "good"), "average_precision of good"),
        ("abc", None),
        ((), None),
    ):
        card = render(champion, VERDICT, False, "", classes)
        assert f"| `{label or 'average_precision'}` | 0.93 |" in card and "| `auc` |" in card


def test_the_card_tells_whether_the_gate_blessed_the_model():
    """A user may promote a model whose verdict has reasons against it."""
    for blessed in (True, False):
        verdict = SimpleNamespace(**vars(VERDICT) | {"blessed": blessed, "reasons": ["too bad"]})
        card = render(CHAMPION, verdict, False, "")
        (before,) = re.findall(r"\n\n([^\n]+)\n\ntoo bad\n", card)
        assert ("did not bless" in before) is not blessed


def test_a_model_with_other_columns_has_none():
    assert request(NUMBERS, StatisticsDocument(), {"c": "c"}) == ""
    column = NumberStatistics(mean=1.0, std=0.0)
    assert request(NUMBERS, StatisticsDocument(features={"a": column}), {}) == ""


@pytest.mark.parametrize("rule", ["fail", "constant"])
def test_its_date_is_one_that_a_server_takes(rule):
    value = None if rule == "fail" else 86_400_000_000
    date = Date("day", Missing(rule, value), origin=0)
    assert Date.read([date.usual()])[1] == []
