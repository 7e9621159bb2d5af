"""A run that is ended from outside: the launcher sees its Workflow and stops the job, or leaves it.

The Workflows are real objects on the real API server; only Argo's controller is the test.
"""

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kubernetes.watch import Watch

from kfp_tfjob.checks.engine import At, check
from kfp_tfjob.checks.finding import Status, only
from kfp_tfjob.checks.subject import Subject
from kfp_tfjob.jobs.attempt_record import read_ends
from kfp_tfjob.jobs.jobset import JOBSET
from kfp_tfjob.jobs.tfjob import TFJOB
from kfp_tfjob.uploader.folder import verify
from tests.cluster.faulty_proxy import FaultyProxy
from tests.cluster.launches import UNTIL_GO, Launch, client_of, rules
from tests.cluster.pki import write_kubeconfig
from tests.cluster.workflows import Workflow

pytestmark = pytest.mark.cluster

_FINALIZER = "kfp-tfjob.test/hold"
_FOREVER = "time.sleep(600)"
# What Kubeflow Pipelines on Argo gives a launcher: SIGTERM so long after the click, then SIGKILL.
_SIGTERM_SECONDS, _SIGKILL_SECONDS = 1.3, 0.5


@pytest.fixture
def step(launch: Launch, workflow: Workflow, monkeypatch: pytest.MonkeyPatch) -> Workflow:
    """The Workflow of the run; the launchers are a pod of it."""
    launch.be_step_of(workflow, monkeypatch)
    return workflow


def _terminate(workflow: Workflow) -> None:
    workflow.terminate()


def _shut_down(workflow: Workflow) -> None:
    workflow.patch({"spec": {"shutdown": "Terminate"}})


def _delete(workflow: Workflow) -> None:
    """Delete it as something that another controller must agree to: it stays for a while."""
    workflow.patch({"metadata": {"finalizers": [_FINALIZER]}})
    workflow.delete()


def _fail(workflow: Workflow) -> None:
    workflow.patch({"status": {"phase": "Failed"}})


_ENDS = [_terminate, _shut_down, _delete, Workflow.delete, _fail]


@pytest.mark.parametrize(
    ("kind", "end"),
    [*((TFJOB, end) for end in _ENDS), (JOBSET, _terminate), (JOBSET, _delete)],
    indirect=["kind"],
    ids=lambda it: getattr(it, "__name__", "") or it.name,
)
def test_a_run_that_is_ended(launch, step, end):
    """No signal: what the launcher sees is enough. The pods' own grace would be ten minutes."""
    process = launch.start_process(_FOREVER, workers=1, pod={"all": {"grace_seconds": 600}})
    launch.wait_said(replica="worker-0")
    seen = _Stopped(launch)
    end(step)
    launch.wait_for(seen)
    seconds = time.monotonic() - seen.began
    assert process.wait(240) == 1
    launch.has_left(jobs=0)
    gone = time.monotonic() - seen.began
    assert launch.step.store.numbers(launch.step.run.attempts) == [1]
    assert seconds < 30 and gone < 120, (seconds, gone)


def _touched(launch: Launch, workflow: Workflow) -> None:
    """Everything about a Workflow that changes in a healthy run."""
    workflow.patch({"metadata": {"labels": {"workflows.argoproj.io/phase": "Running"}}})
    workflow.patch({"spec": {"suspend": True, "activeDeadlineSeconds": 3600}})
    workflow.patch({"status": {"message": "a step failed", "startedAt": "2999-01-01T00:00:00Z"}})


def _forbidden(launch: Launch, workflow: Workflow) -> None:
    """Rights without Workflows; the run is ended, and this launcher cannot know."""
    less = [rule for rule in rules() if "workflows" not in rule["resources"]]
    launch.kubeconfig = launch.cluster.kubeconfig_for(launch.namespace, "blind", less)


def _lost(launch: Launch, workflow: Workflow) -> None:
    """No answer about Workflows; see the fixture."""


@pytest.fixture
def proxy(launch: Launch) -> Iterator[FaultyProxy]:
    settings = launch.cluster.api.configuration
    with FaultyProxy(settings.host, settings.ssl_ca_cert, 0) as found:
        yield found


@pytest.mark.parametrize("how", [_touched, _forbidden, _lost], ids=lambda f: f.__name__)
def test_a_launcher_that_is_drained(launch, step, proxy, tmp_path, how):
    """SIGTERM, and nothing that says that the run has ended: the next launcher takes over."""
    with_rights = launch.kubeconfig
    how(launch, step)
    if how is _lost:
        proxy.away = "/workflows"
        launch.kubeconfig = _kubeconfig_of(proxy, launch, tmp_path)
    process = launch.start_process(UNTIL_GO, gpus=1)
    launch.wait_said()
    if how is not _forbidden:
        _touched(launch, step)
    process.send_signal(signal.SIGTERM)
    assert process.wait(240) == -signal.SIGTERM
    assert launch.phase() == "Running" and launch.gpus_held() == 1
    launch.kubeconfig = with_rights
    # The step as Kubeflow Pipelines starts it again: same Workflow, same job.
    owner = launch.backend().owner()
    launch.start(launch.spec(UNTIL_GO, gpus=1), owner=owner, retry=True)
    launch.go()
    launch.succeeds()


def test_sigterm_is_enough_where_the_watch_has_broken(launch, step, proxy, tmp_path):
    """The change was missed; the last look is what ends the job."""
    proxy.away = "/workflows"
    launch.kubeconfig = _kubeconfig_of(proxy, launch, tmp_path)
    process = launch.start_process(_FOREVER)
    launch.wait_said()
    seen = _Stopped(launch)
    step.terminate()
    proxy.away = "/workflows?"  # lists and watches; a single one can be read again
    process.send_signal(signal.SIGTERM)
    launch.wait_for(seen)
    assert process.wait(240) in (-signal.SIGTERM, 1)
    launch.has_left(jobs=0)


# It saves 300 MB when it is told to stop, as the trainer does: one rename when all is there.
_SAVES = """
def save(*_):
    if me != "chief-0":
        sys.exit(143)
    part = output / "checkpoints/.7"
    part.mkdir(parents=True)
    for number in range(3):
        (part / f"weights-{number}").write_bytes(os.urandom(1_000_000) * 100)
    part.rename(output / "checkpoints/7")
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(600)
"""


def test_terminate_as_argo_does_it(launch, step, alone):
    """The deadline, SIGTERM 1.3 s later, SIGKILL 0.5 s after that, and no exit task."""
    large = {"memory": "1Gi", "ephemeral_storage": "2Gi", "grace_seconds": 600}
    settings = {"all": large, "chief": {"cpu": "1"}}
    process = launch.start_process(_SAVES, workers=1, gpus=1, pod=settings)
    launch.wait_said("ready")
    launch.wait_said("ready", "worker-0")
    seen = _Stopped(launch)
    step.terminate()
    clicked = time.monotonic()
    _until(clicked + _SIGTERM_SECONDS, seen)
    process.send_signal(signal.SIGTERM)
    _until(clicked + _SIGTERM_SECONDS + _SIGKILL_SECONDS, seen)
    launch.wait_for(seen)  # a busy machine may need longer than Argo gives
    process.kill()
    process.wait()
    launch.has_left(jobs=0)
    gone = time.monotonic() - clicked
    store, checkpoint = launch.step.store, launch.step.run.checkpoints / "7"
    manifest = store.read_manifest(checkpoint / "manifest.json")
    assert manifest.size >= 300_000_000 and not verify(store, checkpoint, manifest)
    end = read_ends(store, launch.step.run)[1]
    assert (end.attempt, end.verdict) == (1, "cancelled"), end
    chief = json.loads(store.read(launch.step.run.chief_end(1)))
    assert (chief["attempt"], chief["code"], chief["stop_within"]) == (1, 143, 60.0), chief
    graces = seen.graces(2)
    assert graces["chief"] == 60
    # On a busy machine, the job may be deleted first, and the worker's pod be gone before the rest.
    assert graces["worker"] == 10 or gone < 10


def test_preflight_says_what_terminate_lacks(launch):
    api = client_of(launch.kubeconfig, launch.namespace, 5).of(launch.kind)
    found = check(Subject(api, launch.spec()), At.RUN)
    assert not only(found, Status.PROBLEM)
    assert not [it for it in found if "Terminate" in it.what]
    less = [rule for rule in rules() if "workflows" not in rule["resources"]]
    less = [rule | {"verbs": [v for v in rule["verbs"] if "collection" not in v]} for rule in less]
    kubeconfig = launch.cluster.kubeconfig_for(launch.namespace, "less", less)
    less_api = client_of(kubeconfig, launch.namespace, 5).of(launch.kind)
    subject = Subject(less_api, launch.spec())
    found = check(subject, At.RUN)
    assert not only(found, Status.PROBLEM)  # a run is possible without
    first, second = (it for it in only(found, Status.WARNING) if "Terminate" in it.what)
    assert "watch workflows" in first.what
    assert "orphan_timeout_seconds (600 s)" in first.what and "deploy/base" in first.fix
    assert "deletecollection pods" in second.what


class _Stopped:
    """Looks whether the job is being deleted, and at the grace periods of its pods."""

    def __init__(self, launch: Launch) -> None:
        self._api = client_of(launch.kubeconfig, launch.namespace).of(launch.kind)
        self._list_pods = launch.cluster.core.list_namespaced_pod
        self._namespace, self._job = launch.namespace, launch.name()
        self._version = self._list_pods(self._namespace).metadata.resource_version
        self.began = time.monotonic()

    def __call__(self) -> bool:
        job = self._api.get(self._api.jobs(self._job))
        return job is None or bool(job["metadata"].get("deletionTimestamp"))

    def graces(self, kinds: int) -> dict[str, int]:
        """Return the grace periods that the pods of so many replica types, all gone, had at last.

        Every change is read again. The first period may be that of the pod, if the cluster deletes
        it as part of its job before the launcher does, with a shorter one. A kubelet lowers it to 0
        as soon as the containers have ended.
        """
        found: dict[str, int] = {}
        gone: set[str] = set()
        events = Watch().stream(
            self._list_pods, self._namespace, resource_version=self._version, timeout_seconds=60
        )
        for event in events:
            metadata = event["object"].metadata
            labels = metadata.labels or {}
            kind = labels.get("training.kubeflow.org/replica-type", "")
            kind = kind or labels.get("jobset.sigs.k8s.io/replicatedjob-name", "")
            if not kind:
                continue
            if period := metadata.deletion_grace_period_seconds:
                found[kind] = min(period, found.get(kind, period))
            if event["type"] == "DELETED":
                gone.add(kind)
            if len(gone) == kinds:
                break
        return found


def _until(moment: float, look: Callable[[], object]) -> None:
    while (left := moment - time.monotonic()) > 0:
        look()
        time.sleep(min(0.02, left))


def _kubeconfig_of(proxy: FaultyProxy, launch: Launch, folder: Path) -> Path:
    """Return the kubeconfig of the launcher's account that leads through a proxy."""
    settings = client_of(launch.kubeconfig, launch.namespace).client.configuration
    token = {"token": settings.api_key["authorization"].removeprefix("Bearer ")}
    authority = Path(launch.cluster.api.configuration.ssl_ca_cert)
    return write_kubeconfig(folder / "proxy.kubeconfig", proxy.address, authority, token)
