"""Checks a launch without preflight, and copies its code.

It reports all problems at once, before anything is created. A launcher that finds an attempt of its
own does not ask the cluster again: a quota that the running job fills would reject its repetition.
Called by launch_tfjob's engine.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kfp_tfjob.checks.engine import At, check
from kfp_tfjob.checks.finding import Finding, Status, local_paths, only
from kfp_tfjob.checks.store import check_store
from kfp_tfjob.checks.subject import Subject, open_cluster
from kfp_tfjob.cluster.backend import is_local
from kfp_tfjob.common.errors import ConfigurationError, Problem, Problems
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.options import container_images
from kfp_tfjob.options.train import NPY, images_as_npy
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import LONGEST_SCHEMA, MANIFEST, SCHEMA
from kfp_tfjob.user_code.model_code import Code, ModelCode

from ..code_copy import check_code, code_of_run, save_code
from ..step import Step

log = logging.getLogger(__name__)

_CLUSTER_SECONDS = 60.0  # longer than a restart of the API server takes
_A_FUNCTION = "module:function"  # while model_code is not known


@dataclass(frozen=True)
class Prepared:
    """A launch that was checked.

    Attributes:
        parameters: The arguments of JobSpec.parse.
        findings: The result of the cluster's checks; empty if they did not run.
    """

    parameters: dict[str, Any]
    findings: list[Finding]


def prepared(
    step: Step, values: Mapping[str, Any], earlier_problems: Iterable[Problem | str] = ()
) -> Prepared:
    """Check a launch, and copy its code.

    Args:
        step: The launch's run and store.
        values: The run parameters.
        earlier_problems: The launch's known problems, to report in the same error.

    Raises:
        ConfigurationError: Everything that is wrong, in one error.
        StepError: The store or the cluster does not respond.
    """
    problems = Problems(earlier_problems)
    cluster: list[Finding] = []
    arguments = {name: value for name, value in values.items() if name != "model_code"}
    model_code = problems.of(lambda: ModelCode.of_run(values))
    arguments["model_entry"] = model_code.entry() if model_code else _A_FUNCTION
    spec = problems.of(lambda: JobSpec.parse(**arguments))
    warnings = problems.of(lambda: _first_checks(step, spec, problems, cluster))
    code: Code | None = None
    if warnings is not None and spec:
        problems += _missing(step, spec)
    if warnings is not None and model_code:
        if not (is_local() or model_code.in_image):
            problems += local_paths({"model_code": values["model_code"]})
        options = values["train_options"]
        code, of_code = check_code(
            step,
            model_code,
            values["train_image"],
            options.get("command", ()) if isinstance(options, Mapping) else (),
            values["model_hyperparameters"],
        )
        problems += only(of_code, Status.PROBLEM)
        for warning in only(of_code, Status.WARNING):
            log.warning("%s", warning)
            warnings.append(warning.text)
    if problems or not code:
        raise ConfigurationError(*problems, notes=warnings or ())
    entry = model_code.entry(code.module) if model_code else _A_FUNCTION
    code_uri = save_code(step, code_of_run(step, code))
    return Prepared(arguments | {"model_entry": entry, "code_uri": code_uri}, cluster)


def check_cluster(step: Step, spec: JobSpec) -> list[Finding]:
    """Return the result of the cluster's checks; call it before a run's first attempt only."""
    if is_local():
        return []
    api = open_cluster(_CLUSTER_SECONDS, spec.kind)
    findings = check(Subject(api, spec, run_id=step.run_id, task_key=step.task_key), At.RUN)
    for finding in only(findings, Status.WARNING, Status.WAITS):
        log.warning("%s", finding)
    return findings


def _first_checks(
    step: Step, spec: JobSpec | None, problems: Problems, of_cluster: list[Finding]
) -> list[str]:
    """Check the store and the cluster for a run without an attempt; return the warnings."""
    if step.store.numbers(step.run.attempts):
        return []
    of_store = check_store(step.store, step.run.base, step.layout.root)
    for finding in only(of_store, Status.WARNING, Status.WAITS):
        log.warning("%s", finding)
    if spec:
        of_cluster += check_cluster(step, spec)
    findings = [*of_store, *of_cluster]
    problems += only(findings, Status.PROBLEM)
    return [finding.text for finding in only(findings, Status.WARNING, Status.WAITS)]


def _missing(step: Step, spec: JobSpec) -> Iterator[Problem]:
    """Yield the problems of the images and the dataset; preflight runs before a dataset exists."""
    for name, image in (("train_image", spec.image), ("the image of the steps", spec.tools_image)):
        if container_images.is_placeholder(image) and not is_local():
            yield Problem(
                f"{name} is a placeholder, which no node can pull",
                received=image,
                expected="an image that you have built and pushed",
                fix="compile the pipeline with --registry, or with --tools-image and"
                " --trainer-image, and start a new run"
                + ", or set train_image in a new run"
                * (name == "train_image"),
                path="train_image" if name == "train_image" else "",
                name="placeholder-image",
            )
    own = spec.options.command
    if not own and not spec.dataset_uri:
        yield Problem(
            "dataset_uri is missing",
            received="nothing",
            expected="a prepared dataset, because this project's trainer reads its shards",
            fix="pass the dataset_uri of prepare_data, or set train_options.command to your own"
            " program",
            path="dataset_uri",
        )
    if spec.dataset_uri and (spec.options.stage_data or not own):
        dataset = S3Address.parse(spec.dataset_uri, "dataset_uri")
        if step.store.has(dataset / MANIFEST):
            if spec.options.stage_data == NPY:
                yield from _not_convertible(step, dataset)
        else:
            yield Problem(
                "dataset_uri is not a prepared dataset",
                received=spec.dataset_uri,
                expected=f"a folder that prepare_data has completed: {dataset / MANIFEST}",
                fix="pass the dataset_uri of prepare_data, or set train_options.stage_data to"
                " false for a program that reads its data itself",
                path="dataset_uri",
            )


def _not_convertible(step: Step, dataset: S3Address) -> Iterator[Problem]:
    """Yield a problem if the dataset contains images: only tables convert to `.npy` files."""
    from kfp_tfjob.features.schema import Schema

    if Schema.from_bytes(step.store.read(dataset / SCHEMA, LONGEST_SCHEMA)).picture:
        yield images_as_npy()
