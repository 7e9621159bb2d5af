"""The connection to Kubeflow Pipelines and its runs, against a fake API server."""

import json
import os
import socket
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import kfp_server_api as api
import pytest

from kfp_tfjob.common.errors import ConfigurationError, StepError
from kfp_tfjob.pipelines.kubeflow import connection as module
from kfp_tfjob.pipelines.kubeflow.connection import (
    BackEnd,
    BackEndAwayError,
    Connection,
    equals,
)
from kfp_tfjob.pipelines.kubeflow.errors import BackEndError, UnknownRunError, translate
from kfp_tfjob.pipelines.kubeflow.run_lookup import find_run
from kfp_tfjob.pipelines.kubeflow.runs import list_runs, named, read_run
from kfp_tfjob.pipelines.local.home import DEFAULT, PARAMETERS, Home
from tests.local.fake_pipelines import FakePipelines, Refusal
from tests.problems import problem_of


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (module.ENDPOINT, module.UI_ENDPOINT, module.TOKEN_FILE, module.EXPERIMENT):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))


def test_the_endpoint_comes_from_the_environment(fake, monkeypatch):
    monkeypatch.setenv(module.ENDPOINT, fake.host)
    back_end = Connection().open()
    assert not back_end.multi_user
    assert back_end.namespace == ""
    assert back_end.host == fake.host
    assert back_end.page("7") == f"{fake.host}/#/runs/details/7"
    monkeypatch.setenv(module.UI_ENDPOINT, "https://ui.example/pipeline/")
    assert back_end.page("7") == "https://ui.example/pipeline/#/runs/details/7"


@pytest.mark.parametrize(
    ("status", "message", "is_account"),
    [
        (400, "Invalid input error: Service account mine is not allowed", True),
        (403, "User 'ann' is not authorized (Verb:use,Resource:serviceaccounts,Name:mine)", True),
        (403, "User 'system:serviceaccount:team:bot' is not authorized (Resource:runs)", False),
        (400, "Invalid input error: no such pipeline", False),
    ],
)
def test_a_refused_service_account_has_a_fix(status, message, is_account):
    error = SimpleNamespace(status=status, body=json.dumps({"message": message}), reason="")
    (found,) = translate("start the run", error, "http://x").problems
    assert ("ALLOWEDSERVICEACCOUNTS" in found.fix) is is_account
    assert message in found.received


def test_without_an_endpoint_it_says_how_to_get_one():
    problem = problem_of(Connection().open)
    assert module.ENDPOINT in problem.fix and "port-forward" in problem.fix


KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {token: t}}]
current-context: c
"""


@pytest.mark.parametrize("kubeconfig", ["", KUBECONFIG], ids=["none", "other"])
def test_without_an_endpoint_the_local_runs_are_named(tmp_path, monkeypatch, kubeconfig):
    """Nothing may answer at a kubeconfig, which many machines have for other reasons."""
    monkeypatch.chdir(tmp_path)
    if kubeconfig:
        (tmp_path / "none").write_text(kubeconfig)
    for at, name in enumerate(("run-a", "run-b", "run-c", "run-d")):
        folder = Home(DEFAULT).run(name)
        folder.mkdir(parents=True)
        (folder / PARAMETERS).touch()
        os.utime(folder, (at, at))
    problem = problem_of(Connection().open, 0, kind=StepError)
    assert "(run-d, run-c, run-b and 1 more)" in problem.fix
    assert "`kfp-tfjob why run-d`" in problem.fix


def test_a_back_end_that_does_not_answer_is_named_at_once():
    with pytest.raises(BackEndAwayError) as found:
        Connection("http://127.0.0.1:1").open(patience=0.5)
    assert "http://127.0.0.1:1" in found.value.problems[0].what
    assert found.value.code == 145


def test_a_back_end_that_accepts_and_never_answers_is_asked_once_for_each_call(monkeypatch):
    """A port that is forwarded to a pod that is gone is like this."""
    monkeypatch.setattr(module, "_SECONDS", (1, 0.3))
    monkeypatch.setattr(module, "_CONNECT", 0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        with pytest.raises(BackEndAwayError):
            Connection(f"http://127.0.0.1:{server.getsockname()[1]}").open()
        asked = 0
        with suppress(TimeoutError):
            while True:
                server.accept()[0].close()
                asked += 1
    assert asked == 1


def test_a_short_absence_is_waited_for(fake):
    fake.fails("", ConnectionError(), Refusal(503, "no healthy upstream"))
    assert Connection(fake.host).open(patience=20)


def test_a_database_that_is_away_is_waited_for_and_named(fake):
    away = Refusal(500, "InternalServerError: connect: connection refused")
    fake.fails("/experiments", away, away)
    assert Connection(fake.host).open(patience=20).find_experiment("none") == ""
    fake.fails("/experiments", *[away] * 100)
    with pytest.raises(BackEndError, match="500 InternalServerError"):
        Connection(fake.host).open(patience=1).find_experiment("none")


def test_a_server_without_the_api_is_no_back_end(fake):
    def nothing(*_: object) -> None:
        raise Refusal(404, "Not Found")

    fake.answer = nothing
    with pytest.raises(ConfigurationError) as found:
        Connection(fake.host).open(patience=1)
    assert not isinstance(found.value, UnknownRunError)


def test_the_token_is_read_again_for_every_call(fake, tmp_path):
    fake.token, file = "first", tmp_path / "token"
    assert "--token-file" in problem_of(Connection(fake.host).open, patience=1).fix
    file.write_text("first\n")
    back_end = Connection(fake.host, token_file=str(file)).open()
    fake.token = "second"
    file.write_text("second")
    assert back_end.call("ask", back_end.sdk.healthzs.healthz_service_get_healthz)


@pytest.mark.parametrize("content", [None, b" \n", b"\xff\xfe"])
def test_a_token_file_without_a_token_is_named(fake, tmp_path, content):
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    connection = Connection(fake.host, token_file=str(file))
    assert problem_of(connection.open).received == str(file)


def test_a_back_end_with_users_needs_a_namespace(fake):
    fake.multi_user = True
    assert "--namespace" in problem_of(Connection(fake.host).open).fix
    back_end = Connection(fake.host, namespace="alice").open()
    assert back_end.namespace == "alice"
    back_end.experiment_id()
    assert [made.namespace for made in fake.experiments.values()] == ["alice"]


def test_an_experiment_is_made_once(fake, monkeypatch):
    monkeypatch.setenv("KF_PIPELINES_DEFAULT_EXPERIMENT_NAME", "digits")
    back_end = Connection(fake.host).open()
    assert back_end.experiment_id() == back_end.experiment_id()
    assert [made.display_name for made in fake.experiments.values()] == ["digits"]
    assert Connection(fake.host, experiment="other").open().connection.experiment == "other"
    monkeypatch.setenv("KF_PIPELINES_OVERRIDE_EXPERIMENT_NAME", "forced")
    assert Connection(fake.host, experiment="other").open().connection.experiment == "forced"


def test_lists_have_all_pages(fake, monkeypatch):
    monkeypatch.setattr(module, "_PAGE", 2)
    for number in range(5):
        fake.add(f"run-{number}")
    back_end = Connection(fake.host).open()
    method = back_end.sdk.runs.run_service_list_runs
    found = back_end.pages("list the runs", method, "runs", sort_by="created_at desc")
    assert [run.display_name for run in found] == [f"run-{n}" for n in (4, 3, 2, 1, 0)]
    found = back_end.pages("list the runs", method, "runs", filter=equals("name", "run-3"))
    assert [run.display_name for run in found] == ["run-3"]


OURS = {
    "model_name": "digits",
    "output_uri": "s3://bucket/p",
    "pod": {"all": {"env": {"API_KEY": "x"}}},
}


@pytest.fixture
def back_end(fake: FakePipelines) -> BackEnd:
    return Connection(fake.host).open()


def add(fake: FakePipelines, name: str, state: str = "RUNNING", **parameters: object):
    config = api.V2beta1RuntimeConfig(parameters=OURS | parameters)
    return fake.add(name, state, runtime_config=config)


def test_only_runs_of_this_pipeline_are_listed_the_newest_first(fake, back_end):
    add(fake, "one")
    fake.add("of another pipeline")
    add(fake, "two", model_name="other")
    assert [run.name for run in list_runs(back_end)] == ["two", "one"]
    assert [run.name for run in list_runs(back_end, model="digits")] == ["one"]


def test_a_run_is_found_by_id_prefix_name_or_last(fake, back_end):
    one, two = add(fake, "one"), add(fake, "two")
    other = fake.add("of another pipeline")  # is never meant by last
    for run in (one, other):
        for given in (run.run_id, run.run_id[:9], run.display_name):
            assert find_run(back_end, given).run_id == run.run_id
    assert find_run(back_end, "last").run_id == two.run_id
    assert "two" in problem_of(find_run, back_end, "three", kind=UnknownRunError).expected
    add(fake, "one")
    assert one.run_id[:8] in problem_of(find_run, back_end, "one").expected
    assert len(named(back_end, "one")) == 2


def test_an_archived_run_is_found_but_not_listed(fake, back_end):
    old = add(fake, "same", "FAILED")
    old.storage_state = "ARCHIVED"
    assert list(list_runs(back_end)) == []
    assert find_run(back_end, "same").is_archived
    new = add(fake, "same")
    assert find_run(back_end, "same").run_id == new.run_id
    assert find_run(back_end, "last").run_id == new.run_id


def test_secrets_are_masked_and_the_folder_is_known(fake, back_end):
    run = read_run(back_end, add(fake, "one").run_id)
    assert run.parameters["pod"] == {"all": {"env": {"API_KEY": "******"}}}
    assert run.folder == f"s3://bucket/p/runs/{run.run_id}"
    shaped = add(fake, "two", output_uri="s3://bucket/p/runs/{date}")
    assert read_run(back_end, shaped.run_id).folder == ""


def test_steps_are_in_the_order_of_the_pipeline(fake, back_end):
    """As a real back end shows them: drivers, a task for each try, and no state for left out."""
    raw = add(fake, "one")
    epoch = datetime(1, 1, 1, tzinfo=UTC)
    for name, state in (
        ("launch-tfjob-driver", "RUNNING"),
        ("prepare-data", "SUCCEEDED"),
        ("prepare-data-driver", "SUCCEEDED"),
        ("preflight(0)", "FAILED"),
        ("preflight(1)", "SUCCEEDED"),
        ("preflight", "SUCCEEDED"),
        ("executor(0)", "SUCCEEDED"),
        ("exit-handler-1", "RUNNING"),
        ("evaluate", None),
    ):
        fake.task(raw, name, state, end_time=epoch)
    run = read_run(back_end, raw.run_id)
    assert [(step.name, step.state) for step in run.steps] == [
        ("preflight", "succeeded"),
        ("prepare_data", "succeeded"),
        ("launch_tfjob", "pending"),
    ]
    assert run.current.name == "launch_tfjob"
    fake.task(raw, "launch-tfjob", "RUNNING", end_time=epoch)
    launch = read_run(back_end, raw.run_id).current
    assert launch.state == "running" and launch.seconds < 900


def test_a_run_that_is_not_over_has_no_end(fake, back_end):
    """The back end writes 1970 for a time that it does not know."""
    raw = add(fake, "one")
    raw.finished_at = datetime(1970, 1, 1, tzinfo=UTC)
    run = read_run(back_end, raw.run_id)
    assert run.finished == "" and 0 <= run.seconds < 900 and not run.is_over


def test_a_bug_of_ours_is_no_wrong_address(back_end, monkeypatch):
    """A wrong argument is one, as is an error of a function around the call."""
    method = back_end.sdk.runs.run_service_get_run
    with pytest.raises(TypeError):
        back_end.call("read the run", method, "id", unknown=1)
    for kind in (TypeError, ValueError, AttributeError, KeyError):

        def fail(*_: object, kind: type[Exception] = kind) -> None:
            raise kind("planted")

        monkeypatch.setattr(module.Patience, "run", fail)
        with pytest.raises(kind):
            back_end.call("read the run", method, "id")


@pytest.mark.parametrize("reply", [[1], None, "text"])
def test_a_reply_that_is_no_object_is_no_back_end(fake, reply):
    fake.answer = lambda *_: reply
    problem = problem_of(Connection(fake.host).open, patience=1)
    assert module.ENDPOINT in problem.fix


@pytest.mark.parametrize("reply", [{"runtime_config": {"parameters": 3}}, {"created_at": "soon"}])
def test_a_reply_that_cannot_be_read_is_named(fake, back_end, reply):
    fake.answer = lambda *_: reply
    method = back_end.sdk.runs.run_service_get_run
    assert module.ENDPOINT in problem_of(back_end.call, "read the run", method, "id").fix
