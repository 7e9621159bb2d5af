"""launch_tfjob in KFP's own executor, with a TaskConfig as a driver passes it, and its checks."""

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp.dsl.executor import Executor
from kubernetes.config import kube_config

from kfp_tfjob.checks.finding import Status, only
from kfp_tfjob.cluster.backend import BACKEND_VARIABLE
from kfp_tfjob.cluster.local.backend import FOLDER, SECRETS
from kfp_tfjob.common.errors import Problems
from kfp_tfjob.components.launch_tfjob import engine
from kfp_tfjob.components.launch_tfjob.component import launch_tfjob
from kfp_tfjob.components.launch_tfjob.task import apply
from kfp_tfjob.components.step import RUN_ID, Step
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.http_server import Handler, serving
from tests.problems import problems_of
from tests.unit.launch_parameters import DEFAULTS
from tests.unit.test_task_config import DRIVER, GPU, gpus, task

PROGRAM = """
import json, os, pathlib
seen = {name: os.environ.get(name) for name in ("EXPECTED_GPUS", "BATCH_SIZE", "LEVEL", "TOKEN")}
pathlib.Path(os.environ["OUTPUT_DIR"], "seen.json").write_text(json.dumps(seen))
"""


def execute(folder: Path, base: S3Address, **parameters: Any) -> None:
    """Run the component as its pod does: with an executor input, in KFP's executor."""
    artifacts = {
        name: {"artifacts": [{"name": name, "uri": str(folder / name), "type": schema}]}
        for name, item in launch_tfjob.component_spec.outputs.items()
        if "@" in item.type
        for schema in [{"schemaTitle": item.type.partition("@")[0]}]
    }
    values = {name: item.default for name, item in launch_tfjob.component_spec.inputs.items()}
    values |= {"run_id": "r1", "output_uri": str(base), "train_image": "none", "train_workers": 0}
    values |= {"train_options": {"command": ["python3", "-c", PROGRAM]}}
    executor_input = {
        "inputs": {"parameterValues": values | parameters},
        "outputs": {"artifacts": artifacts, "outputFile": str(folder / "output.json")},
    }
    Executor(executor_input, launch_tfjob).execute()


@pytest.fixture
def local(s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secrets/hub").mkdir(parents=True)
    (tmp_path / "secrets/hub/AWS_ACCESS_KEY_ID").write_text("token-4711")
    (tmp_path / "secrets/objstore-cred").symlink_to(s3.secret, target_is_directory=True)
    monkeypatch.setenv(BACKEND_VARIABLE, "local")
    monkeypatch.setenv(SECRETS, str(tmp_path / "secrets"))
    monkeypatch.setenv(FOLDER, str(tmp_path / "work"))
    monkeypatch.delenv(RUN_ID, raising=False)


def test_the_executor_hands_the_task_to_the_replicas(
    local: None, store: Store, base: S3Address, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pod = {"all": {"env": {"LEVEL": "pod"}}}
    execute(tmp_path, base, pod=pod, task_config=json.loads(DRIVER.read_text()))
    seen = json.loads(store.read(base / "runs/r1/output/seen.json"))
    assert seen == {"EXPECTED_GPUS": "1", "BATCH_SIZE": "64", "LEVEL": "pod", "TOKEN": "token-4711"}
    claim = json.loads(store.read(base / "runs/r1/attempts/0001.json"))
    assert claim["inputs"]["train_batch_size"] == 64
    said = capsys.readouterr().out
    assert "pod.all.env.LEVEL replaces the task's LEVEL" in said
    assert f"train_gpus is 1, from the task's accelerator {GPU}" in said
    assert "train_batch_size 0: a step has 64 rows" in said
    page = (tmp_path / "training_job").read_text()
    *_, settings, job = (
        yaml.safe_load(unescape(part)) for part in re.findall("<pre>(.*?)</pre>", page, re.DOTALL)
    )
    assert settings["gpu_resource"] == GPU and settings["cpu"] == "300m"
    assert settings["env"]["TOKEN"] == {"secret": "hub", "key": "AWS_ACCESS_KEY_ID"}
    assert job["kind"] == "TFJob"
    assert "pod.all.env.LEVEL replaces" in unescape(page) and "4711" not in page


def test_without_a_task_the_executor_says_so(
    local: None, store: Store, base: S3Address, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """kfp.local passes null for an input that only a back end fills in."""
    execute(tmp_path, base, task_config=None)
    assert json.loads(store.read(base / "runs/r1/output/seen.json"))["EXPECTED_GPUS"] == "0"
    assert "kfp.local never does" in capsys.readouterr().out
    assert "kfp.local never does" in unescape((tmp_path / "training_job").read_text())


def test_a_task_that_contradicts_the_parameters_fails_before_anything_is_created(
    local: None, store: Store, base: S3Address, tmp_path: Path
) -> None:
    config = {"resources": gpus(2), "env": None}
    with pytest.raises(SystemExit) as ended:
        execute(tmp_path, base, train_gpus=4, task_config=config)
    assert ended.value.code == 2
    failure = json.loads(store.read(base / "runs/r1/failure.json"))
    (problem,) = failure["problems"]
    assert problem["received"] == f"2 {GPU} on the task, but train_gpus 4"
    assert store.numbers(base / "runs/r1/attempts") == []


class Cluster(Handler):
    """An API server with one node that has no GPU, which accepts every job."""

    def do_GET(self) -> None:
        amounts = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "1Ti"}
        node = {"metadata": {"name": "n"}, "spec": {}, "status": {"allocatable": amounts}}
        known = {
            "/version": {"major": "1", "minor": "33", "gitVersion": "v1.33.0"},
            "/api/v1/nodes": {"metadata": {}, "items": [node]},
        }
        path = self.path.partition("?")[0]
        self.answer(known.get(path, {"reason": "NotFound"}), 200 if path in known else 404)

    def do_POST(self) -> None:
        body = json.loads(self.body())
        account = {"username": "system:serviceaccount:n:pipeline-runner"}
        body["status"] = {"allowed": True, "userInfo": account}
        self.answer(body, 201)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(BACKEND_VARIABLE, raising=False)
    with serving(Cluster) as server:
        config = {"clusters": [{"name": "c", "cluster": {"server": server.url}}], "users": []}
        config |= {"contexts": [{"name": "c", "context": {"cluster": "c", "namespace": "n"}}]}
        (tmp_path / "config").write_text(yaml.safe_dump(config | {"current-context": "c"}))
        monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"))
        yield server


def checked(base: S3Address, store: Store, config: dict[str, Any]) -> list[Any]:
    problems = Problems()
    given, _ = apply(DEFAULTS | {"train_batch_size": 0, "task_config": config}, problems)
    assert not problems
    step = Step("launch_tfjob", "r1", Layout(base), store)
    return engine.checked_again(step, JobSpec.parse(**given))


def test_the_checks_of_the_cluster_see_what_the_task_sets(
    cluster: Any, store: Store, base: S3Address
) -> None:
    waiting = only(checked(base, store, task(resources=gpus(2))), Status.WAITS)
    assert len(waiting) == 2 and all(f"2 {GPU}" in it.what for it in waiting)
    assert not only(checked(base, store, task()), Status.WAITS)
    volumes = [{"name": "c", "persistentVolumeClaim": {"claimName": "cache"}}]
    config = task(volumes=volumes, volume_mounts=[{"name": "c", "mountPath": "/cache"}])
    (problem,) = problems_of(checked, base, store, config)
    assert problem.received == "cache"
    store.write(base / "runs/r1/attempts/0001.json", b"{}")  # a launcher that continues a run
    assert checked(base, store, config) == []
