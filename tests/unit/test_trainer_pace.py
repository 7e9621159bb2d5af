"""How progress tells where the time went."""

from kfp_tfjob.trainer.pace import TimeSplit


def test_the_parts_of_the_time_make_the_whole():
    time = TimeSplit()
    with time.spent_on("checkpoint"):
        pass
    time.seconds |= {"start": 2.0, "data": 1.0, "checkpoint": 0.5}
    split = time.all(10.0, start=4.0, export=1.0)
    assert split == {
        "start": 6.0,
        "data": 1.0,
        "checkpoint": 0.5,
        "callbacks": 0.0,
        "compute": 6.5,
        "export": 1.0,
    }
    assert sum(split.values()) == 15.0
