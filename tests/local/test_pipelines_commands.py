"""submit, runs, watch, why, cancel, retry and compare, with a fake API server and a real store."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import kfp_server_api as api
import pytest
from click.testing import CliRunner, Result

from kfp_tfjob import Client
from kfp_tfjob.components.step import Failure
from kfp_tfjob.options.pipeline import PARAMETERS
from kfp_tfjob.pipelines.cli import main
from kfp_tfjob.pipelines.commands.parameters import VARIABLE
from kfp_tfjob.pipelines.compilation import FOLDER
from kfp_tfjob.pipelines.kubeflow import following, plan
from kfp_tfjob.pipelines.kubeflow.environment import ENDPOINT
from kfp_tfjob.pipelines.kubeflow.refusals import BackEndAwayError
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.credentials import MOUNT_VARIABLE
from kfp_tfjob.storage.errors import ConfigurationError
from kfp_tfjob.storage.layout import Layout, RunLayout
from kfp_tfjob.storage.store import Store
from tests.local.fake_pipelines import FakePipelines, Refusal

YAML = FOLDER / "tfjob_training.yaml"
PLACEHOLDER = "set-your-registry.invalid"


@pytest.fixture
def fake() -> Iterator[FakePipelines]:
    with FakePipelines() as fake:
        yield fake


@pytest.fixture(autouse=True)
def a_laptop(fake, s3, store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The environment of a person: a back end, a store, and no cluster."""
    for name in PARAMETERS:
        monkeypatch.delenv(f"{VARIABLE}{name.upper()}", raising=False)
    monkeypatch.setenv(ENDPOINT, fake.host)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The compiled pipeline with images that exist."""
    path = tmp_path / "pipeline.yaml"
    path.write_text(YAML.read_text().replace(PLACEHOLDER, "registry.example"))
    return path


@pytest.fixture
def data(store: Store, base: S3Address) -> S3Address:
    address = base / "rows.csv"
    store.write(address, b"a,y\n1,0\n2,1\n")
    return address


def kfp_tfjob(*arguments: object) -> Result:
    found = CliRunner().invoke(main, [str(it) for it in arguments])
    assert not found.exception or isinstance(found.exception, SystemExit), found.exception
    return found


def submitted(package: Path, data: S3Address, base: S3Address, *more: object) -> Result:
    return kfp_tfjob(
        *("submit", "--data", data, "--label", "y", "--name", "m", "--output", base),
        *("--pipeline", package, *more),
    )


def add(fake: FakePipelines, base: S3Address, name: str = "one", state: str = "RUNNING", **more):
    """Add a run as if the UI had submitted it."""
    values = {"model_name": "m", "output_uri": str(base), "data_uri": f"{base}/rows.csv"} | more
    return fake.add(name, state, runtime_config=api.V2beta1RuntimeConfig(parameters=values))


def folder(base: S3Address, run: api.V2beta1Run) -> RunLayout:
    return Layout.parse(str(base)).run(run.run_id)


def verdict(blessed: bool, accuracy: float, dataset: str = "d1") -> bytes:
    check = {"name": "baseline", "pass": blessed, "explanation": f"accuracy {accuracy} and so on"}
    content = {
        "blessed": blessed,
        "reasons": [check["explanation"]],
        "checks": [check],
        "champion": None,
        "dataset_digest": dataset,
        "rows": 100,
        "primary_metric": "accuracy",
        "metrics": {"accuracy": accuracy},
        "intervals": {"accuracy": [accuracy - 0.1, accuracy + 0.1]},
    }
    return json.dumps(content).encode()


# -- submit -----------------------------------------------------------------------------------


def test_submit_shows_the_plan_and_starts_the_run(fake, package, data, base):
    found = submitted(package, data, base, "--yes", "--epochs", 3, "--set", "gate.mode=point")
    assert found.exit_code == 0, found.output
    (run,) = fake.runs.values()
    assert run.run_id in found.stdout
    assert f"{fake.host}/#/runs/details/{run.run_id}" in found.stdout
    assert "1 file, 12 B" in found.stdout
    assert "2 replicas" in found.stdout
    assert "train_epochs = 3  (--epochs)" in found.stdout
    assert "no earlier run" in found.stdout
    parameters = run.runtime_config.parameters
    assert set(parameters) == set(PARAMETERS)
    assert parameters["train_epochs"] == 3
    assert parameters["gate"] == PARAMETERS["gate"].default | {"mode": "point"}
    assert set(run.pipeline_spec) == {"pipeline_spec", "platform_spec"}
    assert run.display_name.startswith("m-")


@pytest.mark.parametrize("whole", [False, True])
def test_model_code_of_this_machine_is_copied(fake, package, data, base, store, tmp_path, whole):
    path = tmp_path / ("mine" if whole else "mine.py")
    file = path / "__init__.py" if whole else path
    file.parent.mkdir(exist_ok=True)
    file.write_text("def build(dataset):\n    return None\n")
    for _ in range(2):
        found = submitted(package, data, base, "--yes", "--model", f"{path}:build")
        assert found.exit_code == 0, found.output
    addresses = {run.runtime_config.parameters["model_code"] for run in fake.runs.values()}
    (address,) = addresses
    assert address.startswith(f"{base}/code/") and address.endswith(f"/{path.name}:build")
    where = S3Address.parse(address.removesuffix(":build"), "model_code")
    assert store.read(where / "__init__.py" if whole else where) == file.read_bytes()


def test_a_reader_of_this_machine_is_copied(fake, package, data, base, store, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import pyarrow as pa\n"
        "def read(stream, name):\n"
        "    yield pa.RecordBatch.from_pydict({'a': [1, 2], 'y': [0, 1]})\n"
    )
    setting = ("--set", f"data_options.reader={file}:read", "--yes")
    found = submitted(package, data, base, *setting)
    assert found.exit_code == 0, found.output
    (run,) = fake.runs.values()
    address = run.runtime_config.parameters["data_options"]["reader"]
    assert address.startswith(f"{base}/code/") and address.endswith("/mine.py:read")
    where = S3Address.parse(address.removesuffix(":read"))
    assert store.read(where) == file.read_bytes()
    file.write_text("def read(stream):\n    yield 1\n")
    found = submitted(package, data, base, *setting)
    assert found.exit_code == 2 and "does not take a stream and a name" in found.stderr


def test_wrong_model_code_of_this_machine_is_refused(fake, package, data, base, tmp_path):
    (tmp_path / "mine.py").write_text("def other(dataset):\n    return None\n")
    for name in ("mine.py:build", "none.py:build"):
        found = submitted(package, data, base, "--yes", "--model", f"{tmp_path}/{name}")
        assert found.exit_code == 2 and "model" in found.stderr
    assert not fake.runs


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_without_a_terminal_the_plan_is_shown_and_nothing_starts(fake, package, data, base, more):
    found = submitted(package, data, base, *more)
    assert found.exit_code == 2 and "Fix: add --yes" in found.stderr
    assert "1 file, 12 B" in found.stdout or json.loads(found.stdout)["bytes"] == 12
    assert not fake.runs


def test_a_dry_run_checks_and_starts_nothing(fake, package, data, base):
    found = submitted(package, data, base, "--dry-run", "--yes")
    assert found.exit_code == 0, found.output
    assert "2 replicas" in found.stdout and "Started" not in found.stdout
    plan = json.loads(submitted(package, data, base, "--dry-run", "--json").stdout)
    assert (plan["replicas"], plan["files"], plan["model"]) == (2, 1, "m")
    add(fake, base, "taken")
    found = submitted(package, data, base, "--dry-run", "--run-name", "taken")
    assert found.exit_code == 2 and "exists already" in found.stderr
    found = kfp_tfjob("submit", "--dry-run", "--pipeline", package)
    assert found.exit_code == 2 and "data_uri is missing" in found.stderr
    assert len(fake.runs) == 1


def test_what_the_store_does_not_have_is_refused_at_once(fake, package, store, data, base):
    code = base / "code.py"
    store.write(code, b"def other(dataset):\n    return None\n")
    for arguments, expected in (
        (("--output", "s3://absent/p", "--data", "s3://missing/a.csv"), ("absent", "missing")),
        (("--data", base / "nothing.csv"), ("data_uri holds no data",)),
        (("--label", "z"), ("'z'",)),
        (("--model", f"{code}:build", "--epochs", 0), ("no function build", "train_epochs")),
        (("--model", f"{base}/none.py:build"), ("none.py: it does not exist", "--model")),
    ):
        found = submitted(package, data, base, *arguments, "--yes")
        assert found.exit_code == 2, found.output
        assert all(part in found.stderr for part in expected), found.stderr
    assert "AWS_ENDPOINT_URL" in found.stderr
    with pytest.raises(ConfigurationError, match="no bucket absent"):
        values = {"data_uri": str(data), "data_label": "y", "model_name": "m"}
        client = Client(fake.host)
        client.submit(values | {"output_uri": "s3://absent/p"}, client.package(package))
    assert not fake.runs and fake.requests.count(("POST", "/apis/v2beta1/runs")) == 0


@pytest.mark.parametrize("why", ["away", "no keys", "other keys"])
def test_a_store_that_this_machine_cannot_ask_is_left_to_preflight(
    fake, package, data, base, monkeypatch, why
):
    if why == "away":
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    else:
        monkeypatch.delenv(MOUNT_VARIABLE)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "x" if why == "other keys" else "")
    found = submitted(package, data, base, "--yes", "--output", "s3://absent/p")
    assert found.exit_code == 0, found.output
    notes = [line for line in found.stdout.splitlines() if "preflight does it in the run" in line]
    assert len(notes) == (1 if why == "away" else 2), found.stdout
    assert len(fake.runs) == 1


def test_the_plan_compares_the_pods_with_the_nodes(
    fake, package, data, base, monkeypatch, tmp_path
):
    """The nodes are those of a server that knows nothing else."""
    has = {"cpu": "2", "memory": "4Gi", "ephemeral-storage": "100Gi"}
    node = {"metadata": {"name": "n", "labels": {}}, "status": {"allocatable": has}, "spec": {}}
    status = 200

    class Nodes(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            reply = {"items": [node], "metadata": {}} if status == 200 else {"message": "no"}
            data = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Nodes) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        config = {
            "clusters": [{"name": "c", "cluster": {"server": address}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {}}],
            "current-context": "c",
        }
        path = tmp_path / "kubeconfig"
        path.write_text(json.dumps(config))
        # The Kubernetes client reads KUBECONFIG only when it is imported.
        name = "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"
        monkeypatch.setattr(name, str(path))
        plan = json.loads(submitted(package, data, base, "--dry-run", "--json").stdout)
        assert len(plan["warnings"]) == 2, plan["notes"]  # the chief and the worker
        for part in ("4.", "can allocate 2", "16", "can allocate 4 GiB", "pod.all.cpu", address):
            assert part in plan["warnings"][0], plan["warnings"]
        small = ("--set", "pod.all.cpu=0.25", "--set", "pod.all.memory=1Gi")
        found = submitted(package, data, base, "--dry-run", *small)
        assert "warning" not in found.stdout and "not checked" not in found.stdout
        status = 403
        found = submitted(package, data, base, "--dry-run")
        assert "you may not list nodes" in found.stdout
        server.shutdown()


def test_everything_wrong_is_said_before_anything_is_sent(fake):
    found = kfp_tfjob("submit", "--data", "rows.csv", "--epochs", 0, "--yes", "--pipeline", YAML)
    assert found.exit_code == 2
    for part in ("model_name", "output_uri", "train_epochs", "s3://", PLACEHOLDER):
        assert part in found.stderr
    assert fake.requests == []


def test_a_name_is_used_once(fake, package, data, base):
    assert submitted(package, data, base, "--yes", "--run-name", "nightly").exit_code == 0
    found = submitted(package, data, base, "--yes", "--run-name", "nightly")
    assert found.exit_code == 2
    assert next(iter(fake.runs)) in found.stderr
    assert len(fake.runs) == 1


def test_of_two_submissions_at_once_one_wins(fake, package, data, base):
    """The other one started after this one had looked for the name."""
    values = {"data_uri": str(data), "data_label": "y", "model_name": "m", "output_uri": str(base)}
    raced = []

    def broken(method: str, path: str) -> None:
        if method == "POST" and path.endswith("/runs") and not raced:
            raced.append(add(fake, base, "nightly"))

    fake.broken = broken
    client = Client(fake.host)
    with pytest.raises(Exception, match="exists already") as found:
        client.submit(values, client.package(package), "nightly")
    assert raced[0].run_id in str(found.value)
    assert list(fake.runs) == [raced[0].run_id]


def test_a_lost_answer_does_not_lose_the_run(fake, package, data, base):
    values = {"data_uri": str(data), "data_label": "y", "model_name": "m", "output_uri": str(base)}
    answer = fake.answer

    def lost(method, path, query, body):
        found = answer(method, path, query, body)
        if method == "POST" and path == "/runs":
            raise ConnectionError
        return found

    fake.answer = lost
    client = Client(fake.host)
    run = client.submit(values, client.package(package), "once")
    assert list(fake.runs) == [run.run_id]


def test_an_uploaded_pipeline_is_named_and_not_sent(fake, package, data, base):
    from kfp_tfjob.pipelines.kubeflow.package import from_file

    spec = from_file(package).spec
    fake.versions["v"] = api.V2beta1PipelineVersion(
        pipeline_id="p", pipeline_version_id="v", display_name="two", pipeline_spec=dict(spec)
    )
    found = kfp_tfjob(
        *("submit", "--data", data, "--label", "y", "--name", "m", "--output", base, "--yes"),
        *("--pipeline-id", "p", "--version", "v"),
    )
    assert found.exit_code == 0, found.output
    (run,) = fake.runs.values()
    assert run.pipeline_spec is None
    assert run.pipeline_version_reference.pipeline_version_id == "v"
    found = kfp_tfjob("submit", "--yes", "--pipeline-id", "p", "--version", "w")
    assert found.exit_code == 2 and "not found" in found.stderr


def test_another_pipeline_is_refused(tmp_path):
    for text in ("pipelineInfo: {name: other}", "- 1", "a: [", ""):
        path = tmp_path / "other.yaml"
        path.write_text(text)
        found = kfp_tfjob("submit", "--yes", "--pipeline", path)
        assert found.exit_code == 2 and str(path) in found.stderr


def test_this_version_is_compiled_in_place(fake, data, base):
    found = kfp_tfjob(
        *("submit", "--data", data, "--label", "y", "--name", "m", "--output", base, "--yes"),
    )
    assert found.exit_code == 2 and PLACEHOLDER in found.stderr


def test_the_estimate_is_of_runs_alike():
    def run(seconds: float, state: str = "succeeded", **parameters: object):
        return following.Run("id", "n", state, "m", "", "", seconds, "", "", parameters=parameters)

    values = {name: it.default for name, it in PARAMETERS.items()} | {"data_uri": "s3://b/d"}
    alike = {"data_uri": "s3://b/d"}
    assert plan.estimate([], values).seconds is None
    assert plan.estimate([run(9, "failed", **alike)], values).runs == 0
    found = plan.estimate(
        [run(60, **alike), run(80, **alike), run(900, data_uri="s3://b/e")], values
    )
    assert (found.seconds, found.runs) == (70, 2) and "1 min 10 s" in found.words
    found = plan.estimate([run(60, train_epochs=900, **alike)], values)
    assert found.seconds is None and "1 min" in found.words


# -- runs, why, compare -----------------------------------------------------------------------


def test_runs_lists_states_and_verdicts(fake, store, base):
    add(fake, base, "first", "FAILED")
    green = add(fake, base, "second", "SUCCEEDED")
    store.write(folder(base, green).verdict, verdict(False, 0.5))
    add(fake, base, "third")
    found = kfp_tfjob("runs")
    assert found.exit_code == 0
    lines = found.stdout.splitlines()
    assert [line.split()[1] for line in lines[1:]] == ["third", "second", "first"]
    assert "not blessed" in lines[2]
    found = json.loads(kfp_tfjob("runs", "--json", "--limit", 1).stdout)
    assert [run["name"] for run in found] == ["third"]


def test_runs_says_why_verdicts_are_missing(fake, base, monkeypatch):
    add(fake, base, "first", "SUCCEEDED")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    found = kfp_tfjob("runs")
    assert found.exit_code == 0
    (note,) = [line for line in found.stdout.splitlines() if line.startswith("note:")]
    assert "verdicts are missing" in note


def test_runs_of_one_experiment(fake, base):
    team = api.V2beta1Experiment(experiment_id="t", display_name="team")
    fake.experiments["t"] = team
    add(fake, base, "elsewhere")
    add(fake, base, "ours").experiment_id = "t"
    found = kfp_tfjob("runs", "--experiment", "team")
    assert "ours" in found.stdout and "elsewhere" not in found.stdout
    found = kfp_tfjob("runs", "--experiment", "none")
    assert found.exit_code == 2 and "no such experiment" in found.stderr


def test_why_gives_the_record_of_the_failure(fake, store, base):
    run = add(fake, base, state="FAILED")
    failure = Failure(
        "preflight", 3, "user_error", "there is no column 'z'. Fix: correct data_label."
    )
    store.write(folder(base, run).failure("json"), failure.to_bytes())
    found = kfp_tfjob("why", "last")
    assert found.exit_code == 0
    assert "preflight" in found.stdout and "correct data_label" in found.stdout
    why = json.loads(kfp_tfjob("why", "one", "--json").stdout)
    assert (why["step"], why["code"], why["run"]["verdict"]) == ("preflight", 3, "user_error")
    assert why["remedy"] == "correct data_label."


def test_why_finds_the_failure_of_a_task_with_a_key(fake, store, base):
    run = add(fake, base, state="FAILED")
    failure = Failure("launch_tfjob", 3, "user_error", "there is no data. Fix: bring some.")
    task = folder(base, run).task("eu")
    store.write(task.failure("json"), failure.to_bytes())
    why = Client(fake.host).why("last")
    assert (why.step, why.code, why.remedy) == ("launch_tfjob", 3, "bring some.")


def test_why_says_what_cannot_be_read(fake, base, monkeypatch, tmp_path):
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


def test_why_a_run_did_not_train(fake, store, base):
    run = add(fake, base, state="SUCCEEDED")
    record = json.dumps({"run_id": "earlier-run"}).encode()
    store.write(folder(base, run).unchanged, record)
    why = Client(fake.host).why("last")
    assert why.run.verdict == "unchanged" and "earlier-run" in why.reason


def test_parameters_have_the_defaults_of_their_pipeline(fake, package, base):
    from kfp_tfjob.pipelines.kubeflow.package import from_file

    run = add(fake, base, train_epochs=3)
    run.pipeline_spec = dict(from_file(package).spec)
    found = Client(fake.host).run("last").parameters
    assert found["train_epochs"] == 3 and found["train_workers"] == 1
    assert isinstance(found["train_workers"], int)


def test_compare_shows_what_differs(fake, store, base):
    for name, accuracy, epochs in (("one", 0.5, 3), ("two", 0.9, 5)):
        run = add(fake, base, name, "SUCCEEDED", train_epochs=epochs, pod={"all": {"cpu": epochs}})
        store.write(folder(base, run).verdict, verdict(True, accuracy, f"d{epochs}"))
    found = Client(fake.host).compare(["one", "two"])
    assert found.parameters == {"pod.all.cpu": (3, 5), "train_epochs": (3, 5)}
    assert found.same_data is False
    assert [it.metrics["accuracy"].value for it in found.runs] == [0.5, 0.9]
    text = kfp_tfjob("compare", "one", "two").stdout
    assert "0.9 [0.8, 1]" in text and "The data differs" in text
    assert kfp_tfjob("compare", "one").exit_code == 2


# -- watch, cancel, retry ---------------------------------------------------------------------


def test_watch_shows_steps_progress_and_the_end(fake, store, base, monkeypatch):
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
    monkeypatch.setattr("kfp_tfjob.pipelines.kubeflow.following._SECONDS", 0.1)
    found = kfp_tfjob("watch", "one")
    assert found.exit_code == 0, found.output
    for part in (
        "preflight running",
        "preflight succeeded (8 s)",
        "launch_tfjob running",
        "epoch 2, step 20 of 60, loss 0.25, 100 rows/s, 1 min 5 s left",
        "why it waits is not shown",
        "run succeeded",
        "did not pass the gate",
    ):
        assert part in found.stdout, found.stdout
    assert found.stdout.count("why it waits is not shown") == 1


def test_watch_ends_with_the_code_of_the_failed_step(fake, store, base):
    run = add(fake, base, state="FAILED")
    failure = Failure("launch_tfjob", 4, "user_error", "the loss is not finite")
    store.write(folder(base, run).failure("json"), failure.to_bytes())
    assert kfp_tfjob("watch", "last").exit_code == 4
    found = kfp_tfjob("watch", "last", "--json")
    assert found.exit_code == 4
    assert json.loads(found.stdout.splitlines()[-1])["run"]["state"] == "failed"


def test_cancel_waits_for_the_end_and_says_what_was_checked(fake, store, base):
    run = add(fake, base)
    store.write(folder(base, run).checkpoints / "40/manifest.json", b"{}")

    def broken(method: str, path: str) -> None:
        if run.state == "CANCELING" and method == "GET":
            run.state, run.finished_at = "FAILED", datetime.now(UTC)

    fake.broken = broken
    found = kfp_tfjob("cancel", "one")
    assert found.exit_code == 0, found.output
    assert ("POST", f"/apis/v2beta1/runs/{run.run_id}:terminate") in fake.requests
    assert "Nothing of one is running" in found.stdout
    assert "step 40" in found.stdout
    assert "were not checked" in found.stdout
    found = kfp_tfjob("cancel", "one")
    assert found.exit_code == 2 and "is over" in found.stderr


def test_a_cancelled_run_is_not_a_failed_one(fake, base):
    """A real back end calls it failed, and keeps the states before."""
    run = add(fake, base, state="FAILED")
    run.state_history = [
        api.V2beta1RuntimeStatus(state=state)
        for state in ("PENDING", "RUNNING", "CANCELING", "FAILED")
    ]
    fake.task(run, "preflight", "FAILED")
    why = Client(fake.host).why("one")
    assert why.summary == "The run was cancelled." and why.run.verdict == "cancelled"
    assert "during preflight" in why.reason and "retry" in why.remedy
    run.state_history += [api.V2beta1RuntimeStatus(state=it) for it in ("RUNNING", "FAILED")]
    assert Client(fake.host).why("one").summary != "The run was cancelled."


def test_cancel_gives_up_after_its_limit(fake, base):
    add(fake, base)
    found = json.loads(kfp_tfjob("cancel", "one", "--limit", 1, "--json").stdout)
    assert not found["complete"] and found["run"]["state"] == "canceling"


def test_retry_runs_a_failed_run_again_and_no_other(fake, base):
    run = add(fake, base, state="FAILED")
    found = kfp_tfjob("retry", run.run_id[:8])
    assert found.exit_code == 0, found.output
    assert run.state == "RUNNING"
    found = kfp_tfjob("retry", "one")
    assert found.exit_code == 2 and "running" in found.stderr


def test_tensorboard_takes_a_run(fake, base):
    run = add(fake, base)
    found = kfp_tfjob("tensorboard", "one")
    assert found.exit_code == 3 and "the run one (running) has stored nothing yet" in found.stderr
    assert str(folder(base, run).base) in found.stderr


def test_logs_of_a_run_that_has_none(fake, base):
    add(fake, base)
    fake.add("other")
    found = kfp_tfjob("logs", "one")
    assert found.exit_code == 3 and "the run one (running) has stored nothing yet" in found.stderr
    found = kfp_tfjob("logs", "other")
    assert found.exit_code == 2 and "no parameter output_uri" in found.stderr


def test_a_namespace_that_is_not_used_is_said(fake, base, caplog):
    assert kfp_tfjob("runs", "--namespace", "team").exit_code == 0
    assert "--namespace team is not used" in caplog.text


def test_a_back_end_that_goes_away_is_an_error_with_a_code(fake):
    fake.__exit__()
    found = kfp_tfjob("runs")
    assert found.exit_code == BackEndAwayError.code
    assert "port-forward" in found.stderr and "Connection refused" in found.stderr
    assert "HTTPConnection" not in found.stderr and found.stderr.count("\n") == 1


def test_why_says_that_nothing_has_started(fake, base):
    add(fake, base, state="PENDING")
    assert "has not started its first step yet" in kfp_tfjob("why", "last").stdout


def test_why_a_run_of_another_pipeline_failed(fake):
    fake.add("other", "FAILED", error=api.GoogleRpcStatus(code=2, message="boom"))
    found = kfp_tfjob("why", "other")
    assert found.exit_code == 0 and "What happened: boom" in found.stdout
    assert "it has no parameter output_uri" in found.stdout


# -- curl -------------------------------------------------------------------------------------


def test_the_script_with_curl_sends_what_the_api_takes(fake, repository, base, tmp_path):
    """The fake refuses a body that kfp_server_api's models do not have."""
    parameters = {"model_name": "m", "output_uri": str(base), "train_epochs": 2}
    (tmp_path / "p.json").write_text(json.dumps(parameters))
    command = ["sh", str(repository / "examples/submit_with_curl.sh"), "p", "v"]
    command += [str(tmp_path / "p.json"), "nightly"]
    environment = os.environ | {"SECONDS_BETWEEN": "0.2", "TOKEN": "t", "EXPERIMENT_ID": "e"}
    fake.token = "t"

    def finish() -> None:
        while not any(run.display_name == "nightly" for run in list(fake.runs.values())):
            time.sleep(0.01)
        for run in fake.runs.values():
            run.state = "SUCCEEDED"

    Thread(target=finish, daemon=True).start()
    for _ in range(2):  # the second time it finds the run
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert "SUCCEEDED" in done.stdout
    (run,) = fake.runs.values()
    assert run.runtime_config.parameters == parameters
    assert run.pipeline_version_reference.pipeline_id == "p"
    assert run.experiment_id == "e"
    fake.token = "other"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and "401" in done.stderr
