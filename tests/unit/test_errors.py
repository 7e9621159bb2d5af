"""What a person reads when something is wrong."""

from kfp_tfjob.pipelines.hints import with_hints
from kfp_tfjob.storage.errors import ConfigurationError, Problem

WRONG = Problem("train_gpus is not valid", received=-1, fix="correct train_gpus")


def test_one_problem_is_one_line() -> None:
    assert str(ConfigurationError(WRONG)) == str(WRONG)


def test_warnings_are_no_problems() -> None:
    error = ConfigurationError(WRONG, notes=["nodes may not be listed"])
    lines = ["1 problem, 1 warning:", f"  1. {WRONG}", "  Warning: nodes may not be listed."]
    assert str(error).splitlines() == lines
    error = ConfigurationError(WRONG, "another", notes=["first", "second"])
    assert str(error).splitlines()[0] == "2 problems, 2 warnings:"
    assert str(ConfigurationError(WRONG, "another")).splitlines()[0] == "2 problems:"


def test_what_to_type_is_added_and_no_warning_is_lost() -> None:
    error = ConfigurationError(WRONG, notes=["nodes may not be listed"])
    text = with_hints(error, ["train_gpus"])
    assert "--set train_gpus=VALUE" in text and "Warning: nodes may not be listed." in text
