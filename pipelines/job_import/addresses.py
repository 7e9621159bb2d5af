"""The variables and host names by which the replicas of a job find each other.

A run gives its pods other names, and the supervisor sets these variables. A value that is carried
over would win over the supervisor's, and the program would wait for a host that does not exist. So
the chief's name becomes MASTER_ADDR, and any other address in the job is refused. Called by
`main_container.py`, `pod_settings.py` and `conversion.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kfp_tfjob.jobs.jobset import JOBSET
from kfp_tfjob.jobs.kinds import KINDS
from kfp_tfjob.jobs.user_pod_schema import Container

from .report import Report
from .source_job import SourceJob

# torchrun's variables, by which a JobSet of Kubeflow Trainer describes its nodes, and the
# supervisor's variables with the same values.
TORCHRUN = {
    "PET_MASTER_ADDR": "MASTER_ADDR",
    "PET_MASTER_PORT": "MASTER_PORT",
    "PET_NODE_RANK": "RANK",
    "PET_NNODES": "WORLD_SIZE",
}
# Variables that an operator or a pod's author sets so that the replicas find each other.
OF_OPERATORS = frozenset(TORCHRUN).union(*(kind.variables for kind in KINDS))
_REFERENCE = re.compile(r"\$\(([\w.-]+)\)")
_LABEL = "[a-z0-9-]+"
_SERVICE = rf"\.svc(?:\.{_LABEL})*\.?"


def chief_host(job: SourceJob) -> re.Pattern[str]:
    """Return the pattern of the chief's host name in the job, short or with its whole domain."""
    name = _pod_pattern(job, job.chief.name, "0-0" if job.kind is JOBSET else "0")
    return re.compile(rf"{name}(?:{_domain(job)})?(?![\w-]|\.\w)")


def pod_host(job: SourceJob) -> re.Pattern[str]:
    """Return the pattern of every pod's host name in the job, with the dots and names after it."""
    number = r"\d+-\d+" if job.kind is JOBSET else r"\d+"
    names = (_pod_pattern(job, name, number) for name in {role.name for role in job.roles})
    return re.compile(rf"(?:{'|'.join(names)})(?![\w-])(?:\.[\w-]+)*")


def refuse_addresses(job: SourceJob, mains: Mapping[str, Container], report: Report) -> None:
    """Refuse each variable whose value contains a pod's host name or a variable of the operator."""
    host = pod_host(job)
    for role in job.roles:
        for variable in mains[role.role].env:
            references = _REFERENCE.findall(variable.value.replace("$$", ""))
            is_address = host.search(variable.value) or OF_OPERATORS.intersection(references)
            if variable.name not in OF_OPERATORS and is_address:
                report.refuse(
                    f"{role.name}.env.{variable.name}",
                    variable.value,
                    "no address of a pod, because a run's pods have other names",
                    "remove the variable from the file, and read MASTER_ADDR in the program, or"
                    " set the variable in the command",
                )


def _pod_pattern(job: SourceJob, role: str, number: str) -> str:
    """Return the pattern of a role's pod names; it never matches if the job is unnamed."""
    if not job.metadata.name:
        return "(?!)"
    role = role if job.kind is JOBSET else role.lower()
    return rf"(?<![\w.-]){re.escape(f'{job.metadata.name}-{role}')}-{number}"


def _domain(job: SourceJob) -> str:
    """Return the pattern of the pods' domain.

    The manifest may leave the namespace to kubectl. Then a single name after the pod's is a
    namespace only in front of a port, because it may also be the ending of a file's name.
    """
    namespace = re.escape(job.metadata.namespace)
    if job.kind is JOBSET:
        network: Any = job.policies.get("network")
        subdomain = network.get("subdomain") if isinstance(network, Mapping) else None
        below = rf"(?:\.{namespace or _LABEL}(?:{_SERVICE})?)?"
        return rf"\.{re.escape(str(subdomain or job.metadata.name))}{below}"
    any_namespace = rf"(?:default|{_LABEL}(?=\.svc|:\d))"
    return rf"\.{namespace or any_namespace}(?:{_SERVICE})?"
