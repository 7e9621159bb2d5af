"""Whole jobs as processes: launcher, local back end, supervisor, sidecar and S3 server are real."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from kfp_tfjob.cluster.backend import JobRefusedError
from kfp_tfjob.cluster.local.backend import LocalBackend
from kfp_tfjob.components.finish.page import explain
from kfp_tfjob.components.launch_tfjob import engine
from kfp_tfjob.components.launch_tfjob.records import Claim, Records, require_same
from kfp_tfjob.components.step import Step
from kfp_tfjob.jobs.attempt_record import AttemptEnd
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.jobs.verdict import JobFailedError, Verdict
from kfp_tfjob.options.pod import PodOptions
from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import (
    ConfigurationError,
    ObjectNotFoundError,
    Problem,
    StoreUnavailableError,
)
from kfp_tfjob.storage.failure_record import Failure
from kfp_tfjob.storage.layout import MANIFEST, Layout
from kfp_tfjob.storage.manifest import Manifest
from kfp_tfjob.storage.store import Store
from tests.waiting import until

MARK = "KFP_TFJOB_TEST"
# A user's own program that waits until a file says what to do.
PROGRAM = """
import json, os, pathlib, sys, time
config = json.loads(os.environ.get("TF_CONFIG") or "{}")
task = config.get("task", {"type": "chief", "index": 0})
me = f"{task['type']}-{task['index']}"
attempt = os.environ["ATTEMPT"]
here = pathlib.Path(sys.argv[1])
part = here / f".{me}.{attempt}.part"
part.write_text(json.dumps(dict(os.environ, PID=str(os.getpid()))))
part.rename(here / f"{me}.{attempt}.json")
print("hello from", me, flush=True)
print("my token is", os.environ.get("API_TOKEN"), flush=True)
output = pathlib.Path(os.environ["OUTPUT_DIR"])
if me == "chief-0":
    (output / "model").mkdir(parents=True, exist_ok=True)
    (output / "model/weights.bin").write_bytes(b"w" * 1000)
    lines = [{"event": "epoch", "epoch": 1, "step": 3, "metrics": {"loss": 0.5, "accuracy": 0.9}}]
    lines += [{"event": "final", "epoch": 1, "step": 3, "metrics": {"loss": 0.25}}]
    (output / "progress.jsonl").write_text("".join(json.dumps(x) + chr(10) for x in lines))
todo = here / f"{me}.todo"
until = time.monotonic() + 300
what = "nothing"
while what != f"die {attempt}" and not what.startswith("exit") and time.monotonic() < until:
    time.sleep(0.02)
    what = todo.read_text() if todo.exists() else what
print("told to", what, flush=True)
if what.startswith("die"):
    os.kill(os.getppid(), 9)
    time.sleep(60)
sys.exit(int(what.split()[1]))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


@pytest.fixture
def backend(tmp_path: Path, s3: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalBackend]:
    """A back end, none of whose processes may be left when it is closed."""
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "objstore-cred").symlink_to(s3.secret, target_is_directory=True)
    monkeypatch.setenv(MARK, str(tmp_path))
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with LocalBackend(tmp_path / "jobs", secrets) as found:
        yield found
    assert not _left(str(tmp_path))


def _left(mark: str) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["environ", "status"])
        if process.info["status"] != psutil.STATUS_ZOMBIE
        and (process.info["environ"] or {}).get(MARK) == mark
        and process.pid != os.getpid()
    ]


@pytest.fixture
def step(store: Store, base: S3Address) -> Step:
    return Step("launch_tfjob", f"run-{base.name}", Layout(base), store)


@pytest.fixture
def spec(step: Step, tmp_path: Path, script: Path) -> Callable[..., JobSpec]:
    def make(workers: int = 0, **options: object) -> JobSpec:
        command = ["python3", str(script), str(tmp_path)]
        return JobSpec.parse(
            output_uri=str(step.layout.root),
            storage_secret="objstore-cred",
            dataset_uri=str(step.layout.dataset("d")),
            model_name="digits",
            model_entry="kfp_tfjob.trainer.models:mlp",
            model_hyperparameters={"units": [8], "text": "$(RUN_ID) $$"},
            train_workers=workers,
            train_gpus=0,
            train_epochs=1,
            train_batch_size=64,
            train_image="none",
            train_options={"command": command, "stage_data": False, "backoff_seconds": 0} | options,
            pod={},
        )

    return make


@pytest.fixture
def tell(tmp_path: Path) -> Callable[..., None]:
    def write(**replicas: str) -> None:
        for name, what in replicas.items():
            part = tmp_path / f".{name}.part"
            part.write_text(what)
            part.rename(tmp_path / f"{name.replace('_', '-')}.todo")

    return write


def test_a_chief_and_two_workers_end_with_a_proven_output(
    backend, spec, step, tell, tmp_path, capsys
):
    tell(chief_0="exit 0", worker_0="exit 0", worker_1="exit 0")
    launched = engine.train(step, spec(workers=2), backend)
    assert launched.job_name == f"tfjob-{step.run_id}-1"
    assert launched.attempts == 1
    assert launched.progress.final == {"loss": 0.25}

    seen = {
        name: json.loads((tmp_path / f"{name}.1.json").read_text())
        for name in ("chief-0", "worker-0", "worker-1")
    }
    configs = {name: json.loads(value["TF_CONFIG"]) for name, value in seen.items()}
    cluster = configs["chief-0"]["cluster"]
    assert {kind: len(hosts) for kind, hosts in cluster.items()} == {"chief": 1, "worker": 2}
    hosts = [host for group in cluster.values() for host in group]
    assert len(set(hosts)) == 3 and all(host.startswith("127.0.0.1:") for host in hosts)
    assert all(config["cluster"] == cluster for config in configs.values())
    assert configs["worker-1"]["task"] == {"type": "worker", "index": 1}

    chief = seen["chief-0"]
    assert json.loads(chief["HYPERPARAMETERS"]) == {"units": [8], "text": "$(RUN_ID) $$"}
    assert chief["REPLICAS_ON_THIS_MACHINE"] == "3" and chief["EXPECTED_REPLICAS"] == "3"
    assert chief["FLUSH_BARRIER"] == "1" and "FLUSH_BARRIER" not in seen["worker-0"]
    assert Path(seen["worker-0"]["OUTPUT_DIR"]).is_relative_to(seen["worker-0"]["JOB_DIR"])
    # The program of a user finds the keys of the store as boto3 and others expect them.
    assert chief["AWS_ACCESS_KEY_ID"] and chief["AWS_ENDPOINT_URL"]

    manifest = step.store.read_manifest(step.run.manifest)
    assert (manifest.run_id, manifest.attempt) == (step.run_id, 1)
    assert any(item.key.endswith("model/weights.bin") for item in manifest.objects)
    claim = json.loads(step.store.read(step.run.attempts / "0001.json"))
    assert (claim["job"], claim["attempt"]) == (launched.job_name, 1)
    assert "[worker-1] hello from worker-1" in capsys.readouterr().out.splitlines()
    assert backend.get(launched.job_name)["status"]["conditions"][-1]["type"] == "Succeeded"

    # A finished run is not trained again.
    (tmp_path / "chief-0.1.json").unlink()
    again = engine.train(step, spec(workers=2), backend)
    assert (again.job_name, again.attempts) == (f"tfjob-{step.run_id}-1", 1)
    assert step.store.numbers(step.run.attempts) == [1]
    assert not list(tmp_path.glob("chief-0.*.json"))


def test_what_was_trained_is_not_continued_with_other_inputs(backend, spec, step, tell):
    manifest = Manifest.of("dataset", [])
    other = step.layout.root / "daily" / "dataset"
    step.store.write(other / MANIFEST, manifest.to_bytes())
    tell(chief_0="exit 0")
    first = replace(spec(), hyperparameters={"units": [8], "lr": 0.1, "password": "hunter2"})
    engine.train(step, first, backend)
    record = step.store.read(step.run.attempt(1))
    assert b"hunter2" not in record
    inputs = json.loads(record)["inputs"]
    assert (inputs["data"], inputs["train_epochs"]) == (first.dataset_uri, 1)
    # More memory is why people continue a run.
    pod = PodOptions.model_validate({"all": {"memory": "9Gi"}})
    same = spec(checkpoint_keep=9, micro_batches=2, deadline_seconds=99)
    same = replace(same, hyperparameters=first.hyperparameters, pod=pod)
    assert engine.train(step, same, backend).attempts == 1
    weight = first.options.model_copy(update={"class_weight": "balanced"})
    wrong = {
        "data": replace(first, dataset_uri=str(other)),
        "model_hyperparameters": replace(first, hyperparameters={"units": [8], "lr": 0.2}),
        "train_epochs": replace(first, epochs=40),
        "train_options.class_weight": replace(first, options=weight),
    }

    def refused(changed: JobSpec) -> list[Problem]:
        with pytest.raises(ConfigurationError) as caught:
            engine.train(step, changed, backend)
        return list(caught.value.problems)

    for name, changed in wrong.items():
        (problem,) = refused(changed)
        assert problem.what.startswith(name)
        assert problem.path == ("" if name == "data" else name)
    assert (problem.received, problem.expected) == ('"balanced"', "null")
    (problem,) = refused(wrong["data"])
    assert problem.received == f'"{manifest.digest[:32]}"'
    # The output is not complete, but there is a checkpoint.
    step.store.delete(step.run.completion)
    step.store.write(step.run.checkpoints / "3" / MANIFEST, b"{}")
    assert len(refused(wrong["train_epochs"])) == 1
    # A claim of an earlier version does not say what was trained.
    step.store.delete(step.run.attempt(1))
    body = json.loads(record)
    del body["inputs"]
    step.store.create(step.run.attempt(1), json.dumps(body).encode())
    records = Records(step)
    require_same(records.claim(1).inputs, records.inputs(wrong["train_epochs"]))


def test_a_launcher_that_loses_the_race_for_a_claim_follows_the_job_of_the_winner(
    backend, spec, step, tell, tmp_path, monkeypatch
):
    both, claim, create = threading.Barrier(2), Records.keep_claim, LocalBackend.create
    lost = threading.Event()

    def at_once(self: Records, wanted: Claim, *more: Any) -> bool:
        if wanted.attempt == 1:
            both.wait(60)  # neither has seen a claim of the other
        won = claim(self, wanted, *more)
        if not won:
            lost.set()
        return won

    def late(self: LocalBackend, manifest: dict) -> None:
        lost.wait(60)
        time.sleep(1.5)  # the loser looks for a job that is not there yet
        create(self, manifest)

    monkeypatch.setattr(Records, "keep_claim", at_once)
    monkeypatch.setattr(LocalBackend, "create", late)
    done: list[engine.Launched] = []

    def launch() -> None:
        done.append(engine.train(step, spec(), backend))

    running = [threading.Thread(target=launch, daemon=True) for _ in range(2)]
    for one in running:
        one.start()
    tell(chief_0="exit 0")
    for one in running:
        one.join(120)
    assert step.store.numbers(step.run.attempts) == [1]
    assert [(one.job_name, one.attempts) for one in done] == [(f"tfjob-{step.run_id}-1", 1)] * 2
    assert [path.name for path in tmp_path.glob("chief-0.*.json")] == ["chief-0.1.json"]


def test_a_secret_that_is_missing_is_named(backend, spec, step):
    """On a cluster the pod would wait, and the launcher says so; here nothing is started."""
    missing = {"all": {"env": {"HUB_TOKEN": {"secret": "hub", "key": "token"}}}}
    wanted = replace(spec(max_attempts=1), pod=PodOptions.model_validate(missing))
    with pytest.raises(JobRefusedError, match="hub.*token.*HUB_TOKEN"):
        engine.train(step, wanted, backend)


def test_a_worker_that_fails_fails_the_step_with_its_code_and_words(backend, spec, step, tell):
    tell(worker_0="exit 3")
    with pytest.raises(JobFailedError) as failed:
        engine.train(step, spec(workers=1), backend)
    assert (failed.value.code, failed.value.verdict) == (3, "user_error")
    assert "worker-0" in str(failed.value)
    assert failed.value.last_lines[-1].endswith("told to exit 3")
    name = f"tfjob-{step.run_id}-1"
    assert step.store.numbers(step.run.attempts) == [1]  # the user's fault is not tried again
    with pytest.raises(ObjectNotFoundError):
        step.store.read(step.run.manifest)

    # It trained nothing, so it continues with any inputs.
    backend.delete(name)  # a local run has a back end of its own
    until(lambda: backend.get(name) is None)
    tell(chief_0="exit 0", worker_0="exit 0")
    launched = engine.train(step, replace(spec(workers=1), epochs=3), backend)
    assert launched.attempts == 2
    claims = [json.loads(step.store.read(step.run.attempt(number))) for number in (1, 2)]
    assert [claim["inputs"]["train_epochs"] for claim in claims] == [1, 3]


def test_a_job_that_succeeds_without_its_output_has_the_same_verdict_everywhere(
    backend, spec, step, tell, monkeypatch
):
    tell(chief_0="exit 0")
    monkeypatch.setattr(Records, "completed", lambda self: 0)
    with pytest.raises(JobFailedError) as failed:
        engine.train(step, spec(max_attempts=1), backend)
    end = AttemptEnd.from_bytes(step.store.read(step.run.attempts / "0001.end.json"))
    verdict = Verdict.STORE_UNAVAILABLE
    assert failed.value.verdict == end.verdict == verdict
    assert end.code and end.remedy == verdict.remedy
    assert f"## Attempt 1: `{verdict}`" in explain([end]) and "succeeded`" not in explain([end])
    assert backend.get(f"tfjob-{step.run_id}-1") is None


def test_a_store_that_is_away_at_the_end_leaves_the_job_to_the_next_launcher(
    backend, spec, step, tell, monkeypatch
):
    tell(chief_0="exit 0")
    deleted: list[str] = []
    monkeypatch.setattr(backend, "delete", deleted.append)

    def away(self: Records) -> int:
        raise StoreUnavailableError(Problem("the store does not answer"))

    monkeypatch.setattr(Records, "completed", away)
    with pytest.raises(StoreUnavailableError):
        engine.train(step, spec(max_attempts=1), backend)
    assert not deleted
    assert not [it for it in threading.enumerate() if it.name.startswith("logs ")]


def test_attempts_are_bounded_for_each_start_by_a_person(backend, spec, step, script, monkeypatch):
    script.write_text("import os; os.kill(os.getppid(), 9)")
    with pytest.raises(JobFailedError) as failed:
        engine.train(step, spec(max_attempts=2), backend)
    assert (failed.value.code, failed.value.verdict) == (137, "preempted_or_lost")
    assert "2 attempts" in str(failed.value)
    assert step.store.numbers(step.run.attempts) == [1, 2]
    # Kubeflow Pipelines retries a failed step: it says the same at once.
    failure = Failure.of("launch_tfjob", failed.value)
    step.store.write(step.run.failure("json"), failure.to_bytes())
    monkeypatch.setenv("KFP_RETRY_INDEX", "1")
    with pytest.raises(JobFailedError) as again:
        engine.train(step, spec(max_attempts=2), backend)
    assert (str(again.value), again.value.code) == (str(failed.value), 137)
    assert step.store.numbers(step.run.attempts) == [1, 2]
    # A person who starts the run again expects a new attempt.
    monkeypatch.setenv("KFP_RETRY_INDEX", "0")
    with pytest.raises(JobFailedError):
        engine.train(step, spec(max_attempts=1), backend)
    assert step.store.numbers(step.run.attempts) == [1, 2, 3]


def checkpoint(step: Step, number: int) -> None:
    """Store a checkpoint as the sidecar does."""
    folder = step.run.checkpoints / str(number)
    step.store.write(folder / "state", bytes([number]))
    entry = step.store.entry(folder / "state", "state")
    step.store.create(folder / MANIFEST, Manifest.of("checkpoint", [entry]).to_bytes())


def test_two_kills_of_a_training_that_progressed_each_time_end_green(
    backend, spec, step, tell, tmp_path
):
    def progress_and_die() -> None:
        for attempt, last in ((1, "die 1"), (2, "die 2"), (3, "exit 0")):
            until((tmp_path / f"chief-0.{attempt}.json").exists)
            checkpoint(step, attempt)
            tell(chief_0=last)

    threading.Thread(target=progress_and_die, daemon=True).start()
    launched = engine.train(step, spec(max_attempts=1), backend)
    assert launched.attempts == 3
    claims = [json.loads(step.store.read(step.run.attempt(number))) for number in (1, 2, 3)]
    assert [claim["checkpoint"] for claim in claims] == [0, 1, 2]
    assert {claim["fruitless"] for claim in claims} == {0}
    assert len({claim["began"] for claim in claims}) == 1


def test_a_chief_with_a_short_orphan_timeout_hears_of_its_launcher_in_time(
    backend, spec, step, tell, tmp_path
):
    def later() -> None:
        until((tmp_path / "chief-0.1.json").exists)
        time.sleep(7)  # nothing happens for longer than the timeout
        tell(chief_0="exit 0")

    threading.Thread(target=later, daemon=True).start()
    assert engine.train(step, spec(orphan_timeout_seconds=5), backend).attempts == 1


def test_the_next_attempt_goes_on_from_the_newest_checkpoint_that_verifies(
    backend, spec, step, tell, tmp_path
):
    for number in (2, 3, 7):
        checkpoint(step, number)
    step.store.write(step.run.checkpoints / "7" / "state", b"rotten")
    step.store.write(step.run.checkpoints / "9" / "state", b"without a manifest")
    tell(chief_0="exit 0")
    engine.train(step, spec(), backend)
    keys = [item.key for item in step.store.read_manifest(step.run.manifest).objects]
    assert any(key.endswith("checkpoints/3/state") for key in keys)
    assert not any(f"checkpoints/{number}" in key for key in keys for number in (2, 7, 9))


@pytest.mark.parametrize("when", ["before its job", "while its job is lost"])
def test_a_run_that_was_ended_gets_no_attempt_more(
    backend, spec, step, tell, tmp_path, monkeypatch, when
):
    """Stopping a job looks like a chief that was lost, which costs an attempt otherwise."""
    why = ["its Workflow was deleted"] if when == "before its job" else []
    ended = nullcontext(lambda: "".join(why))
    monkeypatch.setattr(backend, "watch_workflow", lambda *_: ended)

    def lose() -> None:
        until((tmp_path / "chief-0.1.json").exists)
        why.append("a user terminated it")
        pid = json.loads((tmp_path / "chief-0.1.json").read_text())["PID"]
        os.kill(int(pid), signal.SIGKILL)

    losing = threading.Thread(target=lose, daemon=True)
    if not why:
        losing.start()
    with pytest.raises(JobFailedError, match="stopped: ") as failed:
        engine.train(step, spec(), backend)
    assert failed.value.verdict == "cancelled"
    assert step.store.numbers(step.run.attempts) == ([1] if losing.ident else [])
