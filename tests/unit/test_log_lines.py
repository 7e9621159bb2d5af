"""Lines with times."""

from kfp_tfjob.cluster.follower import Follower
from kfp_tfjob.cluster.log_lines import LogLine, cut, stamp_of


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
        return [LogLine(stamp(0), "chief-0", "step 1"), LogLine("", "chief-0", gone)]


def test_the_last_lines_of_a_container_are_its_own():
    """The kubelet says that a container is gone; that is no line of the container."""
    follower = Follower(_Lines(), "job")
    follower.start()
    follower.finish(10)
    assert follower.last_lines("chief-0", 5) == ["step 1"]
