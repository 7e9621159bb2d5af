"""The compiled YAML has none of the shapes that do not work on a back end, and each is noticed."""

from collections.abc import Callable
from pathlib import Path

import pytest
from kfp import compiler, dsl, kubernetes

from kfp_tfjob.pipelines.compilation import FOLDER
from tests.unit.compiled_rules import RULES, broken

RUN = dsl.PIPELINE_JOB_ID_PLACEHOLDER


@dsl.component(base_image="x", install_kfp_package=False)
def makes(run_id: str = "") -> str:
    return "s3://b/k"


@dsl.component(base_image="x", install_kfp_package=False)
def shows(page: dsl.Output[dsl.Markdown]) -> str:
    return ""


@dsl.component(base_image="x", install_kfp_package=False)
def also_shows(page: dsl.Output[dsl.HTML]) -> str:
    return ""


@dsl.component(base_image="x", install_kfp_package=False)
def shows_nothing(model: dsl.Output[dsl.Model]) -> str:
    return ""


@dsl.component(base_image="x", install_kfp_package=False)
def takes_status(status: dsl.PipelineTaskFinalStatus, run_id: str):
    return None


@dsl.component(base_image="x", install_kfp_package=False)
def takes_dict(value: dict) -> str:
    return ""


def plain(**inputs: object) -> dsl.PipelineTask:
    return makes(**inputs).set_caching_options(False)


def importer_of_an_output() -> None:
    dsl.importer(plain().outputs["Output"], dsl.Model).set_caching_options(False)


def task_after_one_that_always_runs() -> None:
    first = plain()
    always = plain(run_id=RUN).after(first).ignore_upstream_failure()
    plain().after(always)


def exit_task_without_its_run() -> None:
    with dsl.ExitHandler(plain()):
        plain()


def final_status() -> None:
    with dsl.ExitHandler(takes_status(run_id=RUN).set_caching_options(False)):
        plain()


def reference_that_must_exist() -> None:
    kubernetes.use_secret_as_volume(plain(), "keys", "/keys")


def default_beyond_its_limit(value: dict = {"number": 2**60}) -> None:  # noqa: B006
    takes_dict(value=value).set_caching_options(False)


def name_used_twice() -> None:
    shows().set_caching_options(False)
    also_shows().set_caching_options(False)


def empty_tab() -> None:
    shows_nothing().set_caching_options(False)


BAD = [
    importer_of_an_output,
    task_after_one_that_always_runs,
    exit_task_without_its_run,
    final_status,
    reference_that_must_exist,
    default_beyond_its_limit,
    name_used_twice,
    empty_tab,
]


def compiled(function: Callable, folder: Path) -> str:
    path = folder / "pipeline.yaml"
    compiler.Compiler().compile(dsl.pipeline(name="bad")(function), str(path))
    return path.read_text()


@pytest.mark.parametrize("bad", BAD, ids=lambda function: function.__name__)
def test_a_bad_shape_is_noticed(bad: Callable, tmp_path: Path) -> None:
    found = broken(compiled(bad, tmp_path))
    assert [text.partition(":")[0] for text in found] == [bad.__name__]


def test_every_rule_has_its_bad_shape() -> None:
    assert [rule.__name__ for rule in RULES] == [function.__name__ for function in BAD]


@pytest.mark.parametrize("path", sorted(FOLDER.iterdir()), ids=lambda path: path.name)
def test_what_is_shipped_has_no_bad_shape(path: Path) -> None:
    assert broken(path.read_text()) == []
