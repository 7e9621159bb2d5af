"""Converts one job into run parameters and notes.

The notes are the reason why this is not a mapping of fields: a run decides some things itself, and
a person who imports a job must see each part that the parameters do not contain. Called by
`kfp-tfjob import`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.common.names import check_model_name
from kfp_tfjob.components.preflight.parameters import defaults
from kfp_tfjob.components.preflight.plan import job_spec
from kfp_tfjob.jobs.jobset import JOBSET
from kfp_tfjob.jobs.kind import CHIEF
from kfp_tfjob.jobs.labels import QUEUE_LABEL
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.pytorchjob import PYTORCHJOB
from kfp_tfjob.options.parameter_masking import still_masked
from kfp_tfjob.options.parameters import PARAMETERS, completed

from .addresses import refuse_addresses
from .documents import name_of
from .image_config import inspect
from .main_container import Inspect, Mains, command_of, main_containers, torchrun_variables
from .output import Output, find_destination, find_output
from .own_job import parameters_of_own
from .pod_settings import CONVERTED, first_value, gpus_of, merged, settings_of, user_labels
from .policies import report_policies
from .report import Note, Report
from .source_job import SourceJob, read_job

_ADDRESSES = {"output_uri": "s3://bucket", "model_name": "model"}  # if the job names none


@dataclass(frozen=True)
class ImportedJob:
    """The run that replaces a job.

    Attributes:
        name: The job's kind and name.
        parameters: The run parameters that are not defaults.
        notes: The parts of the job that are not carried over unchanged.
    """

    name: str
    parameters: Mapping[str, Any]
    notes: Sequence[Note]


def convert(manifest: Object, command: Sequence[str] = (), ask: Inspect = inspect) -> ImportedJob:
    """Return the run parameters for a job.

    Args:
        manifest: The job.
        command: The program, if a person has named it.
        ask: Returns the program of an image.

    Raises:
        ConfigurationError: One problem for each reason why the job is not valid, or why a run would
            train something else.
    """
    report = Report(f"{manifest['kind']} {name_of(manifest)}")
    job = read_job(manifest, report)
    report.raise_if_refused()
    if job.is_own:
        parameters = parameters_of_own(job, report)
        if command:
            parameters["train_options"] = parameters.get("train_options", {}) | {
                "command": list(command)
            }
    else:
        parameters = _parameters_of_foreign(job, command, report, ask)
        report.raise_if_refused()
    for path in still_masked(parameters, ""):
        report.note(
            path.lstrip("."),
            "render hides values that look like secrets",
            'write {"secret": NAME, "key": KEY} of a Kubernetes Secret',
            tuple(path.lstrip(".").split(".")),
        )
    _check(parameters, report)
    return ImportedJob(report.job, parameters, list(report.merged()))


def _parameters_of_foreign(
    job: SourceJob, named_command: Sequence[str], report: Report, ask: Inspect
) -> dict[str, Any]:
    """Return the run parameters for a job that another tool or a person has written."""
    mains = main_containers(job, report)
    command = command_of(job, mains, named_command, report, ask)
    refuse_addresses(job, mains, report)
    destination = find_destination(job, mains, report)
    output = find_output(job, mains, command, report)
    options: dict[str, Any] = {"command": command}
    options |= report_policies(job, report)
    options |= {"evaluate": False}
    _report_program(job, mains, report)
    if job.kind is JOBSET:
        options["job"] = "jobset"
        report.note(
            "kind: JobSet",
            "on a cluster with the training operator, a run is a TFJob unless this key is set",
            "",
            ("train_options", "job"),
        )
    if not job.had_chief and job.kind is not PYTORCHJOB and sum(job.counts.values()) > 1:
        options["chief_in_tf_config"] = False
        report.note(
            job.chief.name,
            "one pod has to store the output, so the first worker becomes the chief",
            "with false, TF_CONFIG has worker 0 as before, for the program only",
            ("train_options", "chief_in_tf_config"),
        )
    parameters = {
        "data_uri": "",
        "model_name": _model_name(job),
        "model_hyperparameters": {},
        "output_uri": destination.uri,
        "storage_endpoint": destination.endpoint,
        "storage_region": destination.region,
        "storage_secret": destination.secret or PARAMETERS["storage_secret"].default,
        "train_workers": job.counts.get("worker", 0),
        "train_gpus": _gpus(job, mains, report),
        "train_image": mains[CHIEF].image,
        "train_options": options,
        "pod": _pod(job, mains, output, str(destination.secret), report),
    }
    parameters |= _parameters_in_variables(mains, report)
    if not parameters["model_name"]:
        report.note("model_name", "the job has no name that a model may have", "pass --name NAME")
    if not destination.uri:
        report.note("output_uri", "the job does not name a store", "pass --output s3://BUCKET/...")
    return {
        name: value
        for name, value in parameters.items()
        if value != PARAMETERS[name].default and value not in ("", None)
    }


def _report_program(job: SourceJob, mains: Mains, report: Report) -> None:
    """Note the differences between the job and the run that its program can observe."""
    if job.chief.name.lower() == "master" and job.kind is not PYTORCHJOB:
        report.note(
            job.chief.name,
            "TensorFlow 2 rejects a cluster with the task type master",
            "the type chief in TF_CONFIG",
            ("train_options",),
        )
    if job.kind is PYTORCHJOB:
        report.note(
            "kind: PyTorchJob",
            "a TFJob or JobSet trains the same: replicas have MASTER_ADDR, MASTER_PORT, RANK,"
            " WORLD_SIZE and the variables of torchrun",
            "add job: pytorchjob to keep the kind",
            ("train_options",),
        )
    report.note(
        "data",
        "the job has no table, so there is nothing to evaluate, and the run stores the output",
        "name a table in data_uri to find its rows in DATA_DIR; then evaluate may be true",
        ("train_options", "evaluate"),
    )
    report.note(
        f"image: {mains[CHIEF].image}",
        "the supervisor runs in it and needs Python 3.8 or later, as python3",
        "",
        ("train_image",),
    )
    for name in job.metadata.annotations:
        if not name.startswith("kubectl.kubernetes.io/"):
            report.note(
                f"metadata.annotations.{name}",
                "a run's job has no such annotation",
                "pod.all.annotations, if its pods need it",
            )
    if job.metadata.namespace:
        report.note(
            f"namespace: {job.metadata.namespace}",
            "a run's job is in the namespace of the run",
            f"pass --namespace {job.metadata.namespace} to kfp-tfjob submit",
        )


def _model_name(job: SourceJob) -> str:
    name = job.metadata.name or job.metadata.generate_name.strip("-.")
    return "" if check_model_name(name) else name


def _gpus(job: SourceJob, mains: Mains, report: Report) -> int:
    """Return the number of GPUs of the chief, which each worker must have too."""
    counts = {
        role.name: gpus_of(mains[role.role].resources, role.name, report)[1]
        for role in job.roles
        if role.role in (CHIEF, "worker")
    }
    if len(set(counts.values())) > 1:
        report.refuse(
            "resources",
            ", ".join(f"{name} with {count} GPUs" for name, count in counts.items()),
            "the same number of GPUs in the chief and each worker",
            "give all of them the same number",
        )
    return counts[job.chief.name]


def _pod(
    job: SourceJob, mains: Mains, output: Output, store_secret: str, report: Report
) -> dict[str, Any]:
    """Return the run parameter `pod`, with its roles in the order of the documentation."""
    labels = user_labels(job.metadata.labels)
    settings = {}
    # The output's path and claim are kept apart: each belongs to one role, never to `all`.
    outputs: dict[str, dict[str, Any]] = {}
    for role in job.roles:
        role_settings = settings_of(role, mains[role.role], output, store_secret, report)
        if variables := torchrun_variables(job):
            role_settings["env"] = role_settings.get("env", {}) | variables
        if path := role_settings.pop("output_path", ""):
            outputs[role.role] = {"output_path": path}
        role_labels = labels | role_settings.get("labels", {})
        settings[role.role] = role_settings | {"labels": role_labels}
    pod = merged(settings, labels)
    if queue := job.metadata.labels.get(QUEUE_LABEL):
        pod["all"] = {"queue": queue} | pod.get("all", {})
    if output.path:
        claim = {"output_claim": output.claim} if output.claim else {}
        outputs[CHIEF] = {"output_path": output.path} | claim
    for name, role_output in outputs.items():
        pod[name] = role_output | pod.get(name, {})
    for role in job.roles:
        main = mains[role.role]
        size_and_image: dict[str, Any] = {}
        if role.role in ("ps", "evaluator"):
            gpus = gpus_of(main.resources, role.name, report)[1]
            size_and_image = {"replicas": role.count} | ({"gpus": gpus} if gpus else {})
        if main.image != mains[CHIEF].image:
            size_and_image["image"] = main.image
        if size_and_image:
            pod[role.role] = size_and_image | pod.get(role.role, {})
    scheduling = job.policies.get("runPolicy.schedulingPolicy")
    name = scheduling.get("priorityClass") if isinstance(scheduling, Mapping) else None
    if name and not any("priority_class" in group for group in pod.values()):
        pod["all"] = pod.get("all", {}) | {"priority_class": name}
    return {
        role: pod[role] for role in ("all", "chief", "worker", "ps", "evaluator") if pod.get(role)
    }


def _parameters_in_variables(mains: Mains, report: Report) -> dict[str, Any]:
    """Return the run parameters that the job sets as environment variables."""
    parameters: dict[str, Any] = {}
    for variable, parameter in CONVERTED.items():
        text = first_value(list(mains.values()), variable)
        if not text:
            continue
        try:
            value = json.loads(text)
        except ValueError:
            value = None  # reported below, as for JSON of another type
        if type(value) is not PARAMETERS[parameter].type:
            report.refuse(
                f"env.{variable}",
                text,
                f"the parameter {parameter}, because a run sets the variable from it",
                "give the variable another name in the program and in the file",
            )
            continue
        parameters[parameter] = value
        report.note(f"env.{variable}", f"a run sets it from {parameter}", "", (parameter,))
    return parameters


def _check(parameters: Mapping[str, Any], report: Report) -> None:
    """Check run parameters as commands such as submit check them.

    Raises:
        ConfigurationError: A run does not accept a value of the job.
    """
    try:
        job_spec(completed(defaults(), _ADDRESSES, parameters))
    except ConfigurationError as error:
        # Without the paths: the command line would suggest options for them that import lacks.
        raise ConfigurationError(
            *(
                Problem(
                    f"{report.job}: {problem.what}",
                    problem.received,
                    problem.expected,
                    "correct the job",
                )
                for problem in error.as_problems
            )
        ) from None
