"""Copies a user's code on this machine to the store, where a cluster's pods can read it.

The copy's folder is named after its content, so submitting the same code again writes the same
objects, and a run keeps its code when the user edits the files. Called by `submission.py` and
`client.py`.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from kfp_tfjob.common.errors import ConfigurationError, Problem, StepError
from kfp_tfjob.components.prepare_data.source.readers.own_reader import OwnReader
from kfp_tfjob.judging.evaluator_code import EvaluatorCode
from kfp_tfjob.options.parameters import RunParameters, completed
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from kfp_tfjob.user_code import code_files
from kfp_tfjob.user_code.model_code import ModelCode
from kfp_tfjob.user_code.syntax import OfImage

from .records import REACHABLE, endpoint_of

# Other options that name code: the parameter, the key, and the class that reads it.
_OF_OPTIONS = (("data_options", "reader", OwnReader), ("gate", "evaluator", EvaluatorCode))


def check_code(values: RunParameters, images: Container[str]) -> list[Problem | str]:
    """Return the problems of code on this machine; code in an image or a store is not checked.

    Args:
        values: The run parameters.
        images: The images of the compiled pipeline, which have this project's Python version.
    """
    code_problems: list[Problem | str] = []
    is_project_image = not values["train_image"] or values["train_image"] in images
    try:
        if _is_local(str(values["model_code"])):
            code = ModelCode.of_run(values)
            files = code.read()
            if command := _option(values, "train_options", "command"):
                problems: list[Problem | str] = [*files.problems_of_command(command)]
            else:
                problems = files.problems(code.function, values["model_hyperparameters"])
            # Another image may have a newer Python, which preflight notes, or more modules.
            code_problems += (
                problem
                for problem in problems
                if not isinstance(problem, OfImage) or is_project_image
            )
    except ConfigurationError as error:
        code_problems += error.problems  # all parameters are checked before any is reported
    for parameter, key, kind in _OF_OPTIONS:
        text = str(_option(values, parameter, key) or "")
        try:
            if text and _is_local(text):
                kind.read(text, None)
        except ConfigurationError as error:
            code_problems += error.problems
    return code_problems


def copy_code(values: RunParameters, endpoint: str = "") -> RunParameters:
    """Copy code on this machine to the store, and return the run parameters with its addresses.

    Args:
        values: The run parameters.
        endpoint: URL of the store as this machine reaches it; empty for the environment's, else the
            run parameter.

    Raises:
        ConfigurationError: The code cannot be copied.
    """
    copied_values = completed(values)
    model_code = str(values["model_code"])
    if _is_local(model_code):
        copied_values["model_code"] = _copied(model_code, "model_code", values, endpoint)
    for parameter, key, kind in _OF_OPTIONS:
        text = str(_option(values, parameter, key) or "")
        if text and _is_local(text):
            copied = _copied(text, kind.path, values, endpoint)
            copied_values[parameter] = {**values[parameter], key: copied}
    return copied_values


def _option(values: RunParameters, parameter: str, key: str) -> Any:
    """Return a key of a dict parameter; None if it is not set, or if the parameter is not a dict.

    Other checks report a parameter that is not a dict.
    """
    group = values[parameter]
    return group.get(key) if isinstance(group, Mapping) else None


def _is_local(text: str) -> bool:
    """Return whether a parameter names a path on this machine."""
    code = ModelCode.parse(text, of_program=True)  # its form is checked elsewhere
    return not code.in_image and "://" not in code.source


def _copied(text: str, parameter: str, values: RunParameters, endpoint: str) -> str:
    """Copy the code that a parameter names, and return the parameter with the copy's address.

    Args:
        text: The parameter's value.
        parameter: The parameter, for messages.
        values: The run parameters.
        endpoint: URL of the store; empty for the environment's or the run parameter.
    """
    code = ModelCode.parse(text, of_program=True)
    path = Path(code.source).resolve()
    files = code_files.local(path)
    digest = sha256()
    for name in sorted(files):
        digest.update(f"{name}\0{sha256(files[name]).hexdigest()}\n".encode())
    folder = Layout.parse(str(values["output_uri"])).own_code(digest.hexdigest()[:32])
    address = folder / path.name
    try:
        store = Store(
            endpoint_of(values["storage_endpoint"], endpoint),
            str(values["storage_region"]),
            patience=REACHABLE,
        )
        for name, data in files.items():
            store.write(address / name if path.is_dir() else address, data)
    except StepError as error:
        problem = error.problems[0]
        raise ConfigurationError(
            Problem(
                f"{parameter} is a path on this machine, which cannot be copied to the store",
                received=problem.what if isinstance(problem, Problem) else problem,
                expected=f"permission to write {address}",
                fix="set the AWS environment for the store, or copy the code yourself and pass its"
                " s3:// address",
                path=parameter,
            )
        ) from error
    return f"{address}:{code.function}" if code.function else str(address)
