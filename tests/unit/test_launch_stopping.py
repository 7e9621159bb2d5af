"""The requests that stop a job: which, in which order, and how fast where the API is slow."""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import urllib3

from kfp_tfjob.cluster import stopping as stopping_requests
from kfp_tfjob.cluster.stopping import RunningJob, Stopping, stop_requests
from kfp_tfjob.jobs.jobset import JOBSET
from tests.http_server import Handler, serving
from tests.unit.cluster_objects import client_of

PODS = "/api/v1/namespaces/team-a/pods"
# Seconds: a busy machine must neither change the order of the requests nor make them as late as an
# answer.
STEP, ANSWER = 0.5, 5.0
JOBS = "/apis/kubeflow.org/v1/namespaces/team-a/tfjobs"


class SlowApi(Handler):
    """An API server that has one job, and answers requests that change something late."""

    def setup(self) -> None:
        self.server.connections += 1
        super().setup()

    def do_GET(self) -> None:
        deadline = time.monotonic() + 60
        while self.server.connections < self.server.awaited and time.monotonic() < deadline:
            time.sleep(0.01)
        gone = any(method == "DELETE" and JOBS in path for method, path, _ in self.server.made)
        items = [] if gone else [{"metadata": {"name": "j"}, "status": {}}]
        self.answer({"items": items})

    def do_PATCH(self) -> None:
        self.body()
        self.server.made.append((self.command, self.path, time.monotonic() - self.server.began))
        time.sleep(self.server.seconds)
        self.answer({})

    do_DELETE = do_PATCH


@pytest.fixture
def server() -> Iterator[Any]:
    # No GET is answered before there are so many connections as are awaited.
    kept = {"seconds": ANSWER, "began": 0.0, "made": [], "connections": 0, "awaited": 0}
    with serving(SlowApi, **kept) as found:
        yield found


def test_the_orders():
    chief = f"{PODS}/tfjob-x-1-chief-0"
    told = {"metadata": {"annotations": {"kfp-tfjob/stop-within": "60s"}}}
    others = (
        "kfp-tfjob/run=x,training.kubeflow.org/job-name=tfjob-x-1"
        ",training.kubeflow.org/replica-type!=chief"
    )
    job = RunningJob("tfjob-x-1", "tfjob-x-1-chief-0", 60)
    requests = stop_requests(client_of(), job, "x")
    found = [(request.method, request.path, request.query) for request in requests]
    assert found == [
        ("PATCH", chief, {}),
        ("DELETE", chief, {"gracePeriodSeconds": "60"}),
        ("DELETE", PODS, {"labelSelector": others, "gracePeriodSeconds": "10"}),
        ("DELETE", f"{JOBS}/tfjob-x-1", {"propagationPolicy": "Foreground"}),
    ]
    assert stop_requests(client_of(), job, "x")[0].body == told
    soon = stop_requests(client_of(), replace(job, seconds=5), "x")
    assert soon[2].query["gracePeriodSeconds"] == "5"


def test_a_chief_whose_pod_has_not_been_seen_is_deleted_by_its_labels():
    api = client_of().of(JOBSET)
    *first, others, job = stop_requests(api, RunningJob("js-x-1", "", 60), "x")
    of_job = "kfp-tfjob/run=x,jobset.sigs.k8s.io/jobset-name=js-x-1"
    role = "jobset.sigs.k8s.io/replicatedjob-name"
    query = {"labelSelector": f"{of_job},{role}=chief", "gracePeriodSeconds": "60"}
    assert {(order.method, order.path) for order in first} == {("DELETE", PODS)}
    assert all(order.query == query for order in first)
    assert others.query["labelSelector"] == f"{of_job},{role}!=chief"
    assert job.path == "/apis/jobset.x-k8s.io/v1alpha2/namespaces/team-a/jobsets/js-x-1"


@pytest.mark.parametrize(
    ("path", "selector"),
    [
        (PODS, None),
        (PODS, ""),
        (PODS, " "),
        (PODS, ","),
        (PODS, "kfp-tfjob/run="),
        (PODS, "kfp-tfjob/run"),
        (PODS, "=x"),
        (PODS, "training.kubeflow.org/replica-type!=chief"),
        (PODS, "!kfp-tfjob/run"),
        (f"{PODS}/", None),  # the name of an object is empty
        (JOBS, None),
        ("/api/v1/nodes", None),
    ],
)
def test_a_deletion_that_could_mean_everything_is_refused_by_the_client(path, selector):
    query = {} if selector is None else {"labelSelector": selector}
    for call in (
        lambda: client_of().once("DELETE", path, query, (0.1, 0.1)),
        lambda: client_of().request("DELETE", path, query),
    ):
        with pytest.raises(ValueError, match="other owners"):
            call()


def test_an_api_that_is_slow_gets_every_request_in_time_and_in_order(server, monkeypatch):
    """No request waits for the answer to the one before: the process may live for two seconds."""
    monkeypatch.setattr(stopping_requests, "_STEP_SECONDS", STEP)
    stopping = Stopping(client_of(server.url), "x", 60)
    server.awaited = 2
    stopping.keep_warm()
    for call in stopping._warming:
        call.result()
    server.began, warm = time.monotonic(), server.connections
    stopping.stop({"j": "j-chief-0"})
    stopping.close()
    first = server.made[:4]
    assert [(method, path.partition("?")[0]) for method, path, _ in first] == [
        ("PATCH", f"{PODS}/j-chief-0"),
        ("DELETE", f"{PODS}/j-chief-0"),
        ("DELETE", PODS),
        ("DELETE", f"{JOBS}/j"),
    ]
    assert first[-1][2] < ANSWER, first
    assert warm == 2


def test_a_request_on_a_dead_tls_connection_is_sent_again(server, monkeypatch):
    api = client_of(server.url)
    pool, server.seconds = api.client.rest_client.pool_manager, 0.0
    send, broken = pool.request, [urllib3.exceptions.SSLError("EOF occurred")]

    def request(*words: object, **more: object) -> object:
        if broken:
            raise broken.pop()
        return send(*words, **more)

    monkeypatch.setattr(pool, "request", request)
    stopping = Stopping(api, "x", 60)
    assert stopping._send(stop_requests(api, RunningJob("j", "j-chief-0", 60), "x")[0]) == ""
    assert [method for method, _, _ in server.made] == ["PATCH"]
    stopping.close()
