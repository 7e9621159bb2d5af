"""Reads a TFJob, PyTorchJob or JobSet: its roles with their pod templates, and its policies.

The kinds spell the same things differently, and so do the versions of a kind. The other modules
work with one form, in which the first role is the chief. Called by `conversion.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pydantic

from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.jobs.jobset import JOBSET
from kfp_tfjob.jobs.kind import CHIEF, JobKind
from kfp_tfjob.jobs.kinds import kind_named
from kfp_tfjob.jobs.labels import MANAGER, MANAGER_LABEL, SETUP
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.user_pod_schema import Metadata, Template

from .report import Report

_ROLES = {
    "chief": "chief",
    "master": "chief",
    "worker": "worker",
    "workers": "worker",
    "ps": "ps",
    "evaluator": "evaluator",
}
# Common names in JobSets for the one pod on which the others depend.
_LEADERS = {"leader", "driver", "launcher", "coordinator", "head"}
# The fields of a Job that are read here.
_READ_FIELDS = ("parallelism", "completions", "template")
# Defaults that the API server or JobSet's webhook writes into a live object.
_DEFAULTS = {
    "completionMode": "Indexed",
    "backoffLimit": 6,
    "backoffLimitPerIndex": None,
    "manualSelector": False,
    "podReplacementPolicy": "TerminatingOrFailed",
    "suspend": False,
}


@dataclass(frozen=True)
class SourceRole:
    """The pods of one role.

    Attributes:
        name: Its name in the job, for example `Ps`.
        role: Its name in a run: `chief`, `worker`, `ps` or `evaluator`.
        count: The number of pods.
        template: The pods' template.
        jobs: The number of Jobs that a JobSet creates for them.
    """

    name: str
    role: str
    count: int
    template: Template
    jobs: int = 1


@dataclass(frozen=True)
class SourceJob:
    """A job as import reads it.

    Attributes:
        kind: The kind of the job.
        metadata: Its metadata.
        roles: Its roles, the chief first.
        policies: All other fields of the spec by their path, for example `runPolicy.suspend`.
        had_chief: Whether the job itself has a chief; otherwise its first worker has become one.
        is_own: Whether this project has created it.
    """

    kind: JobKind
    metadata: Metadata
    roles: tuple[SourceRole, ...]
    policies: Mapping[str, Any]
    had_chief: bool = True
    is_own: bool = False

    @property
    def chief(self) -> SourceRole:
        """The role that stores the output."""
        return self.roles[0]

    @property
    def counts(self) -> dict[str, int]:
        """The number of pods of each role."""
        return {role.role: role.count for role in self.roles}


def read_job(manifest: Object, report: Report) -> SourceJob:
    """Return a job's roles and policies, and add notes and problems to a report.

    Raises:
        ConfigurationError: A field has another type than in Kubernetes, or a run cannot have these
            roles.
    """
    kind = kind_named(manifest["kind"])
    spec = manifest.get("spec")
    if not isinstance(spec, Mapping) or not spec.get(kind.replicas_key):
        raise _invalid(report, f"spec.{kind.replicas_key}", "nothing", "the replicas of each role")
    metadata = _parse_model(Metadata, manifest.get("metadata") or {}, "metadata", report)
    read_roles = _jobset_roles if kind is JOBSET else _operator_roles
    roles = [role for role in read_roles(spec[kind.replicas_key], report) if role.count]
    if kind is JOBSET:
        roles = _assign_roles(roles, spec, report)
    policies = dict(_policies(kind, spec))
    job = SourceJob(kind, metadata, _sort_roles(roles, report), policies)
    init_containers = job.chief.template.spec.init_containers
    is_managed = metadata.labels.get(MANAGER_LABEL) == MANAGER
    has_setup = any(container.name == SETUP for container in init_containers)
    job = replace(job, is_own=is_managed and has_setup)
    return _ensure_chief(job)


def _ensure_chief(job: SourceJob) -> SourceJob:
    """Return a job with a chief, because one pod must store the output: its own or a worker."""
    first = job.chief
    if first.role == CHIEF:
        return job
    chief, workers = replace(first, role=CHIEF, count=1), replace(first, count=first.count - 1)
    following = (workers,) if workers.count else ()
    return replace(job, roles=(chief, *following, *job.roles[1:]), had_chief=False)


def _operator_roles(specs: Any, report: Report) -> Iterator[SourceRole]:
    """Yield the roles of a TFJob or PyTorchJob, whose names may be in any case."""
    if not isinstance(specs, Mapping):
        raise _invalid(report, "spec", type(specs).__name__, "an object with a key for each role")
    for name, declared in specs.items():
        role = _ROLES.get(str(name).lower())
        replica_spec = declared if isinstance(declared, Mapping) else {}
        if not role:
            raise _invalid(report, f"spec.{name}", name, "Chief, Worker, PS and Evaluator")
        count = _count(replica_spec.get("replicas"), f"{name}.replicas", report)
        manifest = replica_spec.get("template") or {}
        template = _parse_model(Template, manifest, f"{name}.template", report)
        if (policy := replica_spec.get("restartPolicy", "Never")) != "Never":
            report.note(
                f"{name}.restartPolicy: {policy}",
                "Kubernetes restarts nothing in a run's job, because a restarted replica cannot"
                " rejoin the others",
                "after a failure of the infrastructure, the run starts all replicas again"
                " (max_attempts)",
                ("train_options",),
            )
        for field in sorted(set(replica_spec) - {"replicas", "template", "restartPolicy"}):
            report.note(f"{name}.{field}", "a run has no such setting")
        yield SourceRole(str(name), role, count, template)


def _jobset_roles(specs: Any, report: Report) -> Iterator[SourceRole]:
    """Yield the replicatedJobs of a JobSet, each with the pods of all its Jobs."""
    if not isinstance(specs, list) or not all(isinstance(spec, Mapping) for spec in specs):
        raise _invalid(report, "spec.replicatedJobs", specs, "a list of objects")
    for replicated_job in specs:
        name = str(replicated_job.get("name", ""))
        job_template = replicated_job.get("template")
        job = job_template.get("spec") if isinstance(job_template, Mapping) else None
        if not isinstance(job, Mapping):
            raise _invalid(report, f"{name}.template.spec", job, "the spec of a Job")
        template = _parse_model(Template, job.get("template") or {}, f"{name}.template", report)
        jobs = _count(replicated_job.get("replicas"), f"{name}.replicas", report)
        pods = _count(job.get("parallelism"), f"{name}.parallelism", report)
        total = _count(job.get("completions", pods), f"{name}.completions", report)
        if total > pods:
            report.refuse(
                f"{name}.completions",
                f"{total} pods, {pods} at a time",
                "pods that all run at the same time",
                "set parallelism to completions",
            )
        for field, value in job.items():
            if field in _READ_FIELDS or _DEFAULTS.get(field) == value:
                continue
            report.note(*_job_field_note(name, field, value))
        for field in sorted(set(replicated_job) - {"name", "replicas", "template"}):
            report.note(
                f"{name}.{field}",
                "all replicas of a run start together",
                "the supervisor waits until the chief's name resolves",
            )
        yield SourceRole(name, "", jobs * pods, template, jobs)


def _job_field_note(name: str, field: str, value: Any) -> tuple[str, str, str, tuple[str, ...]]:
    """Return the arguments of the note about a field of a Job."""
    if field in ("backoffLimit", "backoffLimitPerIndex", "podFailurePolicy"):
        return (
            f"{name}.{field}",
            "Kubernetes restarts nothing in a run's job",
            "after a failure of the infrastructure, the run starts all replicas again"
            " (max_attempts)",
            ("train_options",),
        )
    suffix = f": {value}" if isinstance(value, str | int | float) else ""
    return f"{name}.{field}{suffix}", "a run sets this itself, or has no such setting", "", ()


def _assign_roles(
    roles: list[SourceRole], spec: Mapping[str, Any], report: Report
) -> list[SourceRole]:
    """Return the replicatedJobs of a JobSet with their role in a run, inferred from their name."""
    if len(roles) == 1:
        return [replace(roles[0], role="worker")]
    coordinator = spec.get("coordinator")
    leader = coordinator.get("replicatedJob") if isinstance(coordinator, Mapping) else None
    assigned = []
    for role in roles:
        is_leader = role.count == 1 and (role.name == leader or role.name.lower() in _LEADERS)
        run_role = "chief" if is_leader else _ROLES.get(role.name.lower(), "")
        if not run_role:
            raise _invalid(
                report,
                "spec.replicatedJobs",
                ", ".join(f"{declared.name} ({declared.count})" for declared in roles),
                "one replicatedJob, or replicatedJobs called chief (one pod), worker, ps and"
                " evaluator",
                "rename the replicatedJobs, if they are parts of one training",
            )
        assigned.append(replace(role, role=run_role))
    return assigned


def _sort_roles(roles: list[SourceRole], report: Report) -> tuple[SourceRole, ...]:
    """Return the roles in a run's order, the chief first; each may occur only once."""
    order = list(dict.fromkeys(_ROLES.values()))
    groups = {name: [role for role in roles if role.role == name] for name in order}
    for name, group in groups.items():
        if len(group) > 1 or (name == CHIEF and group and group[0].count > 1):
            names = ", ".join(f"{role.name} ({role.count})" for role in group)
            raise _invalid(report, "spec", names, f"one {name}")
    if not groups["chief"] and not groups["worker"]:
        raise _invalid(report, "spec", "no Chief and no Worker", "a replica that trains")
    return tuple(role for name in order for role in groups[name])


def _policies(kind: JobKind, spec: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the path and value of each field of a spec, and of runPolicy, except the replicas."""
    for name, value in spec.items():
        if name == kind.replicas_key or value in (None, "", {}, []):
            continue
        if name == "runPolicy" and isinstance(value, Mapping):
            yield from ((f"runPolicy.{key}", policy) for key, policy in value.items())
        else:
            yield str(name), value


def _count(value: Any, name: str, report: Report) -> int:
    """Return a number of replicas or pods; Kubernetes' default is 1."""
    if value is None:
        return 1
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _invalid(report, name, value, "a whole number, 0 or more")
    return value


def _parse_model(model: type[Any], value: Any, name: str, report: Report) -> Any:
    """Return the typed form of a part of the job; each invalid field is a problem."""
    try:
        return model.model_validate(value)
    except pydantic.ValidationError as error:
        problems = []
        for detail in error.errors(include_url=False):
            path = ".".join([name, *map(str, detail["loc"])])
            received = "nothing" if detail["type"] == "missing" else repr(detail["input"])[:200]
            problems.append(_problem(report, path, received, detail["msg"]))
        raise ConfigurationError(*problems) from None
    except RecursionError:
        raise _invalid(report, name, "too many levels", "a pod template") from None


def _invalid(
    report: Report, path: str, received: object, expected: str, fix: str = ""
) -> ConfigurationError:
    return ConfigurationError(_problem(report, path, received, expected, fix))


def _problem(report: Report, path: str, received: object, expected: str, fix: str = "") -> Problem:
    rule = re.sub(r"^Value error, ", "", expected)
    return Problem(
        f"{report.job} is not valid", f"{path}: {received}", rule, fix or f"correct {path}", path
    )
