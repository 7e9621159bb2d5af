"""The table of all checks of the cluster, which preflight, `doctor` and `submit` run and render.

A problem that one of them reports and another does not would look like a bug of the cluster. So a
check is declared once, with the programs that run it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Flag, auto
from functools import partial

from kfp_tfjob.cluster.api_errors import ForbiddenError
from kfp_tfjob.common.errors import Problem, StepError

from . import cluster, namespace, placement
from .finding import Finding, Status, only, unknown
from .subject import Subject


class At(Flag):
    """The programs that run a check."""

    RUN = auto()  # preflight, or a launch without it: in a pod, as the account of the runs
    DOCTOR = auto()
    SUBMIT = auto()


CLUSTER, NAMESPACE = "cluster", "namespace"


@dataclass(frozen=True)
class Check:
    """One check of the cluster.

    Attributes:
        topic: The heading under which `doctor` lists its findings.
        examined: The examined thing, for a message that it was not checked.
        find: Returns the findings.
        at: The programs that run the check.
    """

    topic: str
    examined: str
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
    Check(
        NAMESPACE,
        "the objects that pod refers to",
        namespace.referenced_objects,
        At.RUN | At.DOCTOR,
    ),
)


def findings(examined: str, find: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Return the findings of one check; an error of the cluster or the store is a finding too.

    Args:
        examined: The examined thing, for a message that it was not checked.
        find: The check.
    """
    results: list[Finding] = []
    try:
        results.extend(find())
    except ForbiddenError as error:
        # A missing right to look is no problem of the run, which may have another account.
        (problem, *_) = error.problems
        results.append(
            unknown(
                f"{examined}: not checked, because this account lacks the permission",
                problem.received if isinstance(problem, Problem) else problem,
                "ask the namespace's administrator for it",
            )
        )
    except StepError as error:
        results += map(Finding.of, error.problems)
    return results


def check(subject: Subject, at: At) -> list[Finding]:
    """Return the findings of all checks of a program, even after a problem.

    A cluster that does not respond is asked only once, because every check waits for its answer.
    """
    results: list[Finding] = []
    for declared in CHECKS:
        if declared.at & at:
            results += findings(declared.examined, partial(declared.find, subject))
            if declared.find is cluster.version and only(results, Status.PROBLEM):
                break
    return results
