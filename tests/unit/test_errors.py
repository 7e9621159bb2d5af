"""What a person reads when something is wrong, and what replaces an option that is gone."""

import re

import pytest

from kfp_tfjob.common import errors
from kfp_tfjob.common.errors import ConfigurationError, Problem, first
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.parameters import PARAMETERS
from kfp_tfjob.options.parse import parse, unknown_key
from kfp_tfjob.options.pod import PodOptions
from kfp_tfjob.options.removed import REMOVED
from kfp_tfjob.options.train import TrainOptions
from kfp_tfjob.pipelines.hints import with_hints
from kfp_tfjob.storage import errors as former_errors
from tests.problems import problem_of, problems_of

WRONG = Problem("train_gpus is not valid", received=-1, path="train_gpus")


def test_the_former_module_has_the_same_errors() -> None:
    assert "StepError" in former_errors.__all__
    for name in former_errors.__all__:
        assert getattr(former_errors, name) is getattr(errors, name)


def test_what_to_type_is_added_and_no_warning_is_lost() -> None:
    error = ConfigurationError(WRONG, notes=["nodes may not be listed"])
    text = with_hints(error)
    assert "Fix: type --gpus VALUE." in text and "Warning: nodes " in text


def test_a_problem_names_its_parameter_and_what_to_type_in_fields() -> None:
    typed = unknown_key("train_options", "sed", ["seed", "command"])
    assert (typed.path, typed.suggestion, typed.is_misnamed) == ("train_options.sed", "seed", True)
    unlike = unknown_key("", "xyz", ["gate"])
    assert (unlike.path, unlike.suggestion, unlike.is_misnamed) == ("xyz", "", True)
    assert not WRONG.is_misnamed and not Problem("gone").is_misnamed


def test_of_many_problems_the_first_are_shown() -> None:
    problems = [Problem(f"column {number}") for number in range(1200)]
    assert first(problems, 1200, "more") == problems
    shown = first(problems, 2, "columns")
    assert [item.what for item in shown] == ["column 0", "column 1", "1,198 more columns"]


def test_a_list_of_choices_begins_with_the_suggestion_and_is_cut():
    problem = unknown_key("train_options", "sed", [*(f"a{n:02}" for n in range(30)), "seed"])
    assert problem.expected.index("seed, a00, ")
    assert "23 more" in problem.expected and "`kfp-tfjob explain train_options`" in problem.expected


@pytest.mark.parametrize(
    ("problem", "hint"),
    [
        (Problem("not valid", path="gate"), "gate=VALUE"),
        (Problem("not valid", path="pod.all.cpu"), "pod.all.cpu=VALUE"),
        (Problem("not valid", path="pod.all.volumes.0.path"), "'pod.all.volumes=[VALUE, ...]'"),
        (Problem("3 or 4", path="pod.all.cpu", suggestion="3"), "pod.all.cpu=3"),
        (Problem("not valid", path="data_options.types.a.1"), "data_options.types.a.1=VALUE"),
        (Problem("not valid", path="data_options.types.a <1"), "'data_options.types.a <1=VALUE'"),
        (
            Problem("?", "recal/1.0", path="gate.thresholds.recal/1.0", suggestion="recall/1.0"),
            "gate.thresholds.recall/1.0=VALUE",
        ),
        (unknown_key("train_options", "sed", ["seed", "command"]), "train_options.seed=VALUE"),
        (unknown_key("", "gat", PARAMETERS), "gate=VALUE"),
        (unknown_key("gate", "xyz", ["mode"]), None),
        (Problem("the bucket is gone", fix="make it"), None),
        (Problem("not yours to set", received="HOME", path="pod.all.env.HOME"), None),
        (Problem("train_epochs is not valid", fix="set train_epochs to 3"), None),
        (Problem("EPOCHS is not valid", path="EPOCHS"), None),
        ("a sentence", None),
    ],
)
def test_a_problem_with_a_parameter_ends_with_what_to_type(problem, hint):
    text = with_hints(ConfigurationError(problem))
    assert (re.findall(r"--set ('.+'|\S+?)\.?$", text) or [None]) == [hint]


def problems(group: type, value: dict) -> list[tuple]:
    found = problems_of(parse, group, "x", value)
    return [(item.path, item.received, item.suggestion) for item in found]


def test_a_key_with_a_choice_of_kinds_has_one_problem() -> None:
    wrong = {"class_weight": {"a": "much"}, "mixed_precision": "half", "early_stopping": 3}
    assert problems(TrainOptions, wrong) == [
        ("x.class_weight.a", "'much'", ""),
        ("x.early_stopping", "3", ""),
        ("x.mixed_precision", "'half'", ""),
    ]


def test_a_name_with_a_dot_is_not_a_key_of_another_name() -> None:
    wrong = {"types": {"a": "nummer", "a.b": "datum"}}
    assert [path for path, *_ in problems(DataOptions, wrong)] == ["x.types.a", "x.types.a.b"]


def test_a_problem_names_the_place() -> None:
    volumes = [{"claim": "a", "path": "/a"}, {"claim": "A!"}, {"path": "/b"}]
    volumes += [{"claim": "c", "secret_name": "c", "path": "/c"}]
    wrong = {"all": {"volumes": volumes, "env": {"a b": "1"}}, "worker": {"memroy": "1Gi"}}
    assert problems(PodOptions, wrong) == [
        ("x.all.env.a b", "a b", ""),
        ("x.all.volumes.1.claim", "'A!'", ""),
        ("x.all.volumes.1.path", "nothing", ""),
        ("x.all.volumes.2", "{'path': '/b'}", ""),
        ("x.all.volumes.3", "{'claim': 'c', 'secret_name': 'c', 'path': '/c'}", ""),
        ("x.worker.memroy", "memroy", "memory"),
    ]


def problem(path: str) -> Problem:
    """Return the one problem of parameters in which only `path` is wrong."""
    name, *keys = path.split(".")
    if not keys:
        return unknown_key("", name, PARAMETERS)
    value = True
    for key in reversed(keys):
        value = {key: value}
    return problem_of(parse, PARAMETERS[name].group, name, value)


@pytest.mark.parametrize("path", [*REMOVED, "gone", "data_options.gone", "pod.all.gone"])
def test_a_removed_option_names_its_successor(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if path.endswith("gone"):
        monkeypatch.setitem(REMOVED, path, "set it elsewhere")
    found = problem(path)
    assert (found.path, found.fix, found.suggestion) == (path, REMOVED[path], "")
    assert found.is_misnamed  # so no hint says how to set it
