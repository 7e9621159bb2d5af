"""The committed YAML is what the code compiles to, and holds nothing that belongs to a run."""

import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from kfp_tfjob.options.container_images import PLACEHOLDER, TOOLS, is_placeholder
from kfp_tfjob.pipelines.cli import main
from kfp_tfjob.pipelines.compilation import FOLDER, compile_all, images_of
from tests.unit.compiled_rules import artifacts, broken, parts_of


def test_the_committed_yaml_is_what_the_code_compiles_to(tmp_path: Path) -> None:
    made = {path.name: path.read_text() for path in compile_all(tmp_path)}
    committed = {path.name: path.read_text() for path in FOLDER.iterdir()}
    assert made == committed, "run `make compile` and commit pipelines/compiled"


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.name)
def test_it_has_no_shape_that_fails_on_a_back_end(path: Path) -> None:
    assert broken(path.read_text()) == []


@pytest.mark.parametrize(
    ("image", "answer"),
    [
        (TOOLS, True),
        (" Set-Your-Registry.INVALID:5000/kfp-tfjob-tools@sha256:0", True),
        ("kfp-tfjob-tools.invalid:1", False),  # an image of Docker Hub
        ("invalid/kfp-tfjob-tools:1", False),
        ("registry.example.com/set-your-registry.invalid/tools:1", False),
        ("kfp-tfjob-tools:1", False),
    ],
)
def test_a_placeholder_is_known_by_its_host(image: str, answer: bool) -> None:
    assert is_placeholder(image) is answer


def test_nothing_in_it_belongs_to_a_run() -> None:
    # The run id's placeholder is the one uuid that may be there.
    text = (FOLDER / "tfjob_training.yaml").read_text().replace("{{$.pipeline_job_uuid}}", "")
    assert not re.search(r"20\d\d-\d\d|[0-9a-f]{8}-[0-9a-f]{4}-|uuid|namespace", text)


def test_images_and_the_user_are_baked_in(tmp_path: Path) -> None:
    """The replicas may have another image than evaluate."""
    images = ["registry/tools:7", "registry/trainer:8", "registry/trainer:8-gpu"]
    compile_all(tmp_path, *images[:2], "4711", train_image=images[2])
    text = (tmp_path / "tfjob_training.yaml").read_text()
    pipeline, settings = parts_of(text)
    assert images_of(text) == images
    assert PLACEHOLDER not in text and not any(map(is_placeholder, images))
    assert text.startswith("# Images:\n#    registry/tools:7\n#    registry/trainer:8\n#    ")
    users = [item.get("securityContext") for item in settings.values()]
    assert users == [{"runAsUser": "4711", "runAsNonRoot": True}] * 7
    executors = pipeline["deploymentSpec"]["executors"]
    variables = {it["name"]: it["value"] for it in executors["exec-preflight"]["container"]["env"]}
    assert variables["KFP_TFJOB_TRAINER_IMAGE"] == images[1]  # preflight's evaluate_image
    form = pipeline["root"]["inputDefinitions"]["parameters"]
    assert form["train_image"]["defaultValue"] == images[2]


def test_no_task_is_cached_and_every_task_has_the_secret() -> None:
    pipeline, executors = parts_of((FOLDER / "tfjob_training.yaml").read_text())
    dags = [pipeline["root"], *pipeline["components"].values()]
    tasks = {
        name: task
        for dag in dags
        for name, task in dag.get("dag", {}).get("tasks", {}).items()
        if "dag" not in pipeline["components"][task["componentRef"]["name"]]
    }
    assert {"preflight", "prepare-data", "launch-tfjob", "sync-output", "evaluate"} <= set(tasks)
    assert [name for name, task in tasks.items() if task["cachingOptions"].get("enableCache")] == []
    assert tasks["launch-tfjob"]["retryPolicy"]["maxRetryCount"] == 2
    assert len(executors) == 7
    for executor in executors.values():
        (volume,) = executor["secretAsVolume"]
        assert volume["optional"] is True
        assert volume["mountPath"] == "/etc/kfp-tfjob/storage"
        assert executor["securityContext"] == {"runAsUser": "1000", "runAsNonRoot": True}


@pytest.mark.parametrize("said", ["0", "root", "-1", ""])
def test_a_user_that_would_be_refused_is_refused_at_once(tmp_path: Path, said: str) -> None:
    done = CliRunner().invoke(main, ["compile", "--output", str(tmp_path), "--run-as-user", said])
    assert done.exit_code == 2 and "--run-as-user" in done.output
    assert list(tmp_path.iterdir()) == []


def test_artifacts_of_data_and_models_are_exactly_these() -> None:
    """The rules find a result that is missing, and artifacts that do not belong there."""
    pipeline, *_ = yaml.safe_load_all((FOLDER / "tfjob_training.yaml").read_text())
    results = {
        (component, name): kind
        for component, name, kind in artifacts(pipeline)
        if kind in ("system.Dataset", "system.Model")
    }
    assert results == {
        ("comp-prepare-data", "dataset"): "system.Dataset",
        ("comp-launch-tfjob", "trained_model"): "system.Model",
        ("comp-publish", "published_model"): "system.Model",
    }
    steps = pipeline["components"]
    outputs = steps["comp-publish"]["outputDefinitions"]["artifacts"]
    outputs["other"] = outputs.pop("published_model")
    steps["comp-evaluate"]["inputDefinitions"]["artifacts"] = {"model": {}}
    rules = [line.partition(":")[0] for line in broken(yaml.safe_dump(pipeline))]
    assert rules == ["empty_tab", "result_that_is_missing", "artifact_as_input"]
