"""The ticks of a schedule are those that the controller of Kubeflow Pipelines computes.

tests/golden/robfig-ticks.json holds the answers of the Go library that the controller uses;
tests/golden/robfig/main.go made it.
"""

import json
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from kfp_tfjob.pipelines.kubeflow.ticks import Cron, Trigger, first, interval
from kfp_tfjob.storage.errors import ConfigurationError

ANSWERS = json.loads((Path(__file__).parents[1] / "golden/robfig-ticks.json").read_text())
FROM = datetime(2026, 3, 27, 22, 15, 30, tzinfo=UTC)  # two days before a change of summer time
NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def said(moments: list[datetime]) -> list[str]:
    return [f"{moment:%Y-%m-%dT%H:%M:%SZ}" for moment in moments]


@pytest.mark.parametrize("zone", list(ANSWERS))
def test_every_expression_gives_the_ticks_of_the_controller(zone: str) -> None:
    wrong = {}
    for text, ticks in ANSWERS[zone].items():
        try:
            found = said(first(Cron.parse(text).after(FROM, ZoneInfo(zone)), 6))
        except ConfigurationError:
            found = None
        if found != ticks:
            wrong[text] = (found, ticks)
    assert wrong == {}
    assert sum(ticks is None for ticks in ANSWERS[zone].values()) > 5  # some are refused by both


@pytest.mark.parametrize(
    ("text", "used"),
    [("0 3 * * *", "0 0 3 * * *"), ("@daily", "0 0 0 * * *"), ("0  0 3 * * ?", "0 0 3 * * ?")],
)
def test_what_people_write_is_understood(text: str, used: str) -> None:
    cron = Cron.parse(text)
    assert cron.text == used
    assert ("seconds first" in cron.note) is (len(text.split()) == 5)


@pytest.mark.parametrize(
    ("text", "problems", "expected"),
    [
        ("0 3 * *", 1, "the wrong number of fields"),
        ("@every 1h", 1, "--every"),
        ("0 0 0 * * 7", 1, "Sunday is 0"),
        ("0 0 0 L * *", 1, "no L, W or #"),
        ("0 60 25 * * *", 2, "the hours of --cron"),
        ("0 0 0 * * MON-FRY", 1, "the day of week"),
    ],
)
def test_a_wrong_expression_names_its_field(text: str, problems: int, expected: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Cron.parse(text)
    assert len(caught.value.problems) == problems and expected in str(caught.value)


@pytest.mark.parametrize(
    ("text", "seconds"), [("900", 900), ("30m", 1800), ("6h", 21600), ("1d", 86400)]
)
def test_intervals(text: str, seconds: int) -> None:
    assert interval(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "1w", "-5", "1.5h"])
def test_wrong_intervals(text: str) -> None:
    with pytest.raises(ConfigurationError):
        interval(text)


DAILY = Cron.parse("0 0 3 * * *")


def days(trigger: Trigger, **known: datetime) -> list[str]:
    created = known.pop("created", NOW)
    found = islice(trigger.ticks(created, NOW, **known), 3)
    return [f"{tick:%d %H:%M}" for tick in found]


def test_missed_ticks_run_one_by_one_or_only_the_newest() -> None:
    start = NOW - 3 * DAY
    assert days(Trigger(DAILY)) == ["23 03:00", "24 03:00", "25 03:00"]
    assert days(Trigger(DAILY, start=start, catch_up=True)) == ["20 03:00", "21 03:00", "22 03:00"]
    assert days(Trigger(DAILY, start=start)) == ["22 03:00", "23 03:00", "24 03:00"]
    last = NOW - DAY
    assert days(Trigger(DAILY, start=start, catch_up=True), last=last)[0] == "22 03:00"


def test_an_end_and_a_start_in_the_future() -> None:
    assert days(Trigger(DAILY, start=NOW + DAY)) == ["24 03:00", "25 03:00", "26 03:00"]
    assert days(Trigger(DAILY, end=NOW + DAY)) == ["23 03:00"]
    assert days(Trigger(DAILY, start=NOW - 3 * DAY, end=NOW - DAY)) == ["21 03:00"]


def test_an_interval_begins_after_its_start_and_never_on_it() -> None:
    hourly = 3600
    assert days(Trigger(seconds=hourly)) == ["22 13:00", "22 14:00", "22 15:00"]
    assert days(Trigger(seconds=hourly, start=NOW + DAY))[0] == "23 13:00"
    start = NOW - timedelta(minutes=150)
    assert days(Trigger(seconds=hourly, start=start, catch_up=True))[:2] == ["22 10:30", "22 11:30"]
    # Without catch-up, the controller takes the present for several missed ticks.
    assert days(Trigger(seconds=hourly, start=start)) == ["22 12:00", "22 13:00", "22 14:00"]
    start = NOW - timedelta(minutes=90)
    assert days(Trigger(seconds=hourly, start=start))[:2] == ["22 11:30", "22 12:30"]
