"""runs, why, watch, cancel and retry, with a fake API server and a real store."""

import json
from datetime import UTC, datetime, timedelta
from itertools import count

import kfp_server_api as api
import pytest

from kfp_tfjob import Client
from kfp_tfjob.cluster.log_lines import LogLine, stamp_of
from kfp_tfjob.cluster.log_writer import LogWriter
from kfp_tfjob.cluster.waiting_reasons import remedy_for
from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.components.finish.workflow import FailedTask
from kfp_tfjob.jobs.failure_record import Failure
from kfp_tfjob.options.parameters import PARAMETERS
from kfp_tfjob.pipelines import logs
from kfp_tfjob.pipelines.kubeflow.client import _AT_ONCE
from kfp_tfjob.pipelines.kubeflow.connection import BackEnd, Connection
from kfp_tfjob.pipelines.kubeflow.pods import RunOnCluster
from kfp_tfjob.pipelines.kubeflow.runs import all_parameters
from kfp_tfjob.registry.run_folder import claim
from kfp_tfjob.registry.training_cache import TrainedRun
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout, RunLayout
from tests.local.fake_pipelines import Refusal
from tests.local.laptop import add, kfp_tfjob
from tests.local.published import VERDICT

pytestmark = pytest.mark.usefixtures("laptop")


def folder(base: S3Address, run: api.V2beta1Run) -> RunLayout:
    return Layout.parse(str(base)).run(run.run_id)


def verdict(blessed: bool, accuracy: float) -> bytes:
    check = {"name": "baseline", "pass": blessed, "explanation": f"accuracy {accuracy} and so on"}
    reasons = {"blessed": blessed, "reasons": [check["explanation"]], "checks": [check]}
    metrics = {"primary_metric": "accuracy", "metrics": {"accuracy": accuracy}}
    return json.dumps(VERDICT | reasons | metrics).encode()


def test_runs_lists_states_and_verdicts(fake, store, base):
    add(fake, base, "first", "FAILED")
    green = add(fake, base, "second", "SUCCEEDED")
    store.write(folder(base, green).verdict, verdict(False, 0.5))
    add(fake, base, "third")
    found = kfp_tfjob("runs", code=0)
    lines = found.stdout.splitlines()
    assert [line.split()[1] for line in lines[1:]] == ["third", "second", "first"]
    assert "not blessed" in lines[2]
    found = json.loads(kfp_tfjob("runs", "--json", "--limit", 1).stdout)
    assert [run["name"] for run in found] == ["third"]


@pytest.mark.parametrize("output", ["bucket/p", "s3://no-such-bucket/p"])
def test_a_run_without_readable_records_hides_no_other_verdict(fake, store, base, output):
    green = add(fake, base, "green", "SUCCEEDED")
    store.write(folder(base, green).verdict, verdict(False, 0.5))
    add(fake, base, "wrong", "SUCCEEDED", output_uri=output)
    troubles: list[str] = []
    listed = Client(fake.host).runs(tell=troubles.append)
    assert {run.name: run.verdict for run in listed} == {"wrong": "", "green": "not blessed"}
    assert len(troubles) == 1


@pytest.mark.parametrize("task", ["", "eu"])
def test_why_gives_the_record_of_the_failure(fake, store, base, task):
    run = add(fake, base, state="FAILED")
    problem = Problem("there is no column 'z'", fix="correct data_label")
    failure = Failure.of("preflight", DataError(problem))
    store.write(folder(base, run).task(task).failure("json"), failure.to_bytes())
    found = kfp_tfjob("why", "last", code=0)
    assert "preflight" in found.stdout and "correct data_label" in found.stdout
    why = json.loads(kfp_tfjob("why", "one", "--json").stdout)
    assert (why["step"], why["code"], why["run"]["verdict"]) == ("preflight", 3, "user_error")
    assert why["remedy"] == "correct data_label"


def test_why_says_what_cannot_be_read(fake, base, monkeypatch):
    run = add(fake, base, state="FAILED")
    fake.task(run, "launch-tfjob", "FAILED")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    why = Client(fake.host).why("last")
    assert why.step == "launch_tfjob" and "launch_tfjob" in why.remedy
    assert any("records" in note for note in why.notes)
    assert any("pods" in note for note in why.notes)


def test_why_a_green_run_published_nothing(fake, store, base):
    run = add(fake, base, state="SUCCEEDED")
    store.write(folder(base, run).verdict, verdict(False, 0.5))
    why = Client(fake.host).why("last")
    assert "not published" in why.summary
    assert why.reason == "accuracy 0.5 and so on"
    assert [check.passed for check in why.checks] == [False]
    assert why.remedy
    # A newer try did not train at all.
    record = TrainedRun("earlier-run", "s3://b/runs/earlier-run", "s3://b/v").to_bytes()
    store.write(folder(base, run).unchanged, record)
    why = Client(fake.host).why("last")
    assert why.run.verdict == "unchanged" and "earlier-run" in why.reason


def test_why_a_run_evaluated_nothing(fake, store, base):
    run = add(fake, base, state="SUCCEEDED")
    record = json.dumps({"run_id": "r", "why": "train_options.evaluate is false"}).encode()
    store.write(folder(base, run).not_evaluated, record)
    why = Client(fake.host).why("last")
    assert (why.run.verdict, why.reason) == ("not evaluated", "train_options.evaluate is false")
    assert "train_options.evaluate=true" in why.remedy


def test_parameters_have_the_defaults_of_their_pipeline(fake, package, base):
    from kfp_tfjob.pipelines.kubeflow.package import from_file

    run = add(fake, base, train_epochs=3)
    run.pipeline_spec = dict(from_file(package).spec)
    found = Client(fake.host).run("last").parameters
    assert found["train_epochs"] == 3 and found["train_workers"] == 1
    assert isinstance(found["train_workers"], int)


def test_a_run_that_waits_for_a_node_with_a_taint_is_told_of_tolerations():
    waits = "0/2 nodes are available: 1 Insufficient nvidia.com/gpu"
    assert "pod.all.tolerations" not in remedy_for(waits)[0]
    waits += ", 1 node(s) had untolerated taint {a: b}"
    assert "pod.all.tolerations" in remedy_for(waits)[0]


@pytest.mark.parametrize(
    ("waits", "words", "section"),
    [
        (
            'ErrImageNeverPull: Container image "a:1" is not present',
            "image_pull_secret",
            "image_pull",
        ),
        ("RegistryUnavailable: no route to host", "image_pull_secret", "image_pull"),
        (
            'CreateContainerConfigError: secret "hub" not found',
            "create the Secret hub;",
            "secret-not-found",
        ),
        (
            "CreateContainerConfigError: couldn't find key token in Secret team/hub",
            "add the key token to the Secret hub;",
            "secret-not-found",
        ),
        (
            'MountVolume.SetUp failed for volume "v" : configmap "words" not found',
            "create the ConfigMap words ",
            "config-map-not-found",
        ),
        ("0/2 nodes are available: 2 Insufficient cpu", "request less", "unschedulable"),
    ],
)
def test_a_run_that_waits_is_told_what_its_pod_lacks(waits, words, section):
    remedy, docs = remedy_for(waits)
    assert words in remedy and docs.endswith(f"#{section}")


def test_all_parameters_of_a_run_of_an_uploaded_pipeline(fake, package, base):
    from kfp_tfjob.pipelines.kubeflow.package import from_file

    run = add(fake, base, train_epochs=3)
    run.pipeline_version_reference = api.V2beta1PipelineVersionReference("p", "v")
    fake.versions["v"] = dict(from_file(package).spec)
    found = all_parameters(Client(fake.host).back_end, run.run_id)
    assert (found["train_epochs"], found["train_workers"]) == (3, 1)
    assert found.keys() >= PARAMETERS.keys()


def test_watch_shows_steps_progress_and_the_end(fake, store, base):
    run = add(fake, base)
    long_ago = datetime(1, 1, 1, tzinfo=UTC)
    began = datetime.now(UTC)
    line = {"time": 1e9, "epoch": 2, "step": 20, "steps": 60, "metrics": {"loss": 0.25}}
    line |= {"event": "progress", "eta_seconds": 65.0, "examples_per_second": 100.0}
    text = "x" * 100_000 + "\n" + json.dumps(line) + '\n{"event": "prog'
    states = iter((0, 0, 1, 2))  # the first look only finds the run

    def broken(method: str, path: str) -> None:
        if not path.endswith(run.run_id):
            return
        at = next(states, 3)
        if at == 0:
            fake.task(run, "preflight", "RUNNING", end_time=long_ago)
        elif at == 1:
            ended = began + timedelta(seconds=8)
            fake.task(run, "preflight", "SUCCEEDED", start_time=began, end_time=ended)
            fake.task(run, "launch-tfjob", "RUNNING", end_time=long_ago)
            store.write(folder(base, run).progress, text.encode())
        elif at == 2:
            raise Refusal(503, "no healthy upstream")
        else:
            run.state, run.finished_at = "SUCCEEDED", datetime.now(UTC)

    fake.broken = broken
    store.write(folder(base, run).verdict, verdict(False, 0.5))
    found = kfp_tfjob("watch", "one", code=0)
    for part in (
        "preflight running",
        "preflight succeeded (8 s)",
        "launch_tfjob running",
        "epoch 2, step 20 of 60, loss 0.25, 100 rows/s, 1 min 5 s left",
        "waiting is not shown",
        "run succeeded",
        "did not pass the gate",
    ):
        assert part in found.stdout, found.stdout
    assert found.stdout.count("waiting") == 1


def test_watch_ends_with_the_code_of_the_failed_step(fake, store, base):
    run = add(fake, base, state="FAILED")
    failure = Failure("launch_tfjob", 4, "user_error", "the loss is not finite")
    store.write(folder(base, run).failure("json"), failure.to_bytes())
    assert kfp_tfjob("watch", "last").exit_code == 4
    found = kfp_tfjob("watch", "last", "--json", code=4)
    assert json.loads(found.stdout.splitlines()[-1])["run"]["state"] == "failed"


def test_cancel_waits_for_the_end_and_says_what_was_checked(fake, store, base):
    run = add(fake, base)
    store.write(folder(base, run).checkpoints / "40/manifest.json", b"{}")
    store.write(folder(base, run).checkpoints / "50/variables.bin", b"not all of it")

    def end(method: str, path: str) -> None:
        if run.state == "CANCELING" and method == "GET":
            run.state, run.finished_at = "FAILED", datetime.now(UTC)

    fake.broken = end
    found = kfp_tfjob("cancel", "one", code=0)
    assert ("POST", f"/apis/v2beta1/runs/{run.run_id}:terminate") in fake.requests
    assert "step 40" in found.stdout
    assert "not checked" in found.stdout
    found = kfp_tfjob("cancel", "one")
    assert found.exit_code == 2 and "failed, finished" in found.stderr


def test_cancel_offers_no_retry_of_a_run_that_succeeded_meanwhile(fake, base):
    run = add(fake, base)

    def end(method: str, path: str) -> None:
        if run.state == "CANCELING" and method == "GET":
            run.state, run.finished_at = "SUCCEEDED", datetime.now(UTC)

    fake.broken = end
    found = kfp_tfjob("cancel", "one", code=0)
    assert "succeeded" in found.stdout
    assert "retry" not in found.stdout


def test_a_cancelled_run_is_not_a_failed_one(fake, store, base):
    """A real back end calls it failed, and keeps the states before."""
    run = add(fake, base, state="FAILED")
    store.write(folder(base, run).attempt(1), b"{}")
    run.state_history = [
        api.V2beta1RuntimeStatus(state=state)
        for state in ("PENDING", "RUNNING", "CANCELING", "FAILED")
    ]
    fake.task(run, "preflight", "FAILED")
    why = Client(fake.host).why("one")
    assert why.run.verdict == "cancelled"
    assert "during preflight" in why.reason and "retry" in why.remedy
    (attempt,) = why.attempts
    assert attempt.sentence and "it is running" not in attempt.sentence
    run.state_history += [api.V2beta1RuntimeStatus(state=it) for it in ("RUNNING", "FAILED")]
    assert Client(fake.host).why("one").run.verdict != "cancelled"


def test_the_record_of_the_first_try_does_not_explain_a_cancelled_retry(fake, store, base):
    run = add(fake, base, state="FAILED")
    first = Failure("launch_tfjob", 2, "user_error", "the first try. Its last lines:\n    old")
    store.write(folder(base, run).failure("json"), first.to_bytes())
    assert Client(fake.host).why("one").run.verdict == "user_error"
    states = ("RUNNING", "FAILED", "RUNNING", "CANCELING", "FAILED")
    run.state_history = [api.V2beta1RuntimeStatus(state=state) for state in states]
    why = Client(fake.host).why("one")
    assert why.run.verdict == "cancelled"
    assert "first try" not in f"{why.reason} {why.log}" and why.code is None
    assert [it.verdict for it in Client(fake.host).runs()] == ["cancelled"]
    # What this try has recorded counts.
    own = Failure("launch_tfjob", 2, "cancelled", "the run was stopped: a user terminated it")
    store.write(folder(base, run).failure("json"), own.to_bytes())
    assert Client(fake.host).why("one").reason == own.message


def test_runs_and_why_show_the_same_verdict(fake, store, base, monkeypatch):
    """A step that was killed leaves no record: the cluster shows how it ended."""
    add(fake, base, state="FAILED")
    killed = FailedTask("evaluate", False, "OOMKilled (exit code 137)", "2026-11-23T10:00:00Z")
    monkeypatch.setattr(RunOnCluster, "failed", lambda self: [killed])
    client = Client(fake.host)
    assert client.why("one").run.verdict == "out_of_memory"
    assert [it.verdict for it in client.runs()] == ["out_of_memory"]
    assert client.run("one").verdict == "out_of_memory"


def test_runs_gives_up_on_a_cluster_that_does_not_answer(fake, base, monkeypatch):
    asked = []

    def connect(cluster: RunOnCluster, namespace: str) -> None:
        asked.append(namespace)
        cluster.trouble = "it does not answer"

    monkeypatch.setattr(RunOnCluster, "_connect", connect)
    for number in range(12):
        add(fake, base, f"run-{number}", "FAILED")
    assert len(Client(fake.host).runs(12)) == 12
    assert 0 < len(asked) <= _AT_ONCE  # those that were asking already


def test_a_root_driver_that_is_tried_again_is_reported(fake, base):
    run = add(fake, base)
    error = api.GoogleRpcStatus(message="Error (exit code 1)")
    fake.task(run, "root-driver(0)", "FAILED", error=error)
    fake.task(run, "root-driver(1)", "RUNNING")
    said = "its root driver failed 1 time: Error (exit code 1)"
    assert Client(fake.host).why("one").reason.startswith(said)
    assert next(Client(fake.host).watch("one")).waits[0].startswith(said)
    fake.task(run, "preflight", "RUNNING")
    assert next(Client(fake.host).watch("one")).waits == ()


def test_cancel_gives_up_after_its_limit(fake, base):
    add(fake, base)
    found = json.loads(kfp_tfjob("cancel", "one", "--limit", 1, "--json").stdout)
    assert not found["complete"] and found["run"]["state"] == "canceling"


def test_retry_runs_a_failed_run_again_and_no_other(fake, base):
    run = add(fake, base, state="FAILED")
    found = kfp_tfjob("retry", run.run_id[:8], code=0)
    assert run.state == "RUNNING"
    found = kfp_tfjob("retry", "one")
    assert found.exit_code == 2 and "running" in found.stderr


def test_logs_of_a_run_that_has_none(fake, base):
    add(fake, base)
    fake.add("other")
    found = kfp_tfjob("logs", "one")
    assert found.exit_code == 3 and "one (running)" in found.stderr
    found = kfp_tfjob("logs", "other")
    assert found.exit_code == 2 and "no parameter output_uri" in found.stderr


def test_logs_follows_a_run_whose_folder_is_not_known_yet(fake, store, base, monkeypatch):
    """Preflight fills in {date}; until then, the lines are not where they seem to be."""
    monkeypatch.setattr(logs, "_POLL_SECONDS", 0.1)
    monkeypatch.setattr(Connection, "open", lambda self: BackEnd(self._completed(), patience=0))
    run = add(fake, base, output_uri=f"{base}/runs/{{date}}")
    requests = count()

    def move_on(method: str, path: str) -> None:
        if not path.endswith(run.run_id):
            return
        match next(requests):
            case 3:
                layout = Layout.parse(f"{base}/runs/{{date}}")
                claimed = claim(store, layout, run.run_id, "2026-11-22")
                writer = LogWriter(store, claimed, 1)
                writer.put(LogLine(stamp_of(1_767_225_600.0), "chief-0", "epoch 1"))
                writer.end()
                writer.close(60)
            case 4:
                raise Refusal(503, "no healthy upstream")  # `watch` waits for it too
            case 6:
                run.state = "SUCCEEDED"

    fake.broken = move_on
    followed = kfp_tfjob("logs", "one", "--follow", code=0)
    assert followed.stdout.splitlines() == ["[chief-0] epoch 1"]


def test_why_a_run_of_another_pipeline_failed(fake):
    fake.add("other", "FAILED", error=api.GoogleRpcStatus(code=2, message="boom"))
    found = kfp_tfjob("why", "other")
    assert found.exit_code == 0 and "boom" in found.stdout
    assert "output_uri" in found.stdout
