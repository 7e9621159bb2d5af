"""The creation of a job through the SDK of the training operator, and every way it fails."""

import json
import socket
import subprocess
import sys

import pytest

from kfp_tfjob.checks.placement import affinity as lost
from kfp_tfjob.checks.subject import Subject
from kfp_tfjob.cluster import create_job
from kfp_tfjob.cluster.api_errors import (
    ClusterUnavailableError,
    ForbiddenError,
    OperatorAbsentError,
)
from kfp_tfjob.cluster.backend import JobExistsError, JobRefusedError
from kfp_tfjob.cluster.kubernetes import KubernetesBackend
from kfp_tfjob.jobs.spec import JobSpec
from tests.http_server import Handler, serving
from tests.problems import problem_of
from tests.unit.cluster_objects import client_of, manifest
from tests.unit.launch_parameters import DEFAULTS, OWNER

JOB = manifest(owner=OWNER)
TERM = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
LOST = "lost"  # the call is done, and its answer does not arrive


class Api(Handler):
    """Answers each call with the next of its answers: a status and a message."""

    def do_POST(self) -> None:
        self.server.sent.append((self.path, dict(self.headers), json.loads(self.body())))
        answers = self.server.answers
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer == LOST:
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        status, message, reason = answer
        self.answer({"message": message, "reason": reason}, status)


@pytest.fixture
def server():
    with serving(Api, sent=[], answers=[(201, "", "")]) as found:
        yield found


def backend_at(address: str, seconds: float = 60) -> KubernetesBackend:
    return KubernetesBackend(client_of(address), operator_seconds=seconds)


PROGRAM = """
import json, sys
from kfp_tfjob.cluster.kubernetes import KubernetesBackend
from tests.unit.cluster_objects import client_of
backend = KubernetesBackend(client_of(sys.argv[1]))
before = "kubeflow.training" in sys.modules
backend.create(json.load(sys.stdin))
print(json.dumps([before, "kubeflow.training" in sys.modules]))
"""


def test_the_sdk_loads_with_the_first_job_and_names_itself(server):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, server.url],
        input=json.dumps(JOB),
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [False, True]
    ((path, headers, body),) = server.sent
    assert path == "/apis/kubeflow.org/v1/namespaces/team-a/tfjobs"
    assert body == JOB
    names = [word.partition("/")[0] for word in headers["User-Agent"].split()]
    assert names == ["kfp-tfjob", "kubeflow-training"]


DENIED = 'admission webhook "validator.tfjob" denied the request: no container tensorflow'
AWAY = 'Internal error occurred: failed calling webhook "validator.tfjob": connection refused'


@pytest.mark.parametrize(
    ("answers", "raised", "calls"),
    [
        ([(503, "starting", ""), (201, "", "")], None, 2),
        ([LOST, (409, "exists", "AlreadyExists")], JobExistsError, 2),
        ([(409, "a new version", "Conflict"), (201, "", "")], None, 2),
        ([(403, DENIED, "Forbidden")], JobRefusedError, 1),
        ([(403, "cannot create resource", "Forbidden")], ForbiddenError, 1),
        ([(422, "is invalid", "Invalid")], JobRefusedError, 1),
        ([(404, "the server could not find", "NotFound")], OperatorAbsentError, 1),
    ],
)
def test_an_answer_means_what_it_means_without_the_sdk(server, answers, raised, calls):
    server.answers = list(answers)
    backend = backend_at(server.url)
    if raised:
        with pytest.raises(raised) as found:
            backend.create(JOB)
        assert type(found.value) is raised and answers[-1][1] in str(found.value)
    else:
        backend.create(JOB)
    assert len(server.sent) == calls


def test_an_operator_that_is_away_ends_the_creation(server):
    server.answers = [(500, AWAY, "InternalError")]
    with pytest.raises(OperatorAbsentError, match="connection refused"):
        backend_at(server.url, seconds=0).create(JOB)


def test_a_server_that_stalls_ends_the_creation(monkeypatch):
    monkeypatch.setattr(create_job, "CALL_SECONDS", (60, 0.3))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        backend = backend_at(f"http://127.0.0.1:{silent.getsockname()[1]}", seconds=0)
        with pytest.raises(ClusterUnavailableError, match="ReadTimeoutError"):
            backend.create(JOB)


def test_a_field_that_the_sdk_would_drop_is_refused(server):
    job = json.loads(json.dumps(JOB))
    pod = job["spec"]["tfReplicaSpecs"]["Chief"]["template"]["spec"]
    pod["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
    problem = problem_of(backend_at(server.url).create, job, kind=JobRefusedError)
    place = "TFJob.spec.tfReplicaSpecs.Chief.template.spec.resourceClaims[0]"
    assert problem.path == f"{place}.resourceClaimTemplateName" and problem.received == "t"
    assert not server.sent


@pytest.mark.parametrize(
    ("affinity", "path"),
    [
        ({"nodeAffinity": {}}, None),
        ({"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [TERM]}}}, None),
        ({"nodeAffinity": {"required": 1}}, "nodeAffinity.required"),
        (
            {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [TERM, TERM | {"zone": "a"}]}}},
            f"nodeAffinity.{REQUIRED}.nodeSelectorTerms[1].zone",
        ),
        ({"nodeAffinity": {REQUIRED: {}}}, ""),  # without what is required
        ({"podAffinity": {REQUIRED: 3}}, ""),
    ],
)
def test_preflight_names_the_field_of_an_affinity_that_would_be_lost(affinity, path):
    spec = JobSpec.parse(**DEFAULTS | {"pod": {"worker": {"affinity": affinity}}})
    found = [problem.path for problem in lost(Subject(None, spec))]
    prefix = "pod.worker.affinity"
    assert found == ([] if path is None else [f"{prefix}.{path}" if path else prefix])
