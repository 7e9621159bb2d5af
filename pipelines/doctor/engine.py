"""Runs all checks, most of them at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from kfp_tfjob.checks.cluster import version
from kfp_tfjob.checks.engine import CHECKS, CLUSTER, NAMESPACE, At, findings
from kfp_tfjob.checks.finding import Finding, Status, only
from kfp_tfjob.checks.namespace import account_of, level_of
from kfp_tfjob.checks.step_pods import asked_for, step_pods
from kfp_tfjob.checks.subject import Subject
from kfp_tfjob.cluster.client import ClusterClient
from kfp_tfjob.cluster.errors import ForbiddenError
from kfp_tfjob.cluster.manifests import STANDALONE
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.options.pipeline import RunParameters
from kfp_tfjob.pipelines.doctor import back_end, store
from kfp_tfjob.pipelines.kubeflow.connection import Connection
from kfp_tfjob.pipelines.step_resources import DEFAULTS

_BACK_END, _STORE = "Kubeflow Pipelines", "store"
TOPICS = (CLUSTER, NAMESPACE, _BACK_END, _STORE)

Report = Mapping[str, list[Finding]]


@dataclass(frozen=True)
class Question:
    """What to examine.

    Attributes:
        connection: Where the back end is.
        open_cluster: Returns the cluster, from the namespace of the runs.
        account: The service account of the runs; empty for that of Kubeflow Pipelines.
        values: The run parameters.
        spec: The job that they describe.
    """

    connection: Connection
    open_cluster: Callable[[], ClusterClient]
    account: str
    values: RunParameters
    spec: JobSpec


def examine(question: Question) -> Report:
    """Reach the cluster, run the other checks at once, and return the findings by topic."""
    reached: list[Subject] = []
    cluster = _found("the cluster", partial(_reach, question, reached))
    level = level_of(reached[0].api) if reached else ""
    checks = [
        (
            _BACK_END,
            "the back end",
            partial(back_end.check, question.connection, level, question.account),
        ),
        (_STORE, "the store", partial(store.check, question.values)),
    ]
    checks += [
        (it.topic, it.what, partial(it.find, subject))
        for subject in reached
        for it in CHECKS
        if At.DOCTOR in it.at and it.find is not version
    ]
    with ThreadPoolExecutor() as pool:
        found = pool.map(lambda check: _found(*check[1:]), checks)
    report: dict[str, list[Finding]] = {topic: [] for topic in TOPICS} | {CLUSTER: cluster}
    for (topic, *_), some in zip(checks, found, strict=True):
        report[topic] += some
    return {topic: some for topic, some in report.items() if some}


def _reach(question: Question, reached: list[Subject]) -> list[Finding]:
    """Add the subject of the checks to `reached`, if the cluster answers and is not too old."""
    api = question.open_cluster()
    pods = step_pods(question.spec.pod, DEFAULTS)
    pods = asked_for(pods) or [pods["prepare_data"]]
    subject = Subject(api, question.spec, question.account, step_pods=pods)
    found = findings("the version of Kubernetes", partial(version, subject))
    if not only(found, Status.PROBLEM):
        reached.append(replace(subject, account=question.account or _account(api)))
    return found


def _found(what: str, check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    try:
        return findings(what, check)
    except Exception as error:
        return [Finding(f"{what}: a bug in kfp-tfjob doctor", f"{type(error).__name__}: {error}")]


def _account(api: ClusterClient) -> str:
    """Return the account that Kubeflow Pipelines uses in the namespace."""
    try:
        return account_of(api) or STANDALONE
    except ForbiddenError:
        return STANDALONE
