"""Finds the program of a job: the container that trains in each role, and the whole command.

A run starts one command in all replicas. If the job's roles start different ones, or the command
contains host names of the old job's pods, the run would train something else. Called by
`conversion.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kfp_tfjob.jobs.jobset import JOBSET
from kfp_tfjob.jobs.pytorchjob import PYTORCHJOB
from kfp_tfjob.jobs.user_pod_schema import Container

from .image_config import ImageConfig, inspect, to_type
from .report import Report
from .source_job import SourceJob, SourceRole

COMMAND = ("train_options", "command")
_UPLOADS = re.compile(
    r"\b(aws\s+s3|s3cmd|s5cmd|rclone|mc\s+(cp|mirror)|gsutil|gcloud\s+storage|azcopy)\b"
)
_INDEX = "JOB_COMPLETION_INDEX"
_MOST_HOSTS = 100  # of a role: a command that names more pods names one of these, too
Mains = Mapping[str, Container]  # by role
Inspect = Callable[[str], ImageConfig | None]


def is_uploader(container: Container) -> bool:
    """Return whether a container copies files to a store."""
    return bool(_UPLOADS.search(container.text))


def main_containers(job: SourceJob, report: Report) -> dict[str, Container]:
    """Return the container that trains in each role, and report the other containers."""
    return {role.role: _main_container(job, role, report) for role in job.roles}


def _main_container(job: SourceJob, role: SourceRole, report: Report) -> Container:
    containers = role.template.spec.containers
    expected = [container for container in containers if container.name == job.kind.container]
    programs = [container for container in containers if not is_uploader(container)]
    main = next(iter([*expected, *programs, *containers]))
    if not expected and job.kind is not JOBSET:
        report.note(
            f"{role.name}.containers.{main.name}",
            f"the training operator rejects a {job.kind.name} without a container"
            f" {job.kind.container!r}",
            "a run gives it that name",
            ("train_image",),
        )
    for container in containers:
        # The chief's uploader is noted with the output.
        if container is main or (is_uploader(container) and role.name == job.chief.name):
            continue
        if is_uploader(container):
            report.note(
                f"{role.name}.containers.{container.name} ({container.image})",
                "a run stores only the chief's output",
                "let the chief write what is to be stored",
                ("pod",),
            )
        else:
            report.note(
                f"{role.name}.containers.{container.name} ({container.image})",
                "a replica has one container of yours, and a second one would keep it from ending",
                "start its program in the background from train_options.command, if training"
                " needs it",
                ("pod",),
            )
    for init in role.template.spec.init_containers:
        if init.restart_policy == "Always" and is_uploader(init):
            continue
        report.refuse(
            f"{role.name}.initContainers.{init.name}",
            init.text[:200] or init.image,
            "pods without init containers",
            "put its files into the image or on a claim, or start its program first in the"
            " command; then remove it from the file",
        )
    return main


def command_of(
    job: SourceJob,
    mains: Mains,
    named_command: Sequence[str],
    report: Report,
    ask: Inspect = inspect,
) -> list[str]:
    """Return the command of all replicas, which is the chief's.

    Args:
        job: The job.
        mains: The main container of each role.
        named_command: The command that a person has named; empty for the job's command.
        report: Receives a problem for each role with another program.
        ask: Returns the program of an image.
    """
    commands = {
        role.role: _container_command(mains[role.role], named_command, report, ask)
        for role in job.roles
    }
    command = commands[job.chief.role]
    for role in job.roles:
        if commands[role.role] != command:
            report.refuse(
                f"{role.name}.command",
                json.dumps(commands[role.role]),
                f"the command of {job.chief.name}: {json.dumps(command)}",
                "start a program that finds out its role from TF_CONFIG or RANK, and name it with"
                " --command",
            )
    prelude = [
        *_change_folder(job, mains, report),
        *_export_indices(job, mains, command, report),
        *_export_rendezvous(job),
    ]
    command = _replace_addresses(job, command, report)
    if not prelude:
        return command
    return ["sh", "-c", " && ".join([*prelude, 'exec "$0" "$@"']), *command]


def _container_command(
    container: Container, named_command: Sequence[str], report: Report, ask: Inspect
) -> list[str]:
    """Return the command of one container, or else the command of its image."""
    if named_command:
        return list(named_command)
    if container.command:
        return [*container.command, *container.args]
    config = ask(container.image)
    if config and (config.entrypoint or config.cmd or container.args):
        report.note(
            f"command of {container.image}",
            "the job has no command, so the image starts its own program",
            f"ENTRYPOINT and CMD, from `{config.tool}`",
            COMMAND,
        )
        arguments = container.args or _literal(config.cmd)
        return [*_literal(config.entrypoint), *arguments]
    example = [*([] if config else ["PROGRAM"]), *(container.args or ["ARGUMENTS"])]
    report.refuse(
        "command",
        f"the image {container.image} starts its own program, which is not in the file"
        if not config
        else f"the image {container.image} has neither ENTRYPOINT nor CMD",
        "a program that the supervisor can start",
        f"see the image's Entrypoint and Cmd with `{to_type(container.image)}`, then pass both as"
        f" one list: --command '{json.dumps(example)}'",
    )
    return []


def _literal(command: Sequence[str]) -> list[str]:
    """Return an image's command escaped, because Kubernetes would expand `$(NAME)` in it."""
    return [element.replace("$(", "$$(") for element in command]


def _change_folder(job: SourceJob, mains: Mains, report: Report) -> list[str]:
    """Return the shell command for `workingDir`, because a run starts in the image's WORKDIR."""
    folders = {role.name: mains[role.role].working_dir for role in job.roles}
    different = set(folders.values())
    if len(different) > 1:
        report.refuse(
            "workingDir", folders, "the same folder for all roles", "use absolute paths instead"
        )
    folder = different.pop()
    if not folder:
        return []
    report.note(
        f"workingDir: {folder}", "a run has no such setting", "the shell before it", COMMAND
    )
    return [f"cd '{folder}'"]


def _export_indices(
    job: SourceJob, mains: Mains, command: Sequence[str], report: Report
) -> list[str]:
    """Return the shell commands for variables with the number of a pod within its JobSet."""
    names = [
        variable.name
        for variable in mains[job.chief.role].env
        if variable.value_from
        and "job-completion-index" in str((variable.value_from.field_ref or {}).get("fieldPath"))
        and variable.name not in ("RANK", "REPLICA_INDEX")
    ]
    if job.kind is JOBSET and _INDEX in " ".join(command):
        names.append(_INDEX)
    if names and (job.had_chief or job.chief.jobs > 1 or len(job.roles) > 2):
        report.refuse(
            ", ".join(names),
            "the number of a pod within its Job",
            "RANK, the number among chief and workers",
            "read RANK in the program, and remove the variable from the file",
        )
    for name in names:
        report.note(name, "a run numbers its replicas itself", "RANK", COMMAND)
    return [f"export {name}=$RANK" for name in names]


def _replace_addresses(job: SourceJob, command: Sequence[str], report: Report) -> list[str]:
    """Return a command with $(MASTER_ADDR) instead of the chief's host name in the old job."""
    if not job.metadata.name:
        return list(command)
    replaced = []
    chief_host = _host_pattern(job.pod_name(job.chief, 0), job)
    hosts = [
        _host_pattern(job.pod_name(role, index), job)
        for role in job.roles
        for index in range(min(role.count + 1, _MOST_HOSTS))
    ]
    for element in command:
        changed = chief_host.sub("$(MASTER_ADDR)", element)
        if changed != element:
            report.note(
                f"command: {job.pod_name(job.chief, 0)}",
                "the pods of a run have other names",
                "$(MASTER_ADDR), which the supervisor replaces",
                COMMAND,
            )
        for host in hosts:
            if match := host.search(changed):
                report.refuse(
                    "command",
                    match[0],
                    "no name of a pod, because a run's pods have other names",
                    "let the program read TF_CONFIG or MASTER_ADDR, and pass it with --command",
                )
        replaced.append(changed)
    return replaced


def _host_pattern(name: str, job: SourceJob) -> re.Pattern[str]:
    """Return the pattern of a pod's host name, short or with its domain."""
    domain = job.metadata.name if job.kind is JOBSET else job.metadata.namespace or "default"
    full = rf"(?:\.{re.escape(domain)}(?:\.[a-z0-9-]+)*)?"
    return re.compile(rf"(?<![\w.-]){re.escape(name)}{full}(?![\w-])")


def torchrun_variables(job: SourceJob) -> dict[str, str]:
    """Return the variables that the operator of PyTorchJobs sets for torchrun in every pod.

    The supervisor sets the variables that differ between pods, and PET_NNODES, the number of
    replicas.
    """
    elastic = _elastic_policy(job)
    conf = elastic.get("rdzvConf")
    pairs = [pair for pair in conf if isinstance(pair, Mapping)] if isinstance(conf, list) else []
    variables = {
        "PET_NPROC_PER_NODE": job.policies.get("nprocPerNode") or elastic.get("nProcPerNode"),
        "PET_RDZV_BACKEND": elastic.get("rdzvBackend", "c10d") if elastic else None,
        "PET_RDZV_ID": elastic.get("rdzvId"),
        "PET_RDZV_CONF": ",".join(f"{pair.get('key')}={pair.get('value')}" for pair in pairs),
        "PET_MAX_RESTARTS": elastic.get("maxRestarts"),
    }
    return {name: str(value) for name, value in variables.items() if value not in (None, "")}


def _elastic_policy(job: SourceJob) -> Mapping[str, Any]:
    elastic = job.policies.get("elasticPolicy") if job.kind is PYTORCHJOB else None
    return elastic if isinstance(elastic, Mapping) else {}


def _export_rendezvous(job: SourceJob) -> list[str]:
    """Return the shell command for the address at which the processes of torchrun meet."""
    return ["export PET_RDZV_ENDPOINT=$MASTER_ADDR:$MASTER_PORT"] if _elastic_policy(job) else []
