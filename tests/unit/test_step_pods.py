"""What the pods of prepare_data, evaluate and publish get from `pod`, and what was compiled in."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kfp_tfjob.checks.step_pods import asked_for, check, outputs, step_pods, too_large
from kfp_tfjob.components.preflight.component import preflight
from kfp_tfjob.components.step import cores_of, gpus_of
from kfp_tfjob.options import container_images
from kfp_tfjob.options.parse import parse
from kfp_tfjob.options.pod import PodOptions
from kfp_tfjob.pipelines.cli import main
from kfp_tfjob.pipelines.compilation import FOLDER
from kfp_tfjob.pipelines.step_resources import DEFAULTS
from tests.unit.compiled_rules import Document, parts_of

SELECTOR, TOLERATIONS = {"disk": "ssd"}, [{"key": "a", "operator": "Exists"}]
PLACE = {"node_selector": SELECTOR, "tolerations": TOLERATIONS}
BARE = {
    "prepare_data_cpu": "250m",
    "prepare_data_memory": "2Gi",
    "prepare_data_node_selector": {},
    "prepare_data_tolerations": [],
    "evaluate_cpu": "250m",
    "evaluate_memory": "4Gi",
    "evaluate_node_selector": {},
    "evaluate_tolerations": [],
    "evaluate_gpus": "0",
    "evaluate_gpu_resource": "",
    "evaluate_image": container_images.TRAINER,
    "publish_cpu": "250m",
    "publish_memory": "4Gi",
}


def pods(given: dict, compiled: dict | None = None) -> dict:
    found = parse(PodOptions, "pod", given)
    return step_pods(found, DEFAULTS if compiled is None else compiled)


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        ({}, {}),
        ({"prepare": {}, "evaluate": {}, "all": {"cpu": 9, "node_selector": SELECTOR}}, {}),
        ({"prepare": {"cpu": 2, "memory": "9Gi"}}, {"cpu": "2", "memory": "9Gi"}),
        ({"prepare": PLACE}, PLACE),
    ],
)
def test_preflight_returns_what_was_compiled_in_and_what_pod_changes(given, changed) -> None:
    names = [name for name in preflight.component_spec.outputs if name in BARE]
    found = dict(zip(names, outputs(pods(given)), strict=True))
    assert found == BARE | {f"prepare_data_{name}": value for name, value in changed.items()}


def test_pod_evaluate_is_for_publish_too() -> None:
    given = {"evaluate": {"memory": "9Gi", "gpus": 2, "gpu_resource": "nvidia.com/mig-1g"}}
    compiled = DEFAULTS | {"publish": {"cpu": "1", "memory": "5Gi"}}
    found = dict(zip(BARE, outputs(pods(given, compiled)), strict=True))
    assert found == BARE | {
        "evaluate_memory": "9Gi",
        "evaluate_gpus": "2",
        "evaluate_gpu_resource": "nvidia.com/mig-1g",
        "evaluate_image": container_images.TRAIN,
        "publish_cpu": "1",
        "publish_memory": "9Gi",
    }
    limits = pods(given)["evaluate"].spec["containers"][0]["resources"]["limits"]
    assert limits == {"memory": "9Gi", "nvidia.com/mig-1g": "2"}


def test_a_pipeline_without_the_setters_refuses_what_it_cannot_do() -> None:
    assert list(check(pods({"all": {"cpu": 9}, "evaluate": {}}, {}))) == []
    wrong = list(check(pods({"prepare": {"cpu": 1}, "evaluate": PLACE}, {})))
    assert [it.path for it in wrong] == ["pod.prepare", "pod.evaluate"]
    assert "--step-resources prepare_data.memory" in wrong[0].fix


def test_a_request_above_the_compiled_limit_is_refused() -> None:
    compiled = DEFAULTS | {"publish": {"cpu": "1", "memory": "4Gi", "cpu_limit": "1500m"}}
    assert list(check(pods({"evaluate": {"cpu": 1.5}}, compiled))) == []
    (wrong,) = check(pods({"evaluate": {"cpu": 2}}, compiled))
    assert (wrong.path, wrong.received) == ("pod.evaluate.cpu", "2")
    assert "publish.cpu_limit=2" in wrong.fix


def node(labels: dict | None = None, **has: str) -> dict[str, Any]:
    metadata = {"name": "n", "labels": labels or {}}
    status = {"allocatable": {"cpu": "4", "memory": "8Gi"} | has}
    return {"metadata": metadata, "spec": {"taints": []}, "status": status}


def test_a_pod_that_no_node_fits_waits() -> None:
    (one,) = asked_for(pods({"prepare": {"memory": "9Gi", "node_selector": SELECTOR}}))
    assert list(too_large(one, [])) == []
    assert list(too_large(one, [node(SELECTOR, memory="9Gi"), node()])) == []
    (small,) = too_large(one, [node(SELECTOR), node(memory="9Gi")])
    assert "a total of 9 GiB memory" in small and "8 GiB" in small
    (nowhere,) = too_large(one, [node(memory="9Gi")])
    assert "pod.prepare" in nowhere and "node selector" in nowhere


def test_cores_and_gpus_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"prepare": {"cpu": "2500m"}, "evaluate": {"gpus": 2}}
    assert (cores_of(given), gpus_of(given)) == (3, 2)
    assert (cores_of({}), gpus_of({})) == (0, 0)
    monkeypatch.setenv("KFP_TFJOB_BACKEND", "local")
    assert gpus_of(given) == 0


STEPS = ("prepare-data", "evaluate", "publish")


def tasks_of(pipeline: Document) -> Document:
    """Return the tasks of the steps by name."""
    dags = (component["dag"] for component in pipeline["components"].values() if "dag" in component)
    (tasks,) = (dag["tasks"] for dag in dags if "preflight" in dag["tasks"])
    return tasks


def test_the_pipeline_passes_them_to_the_setters() -> None:
    pipeline, executors = parts_of((FOLDER / "tfjob_training.yaml").read_text())
    tasks = tasks_of(pipeline)
    for step in STEPS:
        assert "preflight" in tasks[step]["dependentTasks"]  # the setters make no edge
        settings, kind = executors[f"exec-{step}"], step.replace("publish", "evaluate")
        (toleration,) = settings["tolerations"]
        for source, name in (
            (settings["nodeSelector"]["nodeSelectorJson"], "node_selector"),
            (toleration["tolerationJson"], "tolerations"),
        ):
            assert source["taskOutputParameter"] == {
                "producerTask": "preflight",
                "outputParameterKey": f"{kind.replace('-', '_')}_{name}",
            }
    conditions = {name: task.get("triggerPolicy") for name, task in tasks.items()}
    assert {name for name, it in conditions.items() if it} == {*STEPS}
    assert "pipelinechannel--evaluate-Output" in conditions["publish"]["condition"]
    assert "evaluate" in tasks["publish"]["dependentTasks"]


def test_plain_steps_have_constants_and_the_user_may_be_left_to_the_cluster(tmp_path: Path) -> None:
    options = ["--plain-steps", "--run-as-user", "none"]
    done = CliRunner().invoke(main, ["compile", "--output", str(tmp_path), *options])
    assert done.exit_code == 0, done.output
    text = (tmp_path / "tfjob_training.yaml").read_text()
    assert "$.inputs.parameters[" not in text and "nodeSelector" not in text
    pipeline, executors = parts_of(text)
    assert [it.get("securityContext") for it in executors.values()] == [None] * 7
    for step in STEPS:
        container = pipeline["deploymentSpec"]["executors"][f"exec-{step}"]["container"]
        wanted = DEFAULTS[step.replace("-", "_")]
        assert container["resources"]["resourceMemoryLimit"] == wanted["memory"]
        assert container["resources"]["resourceCpuRequest"] == wanted["cpu"]
    given = tasks_of(pipeline)["preflight"]["inputs"]["parameters"]["step_resources"]
    assert given == {"runtimeValue": {"constant": {}}}
