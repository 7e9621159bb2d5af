"""Copies code of this machine to the store, where a cluster's pods can read it."""

from __future__ import annotations

from collections.abc import Container, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from kfp_tfjob.components.prepare_data.source.readers.own_reader import OwnReader
from kfp_tfjob.judging.evaluator_code import EvaluatorCode
from kfp_tfjob.options.pipeline import RunParameters, completed
from kfp_tfjob.pipelines.kubeflow.records import REACHABLE, endpoint_of
from kfp_tfjob.storage.errors import ConfigurationError, Problem, StepError
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from kfp_tfjob.user_code import code_files
from kfp_tfjob.user_code.model_code import ModelCode
from kfp_tfjob.user_code.syntax import OfImage

# The other options that name code: parameter, key, and what it must be.
_OF_OPTIONS = (("data_options", "reader", OwnReader), ("gate", "evaluator", EvaluatorCode))


def check_code(values: RunParameters, images: Container[str]) -> list[Problem | str]:
    """Return what is wrong with code of this machine; nothing for other code.

    Args:
        values: The run parameters.
        images: Those of the compiled pipeline, whose Python is the one that this project supports.
    """
    found: list[Problem | str] = []
    is_ours = not values["train_image"] or values["train_image"] in images
    try:
        if _is_here(str(values["model_code"])):
            code = ModelCode.of_run(values)
            files = code.read()
            if command := _option(values, "train_options", "command"):
                problems: list[Problem | str] = [*files.problems_of_command(command)]
            else:
                problems = files.problems(code.function, values["model_hyperparameters"])
            # Another image may have a newer Python, of which preflight warns, or more modules.
            found += (it for it in problems if not isinstance(it, OfImage) or is_ours)
    except ConfigurationError as error:
        found += error.problems
    for parameter, key, kind in _OF_OPTIONS:
        text = str(_option(values, parameter, key) or "")
        try:
            if text and _is_here(text):
                kind.read(text, None)
        except ConfigurationError as error:
            found += error.problems
    return found


def copy_code(values: RunParameters, endpoint: str = "") -> RunParameters:
    """Return the run parameters with code of this machine copied to the store."""
    found = completed(values)
    if _is_here(str(values["model_code"])):
        found["model_code"] = _copied(str(values["model_code"]), "model_code", values, endpoint)
    for parameter, key, kind in _OF_OPTIONS:
        text = str(_option(values, parameter, key) or "")
        if text and _is_here(text):
            copied = _copied(text, kind.path, values, endpoint)
            found[parameter] = {**values[parameter], key: copied}
    return found


def _option(values: RunParameters, parameter: str, key: str) -> Any:
    """Return a key of a group of options; None if it is not set, or the group is no dict."""
    group = values[parameter]
    return group.get(key) if isinstance(group, Mapping) else None


def _is_here(text: str) -> bool:
    code = ModelCode.parse(text, of_program=True)  # its form is checked elsewhere
    return not code.in_image and "://" not in code.source


def _copied(text: str, parameter: str, values: RunParameters, endpoint: str) -> str:
    """Copy the code that a parameter names, and return the parameter with the new address."""
    code = ModelCode.parse(text, of_program=True)
    path = Path(code.source).resolve()
    files = code_files.local(path)
    digest = sha256()
    for name in sorted(files):
        digest.update(f"{name}\0{sha256(files[name]).hexdigest()}\n".encode())
    place = Layout.parse(str(values["output_uri"])).own_code(digest.hexdigest()[:32]) / path.name
    try:
        store = Store(
            endpoint_of(values["storage_endpoint"], endpoint),
            str(values["storage_region"]),
            patience=REACHABLE,
        )
        for name, data in files.items():
            store.write(place / name if path.is_dir() else place, data)
    except StepError as error:
        problem = error.problems[0]
        raise ConfigurationError(
            Problem(
                f"{parameter} is a path on this machine, which cannot be copied to the store",
                received=problem.what if isinstance(problem, Problem) else problem,
                expected=f"permission to write {place}",
                fix="set the AWS environment for the store, or copy the code yourself and pass its"
                " s3:// address",
                path=parameter,
            )
        ) from error
    return f"{place}:{code.function}" if code.function else str(place)
