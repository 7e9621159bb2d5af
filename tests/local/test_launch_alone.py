"""launch_tfjob without preflight: its own checks and code copy, and several tasks in one run."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from kfp import dsl
from kubernetes.config import kube_config

from kfp_tfjob.cluster.backend import BACKEND_VARIABLE
from kfp_tfjob.cluster.local.backend import FOLDER, SECRETS
from kfp_tfjob.cluster.own_task import POD_NAME
from kfp_tfjob.common.errors import StepError
from kfp_tfjob.components.finish import engine as finish
from kfp_tfjob.components.finish.leftover_jobs import ClusterReport
from kfp_tfjob.components.launch_tfjob import engine
from kfp_tfjob.components.launch_tfjob.component import launch_tfjob
from kfp_tfjob.components.launch_tfjob.standalone import prepared
from kfp_tfjob.components.step import RUN_ID, Step
from kfp_tfjob.components.sync_output import sync
from kfp_tfjob.components.task_claim import claim_task
from kfp_tfjob.jobs.failure_record import Failure
from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.registry import versions
from kfp_tfjob.registry.champion import Champion
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.http_server import Handler, serving
from tests.local import test_launch_jobs as jobs
from tests.problems import problem_of, problems_of

program = jobs.program

# The program of a user: it leaves what it was given, and fails for the key `bad`.
PROGRAM = """
import json, os, pathlib, sys
output = pathlib.Path(os.environ["OUTPUT_DIR"])
names = ("DATASET_URI", "DATA_DIR", "CODE_URI", "RUN_URI", "HYPERPARAMETERS")
(output / "seen.json").write_text(json.dumps({name: os.environ.get(name) for name in names}))
sys.exit(3 if os.environ["RUN_URI"].endswith("/bad") else 0)
"""


@pytest.fixture(autouse=True)
def local(s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/objstore-cred").symlink_to(s3.secret, target_is_directory=True)
    monkeypatch.setenv(BACKEND_VARIABLE, "local")
    monkeypatch.setenv(SECRETS, str(tmp_path / "secrets"))
    monkeypatch.setenv(FOLDER, str(tmp_path / "work"))
    monkeypatch.delenv(RUN_ID, raising=False)


def values(base: S3Address, **changed: Any) -> dict[str, Any]:
    """What the component gives the engine when a user gives only output_uri and a command."""
    found = {
        name: item.default
        for name, item in launch_tfjob.component_spec.inputs.items()
        if name not in ("run_id", "task_key", "job_kind")
    }
    given = {"output_uri": str(base), "train_image": "none", "train_workers": 0}
    given |= {"train_options": {"command": ["python3", "-c", PROGRAM]}}
    return found | given | changed


def two_files(folder: Path) -> tuple[str, str]:
    return str(folder / "curves.html"), str(folder / "job.html")


def step_of(base: S3Address, store: Store, key: str = "") -> Step:
    return Step("launch_tfjob", "r1", Layout(base), store, key)


def read(store: Store, address: S3Address) -> Any:
    return json.loads(store.read(address))


def component(folder: Path, **given: Any) -> SimpleNamespace:
    """Run the component; returns its outputs and artifacts."""
    curves, job = (dsl.HTML(uri=str(folder / name)) for name in ("curves.html", "job.html"))
    made = {"training_curves": curves, "training_job": job, "training_metrics": dsl.Metrics()}
    made["trained_model"] = dsl.Model(uri=str(folder / "card.md"))
    return SimpleNamespace(outputs=launch_tfjob.python_func(**given, **made), **made)


class Pods(Handler):
    """An API server that knows the pods of two tasks, each in its second try."""

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        node = f"run-abc(0).root(0).{name}(0).executor(1)"
        annotations = {"workflows.argoproj.io/node-name": node}
        self.answer({"metadata": {"name": name, "annotations": annotations}})


def test_a_second_launch_without_a_key_is_refused_before_it_writes_anything(
    store: Store, base: S3Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would train the code of the first one, or return its output as its own."""
    (tmp_path / "train.py").write_text("print('second')")
    monkeypatch.delenv(BACKEND_VARIABLE)
    with serving(Pods) as server:
        config = {"clusters": [{"name": "c", "cluster": {"server": server.url}}], "users": []}
        config |= {"contexts": [{"name": "c", "context": {"cluster": "c", "namespace": "n"}}]}
        (tmp_path / "config").write_text(yaml.safe_dump(config | {"current-context": "c"}))
        monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"))
        monkeypatch.setenv(POD_NAME, "launch-tfjob")
        for key in ("", "", "eu"):  # the first one, its retry, and one with a key
            claim_task(step_of(base, store, key))
        before = [item.address for item in store.list(base)]
        monkeypatch.setenv(POD_NAME, "launch-tfjob-2")
        given = values(base, model_code=f"{tmp_path}/train.py:main")
        problem = problem_of(engine.run, step_of(base, store), given, "", "")
        assert problem.path == "task_key"
        assert [item.address for item in store.list(base)] == before
        claim_task(step_of(base, store, "us"))


def test_a_program_of_ones_own_needs_no_dataset(
    store: Store, base: S3Address, tmp_path: Path
) -> None:
    made = component(tmp_path, run_id="r1", **values(base))
    name, attempts, model_uri, trained_uri = made.outputs
    assert (name, attempts, model_uri) == ("tfjob-r1-1", 1, "")  # it wrote no model
    output = S3Address.parse(trained_uri)
    assert output == base / "runs/r1/output"
    seen = read(store, output / "seen.json")
    assert seen["RUN_URI"] == str(base / "runs/r1")
    assert seen["DATASET_URI"] is seen["DATA_DIR"] is seen["CODE_URI"] is None
    manifest = store.read_manifest(base / "runs/r1/manifest.json")
    assert {item.key for item in manifest.objects} >= {"output/seen.json"}
    assert made.trained_model.metadata == {
        **{"run_id": "r1", "step": "launch_tfjob", "uri": trained_uri, "trained_uri": trained_uri},
        **{"saved_model": False, "size_bytes": manifest.size, "manifest_sha256": manifest.digest},
        **{"job_kind": "TFJob", "job_name": name, "attempts": 1},
    }
    assert trained_uri in Path(made.trained_model.path).read_text()
    # More replicas do not change the rows of a step of a run that has trained.
    assert read(store, base / "runs/r1/attempts/0001.json")["inputs"]["train_batch_size"] == 64
    again = engine.run(step_of(base, store), values(base, train_workers=2), *two_files(tmp_path))
    assert again.attempts == 1


def test_the_component_trains_and_leaves_what_people_look_at(
    s3, store, base, program: jobs.Program, tmp_path, monkeypatch, capsys
):
    (tmp_path / "secrets/hub").mkdir(parents=True)
    (tmp_path / "secrets/hub/token").write_text("from-the-secret")
    env = {"API_TOKEN": "plain-4711", "HUB_TOKEN": {"secret": "hub", "key": "token"}}
    monkeypatch.setenv(RUN_ID, "run-of-the-component")
    program.tell(chief_0="exit 0")
    given = values(
        base,
        model_hyperparameters={"db": {"password": "pass-4711"}},
        train_options={"command": program.command},
        pod={"all": {"env": env}},
    )
    made = component(tmp_path, run_id="1", **given)
    name, attempts, model_uri, _ = made.outputs
    assert (name, attempts) == ("tfjob-run-of-the-component-1", 1)
    assert made.training_metrics.metadata == {"loss": 0.25}
    assert "accuracy" in Path(made.training_curves.path).read_text()
    page = Path(made.training_job.path).read_text()
    *_, text = (unescape(part) for part in re.findall("<pre>(.*?)</pre>", page, re.DOTALL))
    assert yaml.safe_load(text)["metadata"]["name"] == name
    card = made.trained_model.metadata
    assert not card["saved_model"]  # the program leaves other files in this folder
    assert card["uri"] == model_uri.removesuffix("/model") and "framework" not in card
    assert card["metrics"] == {"loss": 0.25}
    told = {"job_name": name, "attempts": 1, "model_uri": model_uri}
    assert made.training_job.metadata == told
    assert store.read(S3Address.parse(model_uri) / "weights.bin") == b"w" * 1000
    run_uri = model_uri.removesuffix("/output/model")
    assert f"kfp-tfjob tensorboard {run_uri} --endpoint {s3.endpoint}" in page
    # With one replica the operator sets no TF_CONFIG.
    seen = program.environment()
    assert "TF_CONFIG" not in seen
    # The program is given every secret, and nothing that people look at has one.
    assert (seen["API_TOKEN"], seen["HUB_TOKEN"]) == ("plain-4711", "from-the-secret")
    assert json.loads(seen["HYPERPARAMETERS"]) == {"db": {"password": "pass-4711"}}
    said = capsys.readouterr().out
    assert "[chief-0] my token is ******" in said
    ended = store.read(base / "runs/run-of-the-component/attempts/0001.end.json").decode()
    assert "4711" not in said + page + ended


def test_code_is_copied_once_and_belongs_to_the_task(store: Store, base: S3Address) -> None:
    store.write(base / "mine/own.py", b"def main(dataset): ...\n")
    given = values(base, model_code=f"{base}/mine/own.py:main")
    found = prepared(step_of(base, store, "eu"), given).parameters
    assert found["model_entry"] == "own:main"
    assert found["code_uri"] == str(base / "runs/r1/tasks/eu/code")
    store.write(base / "mine/own.py", b"changed = True\n\ndef main(dataset): ...\n")
    again = prepared(step_of(base, store, "eu"), given).parameters
    assert again["code_uri"] == found["code_uri"]
    copy = store.read(S3Address.parse(found["code_uri"]) / "own.py")
    assert b"changed" not in copy


def test_every_problem_comes_at_once_and_nothing_is_created(store: Store, base: S3Address) -> None:
    store.write(base / "mine/own.py", b"def build(dataset, units): ...\n")
    wrong = values(
        base,
        model_code=f"{base}/mine/own.py:built",
        train_options={},
        train_workers=-1,
        pod={"cheif": {}},
    )
    text = "\n".join(map(str, problems_of(prepared, step_of(base, store), wrong)))
    for part in ("train_workers is not valid", "did you mean 'chief'", "no function built"):
        assert part in text
    right = wrong | {"train_workers": 0, "pod": {}, "model_code": f"{base}/mine/own.py:build"}
    text = "\n".join(map(str, problems_of(prepared, step_of(base, store), right)))
    for part in ("dataset_uri is missing", "needs the hyperparameter 'units'"):
        assert part in text
    far = {"dataset_uri": str(base / "datasets/none"), "model_hyperparameters": {"units": 8}}
    assert "prepared dataset" in str(problem_of(prepared, step_of(base, store), right | far))
    assert store.folders(base) == ["mine"]


def test_tasks_of_one_run_live_side_by_side(store: Store, base: S3Address, tmp_path: Path) -> None:
    """Three launches at once: two train, one fails, and each keeps to its own folder."""

    def launch(key: str) -> Any:
        step = step_of(base, store, key)
        given = values(base, model_hyperparameters={"key": key})
        pages = (str(tmp_path / f"{key}{page}.html") for page in ("curves", "job"))
        try:
            return engine.run(step, given, *pages)
        except StepError as error:
            failure = Failure.of("launch_tfjob", error)
            store.write(step.run.failure("json"), failure.to_bytes())
            return error

    with ThreadPoolExecutor(3) as pool:
        eu, us, bad = pool.map(launch, ("eu", "us", "bad"))
    tasks = base / "runs/r1/tasks"
    for key, ended in (("eu", eu), ("us", us)):
        assert ended.job_name == f"tfjob-r1-{key}-1"
        seen = read(store, tasks / key / "output/seen.json")
        assert seen["RUN_URI"] == str(tasks / key)
        assert json.loads(seen["HYPERPARAMETERS"]) == {"key": key}
        assert read(store, tasks / key / "attempts/0001.json")["job"] == f"tfjob-r1-{key}-1"
        # Again, as after a retry of the whole run: nothing is trained twice.
        launch(key)
        assert store.numbers(tasks / key / "attempts") == [1]
    assert (bad.code, store.folders(base / "runs/r1")) == (3, ["tasks"])
    with pytest.raises(StepError, match="model"):
        sync.run(step_of(base, store, "eu"))

    ending = finish.run(
        Step("finish", "r1", Layout(base), store), "", ClusterReport(terminated=False)
    )
    assert ending.failure and ending.failure.code == 3
    first, _, heading, *_ = ending.markdown.splitlines()
    assert "`kfp-tfjob why r1`" in first and heading == "# Run r1 failed in `launch_tfjob`"
    assert "## Task `bad`" in ending.markdown
    assert "## Attempt 1 of task `bad`: " in ending.markdown
    assert "task `eu` | 1 |" in ending.markdown

    for path in ("failure.json", "failure.md"):  # the run is retried, and this task left out
        store.delete(tasks / "bad" / path)
    ending = finish.run(
        Step("finish", "r1", Layout(base), store), "", ClusterReport(terminated=False)
    )
    assert ending.failure is None
    assert ending.markdown.startswith("# Run r1 is complete\n")
    assert f"task `eu` | `{tasks / 'eu' / 'output'}` |" in ending.markdown


def test_two_tasks_of_a_run_publish_two_versions(store: Store, base: S3Address) -> None:
    place = Layout(base).model("m")
    claims = [versions.claim(store, place, "r1", key) for key in ("eu", "us", "eu", "")]
    assert claims == [1, 2, 1, 3]
    record = Champion(1, 2, "s3://b/m/2", "r1", "w", "s", "d", {}, "s3://b/v", "us")
    assert Champion.from_bytes(1, record.to_bytes()) == record
    assert record.trained_by != replace(record, task_key="").trained_by
    assert b"task_key" not in replace(record, task_key="").to_bytes()


@pytest.mark.parametrize("key", ["Eu", "-a", "a/b", "a" * 21])
def test_a_key_that_cannot_be_a_name_is_refused(
    base: S3Address, tmp_path: Path, key: str, capsys: Any
) -> None:
    with pytest.raises(SystemExit) as ended:
        component(tmp_path, run_id="r1", task_key=key, **values(base))
    assert ended.value.code == 2
    assert "task_key" in capsys.readouterr().out
