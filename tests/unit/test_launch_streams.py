"""Logs, watches and answers as an API server sends them, through a real client."""

import json
import threading
import time
from contextlib import suppress
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pytest

from kfp_tfjob.cluster import pod_logs
from kfp_tfjob.cluster.follower import Follower
from kfp_tfjob.cluster.job_watch import JobWatcher
from kfp_tfjob.cluster.kubernetes import KubernetesBackend
from kfp_tfjob.cluster.log_lines import LogLine, cut, last_state, stamp_of
from kfp_tfjob.cluster.pod_logs import PodLogs
from tests.http_server import Handler, serving
from tests.unit.cluster_objects import TFJOB, client_of, manifest, pod
from tests.unit.test_nccl_log import LOGS
from tests.waiting import until

CHIEF = pod("chief-0") | {"spec": {"containers": [{"name": "tensorflow"}]}}
CHIEF["metadata"]["uid"] = "u"
SAID = ["2026-01-01T10:00:00.5Z a step", "2026-01-01T10:00:01.5Z last words"]


class Api(Handler):
    """Sends what there is, and then nothing more for as long as a client listens."""

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        since = query.get("sinceTime", [""])[0][:19]
        lines = [line for line in SAID if line[:19] >= since]
        if "watch" in query:
            watched = self.server.pod if "labelSelector" in query else self.server.job
            lines = [json.dumps({"type": "ADDED", "object": watched})] if watched else []
        elif not self.path.partition("?")[0].endswith("/log"):
            return self.answer({"items": self.server.items})
        elif self.server.refusals:
            self.server.refusals -= 1
            return self.answer({"message": "the kubelet is busy"}, 500)
        else:
            self.server.asked.append(since)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if text := "".join(f"{line}\n" for line in lines).encode():
            self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))
        for piece in self.server.bar:
            time.sleep(0.1)
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.server.ended.wait()
        with suppress(OSError):  # the client may have gone
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = True

    def do_PATCH(self) -> None:
        self.body()
        self.answer({"message": 'admission webhook "policy" denied the request: no'}, 403)

    def do_DELETE(self) -> None:
        self.server.asked.append(f"DELETE {urlsplit(self.path).path}")
        self.body()
        self.answer({})


@pytest.fixture
def server():
    kept = {"ended": threading.Event(), "asked": [], "refusals": 0, "bar": []}
    kept |= {"pod": CHIEF, "job": None, "items": []}
    with serving(Api, **kept) as found:
        yield found
        found.ended.set()


@pytest.fixture
def api(server):
    return client_of(server.url)


def test_a_line_that_comes_again_with_a_new_stream_does_not_break_the_silence(
    monkeypatch, server, api
):
    monkeypatch.setattr(pod_logs, "_SILENCE", 0.2)
    logs = PodLogs(api, lambda: [CHIEF], lambda: False)
    lines = iter(logs)
    assert [next(lines).text, next(lines).text] == ["a step", "last words"]
    until(lambda: server.asked.count("2026-01-01T10:00:01") >= 4)  # 0.2 s after one another
    silence = logs.silence("chief-0")
    logs.close()
    assert silence >= 0.6


def test_a_progress_bar_breaks_the_silence_without_an_end_of_its_line(server, api):
    server.bar = [b"2026-01-01T10:00:02.5Z 0%", *(b"\r%d%%" % at for at in range(1, 15))]
    logs = PodLogs(api, lambda: [CHIEF], lambda: False)
    lines = iter(logs)
    assert [next(lines).text, next(lines).text] == ["a step", "last words"]
    spoke = time.monotonic()
    until(lambda: logs.silence("chief-0") < time.monotonic() - spoke - 0.5)
    logs.close()


def test_the_log_of_a_container_that_has_ended_is_asked_for_again(server, api) -> None:
    """A launcher that starts late finds the pod at its end, and perhaps a kubelet that is busy."""
    over = CHIEF | {"status": CHIEF["status"] | {"phase": "Succeeded"}}
    server.refusals = 2
    server.ended.set()  # a stream ends with its last line
    lines = list(PodLogs(api, lambda: [over], lambda: True))
    assert [line.text for line in lines] == ["a step", "last words"]
    server.refusals = 100  # such a log does not hold up the end of a run
    assert list(PodLogs(api, lambda: [over], lambda: True)) == []


def test_a_pod_of_any_size_is_seen_by_a_watch(server, api):
    server.pod = CHIEF | {"spec": {"containers": [{"env": "x" * 200_000}]}}
    watching = JobWatcher(api, "j")
    until(lambda: watching.pods)
    watching.close()
    assert watching.pods == [server.pod]


def test_only_the_newest_pod_of_a_replica_counts(server, api):
    """A JobSet that Kueue stops and resumes gives its pods new names."""
    old, new = (
        CHIEF
        | {"metadata": CHIEF["metadata"] | {"name": name, "creationTimestamp": f"2026-01-0{day}"}}
        for day, name in enumerate(("j-chief-0-0-abcde", "j-chief-0-0-fghij"), 1)
    )
    server.pod = old
    backend = KubernetesBackend(api)
    until(lambda: backend.pods("j") == [old])  # it was seen before it was deleted
    server.items = [new]
    assert backend.pods("j") == [new]
    backend.close()
    states = iter([[old], [new]])
    follower = Follower(SimpleNamespace(get=lambda _: None, pods=lambda _: next(states)), "j")
    for expected in (old, new):
        follower.poll()
        assert follower.pods == [expected]


def test_a_pod_that_a_queue_deletes_counts_as_missing(server, api):
    server.job = manifest(kind=TFJOB)
    server.job["spec"]["runPolicy"]["suspend"] = True
    watching = JobWatcher(api, "j")
    until(lambda: watching.job and watching.pods)
    watching._take_pod("DELETED", CHIEF)
    assert watching.pods == []
    server.job["spec"]["runPolicy"]["suspend"] = False
    watching._take_job("MODIFIED", server.job)
    watching._take_pod("DELETED", CHIEF)
    watching.close()
    assert watching.pods == [CHIEF]


def test_a_policy_against_annotations_keeps_no_job_from_its_end(server, api):
    backend = KubernetesBackend(api)
    backend.cancel("j", "r", 1)
    assert server.asked == [
        "DELETE /api/v1/namespaces/team-a/pods/j-chief-0",
        "DELETE /api/v1/namespaces/team-a/pods",
        "DELETE /apis/kubeflow.org/v1/namespaces/team-a/tfjobs/j",
    ]


def test_the_stamp_and_the_text_of_a_line():
    stamp = "2026-01-01T10:00:00.123456789Z"
    assert cut(f"{stamp} hello  there\r".encode()) == (stamp, "hello  there")
    assert cut(b"2026-01-01T10:00:00.12Z x") == ("2026-01-01T10:00:00.120000000Z", "x")
    assert cut(b"2026-01-01T10:00:01Z ") == ("2026-01-01T10:00:01.000000000Z", "")
    assert cut(b"2026-01-01T10:00:01.5+05:30 y") == ("2026-01-01T04:30:01.500000000Z", "y")
    assert cut(b"2026-01-01T10:00:01.5-01:00 y")[0] == "2026-01-01T11:00:01.500000000Z"


KERAS = "\r\x1b[1m1/9\x1b[0m 1s/step" + "\x08" * 12 + "\r\x1b[1m9/9\x1b[0m 1s/step"


@pytest.mark.parametrize(
    ("line", "state"),
    [
        (KERAS, "\x1b[1m9/9\x1b[0m 1s/step"),
        (KERAS + "\x08" * 12, "\x1b[1m9/9\x1b[0m 1s/step" + "\x08" * 12),
        (KERAS + "\x08" * 12 + "\r", "\x1b[1m9/9\x1b[0m 1s/step" + "\x08" * 12),
        ("\r 10%|#   | 1/9\r100%|####| 9/9\r             \r", "100%|####| 9/9"),
        ("from Windows\r", "from Windows"),
        ("no bar", "no bar"),
        ("\r\r", ""),
    ],
)
def test_a_progress_bar_is_its_last_state(line, state):
    stamp = "2026-01-01T10:00:00.123456789Z"
    assert last_state(line) == state
    assert cut(f"{stamp} {line}".encode()) == (stamp, state)


def test_a_message_of_the_kubelet_has_no_stamp():
    for said in (b"failed to open log", b"unable to retrieve container logs", b"", b"a T b"):
        assert cut(said) == ("", said.decode())
    assert cut(b"2026-13-01T10:00:01Z x")[0] == ""


class _Lines:
    """A back end that has the lines of one job and nothing else."""

    def logs(self, _: str) -> list[LogLine]:
        gone = "unable to retrieve container logs for containerd://d67772"
        return [LogLine(stamp_of(1_767_225_600), "chief-0", "step 1"), LogLine("", "chief-0", gone)]


def test_the_last_lines_of_a_container_are_its_own():
    """The kubelet says that a container is gone; that is no line of the container."""
    follower = Follower(_Lines(), "job")
    follower.start()
    follower.finish(10)
    assert follower.last_lines("chief-0", 5) == ["step 1"]


@pytest.mark.parametrize(("name", "warnings"), [("sockets", 1), ("infiniband", 0), ("one-node", 0)])
def test_nodes_that_talk_over_sockets_are_named_once(
    name: str, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A program of the user logs the lines, with NCCL_DEBUG=INFO."""
    text = (LOGS / f"{name}.log").read_text().replace("via P2P/CUMEM", "via NET/Socket/0")
    if name == "infiniband":
        text = (LOGS / f"{name}.log").read_text()
    stamp = stamp_of(1_767_225_600)
    lines = [LogLine(stamp, "chief-0", line) for line in text.splitlines()]
    follower = Follower(SimpleNamespace(logs=lambda _: lines), "job")
    follower.start()
    follower.finish(10)
    assert sum("TCP sockets" in record.getMessage() for record in caplog.records) == warnings
