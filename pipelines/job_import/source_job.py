"""Reads a TFJob, PyTorchJob or JobSet: its roles with their pod templates, and its policies."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pydantic

from kfp_tfjob.jobs.jobset import JOBSET
from kfp_tfjob.jobs.kind import CHIEF, JobKind
from kfp_tfjob.jobs.kinds import kind_named
from kfp_tfjob.jobs.labels import MANAGER, MANAGER_LABEL, SETUP
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.pods import Metadata, Template
from kfp_tfjob.pipelines.job_import.report import Report
from kfp_tfjob.storage.errors import ConfigurationError, Problem

_ROLES = {
    "chief": "chief",
    "master": "chief",
    "worker": "worker",
    "workers": "worker",
    "ps": "ps",
    "evaluator": "evaluator",
}
# Names that JobSets give to the one pod that the others depend on.
_LEADERS = {"leader", "driver", "launcher", "coordinator", "head"}
# Of a Job: those that say how many pods there are.
_OF_COUNT = ("parallelism", "completions", "template")
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
        name: As the job calls it, for example `Ps`.
        role: As a run calls it: `chief`, `worker`, `ps` or `evaluator`.
        count: The number of pods.
        template: Their template.
        jobs: The number of Jobs that a JobSet makes for them.
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
        return {it.role: it.count for it in self.roles}

    def pod_name(self, role: SourceRole, index: int) -> str:
        """Return the host name of a pod of the job as it is in the file."""
        name = self.metadata.name
        if self.kind is JOBSET:
            return f"{name}-{role.name}-0-{index}"
        return f"{name}-{role.name.lower()}-{index}"


def read_job(item: Object, report: Report) -> SourceJob:
    """Read a job, and add what a run cannot do to a report.

    Raises:
        ConfigurationError: A field has another type than in Kubernetes, or the roles are not those
            of a run.
    """
    kind = kind_named(item["kind"])
    spec = item.get("spec")
    if not isinstance(spec, Mapping) or not spec.get(kind.replicas_key):
        raise _invalid(report, f"spec.{kind.replicas_key}", "nothing", "the replicas of each role")
    metadata = _typed(Metadata, item.get("metadata") or {}, "metadata", report)
    read = _jobset_roles if kind is JOBSET else _operator_roles
    roles = [it for it in read(spec[kind.replicas_key], report) if it.count]
    if kind is JOBSET:
        roles = _named_roles(roles, spec, report)
    policies = dict(_policies(kind, spec))
    job = SourceJob(kind, metadata, _ordered(roles, report), policies)
    init = job.chief.template.spec.init_containers
    ours = metadata.labels.get(MANAGER_LABEL) == MANAGER
    job = replace(job, is_own=ours and any(it.name == SETUP for it in init))
    return _with_chief(job)


def _with_chief(job: SourceJob) -> SourceJob:
    """Return a job whose first worker is its chief, if it has none: one pod has the mirror."""
    first = job.chief
    if first.role == CHIEF:
        return job
    chief, rest = replace(first, role=CHIEF, count=1), replace(first, count=first.count - 1)
    workers = (rest,) if rest.count else ()
    return replace(job, roles=(chief, *workers, *job.roles[1:]), had_chief=False)


def _operator_roles(specs: Any, report: Report) -> Iterator[SourceRole]:
    """Yield the roles of a job of the training operator, whose names may have any case."""
    if not isinstance(specs, Mapping):
        raise _invalid(report, "spec", type(specs).__name__, "an object with a key for each role")
    for name, item in specs.items():
        role = _ROLES.get(str(name).lower())
        item = item if isinstance(item, Mapping) else {}
        if not role:
            raise _invalid(report, f"spec.{name}", name, "Chief, Worker, PS and Evaluator")
        count = _count(item.get("replicas"), f"{name}.replicas", report)
        template = _typed(Template, item.get("template") or {}, f"{name}.template", report)
        if (policy := item.get("restartPolicy", "Never")) != "Never":
            report.note(
                f"{name}.restartPolicy: {policy}",
                "Kubernetes restarts nothing in a run's job, because a restarted replica cannot"
                " rejoin the others",
                "after a failure of the infrastructure, the run starts all replicas again"
                " (max_attempts)",
                ("train_options",),
            )
        for field in sorted(set(item) - {"replicas", "template", "restartPolicy"}):
            report.note(f"{name}.{field}", "a run has no such setting")
        yield SourceRole(str(name), role, count, template)


def _jobset_roles(specs: Any, report: Report) -> Iterator[SourceRole]:
    """Yield the replicatedJobs of a JobSet, each with all pods of its Jobs."""
    if not isinstance(specs, list) or not all(isinstance(it, Mapping) for it in specs):
        raise _invalid(report, "spec.replicatedJobs", specs, "a list of objects")
    for item in specs:
        name = str(item.get("name", ""))
        outer = item.get("template")
        job = outer.get("spec") if isinstance(outer, Mapping) else None
        if not isinstance(job, Mapping):
            raise _invalid(report, f"{name}.template.spec", job, "the spec of a Job")
        template = _typed(Template, job.get("template") or {}, f"{name}.template", report)
        jobs = _count(item.get("replicas"), f"{name}.replicas", report)
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
            if field in _OF_COUNT or _DEFAULTS.get(field) == value:
                continue
            report.note(*_of_a_job(name, field, value))
        for field in sorted(set(item) - {"name", "replicas", "template"}):
            report.note(
                f"{name}.{field}",
                "all replicas of a run start together",
                "the supervisor waits until the chief's name resolves",
            )
        yield SourceRole(name, "", jobs * pods, template, jobs)


def _of_a_job(name: str, field: str, value: Any) -> tuple[str, str, str, tuple[str, ...]]:
    """Return the note about a field of a Job."""
    if field in ("backoffLimit", "backoffLimitPerIndex", "podFailurePolicy"):
        return (
            f"{name}.{field}",
            "Kubernetes restarts nothing in a run's job",
            "after a failure of the infrastructure, the run starts all replicas again"
            " (max_attempts)",
            ("train_options",),
        )
    shown = f": {value}" if isinstance(value, str | int | float) else ""
    return f"{name}.{field}{shown}", "a run sets this itself, or has no such setting", "", ()


def _named_roles(
    roles: list[SourceRole], spec: Mapping[str, Any], report: Report
) -> list[SourceRole]:
    """Return the roles of a JobSet, whose names are free."""
    if len(roles) == 1:
        return [replace(roles[0], role="worker")]
    coordinator = spec.get("coordinator")
    leader = coordinator.get("replicatedJob") if isinstance(coordinator, Mapping) else None
    named = []
    for role in roles:
        is_leader = role.count == 1 and (role.name == leader or role.name.lower() in _LEADERS)
        ours = "chief" if is_leader else _ROLES.get(role.name.lower(), "")
        if not ours:
            raise _invalid(
                report,
                "spec.replicatedJobs",
                ", ".join(f"{it.name} ({it.count})" for it in roles),
                "one replicatedJob, or replicatedJobs called chief (one pod), worker, ps and"
                " evaluator",
                "rename the replicatedJobs, if they are parts of one training",
            )
        named.append(replace(role, role=ours))
    return named


def _ordered(roles: list[SourceRole], report: Report) -> tuple[SourceRole, ...]:
    """Return the roles, the chief first."""
    order = list(dict.fromkeys(_ROLES.values()))
    counts = {role: [it for it in roles if it.role == role] for role in order}
    for role, of_role in counts.items():
        if len(of_role) > 1 or (role == CHIEF and of_role and of_role[0].count > 1):
            names = ", ".join(f"{it.name} ({it.count})" for it in of_role)
            raise _invalid(report, "spec", names, f"one {role}")
    if not counts["chief"] and not counts["worker"]:
        raise _invalid(report, "spec", "no Chief and no Worker", "a replica that trains")
    return tuple(it for role in order for it in counts[role])


def _policies(kind: JobKind, spec: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a spec that are not about pods; those of runPolicy with their path."""
    for name, value in spec.items():
        if name == kind.replicas_key or value in (None, "", {}, []):
            continue
        if name == "runPolicy" and isinstance(value, Mapping):
            yield from ((f"runPolicy.{key}", item) for key, item in value.items())
        else:
            yield str(name), value


def _count(value: Any, name: str, report: Report) -> int:
    if value is None:
        return 1
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _invalid(report, name, value, "a whole number, 0 or more")
    return value


def _typed(model: type[Any], value: Any, name: str, report: Report) -> Any:
    try:
        return model.model_validate(value)
    except pydantic.ValidationError as error:
        problems = []
        for item in error.errors(include_url=False):
            path = ".".join([name, *map(str, item["loc"])])
            received = "nothing" if item["type"] == "missing" else repr(item["input"])[:200]
            problems.append(_problem(report, path, received, item["msg"]))
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
