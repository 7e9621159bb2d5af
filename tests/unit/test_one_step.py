"""Each step in a pipeline of the user, from its compiled YAML and from the installed package."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp import compiler, components, dsl

from examples.own_pipeline import own_pipeline
from kfp_tfjob.components.launch_tfjob.component import launch_tfjob
from kfp_tfjob.components.parameter_docs import with_parameter_docs
from kfp_tfjob.options.container_images import TOOLS, TRAIN, TRAINER
from kfp_tfjob.options.parameters import PARAMETERS
from kfp_tfjob.options.parse import bad_texts, parse
from kfp_tfjob.options.train import TrainOptions
from kfp_tfjob.pipelines.compilation import FOLDER
from kfp_tfjob.pipelines.step_pod import with_store
from tests.problems import problem_of
from tests.unit.compiled_rules import Document, broken, parts_of

OUT, MODEL, DATA = "s3://b/p", "s3://b/p/runs/r/output/model", "s3://b/p/datasets/d"
# What a user has to give; everything else has a default.
REQUIRED: dict[str, dict[str, Any]] = {
    "preflight": {"model_name": "m", "output_uri": OUT},
    "prepare_data": {"data_uri": "s3://b/x.csv", "output_uri": OUT},
    "launch_tfjob": {"output_uri": OUT},
    "sync_output": {"output_uri": OUT},
    "evaluate": {"output_uri": OUT, "dataset_uri": DATA, "model_uri": MODEL, "model_name": "m"},
    "publish": {"output_uri": OUT, "dataset_uri": DATA, "model_uri": MODEL, "model_name": "m"},
    "finish": {"output_uri": OUT},
}


def load(step: str) -> Callable[..., dsl.PipelineTask]:
    return components.load_component_from_file(str(FOLDER / f"{step}.yaml"))


def compiled(pipeline: Callable[..., None], folder: Path) -> tuple[Document, Mapping[str, Any]]:
    """Return a pipeline that a back end takes, and what Kubernetes gets for each executor."""
    path = folder / "own.yaml"
    compiler.Compiler().compile(dsl.pipeline(name="own")(pipeline), str(path))
    assert broken(path.read_text()) == []
    return parts_of(path.read_text())


@pytest.mark.parametrize("step", REQUIRED)
def test_a_step_works_with_its_required_inputs_only(step: str, tmp_path: Path) -> None:
    made = load(step)
    inputs = made.component_spec.inputs
    assert {name for name, item in inputs.items() if not item.optional} == REQUIRED[step].keys()
    assert {item.type for item in inputs.values()} <= {"String", "Integer", "Boolean", "Dict"}
    for name in inputs.keys() & PARAMETERS.keys() - REQUIRED[step].keys():
        assert inputs[name].default == (PARAMETERS[name].default or inputs[name].default)

    pipeline, executors = compiled(lambda: made(**REQUIRED[step]) and None, tmp_path)
    (executor,) = pipeline["deploymentSpec"]["executors"].values()
    image = TRAINER if step in ("evaluate", "publish") else TOOLS
    assert executor["container"]["image"] == image
    assert {item["value"] for item in executor["container"]["env"]} == {TOOLS, TRAINER, TRAIN}
    (settings,) = executors.values()
    (secret,) = settings["secretAsVolume"]
    assert secret["optional"] is True and secret["mountPath"] == "/etc/kfp-tfjob/storage"
    assert settings["securityContext"] == {"runAsUser": "1000", "runAsNonRoot": True}
    # The pipeline that loads it can use every output of the step.
    (task,) = (body for name, body in pipeline["components"].items() if name.endswith("-step"))
    (inside,) = (body for name, body in pipeline["components"].items() if body is not task)
    for kind in ("parameters", "artifacts"):
        given = inside["outputDefinitions"].get(kind, {})
        assert task["outputDefinitions"].get(kind, {}).keys() == given.keys()
        assert task["dag"]["outputs"].get(kind, {}).keys() == given.keys()
    # The run's id cannot be set.
    assert "run_id" not in inputs
    assert f"constant: '{dsl.PIPELINE_JOB_ID_PLACEHOLDER}'" in (tmp_path / "own.yaml").read_text()


@pytest.mark.parametrize("step", REQUIRED)
def test_every_input_has_one_line_that_says_what_it_is(step: str) -> None:
    """Kubeflow shows only the first line of a description."""
    pipeline, _ = parts_of((FOLDER / f"{step}.yaml").read_text())
    (task,) = (body for body in pipeline["components"].values() if "executorLabel" in body)
    for definitions in (pipeline["root"], task):
        for name, item in definitions["inputDefinitions"]["parameters"].items():
            description = item["description"]
            assert description.endswith(".") and "\n" not in description, name
            assert "as in the form" not in description.lower(), name
            if name in PARAMETERS:
                assert description.startswith(PARAMETERS[name].plain_sentence)


def test_what_a_step_says_about_a_run_parameter_follows_its_sentence() -> None:
    def step(*, train_gpus: int, run_id: str) -> str:
        """Train.

        Args:
            run_id: The run's
                id.
            train_gpus: Here they are
                shared.

        Returns:
            Output: The name: one
                word.
        """
        raise NotImplementedError

    assert with_parameter_docs(step) is step
    assert inspect.getdoc(step) == (
        "Train.\n\nArgs:\n"
        f"    train_gpus: {PARAMETERS['train_gpus'].plain_sentence} Here they are shared.\n"
        "    run_id: The run's id.\n\n"
        "Returns:\n"
        "    Output: The name: one word."
    )


def test_the_same_step_several_times_in_one_run_with_an_exit_task(tmp_path: Path) -> None:
    launch = load("launch_tfjob")

    def own(storage_secret: str = "keys") -> None:
        with dsl.ExitHandler(load("finish")(output_uri=OUT)):
            first = launch(output_uri=OUT, task_key="first", storage_secret=storage_secret)
            launch(output_uri=OUT, task_key="second", dataset_uri=first.outputs["trained_uri"])
            with dsl.ParallelFor(["eu", "us"]) as region:
                launch(output_uri=OUT, task_key=region)

    pipeline, executors = compiled(own, tmp_path)
    assert len(executors) == len(pipeline["deploymentSpec"]["executors"]) == 4


def test_the_objects_of_the_package_do_the_same(tmp_path: Path) -> None:
    def own(storage_secret: str = "keys") -> None:
        task = launch_tfjob(run_id=dsl.PIPELINE_JOB_ID_PLACEHOLDER, output_uri=OUT)
        with_store(task, storage_secret).set_memory_limit("3Gi")

    pipeline, executors = compiled(own, tmp_path)
    task = pipeline["root"]["dag"]["tasks"]["launch-tfjob"]
    assert task["retryPolicy"]["maxRetryCount"] == 2
    resources = pipeline["deploymentSpec"]["executors"]["exec-launch-tfjob"]["container"]
    assert resources["resources"]["resourceMemoryLimit"] == "3Gi"
    (settings,) = executors.values()
    assert settings["secretAsVolume"][0]["secretNameParameter"] == {
        "componentInputParameter": "storage_secret"
    }


def test_the_example_compiles_to_what_works(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    compiler.Compiler().compile(own_pipeline(FOLDER / "launch_tfjob.yaml"), str(path))
    text = path.read_text()
    assert broken(text) == []
    form = next(yaml.safe_load_all(text))["root"]["inputDefinitions"]["parameters"]
    assert form.keys() == {"output_uri", "train_image", "storage_secret"}


def test_a_value_that_was_not_filled_in_is_refused() -> None:
    """KFP puts nothing into the dicts of a pipeline that another pipeline loads."""
    left = "{{$.inputs.parameters['pipelinechannel--seed']}}"
    given = {"command": ["python3", "--seed", left]}
    problem = problem_of(parse, TrainOptions, "train_options", given)
    assert problem.path == "train_options.command" and problem.received == left
    assert problem.fix
    found = bad_texts("x", {"a": {"b": left}, "c": [1, left]})
    assert [it.path for it in found] == ["x.a.b", "x.c"]
