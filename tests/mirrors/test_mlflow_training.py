"""A training that MLflow's real server follows: kills of the chief and of the server, a hang."""

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.cluster.processes import running
from tests.http_server import Handler, serving
from tests.local.conftest import datasets, jobs  # noqa: F401
from tests.local.trainer_jobs import Job, Start
from tests.mirrors.mlflow_server import Server

pytestmark = pytest.mark.slow
EPOCHS = 5
MLFLOW = "kfp_tfjob.trainer.mlflow_run"
# Each epoch waits for the test. The process of the trainer never has a client of MLflow.
CODE = """
import json
import os
import pathlib
import sys
import time
import keras
from kfp_tfjob.trainer.models import mlp as build_model

JOB_DIR = pathlib.Path(os.environ["JOB_DIR"])

class Gate(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        while not (JOB_DIR / f"go-{epoch + 1}").exists():
            time.sleep(0.02)

    def on_epoch_end(self, epoch, logs=None):
        (JOB_DIR / "modules").write_text(json.dumps(sorted(sys.modules)))

def callbacks(dataset):
    return [Gate()]
"""
SETTINGS = {"code": CODE, "MAX_RESTARTS": "3", "START_DEADLINE": "600"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(Server(tmp_path_factory.mktemp("mlflow"))) as server:
        yield server


def go(job: Job, *epochs: int) -> None:
    for epoch in epochs:
        (job.folder / "0" / f"go-{epoch}").touch()


def epochs(job: Job) -> list[int]:
    path = job.output / "progress.jsonl"
    return [event["epoch"] for event in job.events("epoch")] if path.exists() else []


def kill_chief(job: Job) -> None:
    """Kill the chief's trainer, and lose its checkpoints, so that all epochs are trained again."""
    trainer, supervisor = job.trainer(0), job.processes[0]
    supervisor.send_signal(signal.SIGSTOP)
    os.kill(trainer, signal.SIGKILL)
    shutil.rmtree(job.output / "checkpoints")
    supervisor.send_signal(signal.SIGCONT)


def modules(job: Job) -> list[str]:
    names = json.loads((job.folder / "0" / "modules").read_text())
    own = ("kfp_tfjob.trainer.mlflow", "kfp_tfjob.registry.tracking")
    return [name for name in names if name.partition(".")[0] == "mlflow" or name.startswith(own)]


def warnings(job: Job) -> int:
    return job.log().count("training continues")


def test_every_epoch_once_after_kills_of_the_chief_and_of_the_server(
    jobs: Start,  # noqa: F811
    server: Server,
) -> None:
    job = jobs(
        *("followed", 2),
        **SETTINGS,
        EPOCHS=str(EPOCHS),
        HYPERPARAMETERS='{"hidden": [8]}',
        RUN_URI="s3://test/runs/followed",
        MLFLOW_TRACKING_URI=server.uri,
    )

    def logged() -> list[int]:
        found = server.runs("followed")
        return server.steps(found[0]["info"]["run_id"], "loss") if found else []

    go(job, 1, 2)
    job.until(lambda: logged() == [1, 2])
    first = server.runs("followed")
    kill_chief(job)
    job.until(lambda: "restart 1 of 3" in job.log())
    job.until(lambda: epochs(job) == [1, 2] and job.log().count(": logging to run") == 2)
    assert job.log().count("from step 0\n") == 2  # both epochs were trained again

    server.stop()
    go(job, 3, 4)
    job.until(lambda: epochs(job) == [1, 2, 3, 4])  # training does not wait
    job.until(lambda: warnings(job) == 1)
    server.start()
    go(job, 5)
    assert job.end() == [0, 0], job.log()

    (run,) = server.runs("followed")
    assert run["info"]["run_id"] == first[0]["info"]["run_id"]
    assert run["info"]["status"] == "FINISHED" and run["info"]["run_name"] == "followed"
    everything = list(range(1, EPOCHS + 1))
    metrics = job.events("epoch")[-1]["metrics"]
    assert "val_loss" in metrics
    for name in metrics:
        assert server.steps(run["info"]["run_id"], name) == everything, name
    parameters = {item["key"]: item["value"] for item in run["data"]["params"]}
    expected = {"epochs": "5", "replicas": "2", "model_hyperparameters.hidden": "[8]"}
    assert parameters == parameters | expected
    tags = {item["key"]: item["value"] for item in run["data"]["tags"]}
    assert tags["kfp_tfjob.run_uri"] == "s3://test/runs/followed"
    assert tags["kfp_tfjob.dataset_digest"] and tags["kfp_tfjob.champion"] == "false"
    assert warnings(job) == 1
    assert modules(job) == ["kfp_tfjob.registry.tracking", "kfp_tfjob.trainer.mlflow_process"]
    assert "MLflow" not in job.log(1)


class _Silent(Handler):
    def do_GET(self) -> None:
        time.sleep(1200)

    do_POST = do_GET


def test_a_server_that_never_answers_delays_only_the_end(jobs: Start) -> None:  # noqa: F811
    with serving(_Silent) as silent:
        uri = silent.url.replace("//", "//eva:geheim@")
        job = jobs("silent", **SETTINGS, EPOCHS="1", MLFLOW_TRACKING_URI=uri)
        job.until(lambda: warnings(job) == 1)
        go(job, 1)
        job.until(lambda: bool(job.output.exists() and job.events("final")))
        trained = time.monotonic()
        assert job.end() == [0], job.log()
    assert time.monotonic() - trained < 60  # of 20, on a busy machine
    assert "geheim" not in job.log() and warnings(job) == 1


def test_without_a_server_nothing_is_started_or_imported(jobs: Start) -> None:  # noqa: F811
    job = jobs("alone", **SETTINGS, EPOCHS="2")
    go(job, 1)
    job.until(lambda: epochs(job) == [1])
    assert not psutil.Process(job.trainer(0)).children()
    go(job, 2)
    assert job.end() == [0], job.log()
    assert modules(job) == []


def test_a_stopped_training_says_so(jobs: Start, server: Server) -> None:  # noqa: F811
    job = jobs("stopped", **SETTINGS, EPOCHS="2", MLFLOW_TRACKING_URI=server.uri)
    job.until(lambda: "logging to run" in job.log())
    (child,) = psutil.Process(job.trainer(0)).children()
    assert MLFLOW in child.cmdline()
    job.processes[0].send_signal(signal.SIGTERM)
    go(job, 1)
    assert job.end() == [143], job.log()
    (run,) = server.runs("stopped")
    assert run["info"]["status"] == "KILLED"
    assert not child.is_running()


def test_a_secret_enables_it_and_a_plugin_names_the_run(
    jobs: Start,  # noqa: F811
    server: Server,
    tmp_path: Path,
) -> None:
    created = server.post("runs/create", experiment_id="0", run_name="launch-tfjob")
    injected = created["run"]["info"]["run_id"]
    job = jobs("injected", late=[0], **SETTINGS, EPOCHS="1", MLFLOW_RUN_ID=injected)
    secret = Path(job.environment["STORAGE_SECRET_DIR"])
    for item in secret.iterdir():
        if item.is_file():
            (tmp_path / item.name).write_bytes(item.read_bytes())
    (tmp_path / "MLFLOW_TRACKING_URI").write_text(f"{server.uri}\n")
    job.environment["STORAGE_SECRET_DIR"] = str(tmp_path)
    go(job, 1)
    assert job.start().end() == [0], job.log()
    (run,) = server.runs("injected")
    assert run["info"]["run_id"] == injected and run["info"]["status"] == "FINISHED"
    assert run["info"]["run_name"] == "launch-tfjob"
    assert server.steps(injected, "loss") == [1]
