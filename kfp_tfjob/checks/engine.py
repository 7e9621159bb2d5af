"""Every check of the cluster, once: preflight, `doctor` and `submit` render what they find."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Flag, auto
from functools import partial

from kfp_tfjob.checks import cluster, namespace, placement
from kfp_tfjob.checks.finding import Finding, Status, only, unknown
from kfp_tfjob.checks.subject import Subject
from kfp_tfjob.cluster.errors import ForbiddenError
from kfp_tfjob.storage.errors import Problem, StepError


class At(Flag):
    """Who runs a check."""

    RUN = auto()  # preflight, or a launch without it: in a pod, as the account of the runs
    DOCTOR = auto()
    SUBMIT = auto()


CLUSTER, NAMESPACE = "cluster", "namespace"


@dataclass(frozen=True)
class Check:
    """One check of the cluster: where `doctor` lists it, what it looks at, and who runs it."""

    topic: str
    what: str
    find: Callable[[Subject], Iterable[Finding]]
    at: At


# In the order of preflight's table. The version comes first: it shows that the cluster answers.
CHECKS = (
    Check(CLUSTER, "the Kubernetes version", cluster.version, ~At(0)),
    Check(CLUSTER, "the kind of job", cluster.job_kind, At.RUN | At.DOCTOR),
    Check(CLUSTER, "pod.*.affinity", placement.affinity, At.RUN | At.DOCTOR),
    Check(CLUSTER, "the nodes", placement.nodes, ~At(0)),
    Check(NAMESPACE, "the namespace", namespace.exists, At.DOCTOR),
    Check(NAMESPACE, "the runs' permissions", namespace.account, At.RUN | At.DOCTOR),
    Check(NAMESPACE, "pod admission", namespace.admission, At.DOCTOR),
    Check(NAMESPACE, "the Secrets", namespace.secrets, At.DOCTOR | At.SUBMIT),
    Check(NAMESPACE, "the store's Secret", namespace.mounted_secret, At.RUN),
    Check(NAMESPACE, "the objects that pod refers to", namespace.named, At.RUN | At.DOCTOR),
)


def findings(what: str, find: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Return what a check finds; an error of the cluster or the store is a finding too."""
    found: list[Finding] = []
    try:
        found.extend(find())
    except ForbiddenError as error:
        (problem, *_) = error.problems
        found.append(
            unknown(
                f"{what}: not checked, because this account lacks the permission",
                problem.received if isinstance(problem, Problem) else problem,
                "ask the namespace's administrator for it",
            )
        )
    except StepError as error:
        found += map(Finding.of, error.problems)
    return found


def check(subject: Subject, at: At) -> list[Finding]:
    """Run every check, even after a problem; a cluster that does not respond is asked once."""
    found: list[Finding] = []
    for it in CHECKS:
        if it.at & at:
            found += findings(it.what, partial(it.find, subject))
            if it.find is cluster.version and only(found, Status.PROBLEM):
                break
    return found
