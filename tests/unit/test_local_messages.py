"""What a person is told by the command line, and the page a run leaves."""

import re

import pytest

from kfp_tfjob.options.parse import unknown_key
from kfp_tfjob.options.pipeline import PARAMETERS
from kfp_tfjob.pipelines.hints import with_hints
from kfp_tfjob.storage.errors import ConfigurationError, Problem


@pytest.mark.parametrize(
    ("problem", "hint"),
    [
        (Problem("not valid", path="gate"), "gate=VALUE"),
        (Problem("not valid", path="pod.all.cpu"), "pod.all.cpu=VALUE"),
        (Problem("not valid", path="pod.all.volumes.0.path"), "'pod.all.volumes=[VALUE, ...]'"),
        (Problem("3 or 4", path="pod.all.cpu", suggestion="3"), "pod.all.cpu=3"),
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
