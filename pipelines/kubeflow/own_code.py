"""Copies model code of this machine to the store, where the pods of a cluster can read it."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from kfp_tfjob.pipelines.kubeflow.records import REACHABLE, endpoint_of
from kfp_tfjob.storage.errors import ConfigurationError, Problem, StepError
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from kfp_tfjob.trainer import code_files
from kfp_tfjob.trainer.model_code import ModelCode


def is_here(values: Mapping[str, Any]) -> bool:
    """Tell whether model_code is a path of this machine.

    Raises:
        ConfigurationError: It does not name a function.
    """
    code = ModelCode.parse(str(values["model_code"]))
    return not code.in_image and "://" not in code.source


def check_code(values: Mapping[str, Any]) -> list[Problem | str]:
    """Return what is wrong with model code of this machine; nothing for other code."""
    try:
        if not is_here(values):
            return []
        code = ModelCode.parse(str(values["model_code"]))
        found = code.read(None)  # it reads no store for code of this machine
        return [*found.problems(code.function, values["model_hyperparameters"])]
    except ConfigurationError as error:
        return list(error.problems)


def copy_code(values: Mapping[str, Any], endpoint: str = "") -> dict[str, Any]:
    """Copy model code of this machine to the store; the same code is copied to the same place.

    Args:
        values: Every run parameter, checked.
        endpoint: URL of the store as this machine reaches it.

    Returns:
        The run parameters, with the address of the copy.

    Raises:
        ConfigurationError: The code cannot be read, or the store cannot be written from here.
    """
    if not is_here(values):
        return dict(values)
    code = ModelCode.parse(str(values["model_code"]))
    path = Path(code.source).resolve()
    files = code_files.local(path)
    digest = sha256()
    for name in sorted(files):
        digest.update(f"{name}\0{sha256(files[name]).hexdigest()}\n".encode())
    place = Layout.parse(str(values["output_uri"])).own_code(digest.hexdigest()[:32]) / path.name
    try:
        store = Store(
            endpoint_of(values, endpoint), str(values["storage_region"]), patience=REACHABLE
        )
        for name, data in files.items():
            store.write(place / name if path.is_dir() else place, data)
    except StepError as error:
        problem = error.problems[0]
        raise ConfigurationError(
            Problem(
                "model_code is a path of this machine, and cannot be copied to the store",
                received=problem.what if isinstance(problem, Problem) else problem,
                expected=f"the right to write {place}",
                fix="set the AWS environment for the store, or copy the code yourself and give its"
                " s3:// address",
                path="model_code",
            )
        ) from error
    return {**values, "model_code": f"{place}:{code.function}"}
