"""Finds the step of a run that failed, from its Workflow and the logs of its pods.

A step that cannot reach the store, or that was killed, leaves no failure.json. Argo knows which pod
failed, and the log of that pod has the record (`Failure.to_line`) or at least its last lines.
Called by the exit task, and by the commands that explain a run.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from kfp_tfjob.checks.step_memory import out_of_memory
from kfp_tfjob.cluster.own_task import NODE_NAME, node_path
from kfp_tfjob.common.errors import Problem, StepError
from kfp_tfjob.jobs.failure_record import Failure
from kfp_tfjob.jobs.labels import RUN_ID_LABEL
from kfp_tfjob.jobs.objects import Object

if TYPE_CHECKING:
    from kfp_tfjob.cluster.client import ClusterClient

T = TypeVar("T")
log = logging.getLogger(__name__)

_NODE_ID = "workflows.argoproj.io/node-id"
_MAIN = "main"  # the container of a step; the others are Argo's
_LINES = 200  # the record comes before the message for people and KFP's launcher's lines
_FAILED = ("Failed", "Error")
_CODE = re.compile(r"exit code (\d+)")
_EXECUTOR, _DRIVER, _HOOK = "executor", "-driver", "onExit"


@dataclass(frozen=True)
class FailedTask:
    """One of the run's failed tasks, with Argo's message; an unknown field is empty."""

    step: str
    driver: bool
    message: str
    ended: str
    pod: str = ""
    lines: Sequence[str] = ()

    @property
    def record(self) -> Failure | None:
        """The step's own record of its failure; None if it left none."""
        records = [failure for text in self.lines if (failure := Failure.from_line(text))]
        return records[-1] if records else None

    @property
    def failure(self) -> Failure:
        """How the step failed: its own record, else one built from Argo's message."""
        from_argo = Failure.of(self.step, StepError(self._problem))
        return self.record or replace(from_argo, code=self._code, verdict=self._verdict)

    @property
    def last_words(self) -> list[str]:
        """The last lines of the log without the record."""
        return [text for text in self.lines if not Failure.from_line(text)]

    @property
    def _code(self) -> int:
        code = _CODE.search(self.message)
        return int(code[1]) if code and int(code[1]) else 1

    @property
    def _verdict(self) -> str:
        return "out_of_memory" if "OOMKilled" in self.message else "failed"

    @property
    def _problem(self) -> Problem:
        received = self.message or "no reason from Argo"
        if self._verdict == "out_of_memory":
            return out_of_memory(self.step, received)
        if self.driver:
            return Problem(
                f"Kubeflow Pipelines could not start {self.step}",
                received=received,
                expected=f"exit code 0 of the driver, the pod that prepares {self.step}",
                fix="read the last lines of the driver's log, or ask an administrator to check the"
                " back end",
                name="step-not-started",
            )
        return Problem(
            f"{self.step} ended without a message",
            received=received,
            fix="read the last lines of its log, then retry the run",
            name="step-without-message",
        )


def read_failed_tasks(
    api: ClusterClient, run_id: str, workflow: str, tail: Callable[[str, str, int], list[str]]
) -> tuple[list[FailedTask], bool]:
    """Return a run's failed tasks with their last log lines, and whether its Workflow was read."""
    pods = _asked(lambda: api.list(api.core("pods"), labelSelector=f"{RUN_ID_LABEL}={run_id}"))
    run = _asked(lambda: api.get(api.workflow(workflow))) if workflow else None
    tasks = [
        replace(task, lines=tuple(tail(task.pod, _MAIN, _LINES))) if task.pod else task
        for task in failed_tasks(run or {}, pods or [])
    ]
    return tasks, run is not None or not workflow


def _asked(call: Callable[[], T]) -> T | None:
    try:
        return call()
    except StepError as error:
        log.warning("cannot find out from the cluster what failed: %s", error)
        return None


def cause(failed: Sequence[FailedTask], terminated: bool | None) -> Failure | None:
    """Return the failure that ended a run; a step's own record precedes Argo's message."""
    records = [task.record for task in failed if task.record]
    if records or terminated:
        return records[0] if records else None
    return failed[0].failure if failed else None


def failed_tasks(workflow: Object, pods: Iterable[Object]) -> list[FailedTask]:
    """Return the tasks that failed in their last try, the earliest first.

    The last level of a node's path is `executor`, or `preflight-driver` for the pod before the
    step. Nodes of the exit hook are left out.

    Args:
        workflow: As the API server returns it. If Argo stores the nodes elsewhere because there
            are many, or if the Workflow cannot be read, the pods are used instead.
        pods: The run's pods.
    """
    pod_names = {_annotation(pod, _NODE_ID): pod["metadata"]["name"] for pod in pods}
    nodes = list(((workflow.get("status") or {}).get("nodes") or {}).values())
    nodes = nodes or [_node(pod) for pod in pods]
    latest: dict[tuple[str, ...], Object] = {}
    for node in nodes:
        path = node_path(node.get("name", ""))
        if node.get("type") != "Pod" or _HOOK in path:
            continue
        if path not in latest or _order(latest[path]) < _order(node):
            latest[path] = node
    failed = [
        _task(path, node, pod_names)
        for path, node in latest.items()
        if node.get("phase") in _FAILED
    ]
    return sorted(failed, key=lambda task: (not task.ended, task.ended))


def _task(path: Sequence[str], node: Object, pods: Mapping[str, str]) -> FailedTask:
    name = path[-2] if path[-1] == _EXECUTOR and len(path) > 1 else path[-1]
    driver = name.endswith(_DRIVER)
    return FailedTask(
        step=name.removesuffix(_DRIVER).replace("-", "_"),
        driver=driver,
        message=str(node.get("message") or ""),
        ended=str(node.get("finishedAt") or ""),
        pod=pods.get(node.get("id", ""), ""),
    )


def _order(node: Object) -> tuple[int, ...]:
    """Return the attempt numbers in the node's name, which grow with every try."""
    return tuple(int(number) for number in re.findall(r"\((\d+)\)", node.get("name", "")))


def _node(pod: Object) -> Object:
    """Return the node that Argo would report for a pod."""
    status = pod.get("status") or {}
    ended: Object = {}
    for item in status.get("containerStatuses") or []:
        if item["name"] == _MAIN:
            ended = (item.get("state") or {}).get("terminated") or {}
    code = f"{ended.get('reason', 'Error')} (exit code {ended['exitCode']})" if ended else ""
    return {
        "id": _annotation(pod, _NODE_ID),
        "name": _annotation(pod, NODE_NAME),
        "type": "Pod",
        "phase": status.get("phase", ""),
        "message": status.get("message") or code,
        "finishedAt": ended.get("finishedAt", ""),
    }


def _annotation(pod: Object, name: str) -> str:
    return (pod["metadata"].get("annotations") or {}).get(name, "")
