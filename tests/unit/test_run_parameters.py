"""The run parameters: one list everywhere, and every problem of a set of them at once."""

import inspect

import pytest
from kfp.dsl.base_component import BaseComponent
from markdown_it import MarkdownIt

from kfp_tfjob.components.evaluate.component import evaluate
from kfp_tfjob.components.finish.component import finish
from kfp_tfjob.components.preflight.component import preflight
from kfp_tfjob.components.preflight.parameters import defaults, table
from kfp_tfjob.components.preflight.plan import Output, RunData, RunPlan, job_spec
from kfp_tfjob.components.prepare_data.component import prepare_data
from kfp_tfjob.components.publish.component import publish
from kfp_tfjob.components.sync_output.component import sync_output
from kfp_tfjob.options.address_fields import TICK, Tick
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.parameters import PARAMETERS
from kfp_tfjob.pipelines.tfjob_training import tfjob_training
from kfp_tfjob.pipelines.without_task_config import launch_tfjob
from tests.problems import problem_of

STEPS = (preflight, prepare_data, launch_tfjob, sync_output, evaluate, publish, finish)
OWN = {"run_id", "task_key", TICK, "step_resources"}
GOOD = {"data_uri": "d.csv", "data_label": "y", "model_name": "m", "output_uri": "s3://bucket/p"}


def values(**changed: object) -> dict:
    return defaults() | GOOD | changed


def test_the_form_is_the_declaration() -> None:
    signature = inspect.signature(tfjob_training.pipeline_func)
    assert set(signature.parameters) == set(PARAMETERS)
    assert len(PARAMETERS) <= 18  # the form of Kubeflow Pipelines is one long column
    form = tfjob_training.component_spec.inputs
    for name, parameter in PARAMETERS.items():
        empty = inspect.Parameter.empty
        expected = empty if parameter.is_required else defaults()[name]
        assert signature.parameters[name].default == expected
        assert form[name].default == (None if parameter.is_required else expected)
        assert form[name].description == parameter.plain_sentence


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_the_signatures_of_the_steps_repeat_the_declaration(step: BaseComponent) -> None:
    kinds = {str: "String", int: "Integer", dict: "Dict"}
    inputs = step.component_spec.inputs
    made = {"source_digest", "model_entry", "code_uri", "dataset_uri", "model_uri"}
    made |= {"inputs_digest", "evaluate", "job_kind"}
    assert inputs.keys() <= PARAMETERS.keys() | made | OWN  # `made` by earlier steps
    for name in inputs.keys() & PARAMETERS.keys():
        parameter = PARAMETERS[name]
        assert inputs[name].type == kinds[parameter.type]
        if inputs[name].optional and not parameter.is_required:
            assert inputs[name].default == parameter.default


def test_preflight_takes_every_parameter() -> None:
    assert preflight.component_spec.inputs.keys() == PARAMETERS.keys() | OWN


@pytest.mark.parametrize(
    ("changed", "path", "suggestion"),
    [
        ({"output_uri": "bucket/prefix"}, "output_uri", ""),
        ({"output_uri": ""}, "output_uri", ""),
        ({"data_uri": " "}, "data_uri", ""),
        ({"model_name": "a/b"}, "model_name", ""),
        ({"model_code": "kfp_tfjob.trainer.models"}, "model_code", ""),
        ({"train_workers": 2, "train_batch_size": 64}, "train_batch_size", "63"),
        ({"data_options": {"tsk": "regression"}}, "data_options.tsk", "task"),
        ({"gate": {"mod": "superior"}}, "gate.mod", "mode"),
        ({"storage_secret": ""}, "storage_secret", ""),
        ({"storage_endpoint": "localhost:9000"}, "storage_endpoint", ""),
        ({"train_option": {}}, "train_option", "train_options"),
    ],
)
def test_each_problem_names_its_parameter(changed: dict, path: str, suggestion: str) -> None:
    problem = problem_of(RunPlan.parse, values(**changed))
    assert (problem.path, problem.suggestion) == (path, suggestion)


def test_the_table_has_the_batch_that_a_default_means() -> None:
    given = values(train_workers=4)
    assert (given["train_batch_size"], job_spec(given).batch_size) == (0, 65)
    assert "**`train_batch_size`:** `65`" in table(given, job_spec(given))


PROGRAM = {"data_uri": "", "data_label": "", "train_options": {"command": ["python3", "t.py"]}}


def test_a_plan_has_the_typed_parameters() -> None:
    pod = {"all": {"env": {"API_TOKEN": "x"}}}
    requested = values(data_uri="d/{date}.csv", train_epochs=3.0, gate={}, pod=pod)
    plan = RunPlan.parse(requested)
    assert plan.parameters == requested
    assert plan.output == Output("s3://bucket/p", "", "")
    assert plan.data == RunData("d/{date}.csv", "y", DataOptions())
    assert plan.data.at(Tick.parse("2026-11-22T03:00:00Z")).uri == "d/2026-11-22.csv"
    assert plan.dated_addresses == {"data_uri": "d/{date}.csv", "output_uri": "s3://bucket/p"}
    assert (plan.job.epochs, plan.gate, plan.model_code.function) == (3, None, "mlp")
    assert plan.secret_paths == ("pod.all.env.API_TOKEN",)


def test_a_program_needs_no_data() -> None:
    given = values(**PROGRAM)
    assert RunPlan.parse(given).data is None
    assert not RunPlan.parse(given).evaluates
    assert RunPlan.parse(values()).evaluates
    given = values(train_options={"evaluate": False})
    assert not RunPlan.parse(given).evaluates
    explicit = PROGRAM["train_options"] | {"evaluate": False, "when_unchanged": "train"}
    RunPlan.parse(values(**PROGRAM | {"train_options": explicit}))


@pytest.mark.parametrize(
    ("changed", "path"),
    [
        ({"data_label": "y"}, "data_label"),
        ({"data_options": {"task": "regression"}}, "data_options"),
        ({"train_options": {"evaluate": True}}, "train_options.evaluate"),
        ({"train_options": {"when_unchanged": "skip"}}, "train_options.when_unchanged"),
        ({"train_options": {"stage_data": "npy"}}, "train_options.stage_data"),
    ],
)
def test_what_needs_data_is_refused_without_it(changed: dict, path: str) -> None:
    given = PROGRAM | changed
    given["train_options"] = PROGRAM["train_options"] | given["train_options"]
    problem = problem_of(RunPlan.parse, values(**given))
    assert problem.path == path and problem.fix
    RunPlan.parse(values(**given | {"data_uri": "d.csv"}))


def test_without_data_and_a_program_there_is_one_problem() -> None:
    assert (
        problem_of(RunPlan.parse, values(data_uri="", data_options={"drop": ["a"]})).path
        == "data_uri"
    )


def test_a_value_stays_in_its_paragraph() -> None:
    given = values(data_label="a`b|c\n<b>\x1b[2J", model_hyperparameters={"a_b": "`|"})
    tokens = MarkdownIt("commonmark").enable("table").parse(table(given, job_spec(given)))
    assert [token.type for token in tokens].count("paragraph_open") == 1 + len(PARAMETERS)
    assert {token.type for token in tokens} <= {
        *("heading_open", "heading_close", "paragraph_open", "paragraph_close", "inline")
    }
    paragraphs = [token.children for token in tokens if token.type == "inline"]
    codes = [[part.content for part in one if part.type == "code_inline"] for one in paragraphs]
    assert ["data_label", r"a'b|c\n<b>\x1b[2J"] in codes
    assert not any(part.type == "html_inline" for one in paragraphs for part in one)
