"""Many calls at once: all of them, in few threads, and an end when the caller asks for it."""

import itertools
import threading
from contextlib import closing

import pytest

from kfp_tfjob.uploader.parallel import each, in_order, workers_for


def test_every_item_comes_back_with_how_it_ended():
    def call(number: int) -> int:
        if number % 10 == 7:
            raise ValueError(number)
        if number == 3:
            raise StopIteration  # ends neither the worker nor the others
        return number * 2

    found = dict(each(call, range(100), 4))

    assert sorted(found) == list(range(100))
    worked = {number: ended.result() for number, ended in found.items() if not ended.error}
    assert worked == {n: n * 2 for n in range(100) if n % 10 != 7 and n != 3}
    with pytest.raises(ValueError, match="17"):
        found[17].result()


def test_no_more_threads_than_asked_for():
    names, everybody = set(), threading.Barrier(3)

    def call(number: int) -> None:
        names.add(threading.current_thread().name)
        if number < 3:
            everybody.wait(300)  # so that one quick thread does not do it all

    assert len(list(each(call, range(30), 3))) == 30
    assert len(names) == 3


def test_a_caller_that_leaves_stops_the_rest():
    before = set(threading.enumerate())  # some of which are from other tests, and end
    calls = each(str, itertools.count(), 2)
    assert next(calls)[1].result().isdecimal()
    calls.close()
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize(("latency", "workers"), [(0.0, 8), (0.010, 20), (3.0, 32)])
def test_a_store_that_is_far_away_gets_more_workers(latency: float, workers: int):
    assert workers_for(latency) == workers


def test_outcomes_in_order_are_read_few_ahead():
    called: list[int] = []

    def call(number: int) -> int:
        called.append(number)
        if number == 3:
            raise ValueError("three")
        return number * 10

    found = list(in_order(call, range(100)))
    assert [item for item, _ in found] == list(range(100))
    assert [outcome.value for _, outcome in found[:5]] == [0, 10, 20, None, 40]
    assert isinstance(found[3][1].error, ValueError) and len(called) == 100
    for wanted, paid in ((1, 1), (2, 3), (4, 7), (10, 15)):  # at most twice as many
        called.clear()
        with closing(in_order(call, range(1000))) as outcomes:
            for _ in range(wanted):
                next(outcomes)
        assert wanted <= len(called) <= paid
