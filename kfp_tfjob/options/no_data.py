"""Rules for run parameters in a run without data_uri, which runs the user's own program.

Such a run needs no label, split or evaluation. A parameter that describes data is rejected, because
the user who set it expects an effect. Called by preflight, prepare_data, and the commands that
submit or render a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kfp_tfjob.common.errors import Problem


def has_data(values: Mapping[str, Any]) -> bool:
    """Return whether the run parameters name data."""
    return bool(str(values.get("data_uri", "")).strip())


def data_problems(values: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a problem for each parameter that describes data, if data_uri is empty."""
    if has_data(values):
        return
    if label := str(values.get("data_label", "")).strip():
        yield _problem("data_label", repr(label), "an empty string")
    if options := values.get("data_options"):
        received = ", ".join(options) if isinstance(options, Mapping) else repr(options)
        yield _problem("data_options", received, "{}", "{}")


def run_problems(values: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the problems of all run parameters, if data_uri is empty."""
    if has_data(values):
        return
    options = values.get("train_options")
    options = options if isinstance(options, Mapping) else {}
    if not options.get("command"):
        yield Problem(
            "data_uri is missing",
            received="nothing",
            expected="a table or a folder of images; only your own program"
            " (train_options.command) needs none",
            fix="set data_uri, or train_options.command to a program that needs no data",
            path="data_uri",
            name="missing-data",
        )
        return
    yield from data_problems(values)
    if options.get("evaluate") is True:
        expected = "false, the default of a run without data"
        yield _problem("train_options.evaluate", "true", expected, "false")
    if options.get("stage_data") == "npy":
        yield _problem("train_options.stage_data", "npy", "true, the default", "true")
    if options.get("when_unchanged") == "skip":
        expected = "train, because only evaluated runs are compared with later ones"
        yield _problem("train_options.when_unchanged", "skip", expected, "train")


def _problem(path: str, received: str, expected: str, suggestion: str = "") -> Problem:
    return Problem(
        f"{path} needs data, but data_uri is empty",
        received=received,
        expected=expected,
        fix=f"set data_uri, or remove {path}",
        path=path,
        suggestion=suggestion,
    )
