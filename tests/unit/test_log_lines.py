"""Lines with times, and streams that are read again: each line once, whatever the clock does."""

from hypothesis import given
from hypothesis import strategies as st

from kfp_tfjob.cluster.follower import Follower
from kfp_tfjob.cluster.log_lines import Continued, LogLine, Position, cut, stamp_of


def stamp(tenths: int) -> str:
    return stamp_of(1_767_225_600 + tenths / 10)


def test_the_stamp_and_the_text_of_a_line():
    assert cut(b"2026-01-01T10:00:00.123456789Z hello  there\r") == (
        "2026-01-01T10:00:00.123456789Z",
        "hello  there",
    )
    assert cut(b"2026-01-01T10:00:00.12Z x") == ("2026-01-01T10:00:00.120000000Z", "x")
    assert cut(b"2026-01-01T10:00:01Z ") == ("2026-01-01T10:00:01.000000000Z", "")
    assert cut(b"2026-01-01T10:00:01.5+05:30 y") == ("2026-01-01T04:30:01.500000000Z", "y")
    assert cut(b"2026-01-01T10:00:01.5-01:00 y")[0] == "2026-01-01T11:00:01.500000000Z"


def test_a_message_of_the_kubelet_has_no_stamp():
    for said in (b"failed to open log", b"unable to retrieve container logs", b"", b"a T b"):
        assert cut(said) == ("", said.decode())
    assert cut(b"2026-13-01T10:00:01Z x")[0] == ""


class _Lines:
    """A back end that has the lines of one job and nothing else."""

    def logs(self, _: str) -> list[LogLine]:
        gone = "unable to retrieve container logs for containerd://d67772"
        return [LogLine("chief-0", "u", stamp(0), "step 1"), LogLine("chief-0", "u", "", gone)]


def test_the_last_lines_of_a_container_are_its_own():
    """The kubelet says that a container is gone; that is no line of the container."""
    follower = Follower(_Lines(), "job")
    follower.start()
    follower.finish(10)
    assert follower.last_lines("chief-0", 5) == ["step 1"]


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(-3, 3)), max_size=60),
    st.lists(st.integers(0, 60), min_size=1, max_size=4),
)
def test_a_stream_that_breaks_gives_every_line_once(times, breaks):
    """Times are almost ordered, equal times occur, and a reader is cut off anywhere."""
    lines = [stamp(max(at + late, 0)) for at, late in sorted(times)]
    position, got = Position(), []
    for most in [*breaks, len(lines)]:
        again = Continued(position)
        sent = [one for one in enumerate(lines) if one[1] >= position.since[:19]]
        for index, at in sent[: most if most < len(lines) else None]:
            if again.is_new(at):
                position.add(at)
                got.append(index)
    assert got == list(range(len(lines)))


def test_lines_that_the_node_has_removed_hide_no_new_ones():
    left = Position()
    for tenths in (1, 2, 3, 4):
        left.add(stamp(tenths))
    continued = Continued(left)
    assert [continued.is_new(stamp(tenths)) for tenths in (5, 6)] == [True, True]
