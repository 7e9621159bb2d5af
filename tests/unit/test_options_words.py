"""What a message says of an option: the values that fit, and what replaces one that is gone."""

import pytest

from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.parse import parse, unknown_key
from kfp_tfjob.options.pipeline import PARAMETERS
from kfp_tfjob.options.pod import PodOptions
from kfp_tfjob.options.removed import REMOVED
from kfp_tfjob.options.train import TrainOptions
from kfp_tfjob.storage.errors import ConfigurationError, Problem


def problems(group: type, value: dict) -> list[tuple]:
    with pytest.raises(ConfigurationError) as caught:
        parse(group, "x", value)
    return [(item.path, item.received, item.suggestion) for item in caught.value.problems]


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
    with pytest.raises(ConfigurationError) as caught:
        parse(PARAMETERS[name].group, name, value)
    (found,) = caught.value.problems
    return found


@pytest.mark.parametrize("path", [*REMOVED, "gone", "data_options.gone", "pod.all.gone"])
def test_a_removed_option_names_its_successor(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if path.endswith("gone"):
        monkeypatch.setitem(REMOVED, path, "set it elsewhere")
    found = problem(path)
    assert (found.path, found.fix, found.suggestion) == (path, REMOVED[path], "")
    assert found.is_misnamed  # so no hint says how to set it
