"""When a server tries a champion again that it has refused."""

from types import SimpleNamespace
from unittest import mock

from kfp_tfjob.serving.follower import Follower


def test_the_pauses_double_up_to_an_hour_and_a_newer_champion_is_tried_at_once() -> None:
    store, layout, metrics, loaded = (mock.Mock() for _ in range(4))  # none of them is asked
    loaded.champion.number = 1
    follower = Follower(store, layout, "pets", metrics)
    follower.current = loaded
    pauses = []
    for number in (2, 2, 2, 2, 2, 2, 2, 2, 3, 3):
        follower._refuse(SimpleNamespace(number=number), "it is too large", lambda: 1000.0)
        pauses.append(follower._refused[1] - 1000)
    assert pauses == [60, 120, 240, 480, 960, 1920, 3600, 3600, 60, 120]
