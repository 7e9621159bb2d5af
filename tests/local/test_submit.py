"""submit and its plan, and the script with curl, with a fake API server and a real store."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from kfp_tfjob import Client
from kfp_tfjob.options.container_images import PLACEHOLDER
from kfp_tfjob.options.parameters import PARAMETERS
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.store import Store
from tests.http_server import Handler, serving
from tests.local.laptop import COMPILED, add, kfp_tfjob

pytestmark = pytest.mark.usefixtures("laptop")


@pytest.fixture
def data(store: Store, base: S3Address) -> S3Address:
    address = base / "rows.csv"
    store.write(address, b"a,y\n1,0\n2,1\n")
    return address


@pytest.fixture
def submit(package: Path, data: S3Address, base: S3Address) -> Callable[..., Result]:
    """Type the command with what every run needs, and more."""
    given = ("submit", "--data", data, "--label", "y", "--name", "m", "--output", base)
    return lambda *more, **how: kfp_tfjob(*given, "--pipeline", package, *more, **how)


def test_submit_shows_the_plan_and_starts_the_run(fake, submit, data):
    found = submit("--yes", "--epochs", 3, "--set", "gate.mode=point", code=0)
    (run,) = fake.runs.values()
    assert run.run_id in found.stdout
    assert f"{fake.host}/#/runs/details/{run.run_id}" in found.stdout
    assert str(data) in found.stdout
    assert "2 replicas" in found.stdout
    assert "train_epochs = 3  (--epochs)" in found.stdout
    parameters = run.runtime_config.parameters
    assert set(parameters) == set(PARAMETERS)
    assert parameters["train_epochs"] == 3
    assert parameters["gate"] == PARAMETERS["gate"].default | {"mode": "point"}
    assert set(run.pipeline_spec) == {"pipeline_spec", "platform_spec"}
    assert run.display_name.startswith("m-")


@pytest.mark.parametrize("whole", [False, True])
def test_model_code_of_this_machine_is_copied(fake, submit, base, store, tmp_path, whole):
    path = tmp_path / ("mine" if whole else "mine.py")
    file = path / "__init__.py" if whole else path
    file.parent.mkdir(exist_ok=True)
    file.write_text("def build(dataset):\n    return None\n")
    for _ in range(2):
        found = submit("--yes", "--model", f"{path}:build", code=0)
    addresses = {run.runtime_config.parameters["model_code"] for run in fake.runs.values()}
    (address,) = addresses
    assert address.startswith(f"{base}/code/") and address.endswith(f"/{path.name}:build")
    where = S3Address.parse(address.removesuffix(":build"), "model_code")
    assert store.read(where / "__init__.py" if whole else where) == file.read_bytes()
    file.write_text("def other(dataset):\n    return None\n")
    found = submit("--yes", "--model", f"{path}:build")
    assert found.exit_code == 2 and " build" in found.stderr and len(fake.runs) == 2


def test_a_program_without_data_is_copied_as_it_is(fake, package, base, store, tmp_path):
    file = tmp_path / "my-code" / "fit.py"
    file.parent.mkdir()
    file.write_text("print(1)\n")
    given = ("submit", "--pipeline", package, "--name", "m", "--output", base, "--yes")
    given += ("--model", file.parent, "--set")
    kfp_tfjob(*given, 'train_options.command=["python3", "$(JOB_DIR)/code/fit.py"]', code=0)
    (run,) = fake.runs.values()
    parameters = run.runtime_config.parameters
    assert parameters["data_uri"] == ""
    assert parameters["model_code"].startswith(f"{base}/code/")
    place = S3Address.parse(parameters["model_code"], "model_code")
    assert store.read(place / "fit.py") == file.read_bytes()
    found = kfp_tfjob(*given, 'train_options.command=["sh", "$(JOB_DIR)/code/fit.sh"]')
    assert found.exit_code == 2 and "$(JOB_DIR)/code/fit.py" in found.stderr
    assert len(fake.runs) == 1


def test_a_reader_of_this_machine_is_copied(fake, submit, base, store, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import pyarrow as pa\n"
        "def read(stream, name):\n"
        "    yield pa.RecordBatch.from_pydict({'a': [1, 2], 'y': [0, 1]})\n"
    )
    setting = ("--set", f"data_options.reader={file}:read", "--yes")
    found = submit(*setting, code=0)
    (run,) = fake.runs.values()
    address = run.runtime_config.parameters["data_options"]["reader"]
    assert address.startswith(f"{base}/code/") and address.endswith("/mine.py:read")
    where = S3Address.parse(address.removesuffix(":read"))
    assert store.read(where) == file.read_bytes()
    file.write_text("def reed(stream, name):\n    yield 1\n")
    found = submit(*setting)
    assert found.exit_code == 2 and " read" in found.stderr


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_without_a_terminal_the_plan_is_shown_and_nothing_starts(fake, submit, more):
    found = submit(*more)
    assert found.exit_code == 2 and "Fix: add --yes" in found.stderr
    assert "2 replicas" in found.stdout or json.loads(found.stdout)["replicas"] == 2
    assert not fake.runs


def test_a_dry_run_checks_and_starts_nothing(fake, submit, package, base):
    found = submit("--dry-run", "--yes", code=0)
    assert "2 replicas" in found.stdout and "Started" not in found.stdout
    plan = json.loads(submit("--dry-run", "--json").stdout)
    assert (plan["replicas"], plan["model"]) == (2, "m")
    add(fake, base, "taken")
    found = submit("--dry-run", "--run-name", "taken")
    assert found.exit_code == 2 and "already exists" in found.stderr
    found = kfp_tfjob("submit", "--dry-run", "--pipeline", package)
    assert found.exit_code == 2 and "data_uri is missing" in found.stderr
    assert len(fake.runs) == 1


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A server that knows nodes, accounts and Secrets, by path; the kubeconfig names it."""
    has = {"cpu": "2", "memory": "4Gi", "ephemeral-storage": "100Gi"}
    node = {"metadata": {"name": "n7", "labels": {}}, "status": {"allocatable": has}, "spec": {}}
    known: dict[str, Any] = {"/api/v1/nodes": {"items": [node], "metadata": {}}}
    known["/version"] = {"major": "1", "minor": "33", "gitVersion": "v1.33.12"}

    class Answers(Handler):
        def do_GET(self) -> None:
            reply = known.get(self.path.partition("?")[0])
            status = 403 if reply == {} else 200 if reply else 404
            self.answer(reply or {"message": "no"}, status)

    with serving(Answers) as server:
        config = {
            "clusters": [{"name": "c", "cluster": {"server": server.url}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {}}],
            "current-context": "c",
        }
        path = tmp_path / "kubeconfig"
        path.write_text(json.dumps(config))
        # The Kubernetes client reads KUBECONFIG only when it is imported.
        name = "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"
        monkeypatch.setattr(name, str(path))
        known["address"] = server.url
        yield known


SMALL = ("--set", "pod.all.cpu=0.25", "--set", "pod.all.memory=1Gi")


def test_the_plan_compares_the_pods_with_the_nodes(fake, submit, cluster):
    plan = json.loads(submit("--dry-run", "--json").stdout)
    found = plan["findings"]
    assert [it["status"] for it in found] == ["waits"] * 2, found  # the chief and the worker
    for part in ("4.", "node, n7, can allocate only 2", "16", "only 4 GiB", "pod.all.cpu"):
        assert part in found[0]["what"], found
    assert cluster["address"] in found[0]["what"]
    found = submit("--dry-run", *SMALL)
    assert "warning" not in found.stdout and "not checked" not in found.stdout
    # A cluster that scales from zero adds nodes once pods wait for them, so the run starts.
    found = submit("--yes")
    assert found.exit_code == 0 and len(fake.runs) == 1
    assert "warning" in found.stdout and "node, n7, can allocate only 2" in found.stdout
    cluster["/api/v1/nodes"] = {}
    found = submit("--dry-run")
    assert "not checked" in found.stdout


def test_a_secret_that_does_not_exist_is_named_with_its_command(fake, submit, cluster):
    token = ("--set", 'pod.all.env.TOKEN={"secret": "hub", "key": "token"}', *SMALL)
    place = "/api/v1/namespaces/kubeflow"
    submit("--dry-run", *token, code=0)  # not the namespace of runs: nothing is known
    cluster[f"{place}/serviceaccounts/pipeline-runner"] = {"metadata": {}}
    found = submit("--dry-run", *token)
    command = "kubectl -n kubeflow create secret generic hub --from-literal=token=..."
    assert command in found.stdout.replace("\n", " "), found.stdout
    cluster[f"{place}/secrets/hub"] = {"data": {"other": "eA=="}}
    found = submit("--dry-run", *token)
    assert " hub" in found.stdout
    # The kubeconfig may name another cluster than the back end's.
    submit("--yes", *token, code=0)
    assert len(fake.runs) == 1
    cluster[f"{place}/secrets/hub"] = {"data": {"token": "eA=="}}
    # The default Secret of the store may be left out: the pods may have an account of their own.
    plan = json.loads(submit("--dry-run", "--json", *token).stdout)
    (it,) = plan["findings"]
    assert " generic objstore-cred" in it["fix"] and it["status"] == "warning"
    both = (*token, "--set", 'pod.worker.env.TWO={"secret": "none", "key": "k"}')
    plan = json.loads(submit("--dry-run", "--json", *both).stdout)
    (missing,) = (it for it in plan["findings"] if it["status"] == "waits")
    assert "pod.worker.env.TWO" in missing["fix"]
    assert cluster["address"] in missing["what"]
    wrong = submit("--dry-run", *token, "--set", "storage_secret=typo")
    assert "Secret typo " in wrong.stdout
    cluster[f"{place}/secrets/objstore-cred"] = {}  # no right to read it
    submit("--yes", *token, code=0)


def test_everything_wrong_is_said_before_anything_is_sent(fake):
    found = kfp_tfjob(
        "submit", "--data", "rows.csv", "--epochs", 0, "--yes", "--pipeline", COMPILED
    )
    assert found.exit_code == 2
    for part in ("model_name", "output_uri", "train_epochs", "s3://", PLACEHOLDER):
        assert part in found.stderr
    assert fake.requests == []


def test_a_lost_answer_does_not_lose_the_run(fake, package, data, base):
    values = {"data_uri": str(data), "data_label": "y", "model_name": "m", "output_uri": str(base)}
    answer = fake.answer

    def lost(method, path, *more):
        found = answer(method, path, *more)
        if (method, path) == ("POST", "/runs"):
            raise ConnectionError
        return found

    fake.answer = lost
    client = Client(fake.host)
    run = client.submit(values, client.package(package), "once")
    assert list(fake.runs) == [run.run_id]


def test_another_pipeline_is_refused(tmp_path):
    for text in ("pipelineInfo: {name: other}", "- 1", "a: [", ""):
        path = tmp_path / "other.yaml"
        path.write_text(text)
        found = kfp_tfjob("submit", "--yes", "--pipeline", path)
        assert found.exit_code == 2 and str(path) in found.stderr


def test_this_version_is_compiled_in_place(fake, data, base):
    found = kfp_tfjob(
        *("submit", "--data", data, "--label", "y", "--name", "m", "--output", base, "--yes")
    )
    assert found.exit_code == 2 and PLACEHOLDER in found.stderr


def test_the_script_with_curl_sends_what_the_api_takes(fake, repository, base, tmp_path):
    """The fake refuses a body that kfp_server_api's models do not have."""
    parameters = {"model_name": "m", "output_uri": str(base), "train_epochs": 2}
    (tmp_path / "p.json").write_text(json.dumps(parameters))
    command = ["sh", str(repository / "examples/submit_with_curl.sh"), "p", "v"]
    command += [str(tmp_path / "p.json"), "nightly"]
    environment = os.environ | {"SECONDS_BETWEEN": "0.2", "TOKEN": "t", "EXPERIMENT_ID": "e"}
    fake.token = "t"

    def finish(*_: object) -> None:
        for run in fake.runs.values():
            run.state = "SUCCEEDED"

    fake.broken = finish
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
