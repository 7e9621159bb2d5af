"""Which ends of a trainer are worth another start, and which are a crash loop."""

import pytest

from kfp_tfjob.supervisor.environment import Environment
from kfp_tfjob.supervisor.restarts import Decision, Restarts

KILLED, LOST, NO_PEER = 137, 138, 142


def decide(restarts: Restarts, code: int, done: int = 0, tried: int = 0) -> Decision:
    return restarts.decide(code, done, tried, patience=60)


@pytest.mark.parametrize("code", [KILLED, 134, 139, LOST, NO_PEER])
def test_what_the_infrastructure_did_is_tried_again_at_once(code: int) -> None:
    found = decide(Restarts(Environment(max_restarts=1)), code)
    assert (found.again, found.pause) == (True, 0)


@pytest.mark.parametrize("code", [1, 2, 3, 4, 5, 77, 143, 145])
def test_what_another_start_does_not_change_is_final(code: int) -> None:
    assert decide(Restarts(Environment(max_restarts=9)), code) == Decision(False, code)


def test_restarts_are_bounded_whatever_the_progress() -> None:
    restarts = Restarts(Environment(max_restarts=3))
    steps = [100, 200, 300, 400]
    assert [decide(restarts, KILLED, at, at + 10).again for at in steps] == [True] * 3 + [False]
    final = decide(restarts, LOST, 500, 510)
    assert final.code == LOST and final.reason.endswith("after 3 restarts")


@pytest.mark.parametrize(
    "lives",
    [
        [(0, 0), (0, 0), (0, 0)],  # before the first step
        [(0, 1), (0, 1), (0, 1)],
        [(100, 160), (138, 170), (90, 151)],  # step 151 from three checkpoints
        [(100, 160), (0, 0), (0, 0)],  # it does not even come back to where it was
    ],
)
def test_the_third_death_without_progress_is_permanent(lives: list[tuple[int, int]]) -> None:
    restarts = Restarts(Environment(max_restarts=99))
    found = [decide(restarts, KILLED, *steps) for steps in lives]
    assert [item.again for item in found] == [True, True, False]
    assert found[-1].code == 1
    assert "SIGKILL" in found[-1].reason and "3 times" in found[-1].reason


def test_progress_makes_earlier_deaths_forgotten() -> None:
    restarts = Restarts(Environment(max_restarts=99))
    for at in range(0, 5000, 100):  # each life passes the steps in which the last one died
        found = decide(restarts, KILLED, at, at + 60)
        assert (found.again, found.pause) == (True, 0)


def test_who_only_loses_its_peers_is_no_crash_loop_but_waits_longer_each_time() -> None:
    restarts = Restarts(Environment(max_restarts=12))
    pauses = [decide(restarts, LOST, 10, 20).pause for _ in range(12)]
    assert pauses[0] == 0
    for at, pause in enumerate(pauses[1:]):
        assert min(2**at, 30) / 2 <= pause <= min(2**at, 30)
    final = decide(restarts, LOST, 10, 20)
    assert final.code == LOST and final.reason.endswith("after 12 restarts")


def test_a_port_that_is_taken_is_tried_as_long_as_the_deadline_allows() -> None:
    restarts = Restarts(Environment(max_restarts=9))
    assert restarts.decide(NO_PEER, 0, 0, patience=1).again
    assert restarts.decide(NO_PEER, 0, 0, patience=0) == Decision(False, NO_PEER)
