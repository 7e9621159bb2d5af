"""Checks the user's model code, and stores the run's own copy of it.

A run may train for days and restart replicas meanwhile. If they read the code from its source, an
edit in that time would train one model with two programs. So the code is copied once per run, and
all attempts and retries use the copy. Called by preflight's engine, and by launch_tfjob in a
pipeline without preflight.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kfp_tfjob import uploader
from kfp_tfjob.checks.finding import Finding, Status
from kfp_tfjob.cluster.backend import is_local
from kfp_tfjob.common.errors import Problem, StepError
from kfp_tfjob.common.names import below
from kfp_tfjob.options.container_images import TRAIN, TRAINER
from kfp_tfjob.storage.layout import MANIFEST
from kfp_tfjob.user_code.model_code import Code, ModelCode
from kfp_tfjob.user_code.syntax import OfImage

from .step import Step

log = logging.getLogger(__name__)


def check_code(
    step: Step,
    model_code: ModelCode,
    image: str,
    command: Sequence[str],
    hyperparameters: Mapping[str, Any],
) -> tuple[Code, list[Finding]]:
    """Return the code that `model_code` names, and its problems.

    The function is checked unless the user's command replaces the trainer, which would call it.

    Args:
        step: The run and its store.
        model_code: The run parameter.
        image: The image that the code runs in.
        command: The user's own program; empty for this project's trainer.
        hyperparameters: The keyword arguments of the function.
    """
    try:
        code = model_code.read(step.store)
    except StepError as error:
        return Code("", {}), [Finding.of(problem) for problem in error.problems]
    is_project_image = image in (TRAIN, TRAINER)
    if command:
        problems: list[Problem | str] = [*code.problems_of_command(command)]
    elif model_code.in_image and not code.files and is_project_image:
        problem = Problem(
            "model_code names a module that is not in the image",
            received=model_code.source,
            expected="kfp_tfjob.trainer.models, or a module of your own train_image",
            fix="correct model_code, or give a path: FILE.py, FILE.zip or ./FOLDER",
            path="model_code",
            name="module-not-in-image",
        )
        return code, [Finding.of(problem)]
    else:
        problems = code.problems(model_code.function, hyperparameters)
    # Another image may have a newer Python, or more modules. A local run uses this machine's.
    uncertain = OfImage if not (is_project_image or is_local()) else ()
    return code, [
        Finding.of(problem, Status.WARNING if isinstance(problem, uncertain) else Status.PROBLEM)
        for problem in problems
    ]


def code_of_run(step: Step, code: Code) -> Code:
    """Return the code that this run trains: the copy of an earlier attempt if it has one.

    Args:
        step: The run and its store.
        code: The code as it is now at its source.
    """
    if code.in_image or not _has_copy(step):
        return code
    with tempfile.TemporaryDirectory() as folder:
        uploader.pull(step.store, step.run.code, Path(folder))
        paths = [path for path in Path(folder).rglob("*") if path.is_file()]
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    if files != code.files:
        log.warning(
            "model_code has changed since this run copied it; the run uses its copy. To use the"
            " new code, start a new run"
        )
    return replace(code, files=files)


def save_code(step: Step, code: Code) -> str:
    """Copy the user's code to the run once; every replica and attempt uses only this copy.

    Returns:
        The address of the copy; empty if the code is in the image.
    """
    if code.in_image:
        return ""
    if _has_copy(step):
        log.info("this run already has its copy of the code")
    else:
        with tempfile.TemporaryDirectory() as folder:
            for path, content in code.files.items():
                file = below(Path(folder), path)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
            uploader.push(step.store, Path(folder), step.run.code, "code", run_id=step.run_id)
    return str(step.run.code)


def _has_copy(step: Step) -> bool:
    """Return whether the run's copy of the code is complete: its manifest is written last."""
    return step.store.has(step.run.code / MANIFEST)
