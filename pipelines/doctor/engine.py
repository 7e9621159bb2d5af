"""Runs all checks at the same time, within a time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from kfp_tfjob.checks.cluster import version
from kfp_tfjob.checks.engine import CHECKS, CLUSTER, NAMESPACE, At, findings
from kfp_tfjob.checks.finding import Finding, Status, only, unknown
from kfp_tfjob.checks.namespace import account_of, level_of
from kfp_tfjob.checks.step_pods import asked_for, step_pods
from kfp_tfjob.checks.subject import Subject
from kfp_tfjob.cluster.client import ClusterClient
from kfp_tfjob.cluster.errors import ForbiddenError
from kfp_tfjob.cluster.manifests import STANDALONE
from kfp_tfjob.jobs.spec import JobSpec
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
    values: Mapping[str, Any]
    spec: JobSpec


def examine(question: Question, seconds: float) -> Report:
    """Run every check, and return the findings by topic.

    Args:
        question: What to examine.
        seconds: A check that takes longer is reported and left behind.
    """
    checks = _Checks(time.monotonic() + seconds)
    checks.start(_STORE, "the store", partial(store.check, question.values))
    checks.start(CLUSTER, "the cluster", partial(_of_cluster, question, checks))
    return checks.wait()


def _of_cluster(question: Question, checks: _Checks) -> list[Finding]:
    """Reach the cluster, and start the checks that need it."""
    level = ""
    try:
        api = question.open_cluster()
        pods = step_pods(question.spec.pod, DEFAULTS)
        pods = asked_for(pods) or [pods["prepare_data"]]
        subject = Subject(api, question.spec, question.account, step_pods=pods)
        found = findings("the version of Kubernetes", partial(version, subject))
        if only(found, Status.PROBLEM):
            return found
        level = level_of(api)
        subject = replace(subject, account=question.account or _account(api))
    finally:
        checks.start(_BACK_END, "the back end", partial(back_end.check, question.connection, level))
    for it in CHECKS:
        if At.DOCTOR in it.at and it.find is not version:
            checks.start(it.topic, it.what, partial(it.find, subject))
    return found


def _account(api: ClusterClient) -> str:
    """Return the account that Kubeflow Pipelines uses in the namespace."""
    try:
        return account_of(api) or STANDALONE
    except ForbiddenError:
        return STANDALONE


@dataclass
class _Checks:
    """Checks in threads that do not keep the process alive.

    Attributes:
        deadline: When to wait no longer, by the monotonic clock.
    """

    deadline: float
    _found: dict[tuple[str, str], list[Finding] | None] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def start(self, topic: str, what: str, check: Callable[[], Iterable[Finding]]) -> None:
        """Run a check; its findings stand where it was started."""
        with self._changed:
            self._found[topic, what] = None

        def run() -> None:
            try:
                found = findings(what, check)
            except Exception as error:
                bug = f"{type(error).__name__}: {error}"
                found = [Finding(f"{what}: a bug in kfp-tfjob doctor", bug)]
            with self._changed:
                self._found[topic, what] = found
                self._changed.notify_all()

        threading.Thread(target=run, name=what, daemon=True).start()

    def wait(self) -> Report:
        """Return all findings, as soon as they are there or at the deadline."""
        with self._changed:
            left = self.deadline - time.monotonic()
            self._changed.wait_for(lambda: None not in self._found.values(), max(left, 0))
            known = list(self._found.items())
        report: dict[str, list[Finding]] = {topic: [] for topic in TOPICS}
        for (topic, what), found in known:
            late = unknown(
                f"{what} did not answer in time", fix="try again, or see whether it is slow"
            )
            report[topic] += [late] if found is None else found
        return {topic: found for topic, found in report.items() if found}
