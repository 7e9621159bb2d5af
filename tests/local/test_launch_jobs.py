"""Whole jobs as processes: launcher, local back end, supervisor, sidecar and S3 server are real."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from kfp_tfjob.cluster.backend import JobRefusedError
from kfp_tfjob.cluster.local.backend import LocalBackend
from kfp_tfjob.common.errors import (
    ObjectNotFoundError,
    Problem,
    StoreUnavailableError,
)
from kfp_tfjob.components.finish.run_report import explain
from kfp_tfjob.components.launch_tfjob import engine
from kfp_tfjob.components.launch_tfjob.attempt_budget import Claim
from kfp_tfjob.components.launch_tfjob.records import Records, require_same
from kfp_tfjob.components.step import Step
from kfp_tfjob.jobs.attempt_record import AttemptEnd, read_ends
from kfp_tfjob.jobs.failure_record import Failure
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.jobs.verdict import JobFailedError, Verdict
from kfp_tfjob.options.pod import PodOptions
from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import MANIFEST, Layout
from kfp_tfjob.storage.manifest import Manifest
from kfp_tfjob.storage.store import Store
from tests.problems import problem_of
from tests.unit.launch_parameters import DEFAULTS
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


class Program:
    """The program of each replica: what it was given, and what it is told."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.script = folder, folder / "program.py"
        self.script.write_text(PROGRAM)
        self.command = ["python3", str(self.script), str(folder)]

    def tell(self, **replicas: str) -> None:
        for name, what in replicas.items():
            part = self.folder / f".{name}.part"
            part.write_text(what)
            part.rename(self.folder / f"{name.replace('_', '-')}.todo")

    def wait(self, attempt: int = 1) -> None:
        until((self.folder / f"chief-0.{attempt}.json").exists)

    def environment(self, replica: str = "chief-0") -> dict[str, str]:
        """Return the variables, and the PID, of a replica of the first attempt."""
        return json.loads((self.folder / f"{replica}.1.json").read_text())


class Launcher:
    def __init__(self, step: Step, program: Program, backend: LocalBackend) -> None:
        self.step, self.program, self.backend = step, program, backend
        self.store, self.run, self.tell = step.store, step.run, program.tell

    def spec(self, workers: int = 0, **options: object) -> JobSpec:
        known = {"command": self.program.command, "stage_data": False, "backoff_seconds": 0}
        values = {
            "output_uri": str(self.step.layout.root),
            "dataset_uri": str(self.step.layout.dataset("d")),
            "model_hyperparameters": {"units": [8], "text": "$(RUN_ID) $$"},
            "train_workers": workers,
            "train_epochs": 1,
            "train_options": known | options,
        }
        return JobSpec.parse(**DEFAULTS | values)

    def train(self, spec: JobSpec | None = None, **options: Any) -> engine.Launched:
        """Launch the job, and follow it to its end."""
        return engine.train(self.step, spec or self.spec(**options), self.backend)

    def fail(self, **options: Any) -> JobFailedError:
        """Launch a job that fails; return the error."""
        with pytest.raises(JobFailedError) as failed:
            self.train(**options)
        return failed.value

    def job(self, attempt: int) -> str:
        return f"tfjob-{self.step.run_id}-{attempt}"

    @property
    def attempts(self) -> list[int]:
        return self.store.numbers(self.run.attempts)

    def claims(self) -> list[dict[str, Any]]:
        return [json.loads(self.store.read(self.run.attempt(it))) for it in self.attempts]

    def ends(self) -> dict[int, Any]:
        return read_ends(self.store, self.run)


def left(mark: str) -> list[psutil.Process]:
    """Return the processes of a test that are still there."""
    return [
        process
        for process in psutil.process_iter(["environ", "status"])
        if process.info["status"] != psutil.STATUS_ZOMBIE
        and (process.info["environ"] or {}).get(MARK) == mark
        and process.pid != os.getpid()
    ]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


@pytest.fixture
def launcher(
    program: Program, store: Store, base: S3Address, s3: Server, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Launcher]:
    """The launchers of a run on a back end none of whose processes may be left at the end."""
    secrets = program.folder / "secrets"
    secrets.mkdir()
    (secrets / "objstore-cred").symlink_to(s3.secret, target_is_directory=True)
    monkeypatch.setenv(MARK, str(program.folder))
    monkeypatch.delenv("TF_CONFIG", raising=False)
    step = Step("launch_tfjob", f"run-{base.name}", Layout(base), store)
    with LocalBackend(program.folder / "jobs", secrets) as backend:
        yield Launcher(step, program, backend)
    assert not left(str(program.folder))


def test_a_chief_and_two_workers_end_with_a_proven_output(launcher: Launcher, tmp_path, capsys):
    launcher.tell(chief_0="exit 0", worker_0="exit 0", worker_1="exit 0")
    launched = launcher.train(workers=2)
    assert (launched.job_name, launched.attempts) == (launcher.job(1), 1)
    assert launched.progress.final == {"loss": 0.25}

    seen = {it: launcher.program.environment(it) for it in ("chief-0", "worker-0", "worker-1")}
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

    manifest = launcher.store.read_manifest(launcher.run.manifest)
    assert (manifest.run_id, manifest.attempt) == (launcher.step.run_id, 1)
    assert any(item.key.endswith("model/weights.bin") for item in manifest.objects)
    (claim,) = launcher.claims()
    assert (claim["job"], claim["attempt"]) == (launched.job_name, 1)
    assert "[worker-1] hello from worker-1" in capsys.readouterr().out.splitlines()
    job = launcher.backend.get(launched.job_name)
    assert job["status"]["conditions"][-1]["type"] == "Succeeded"

    # A finished run is not trained again.
    (tmp_path / "chief-0.1.json").unlink()
    again = launcher.train(workers=2)
    assert (again.job_name, again.attempts) == (launcher.job(1), 1)
    assert launcher.attempts == [1]
    assert not list(tmp_path.glob("chief-0.*.json"))


def test_what_was_trained_is_not_continued_with_other_inputs(launcher: Launcher):
    manifest = Manifest.of("dataset", [])
    other = launcher.step.layout.root / "daily" / "dataset"
    launcher.store.write(other / MANIFEST, manifest.to_bytes())
    launcher.tell(chief_0="exit 0")
    secret = {"units": [8], "lr": 0.1, "password": "hunter2"}
    first = replace(launcher.spec(), hyperparameters=secret)
    launcher.train(first)
    record = launcher.store.read(launcher.run.attempt(1))
    assert b"hunter2" not in record
    inputs = json.loads(record)["inputs"]
    assert (inputs["data"], inputs["train_epochs"]) == (first.dataset_uri, 1)
    # More memory is why people continue a run.
    pod = PodOptions.model_validate({"all": {"memory": "9Gi"}})
    same = launcher.spec(checkpoint_keep=9, micro_batches=2, deadline_seconds=99)
    same = replace(same, hyperparameters=secret, pod=pod)
    assert launcher.train(same).attempts == 1
    weight = first.options.model_copy(update={"class_weight": "balanced"})
    wrong = {
        "data": replace(first, dataset_uri=str(other)),
        "model_hyperparameters": replace(first, hyperparameters={"units": [8], "lr": 0.2}),
        "train_epochs": replace(first, epochs=40),
        "train_options.class_weight": replace(first, options=weight),
    }

    for name, changed in wrong.items():
        problem = problem_of(launcher.train, changed)
        assert problem.what.startswith(name)
        assert problem.path == ("" if name == "data" else name)
    assert (problem.received, problem.expected) == ('"balanced"', "null")
    problem = problem_of(launcher.train, wrong["data"])
    assert problem.received == f'"{manifest.digest[:32]}"'
    # The output is not complete, but there is a checkpoint.
    launcher.store.delete(launcher.run.completion)
    launcher.store.write(launcher.run.checkpoints / "3" / MANIFEST, b"{}")
    assert problem_of(launcher.train, wrong["train_epochs"])
    # A claim of an earlier version does not say what was trained.
    launcher.store.delete(launcher.run.attempt(1))
    body = json.loads(record)
    del body["inputs"]
    launcher.store.create(launcher.run.attempt(1), json.dumps(body).encode())
    records = Records(launcher.step)
    require_same(records.claim(1).inputs, records.inputs(wrong["train_epochs"]))


def test_a_launcher_that_loses_the_race_for_a_claim_follows_the_job_of_the_winner(
    launcher: Launcher, monkeypatch
):
    both, claim, create = threading.Barrier(2), Records.save_claim, LocalBackend.create
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

    monkeypatch.setattr(Records, "save_claim", at_once)
    monkeypatch.setattr(LocalBackend, "create", late)
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(launcher.train) for _ in range(2)]
        launcher.tell(chief_0="exit 0")
        done = [one.result(120) for one in running]
    assert launcher.attempts == [1]
    assert [(one.job_name, one.attempts) for one in done] == [(launcher.job(1), 1)] * 2
    started = launcher.program.folder.glob("chief-0.*.json")
    assert [path.name for path in started] == ["chief-0.1.json"]


def test_a_secret_that_is_missing_is_named(launcher: Launcher):
    """On a cluster the pod would wait, and the launcher says so; here nothing is started."""
    missing = {"all": {"env": {"HUB_TOKEN": {"secret": "hub", "key": "token"}}}}
    wanted = replace(launcher.spec(max_attempts=1), pod=PodOptions.model_validate(missing))
    with pytest.raises(JobRefusedError, match="hub.*token.*HUB_TOKEN"):
        launcher.train(wanted)


def test_a_worker_that_fails_fails_the_step_with_its_code_and_words(launcher: Launcher):
    launcher.tell(worker_0="exit 3")
    failed = launcher.fail(workers=1)
    assert (failed.code, failed.verdict) == (3, "user_error")
    assert "worker-0" in str(failed)
    assert failed.last_lines[-1].endswith("told to exit 3")
    assert launcher.attempts == [1]  # the user's fault is not tried again
    with pytest.raises(ObjectNotFoundError):
        launcher.store.read(launcher.run.manifest)

    # It trained nothing, so it continues with any inputs.
    launcher.backend.delete(launcher.job(1))  # a local run has a back end of its own
    until(lambda: launcher.backend.get(launcher.job(1)) is None)
    launcher.tell(chief_0="exit 0", worker_0="exit 0")
    assert launcher.train(replace(launcher.spec(workers=1), epochs=3)).attempts == 2
    assert [claim["inputs"]["train_epochs"] for claim in launcher.claims()] == [1, 3]


def test_a_job_that_succeeds_without_its_output_has_the_same_verdict_everywhere(
    launcher: Launcher, monkeypatch
):
    launcher.tell(chief_0="exit 0")
    monkeypatch.setattr(Records, "completed", lambda self: 0)
    failed = launcher.fail(max_attempts=1)
    end = AttemptEnd.from_bytes(launcher.store.read(launcher.run.attempt_end(1)))
    verdict = Verdict.STORE_UNAVAILABLE
    assert failed.verdict == end.verdict == verdict
    assert end.code and end.remedy == verdict.remedy
    assert f"## Attempt 1: `{verdict}`" in explain([end]) and "succeeded`" not in explain([end])
    assert launcher.backend.get(launcher.job(1)) is None


def test_a_store_that_is_away_at_the_end_leaves_the_job_to_the_next_launcher(
    launcher: Launcher, monkeypatch
):
    launcher.tell(chief_0="exit 0")
    deleted: list[str] = []
    monkeypatch.setattr(launcher.backend, "delete", deleted.append)

    def away(self: Records) -> int:
        raise StoreUnavailableError(Problem("the store does not answer"))

    monkeypatch.setattr(Records, "completed", away)
    with pytest.raises(StoreUnavailableError):
        launcher.train(max_attempts=1)
    assert not deleted
    assert not [it for it in threading.enumerate() if it.name.startswith("logs ")]


def test_attempts_are_bounded_for_each_start_by_a_person(launcher: Launcher, monkeypatch):
    launcher.program.script.write_text("import os; os.kill(os.getppid(), 9)")
    failed = launcher.fail(max_attempts=2)
    assert (failed.code, failed.verdict) == (137, "preempted_or_lost")
    assert "2 attempts" in str(failed)
    assert launcher.attempts == [1, 2]
    # Kubeflow Pipelines retries a failed step: it says the same at once.
    failure = Failure.of("launch_tfjob", failed)
    launcher.store.write(launcher.run.failure("json"), failure.to_bytes())
    monkeypatch.setenv("KFP_RETRY_INDEX", "1")
    again = launcher.fail(max_attempts=2)
    assert (str(again), again.code) == (str(failed), 137)
    assert launcher.attempts == [1, 2]
    # A person who starts the run again expects a new attempt.
    monkeypatch.setenv("KFP_RETRY_INDEX", "0")
    launcher.fail(max_attempts=1)
    assert launcher.attempts == [1, 2, 3]


def test_a_job_that_somebody_deletes_is_not_trained_again_by_kubeflow_pipelines(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
):
    def delete() -> None:
        launcher.program.wait()
        launcher.backend.delete(launcher.job(1))

    threading.Thread(target=delete, daemon=True).start()
    failed = launcher.fail()
    assert failed.verdict == "cancelled"
    failure = Failure.of("launch_tfjob", failed)
    launcher.store.write(launcher.run.failure("json"), failure.to_bytes())
    monkeypatch.setenv("KFP_RETRY_INDEX", "1")
    assert launcher.fail().verdict == "cancelled"
    assert launcher.attempts == [1]


def checkpoint(launcher: Launcher, number: int) -> None:
    """Store a checkpoint as the sidecar does."""
    folder = launcher.run.checkpoints / str(number)
    launcher.store.write(folder / "state", bytes([number]))
    entry = launcher.store.entry(folder / "state", "state")
    launcher.store.create(folder / MANIFEST, Manifest.of("checkpoint", [entry]).to_bytes())


def test_two_kills_of_a_training_that_progressed_each_time_end_green(launcher: Launcher):
    def progress_and_die() -> None:
        for attempt, last in ((1, "die 1"), (2, "die 2"), (3, "exit 0")):
            launcher.program.wait(attempt)
            checkpoint(launcher, attempt)
            launcher.tell(chief_0=last)

    threading.Thread(target=progress_and_die, daemon=True).start()
    assert launcher.train(max_attempts=1).attempts == 3
    claims = launcher.claims()
    assert [claim["checkpoint"] for claim in claims] == [0, 1, 2]
    assert {claim["fruitless"] for claim in claims} == {0}
    assert len({claim["began"] for claim in claims}) == 1


def test_a_chief_with_a_short_orphan_timeout_hears_of_its_launcher_in_time(launcher: Launcher):
    def later() -> None:
        launcher.program.wait()
        time.sleep(7)  # nothing happens for longer than the timeout
        launcher.tell(chief_0="exit 0")

    threading.Thread(target=later, daemon=True).start()
    assert launcher.train(orphan_timeout_seconds=5).attempts == 1


def test_the_next_attempt_goes_on_from_the_newest_checkpoint_that_verifies(launcher: Launcher):
    for number in (2, 3, 7):
        checkpoint(launcher, number)
    launcher.store.write(launcher.run.checkpoints / "7" / "state", b"rotten")
    launcher.store.write(launcher.run.checkpoints / "9" / "state", b"without a manifest")
    launcher.tell(chief_0="exit 0")
    launcher.train()
    manifest = launcher.store.read_manifest(launcher.run.manifest)
    keys = [item.key for item in manifest.objects]
    assert any(key.endswith("checkpoints/3/state") for key in keys)
    assert not any(f"checkpoints/{number}" in key for key in keys for number in (2, 7, 9))


@pytest.mark.parametrize("when", ["before its job", "while its job is lost"])
def test_a_run_that_was_ended_gets_no_attempt_more(launcher: Launcher, monkeypatch, when):
    """Stopping a job looks like a chief that was lost, which costs an attempt otherwise."""
    why = ["its Workflow was deleted"] if when == "before its job" else []
    ended = nullcontext(lambda: "".join(why))
    monkeypatch.setattr(launcher.backend, "watch_workflow", lambda *_: ended)

    def lose() -> None:
        launcher.program.wait()
        why.append("a user terminated it")
        os.kill(int(launcher.program.environment()["PID"]), signal.SIGKILL)

    losing = threading.Thread(target=lose, daemon=True)
    if not why:
        losing.start()
    failed = launcher.fail()
    assert "stopped: " in str(failed) and failed.verdict == "cancelled"
    assert launcher.attempts == ([1] if losing.ident else [])
