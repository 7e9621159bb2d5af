"""The connection to Kubeflow Pipelines and its runs, against a fake API server."""

import json
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import kfp
import kfp_server_api as api
import pytest
import yaml
from kubernetes.config import incluster_config, kube_config
from urllib3.connection import HTTPSConnection
from urllib3.util import make_headers

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
from tests.cluster.pki import Authority
from tests.local.fake_pipelines import BASE, FakePipelines, Refusal
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


EXEC = {
    "apiVersion": "client.authentication.k8s.io/v1",
    "command": "echo",
    "args": [
        json.dumps(
            {
                "apiVersion": "client.authentication.k8s.io/v1",
                "kind": "ExecCredential",
                "status": {"token": "t", "expirationTimestamp": "2020-01-01T00:00:00Z"},
            }
        )
    ],
    "interactiveMode": "Never",
}


@pytest.mark.parametrize("user", [{"token": "t"}, {"exec": EXEC}], ids=["token", "exec"])
def test_with_a_kubeconfig_every_call_goes_through_the_service(fake, tmp_path, monkeypatch, user):
    """Reading the credentials for a call set the host to the cluster's, without this path."""
    kubeconfig = yaml.safe_load(KUBECONFIG)
    kubeconfig["clusters"][0]["cluster"]["server"] = fake.host
    kubeconfig["users"][0]["user"] = user
    (tmp_path / "none").write_text(json.dumps(kubeconfig))
    # The Kubernetes client has read the variable when it was imported.
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    answer = fake.answer
    fake.answer = lambda method, path, *more: answer(method, path.partition(BASE)[2], *more)
    fake.token = "t"
    back_end = Connection().open(patience=0)
    assert back_end.find_experiment("none") == ""
    assert len(fake.requests) >= 2
    assert all("/services/ml-pipeline:http/proxy/" in path for _, path in fake.requests)


def test_in_a_pod_the_token_file_is_used(fake, tmp_path, monkeypatch):
    """The SDK would take the pod's own token."""
    tokens = {"pod": "of the pod", "chosen": "of the option"}
    for name, token in tokens.items():
        (tmp_path / name).write_text(token)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "pod"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "pod"))
    monkeypatch.setattr(kfp.client, "KF_PIPELINES_SA_TOKEN_PATH", str(tmp_path / "pod"))
    monkeypatch.setattr(kfp.Client, "_IN_CLUSTER_DNS_NAME", fake.host)
    fake.token = tokens["pod"]
    assert Connection().open(patience=0)
    fake.token = tokens["chosen"]
    assert Connection(token_file=str(tmp_path / "chosen")).open(patience=0)
    connection = Connection(token_file=str(tmp_path / "absent"))
    assert problem_of(connection.open).received == str(tmp_path / "absent")


@pytest.fixture
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear the developer's own proxies."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.usefixtures("no_proxy")
def test_the_environment_names_a_proxy(fake, monkeypatch):
    sent = []

    def receive(method: str, path: str) -> None:
        sent.append(path)

    fake.broken = receive
    monkeypatch.setenv("http_proxy", fake.host.replace("//", "//user:pass%20word@"))
    back_end = Connection("http://kubeflow.invalid").open(patience=0)
    configuration = back_end.sdk.runs.run_service_get_run.__self__.api_client.configuration
    assert configuration.proxy_headers == make_headers(proxy_basic_auth="user:pass word")
    assert sent and all(path.startswith(BASE) for path in sent)
    monkeypatch.setenv("no_proxy", "kubeflow.invalid")
    with pytest.raises(BackEndAwayError):
        Connection("http://kubeflow.invalid").open(patience=0)


@pytest.mark.usefixtures("no_proxy")
@pytest.mark.parametrize("proxy", ["http://127.0.0.1:1", "socks5://127.0.0.1:1"])
def test_no_proxy_is_used_for_this_machine(fake, monkeypatch, proxy):
    monkeypatch.setenv("http_proxy", proxy)
    assert Connection(fake.host).open(patience=0)


@pytest.fixture
def tls_back_end(tmp_path: Path) -> Iterator[SimpleNamespace]:
    """A back end whose certificate only its own authority has signed."""
    authority = Authority(tmp_path / "pki")
    pair = authority.issue("back-end", "/CN=localhost", ("127.0.0.1",))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair)
    with FakePipelines(context) as fake:
        yield SimpleNamespace(host=fake.host, ca_file=str(authority.certificate), key=str(pair[1]))


def test_a_certificate_that_is_not_trusted_is_named_at_once(tls_back_end, monkeypatch):
    """It looked like a back end that does not run, and was tried again until the patience ended."""
    attempts = []
    connect = HTTPSConnection.connect
    monkeypatch.setattr(
        HTTPSConnection, "connect", lambda self: [attempts.append(self), connect(self)][1]
    )
    problem = problem_of(Connection(tls_back_end.host).open)
    assert "CERTIFICATE_VERIFY_FAILED" in str(problem.received)
    assert "--ca-file" in problem.fix and len(attempts) == 1
    assert Connection(tls_back_end.host, ca_file=tls_back_end.ca_file).open(patience=0)


@pytest.mark.parametrize("name", ["absent", "key"])
def test_a_file_without_ca_certificates_is_named(tls_back_end, name):
    file = "absent.pem" if name == "absent" else tls_back_end.key
    problem = problem_of(Connection(tls_back_end.host, ca_file=file).open)
    assert str(problem.received).startswith(file) and "--ca-file" in problem.fix


def test_a_back_end_without_tls_needs_http(fake, tmp_path):
    problem = problem_of(Connection(fake.host.replace("http:", "https:")).open)
    assert "http://" in problem.fix and "--ca-file" not in problem.fix
    # A file that is not needed does no harm.
    assert Connection(fake.host, ca_file=str(tmp_path / "absent")).open(patience=0)


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
