"""How progress names who is slow, and where the time went."""

import numpy as np
import pytest

from kfp_tfjob.trainer.pace import Pace, StepTimes, TimeSplit


def test_the_slowest_is_who_does_not_wait_for_the_others():
    pace = Pace(3)
    for _ in range(2):
        pace.add([StepTimes(1.0, 0.1, 0.6), StepTimes(1.0, 0.0, 0.5), StepTimes(1.0, 0.2, 0.0)])
    figures = pace.figures()
    assert figures["data_share"] == 0.1
    assert figures["slowest"]["replica"] == "worker 1"
    assert figures["slowest"]["slower"] == pytest.approx(1 / 0.45 - 1, abs=1e-3)
    pace.clear()
    assert pace.figures() == {"data_share": 0.0, "slowest": None}


def test_who_is_alone_is_not_slow():
    pace = Pace(1)
    pace.add([StepTimes(2.0, 1.0, 0.0)])
    assert pace.figures() == {"data_share": 0.5, "slowest": None}


def test_a_run_travels_as_whole_numbers():
    run = StepTimes(1.5, 0.25, 1e-6)
    assert StepTimes.from_words(run.to_words()) == run
    assert StepTimes(1e9).to_words()[0] == np.iinfo(np.int32).max


def test_the_parts_of_the_time_make_the_whole():
    time = TimeSplit()
    with time.spent_on("checkpoint"):
        pass
    time.seconds |= {"start": 2.0, "data": 1.0, "checkpoint": 0.5, "communication": 3.0}
    split = time.all(10.0, start=4.0, export=1.0)
    assert split == {
        "start": 6.0,
        "data": 1.0,
        "communication": 3.0,
        "checkpoint": 0.5,
        "callbacks": 0.0,
        "compute": 3.5,
        "export": 1.0,
    }
    assert sum(split.values()) == 15.0
