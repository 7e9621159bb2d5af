"""What goes to MLflow, and when: against its own client and store, in a folder instead of a server.

`make test-mlflow` does the same with a server that is killed.
"""

import ast
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kfp_tfjob.components.launch_tfjob.launch_context import plugin_tracking
from kfp_tfjob.options.parameter_masking import MASK
from kfp_tfjob.options.parameters import PARAMETERS
from kfp_tfjob.registry import tracking
from kfp_tfjob.trainer import mlflow_run
from kfp_tfjob.trainer.config import Config
from kfp_tfjob.trainer.mlflow_process import description
from kfp_tfjob.trainer.mlflow_run import Follower, RunLog, Session
from tests.environments import ROOT, run_python
from tests.unit.test_trainer_config import RIGHT

TAGS = {tracking.RUN_TAG: "r1", tracking.CHAMPION_TAG: "false"}
LOG = "kfp_tfjob.trainer.mlflow"


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow import MlflowClient

    client = MlflowClient(f"file://{tmp_path}/mlflow")
    client.search_experiments()  # creates the default one
    return client


@pytest.fixture
def opened(client: Any) -> Callable[..., RunLog]:
    def make(tags: dict[str, str] = TAGS, **environment: str) -> RunLog:
        return RunLog(client, {"epochs": "3"}, tags, environment)

    return make


def epoch(number: int, time: float = 0.0, **metrics: float | None) -> dict[str, Any]:
    values = metrics or {"loss": 1 / number, "val_loss": 2 / number}
    at = time or 1000.0 + number
    return {"event": "epoch", "time": at, "epoch": number, "step": number, "metrics": values}


def steps(run: RunLog, name: str = "loss") -> list[int]:
    return sorted(metric.step for metric in run.client.get_metric_history(run.run_id, name))


def test_an_epoch_is_there_once_whatever_is_sent_again(opened: Callable[..., RunLog]) -> None:
    first = opened()
    first.log_epochs([epoch(1), epoch(2)])
    first.log_epochs([epoch(2), epoch(3)])
    # The chief restarts from the checkpoint of the first epoch, and trains the others again.
    second = opened()
    second.log_epochs([epoch(1), epoch(2, 2000.0), epoch(3, 2001.0), epoch(4, 2002.0)])
    assert second.run_id == first.run_id
    assert steps(second) == steps(second, "val_loss") == [1, 2, 3, 4]
    run = second.client.get_run(second.run_id)
    assert run.data.params == {"epochs": "3"} and run.info.run_name == "r1"
    assert run.data.tags == run.data.tags | TAGS


def test_a_request_that_was_processed_but_not_answered_adds_nothing(
    opened: Callable[..., RunLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = opened()
    run.log_epochs([epoch(1)])
    send = run.client.log_batch

    def lose_answer(*arguments: Any, **options: Any) -> None:
        send(*arguments, **options)
        raise ConnectionError("the answer is lost")

    with monkeypatch.context() as patch:
        patch.setattr(run.client, "log_batch", lose_answer)
        with pytest.raises(ConnectionError):
            run.log_epochs([epoch(2)])
    run.log_epochs([epoch(2), epoch(3)])
    assert steps(run) == [1, 2, 3]


def test_the_run_of_the_plugin_is_continued(client: Any, opened: Callable[..., RunLog]) -> None:
    injected = client.create_run("0", tags={"mlflow.parentRunId": "p"}, run_name="launch-tfjob")
    client.log_param(injected.info.run_id, "epochs", "another value")
    client.log_metric(injected.info.run_id, "loss", 9.0, step=0)  # the plugin's own
    client.set_terminated(injected.info.run_id, "FAILED")
    run = opened(MLFLOW_RUN_ID=injected.info.run_id)
    run.log_epochs([epoch(1)])
    found = client.get_run(injected.info.run_id)
    assert run.run_id == injected.info.run_id and steps(run) == [0, 1]
    assert found.info.status == "RUNNING" and found.info.run_name == "launch-tfjob"
    assert found.data.params == {"epochs": "another value"}
    assert found.data.tags[tracking.RUN_TAG] == "r1"


@pytest.mark.parametrize("is_deleted", [True, False])
def test_an_injected_run_that_is_gone_is_replaced(
    client: Any,
    opened: Callable[..., RunLog],
    caplog: pytest.LogCaptureFixture,
    is_deleted: bool,
) -> None:
    gone = "0" * 32
    if is_deleted:
        gone = client.create_run("0").info.run_id
        client.delete_run(gone)
    run = opened(MLFLOW_RUN_ID=gone)
    run.log_epochs([epoch(1)])
    assert run.run_id != gone and steps(run) == [1]
    assert [record.levelname for record in caplog.records if record.name == LOG] == ["WARNING"]


def test_tasks_and_runs_have_runs_of_their_own(opened: Callable[..., RunLog]) -> None:
    tags = [TAGS, TAGS | {tracking.TASK_TAG: "b"}, TAGS | {tracking.RUN_TAG: "r2"}]
    runs = [opened(each) for each in tags]
    for run in runs:
        run.open()
    assert len({run.run_id for run in runs}) == 3
    for run, each in zip(runs, tags, strict=True):
        again = opened(each)
        again.open()
        assert again.run_id == run.run_id


def test_the_experiment_is_chosen_as_by_mlflow(client: Any, opened: Callable[..., RunLog]) -> None:
    named = opened(MLFLOW_EXPERIMENT_NAME="pets")
    named.open()
    experiment = client.get_experiment_by_name("pets").experiment_id
    assert client.get_run(named.run_id).info.experiment_id == experiment
    other = opened(TAGS | {tracking.RUN_TAG: "r2"}, MLFLOW_EXPERIMENT_ID=experiment)
    other.open()
    assert client.get_run(other.run_id).info.experiment_id == experiment


def test_odd_metrics(opened: Callable[..., RunLog]) -> None:
    many = {f"m{number}": float(number) for number in range(1500)}
    run = opened()
    run.log_epochs([epoch(1, loss=None), epoch(2, **{"own/recall@5": 0.5}), epoch(3, **many)])
    run.log_epochs([epoch(3, **many)])
    assert steps(run) == [] and steps(run, "own/recall_5") == [2]
    assert steps(run, "m0") == steps(run, "m1499") == [3]


def test_lines_are_read_once_complete_and_again_from_a_replaced_file(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    follower = Follower(path)

    def numbers() -> list[int]:
        return [event["epoch"] for event in follower.epochs()]

    assert numbers() == []
    first, second = json.dumps(epoch(1)), json.dumps(epoch(2))
    path.write_text(f'{first}\n{{"event": "progress", "epoch": 2}}\n{second[:30]}')
    assert numbers() == [1]
    with path.open("a") as file:
        file.write(f"{second[30:]}\n")
    assert numbers() == [2] and numbers() == []
    replacement = tmp_path / "new"
    replacement.write_text(f'{first}\n{{"event": "epoch", "ep\n{second}\n')
    replacement.replace(path)
    assert numbers() == [1, 2]


class _Trainer:
    """The lines of a trainer, one for each look; a Session does not wait for it."""

    def __init__(self, *words: str | None) -> None:
        self._words: Iterator[str | None] = iter(words)

    def __call__(self, seconds: float) -> str | None:
        return next(self._words)


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Session]:
    monkeypatch.setattr(mlflow_run, "_FIRST_PAUSE", 0.0)
    monkeypatch.setattr(mlflow_run, "_POLL_SECONDS", 0.01)
    path = tmp_path / "progress.jsonl"
    path.write_text("".join(f"{json.dumps(epoch(number))}\n" for number in (1, 2)))

    def make(connect: Callable[[], RunLog]) -> Session:
        def hide(message: str) -> str:
            return message.replace("geheim", MASK)

        return Session(Follower(path), connect, hide, "mlflow.example", _pause=0.0)

    return make


def test_a_server_that_is_away_costs_one_warning(
    opened: Callable[..., RunLog],
    session: Callable[..., Session],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, LOG)
    tries = iter(range(9))

    def connect() -> RunLog:
        if next(tries) < 4:
            raise ConnectionError("http://eva:geheim@mlflow.example refuses")
        return opened()

    session(connect).follow(_Trainer(None, None, None, "FINISHED 20\n"))
    run = opened()
    run.open()
    assert steps(run) == [1, 2]
    (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "mlflow.example" in warning.getMessage() and "geheim" not in warning.getMessage()


def test_a_server_that_stays_away_does_not_keep_the_trainer(
    session: Callable[..., Session], caplog: pytest.LogCaptureFixture
) -> None:
    def connect() -> RunLog:
        raise ConnectionError

    session(connect).follow(_Trainer(None, "FINISHED 0.1\n"))
    assert sum(record.levelname == "WARNING" for record in caplog.records) == 1


@pytest.mark.parametrize("status", ["FINISHED", "FAILED", "KILLED"])
def test_the_end_of_the_trainer_is_the_status(
    opened: Callable[..., RunLog], session: Callable[..., Session], status: str
) -> None:
    session(opened).follow(_Trainer(f"{status} 3\n"))
    run = opened()
    (stored,) = run.client.search_runs(["0"])
    assert stored.info.status == status
    run.open()
    assert steps(run) == [1, 2]
    assert run.client.get_run(run.run_id).info.status == "RUNNING"  # it is continued


def test_a_trainer_that_was_killed_leaves_the_run_open(
    opened: Callable[..., RunLog], session: Callable[..., Session]
) -> None:
    session(opened).follow(_Trainer(None, ""))
    (stored,) = opened().client.search_runs(["0"])
    assert stored.info.status == "RUNNING" and stored.data.metrics["loss"] == 0.5


def test_the_champion_of_a_model_is_tagged(client: Any) -> None:
    runs = [client.create_run("0", tags={tracking.RUN_TAG: name}) for name in ("r1", "r2")]
    for version, run in enumerate(runs, 1):
        found = tracking.find_run(client, ["0"], run.data.tags[tracking.RUN_TAG])
        assert found and found.info.run_id == run.info.run_id
        tracking.tag_champion(client, ["0"], "pets", str(version), found)
    tags = [client.get_run(run.info.run_id).data.tags for run in runs]
    assert [each[tracking.CHAMPION_TAG] for each in tags] == ["false", "true"]
    assert [each[tracking.VERSION_TAG] for each in tags] == ["1", "2"]
    tracking.tag_champion(client, ["0"], "pets", "3", None)  # trained without MLflow
    assert client.get_run(runs[1].info.run_id).data.tags[tracking.CHAMPION_TAG] == "false"
    assert tracking.find_run(client, ["0"], "r3") is None


def test_what_is_logged_contains_no_secret_and_no_name_of_a_run_parameter() -> None:
    hyperparameters = {"hidden": [8, 4], "api_token": "hunter22", "activation": "relu"}
    config = Config.from_environment(
        RIGHT
        | {"HYPERPARAMETERS": json.dumps(hyperparameters), "TRAIN_OPTIONS": '{"seed": 3}'}
        | {"RUN_ID": "r1", "RUN_URI": "s3://b/runs/r1"}
    )
    content = description(config, "d1")
    parameters, tags = content["parameters"], content["tags"]
    assert parameters == parameters | {
        "epochs": "3",
        "batch_size": "32",
        "model_hyperparameters.hidden": "[8, 4]",
        "model_hyperparameters.activation": "relu",
        "model_hyperparameters.api_token": MASK,
        "train_options.seed": "3",
    }
    # The back end's plugin logs the parameters of the step to the same run, in its own format.
    assert not set(parameters) & set(PARAMETERS)
    assert tags["kfp_tfjob.dataset_digest"] == "d1" and tags[tracking.RUN_TAG] == "r1"
    assert content["progress"] == "/output/progress.jsonl"


def test_an_image_without_the_client_costs_a_warning(tmp_path: Path) -> None:
    (tmp_path / "mlflow.py").write_text("raise ModuleNotFoundError('there is no mlflow')\n")
    config = Config.from_environment(
        RIGHT | {"RUN_ID": "r1", "JOB_DIR": str(tmp_path), "OUTPUT_DIR": str(tmp_path)}
    )
    (tmp_path / "mlflow.json").write_text(json.dumps(description(config, "d1")))
    done = run_python(
        *("-Pm", mlflow_run.__name__, tmp_path / "mlflow.json"),
        stdin="FINISHED 20\n",
        timeout=120,
        PYTHONPATH=f"{tmp_path}:{ROOT}",
        MLFLOW_TRACKING_URI="https://mlflow.example",
    )
    assert done.returncode == 0 and "Traceback" not in done.stdout + done.stderr
    assert "there is no mlflow" in done.stdout and "mlflow-skinny" in done.stdout


PLUGIN = {
    "MLFLOW_RUN_ID": "abc",
    "MLFLOW_TRACKING_URI": "https://mlflow.example",
    "MLFLOW_EXPERIMENT_ID": "7",
}
RUN_ONLY = {"MLFLOW_RUN_ID": "abc"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"MLFLOW_TRACKING_URI": "https://mlflow.example"}, {}),
        (PLUGIN, PLUGIN),
        (PLUGIN | {"MLFLOW_TRACKING_TOKEN": "geheim", "PATH": "/bin"}, PLUGIN),
        (PLUGIN | {"MLFLOW_WORKSPACE": "team-a"}, PLUGIN | {"MLFLOW_WORKSPACE": "team-a"}),
        ({"MLFLOW_RUN_ID": "abc", "MLFLOW_TRACKING_URI": "https://eva:geheim@x"}, RUN_ONLY),
    ],
)
def test_ids_travel_and_credentials_do_not(
    environment: dict[str, str], expected: dict[str, str]
) -> None:
    assert plugin_tracking(environment) == expected


@pytest.mark.parametrize(
    "pod",
    [
        {},
        {"all": None},
        {"all": {"env": ["MLFLOW_TRACKING_URI"]}},
        {"all": {"env": {"MLFLOW_TRACKING_URI": {"secret": "s", "key": "k"}, "PATH": "/bin"}}},
    ],
)
def test_a_pod_without_a_plain_variable_of_mlflow(pod: dict[str, Any]) -> None:
    assert tracking.pod_variables(pod) == {}


def test_the_variables_of_a_pod() -> None:
    environment = {"MLFLOW_TRACKING_URI": "https://x", "MLFLOW_EXPERIMENT_NAME": "", "A": "b"}
    variables = tracking.pod_variables({"all": {"env": environment}})
    assert variables == {"MLFLOW_TRACKING_URI": "https://x"}


def test_only_the_process_of_its_own_imports_the_client(repository: Path) -> None:
    users = set()
    for path in (repository / "trainer").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if any(name.partition(".")[0] == "mlflow" for name in names):
                users.add(path.name)
            starts_it = "mlflow_process" in names and getattr(node, "level", 0) == 1
            if starts_it:
                users.add(f"{path.name} starts it")
    assert users == {"mlflow_run.py", "__main__.py starts it"}
