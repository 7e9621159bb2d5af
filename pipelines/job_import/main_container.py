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
from kfp_tfjob.jobs.kind import CHIEF
from kfp_tfjob.jobs.pytorchjob import PYTORCHJOB
from kfp_tfjob.jobs.user_pod_schema import Container

from .addresses import OF_OPERATORS, TORCHRUN, chief_host, pod_host
from .image_config import ImageConfig, inspect, to_type
from .report import Report
from .source_job import SourceJob, SourceRole

COMMAND = ("train_options", "command")
GPU = re.compile(r"gpu|/mig-|^habana\.ai/|^google\.com/tpu|^aws\.amazon\.com/neuron")
_UPLOADS = re.compile(
    r"\b(aws\s+s3|s3cmd|s5cmd|rclone|mc\s+(cp|mirror)|gsutil|gcloud\s+storage|azcopy)\b"
)
# A copy from a store. A local path, or - for standard output, follows the address. In an upload, a
# flag, a variable with flags or the shell's next command does. rclone and mc address a store by a
# name of the user's choice.
_REMOTE = r"['\"]?(?:s3|gs)://(?:\$\([^)]*\)|[^\s;&|)])+[ \t]+"
_DOWNLOADS = re.compile(
    rf"""
    \b(?: aws\s+s3 | s3cmd | s5cmd | rclone | mc | gsutil | gcloud\s+storage )\b [^;&|\n]*?
    \s(?: cp | copy | get | mirror | mv | move | rsync | sync )\s+
    (?:
        [^;&|\n]*?  {_REMOTE}
        (?: -(?!\S) | ['"]?(?!(?:s3|gs)://)[\w./~][^\s;&|)<>]*(?![<>]) )
    |
        (?:-\S+\s+)*  {_REMOTE}  ['"]?\$[^\s;&|)<>]*
    |
        (?:-\S+\s+)*  ['"]?[\w-]+[:/](?!/)[^\s;&|)]* [ \t]+
        ['"]?[./~][^\s;&|)<>]*(?= \s*(?: $ | [-;&|)] | \d*> ) )
    )
    """,
    re.VERBOSE,
)
_INDEX = "JOB_COMPLETION_INDEX"
_NUMBERS = {**TORCHRUN, _INDEX: "RANK"}
_REFERENCE = re.compile(rf"(?<!\$)\$\(({'|'.join(_NUMBERS)})\)")
_OTHER_SOURCE = (
    "put its files into the image or on a claim, or start its program first in the command; then"
    " remove it from the file"
)
Mains = Mapping[str, Container]  # by role
Inspect = Callable[[str], ImageConfig | None]


def upload_text(container: Container) -> str:
    """Return a container's command without its copies from a store."""
    return _DOWNLOADS.sub(" ", _one_line(container))


def is_uploader(container: Container) -> bool:
    """Return whether a container copies files to a store."""
    return bool(_UPLOADS.search(upload_text(container)))


def _is_downloader(container: Container, main: Container) -> bool:
    """Return whether a container copies files from a store to a volume of the main container."""
    names = {mount.name for mount in main.volume_mounts}
    is_shared = any(mount.name in names for mount in container.volume_mounts)
    return is_shared and bool(_DOWNLOADS.search(_one_line(container)))


def _one_line(container: Container) -> str:
    """Return a container's command, each command of a shell in one line."""
    return container.text.replace("\\\n", " ")


def main_containers(job: SourceJob, report: Report) -> dict[str, Container]:
    """Return the container that trains in each role, and report the other containers."""
    return {role.role: _main_container(job, role, report) for role in job.roles}


def _main_container(job: SourceJob, role: SourceRole, report: Report) -> Container:
    containers = role.template.spec.containers
    main = _training_container(job, role, report)
    if main.name != job.kind.container and job.kind is not JOBSET:
        report.note(
            f"{role.name}.containers.{main.name}",
            f"the training operator rejects a {job.kind.name} without a container"
            f" {job.kind.container!r}",
            "a run gives it that name",
            ("train_image",),
        )
    for container in containers:
        # The chief's uploader is noted with the output.
        if container is main or (is_uploader(container) and role.role == CHIEF):
            continue
        if is_uploader(container):
            report.note(
                f"{role.name}.containers.{container.name} ({container.image})",
                "a run stores only the chief's output",
                "let the chief write what is to be stored",
                ("pod",),
            )
        elif _is_downloader(container, main):
            report.refuse(
                f"{role.name}.containers.{container.name}",
                container.text[:200],
                "no container that fetches the program's files",
                _OTHER_SOURCE,
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
            _OTHER_SOURCE,
        )
    return main


def _training_container(job: SourceJob, role: SourceRole, report: Report) -> Container:
    """Return the container that trains: by its name, by its GPUs, or the pod's first one.

    The first container is refused if it copies files to a store, because it may be the program or
    its sidecar. The other containers may be helpers, such as an exporter of metrics.
    """
    containers = role.template.spec.containers
    with_name = [container for container in containers if container.name == job.kind.container]
    with_gpus = [
        container for container in containers if any(map(GPU.search, container.resources.names))
    ]
    for matches in (with_name, with_gpus, containers):
        if len(matches) == 1:
            return matches[0]
    if is_uploader(containers[0]):
        report.refuse(
            f"{role.name}.containers",
            ", ".join(container.name for container in containers),
            "one container that trains, and its name",
            f"give the container that trains the name {job.kind.container}, or remove the others"
            " from the file",
        )
    return containers[0]


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
    indices = _export_indices(job, mains, command, report)
    command = _replace_addresses(job, command, report)
    command, exports = _keep_world_size(job, command, report)
    prelude = [
        *_change_folder(job, mains, report),
        *indices,
        *_export_rendezvous(job, command),
        *exports,
    ]
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
        and variable.name not in {*OF_OPERATORS, "REPLICA_INDEX"}
    ]
    roles = {role.role for role in job.roles}
    is_one_job = not job.had_chief and job.chief.jobs == 1 and roles <= {CHIEF, "worker"}
    if job.kind is JOBSET:
        # A run has one Job for the chief and one for the workers, and each has a pod 0.
        if _INDEX in " ".join(command) or (is_one_job and "worker" in roles):
            names.append(_INDEX)
        elif not is_one_job and (not job.had_chief or any(role.jobs > 1 for role in job.roles)):
            report.note(
                _INDEX,
                "a run has one Job for each role, so its pods have other numbers",
                "RANK, the number among chief and workers",
                COMMAND,
            )
    if names and not is_one_job:
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
    """Return a command with the supervisor's variables instead of the job's addresses.

    These are the chief's host name, and variables that Kubernetes would not expand in a run, or
    would replace by the pod's number within one of several Jobs.
    """
    replaced = []
    chief, pod = chief_host(job), pod_host(job)
    for element in command:
        changed = _REFERENCE.sub(lambda match: f"$({_NUMBERS[match[1]]})", element)
        if match := chief.search(changed):
            report.note(
                f"command: {match[0]}",
                "the pods of a run have other names",
                "$(MASTER_ADDR), which the supervisor replaces",
                COMMAND,
            )
            changed = chief.sub("$(MASTER_ADDR)", changed)
        for match in pod.finditer(changed):
            report.refuse(
                "command",
                match[0],
                "no name of a pod, because a run's pods have other names",
                "let the program read TF_CONFIG or MASTER_ADDR, and pass it with --command",
            )
        replaced.append(changed)
    return replaced


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


def _export_rendezvous(job: SourceJob, command: Sequence[str]) -> list[str]:
    """Return the shell commands for variables of torchrun that the supervisor does not set."""
    if _elastic_policy(job):
        return ["export PET_RDZV_ENDPOINT=$MASTER_ADDR:$MASTER_PORT"]
    if sum(job.counts.values()) > 1:
        return []
    # The supervisor does not set them for a single replica, but a shell's command may name one.
    text = " ".join(command)
    return [f"export {name}=${ours}" for name, ours in TORCHRUN.items() if name in text]


def _keep_world_size(
    job: SourceJob, command: list[str], report: Report
) -> tuple[list[str], list[str]]:
    """Return the command and the shell commands that keep WORLD_SIZE of a PyTorchJob.

    Its operator counts the processes of all replicas, if nprocPerNode is a number and there is a
    Master. The supervisor counts the replicas.
    """
    processes = str(job.policies.get("nprocPerNode") or "")
    is_counted = job.kind is PYTORCHJOB and job.had_chief and processes.isdecimal()
    if not is_counted or int(processes) < 2:
        return command, []
    world_size = str(sum(job.counts.values()) * int(processes))
    changed = [re.sub(r"(?<!\$)\$\(WORLD_SIZE\)", world_size, element) for element in command]
    # torchrun sets the variable for its processes itself.
    exports = [f"export WORLD_SIZE={world_size}"] if command[:1] != ["torchrun"] else []
    if exports or changed != command:
        report.note(
            f"WORLD_SIZE with nprocPerNode {processes}",
            "it is the number of processes in the job, and the number of replicas in a run",
            f"the program still sees {world_size}",
            COMMAND,
        )
    return changed, exports
