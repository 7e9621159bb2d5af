"""Runs all checks at the same time, within a time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kfp_tfjob.cluster.client import ClusterClient
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.pipelines.doctor import back_end, cluster, machine, namespace, store
from kfp_tfjob.pipelines.doctor.finding import Check, Finding, State, said, warn
from kfp_tfjob.pipelines.doctor.subject import Subject
from kfp_tfjob.pipelines.kubeflow.connection import Connection

_MACHINE, _BACK_END, _STORE = "this machine", "Kubeflow Pipelines", "store"
_CLUSTER, _NAMESPACE, _IMAGES = "cluster", "namespace", "images"
TOPICS = (_MACHINE, _CLUSTER, _NAMESPACE, _IMAGES, _BACK_END, _STORE)

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
        images: Those of the steps.
    """

    connection: Connection
    open_cluster: Callable[[], ClusterClient]
    account: str
    values: Mapping[str, Any]
    spec: JobSpec
    images: Sequence[str]


def examine(question: Question, seconds: float) -> Report:
    """Run every check, and return the findings by topic.

    Args:
        question: What to examine.
        seconds: A check that takes longer is reported and left behind.
    """
    checks = _Checks(time.monotonic() + seconds)
    checks.start(_MACHINE, "the packages", machine.check)
    checks.start(_STORE, "the store", partial(store.check, question.values))
    checks.start(_CLUSTER, "the cluster", partial(_of_cluster, question, checks))
    return checks.wait()


def _of_cluster(question: Question, checks: _Checks) -> list[Finding]:
    """Reach the cluster, and start the checks that need it."""
    level = ""
    try:
        api = question.open_cluster()
        found = cluster.reach(api)
        if found.state is State.FAIL:
            return [found]
        level = namespace.level_of(api)
        account = question.account or namespace.account_of(api)
        subject = Subject(api, account, question.spec)
    finally:
        checks.start(_BACK_END, "the back end", partial(back_end.check, question.connection, level))
    nodes = cluster.nodes(subject)
    for topic, what, check in (
        (_CLUSTER, "the operator", cluster.operator),
        (_CLUSTER, "the nodes", partial(cluster.room, found=nodes)),
        (_NAMESPACE, "the namespace", namespace.exists),
        (_NAMESPACE, "the rights of the runs", namespace.account),
        (_NAMESPACE, "your rights", namespace.user),
        (_NAMESPACE, "the admission of pods", namespace.admission),
        (_NAMESPACE, "the quotas", namespace.quotas),
        (_NAMESPACE, "the Secret", namespace.secret),
        (_NAMESPACE, "what pod names", namespace.named),
        (_IMAGES, "the images", partial(cluster.pullable, steps=question.images, found=nodes)),
    ):
        checks.start(topic, what, partial(check, subject))
    return [found]


@dataclass
class _Checks:
    """Checks in threads that do not keep the process alive.

    Attributes:
        deadline: When to wait no longer, by the monotonic clock.
    """

    deadline: float
    _found: dict[tuple[str, str], list[Finding] | None] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def start(self, topic: str, what: str, check: Check) -> None:
        """Run a check; its findings stand where it was started."""
        with self._changed:
            self._found[topic, what] = None

        def run() -> None:
            found = said(check)
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
            late = warn(f"{what} did not answer in time", "try again, or see whether it is slow")
            report[topic] += [late] if found is None else found
        return {topic: found for topic, found in report.items() if found}
