"""Which step of a run failed, as its Workflow and the logs of its pods tell it.

A step that cannot reach the store leaves no failure.json, nor does one that was killed. Argo knows
which pod failed, and the log of that pod has the record (`Failure.to_line`) or at least last words.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from kfp_tfjob.components.step import Failure
from kfp_tfjob.storage.errors import Problem, StepError

if TYPE_CHECKING:
    from kfp_tfjob.cluster.client import ClusterClient

T = TypeVar("T")
log = logging.getLogger(__name__)

_RUN = "pipeline/runid"
_NODE_ID = "workflows.argoproj.io/node-id"
_NODE_NAME = "workflows.argoproj.io/node-name"
_MAIN = "main"  # the container of a step; the others are Argo's
_LINES = 200  # the record stands before the message for people and what KFP's launcher says
_FAILED = ("Failed", "Error")
_TRY = re.compile(r"\(\d+\)$")
_CODE = re.compile(r"exit code (\d+)")
_EXECUTOR, _DRIVER, _HOOK = "executor", "-driver", "onExit"


@dataclass(frozen=True)
class FailedTask:
    """A task of the run that did not end well.

    Attributes:
        step: Our name for it, for instance `launch_tfjob`.
        driver: Whether the pod is the one that Kubeflow Pipelines runs before the step.
        said: What Argo says, for instance `Error (exit code 2)`.
        ended: When, as RFC 3339; empty where Argo does not say.
        pod: Its pod; empty when that is gone.
        lines: The last lines of its log.
    """

    step: str
    driver: bool
    said: str
    ended: str
    pod: str = ""
    lines: Sequence[str] = ()

    @property
    def record(self) -> Failure | None:
        """What the step itself said of its failure."""
        found = [failure for text in self.lines if (failure := Failure.from_line(text))]
        return found[-1] if found else None

    @property
    def failure(self) -> Failure:
        """How the step failed: in its own words, else in those of Argo."""
        return self.record or Failure(self.step, self._code, self._verdict, str(self._problem))

    @property
    def last_words(self) -> list[str]:
        """The last lines of the log without the record."""
        return [text for text in self.lines if not Failure.from_line(text)]

    @property
    def _code(self) -> int:
        code = _CODE.search(self.said)
        return int(code[1]) if code and int(code[1]) else 1

    @property
    def _verdict(self) -> str:
        return "out_of_memory" if "OOMKilled" in self.said else "failed"

    @property
    def _problem(self) -> Problem:
        received = self.said or "no reason from Argo"
        if self._verdict == "out_of_memory":
            return Problem(
                f"{self.step} ran out of memory",
                received=received,
                fix="start the run again with less data, or give this task more memory",
            )
        if self.driver:
            return Problem(
                f"Kubeflow Pipelines could not start {self.step}",
                received=received,
                expected="the driver of the task to end with 0",
                fix="read its last lines, or have the back end looked at",
            )
        return Problem(
            f"{self.step} ended without saying why",
            received=received,
            fix="read the last lines of its log, and start the run again",
        )


def look(
    api: ClusterClient, run_id: str, workflow: str, tail: Callable[[str, str, int], list[str]]
) -> list[FailedTask]:
    """Find the failed tasks of a run and the last lines of each; never fails.

    Args:
        api: The cluster.
        run_id: The run.
        workflow: The name of its Workflow; empty where it is not known.
        tail: Returns the last lines of a pod and container.
    """
    pods = _asked(lambda: api.list(api.core("pods"), labelSelector=f"{_RUN}={run_id}"))
    run = _asked(lambda: api.get(api.workflow(workflow))) if workflow else None
    return [
        replace(task, lines=tuple(tail(task.pod, _MAIN, _LINES))) if task.pod else task
        for task in failed_tasks(run or {}, pods or [])
    ]


def _asked(call: Callable[[], T]) -> T | None:
    try:
        return call()
    except StepError as error:
        log.warning("the cluster does not say what failed: %s", error)
        return None


def cause(failed: Sequence[FailedTask], terminated: bool | None) -> Failure | None:
    """Return what ended a run: what a step says of itself before what Argo says of it.

    Args:
        failed: The tasks that failed, the first one first.
        terminated: Whether a person ended the run: then tasks fail because they were killed.
    """
    records = [task.record for task in failed if task.record]
    if records or terminated:
        return records[0] if records else None
    return failed[0].failure if failed else None


def failed_tasks(
    workflow: Mapping[str, Any], pods: Iterable[Mapping[str, Any]]
) -> list[FailedTask]:
    """Return the tasks whose last try failed, the first one first.

    A node is named after its place: `run.root.exit-handler-1.preflight.executor`, and
    `preflight-driver` for the pod before it. With a retry strategy each level has `(N)`, the number
    of the attempt: KFP 2.17 ships one for every template. What runs in the exit hook is left out.

    Args:
        workflow: As the API server shows it; where Argo keeps its nodes elsewhere because they are
            many, or where it cannot be read, the pods have to do.
        pods: Of the run.
    """
    there = {_annotation(pod, _NODE_ID): pod["metadata"]["name"] for pod in pods}
    nodes = list(((workflow.get("status") or {}).get("nodes") or {}).values())
    nodes = nodes or [_node(pod) for pod in pods]
    latest: dict[tuple[str, ...], Mapping[str, Any]] = {}
    for node in nodes:
        path = tuple(_TRY.sub("", part) for part in node.get("name", "").split("."))
        if node.get("type") != "Pod" or _HOOK in path:
            continue
        if path not in latest or _order(latest[path]) < _order(node):
            latest[path] = node
    failed = [
        _task(path, node, there) for path, node in latest.items() if node.get("phase") in _FAILED
    ]
    return sorted(failed, key=lambda task: (not task.ended, task.ended))


def _task(path: Sequence[str], node: Mapping[str, Any], pods: Mapping[str, str]) -> FailedTask:
    name = path[-2] if path[-1] == _EXECUTOR and len(path) > 1 else path[-1]
    driver = name.endswith(_DRIVER)
    return FailedTask(
        step=name.removesuffix(_DRIVER).replace("-", "_"),
        driver=driver,
        said=str(node.get("message") or ""),
        ended=str(node.get("finishedAt") or ""),
        pod=pods.get(node.get("id", ""), ""),
    )


def _order(node: Mapping[str, Any]) -> tuple[int, ...]:
    """Return what grows with every try: the numbers in the node's name."""
    return tuple(int(number) for number in re.findall(r"\((\d+)\)", node.get("name", "")))


def _node(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return what Argo would say of a pod."""
    status = pod.get("status") or {}
    ended: Mapping[str, Any] = {}
    for item in status.get("containerStatuses") or []:
        if item["name"] == _MAIN:
            ended = (item.get("state") or {}).get("terminated") or {}
    code = f"{ended.get('reason', 'Error')} (exit code {ended['exitCode']})" if ended else ""
    return {
        "id": _annotation(pod, _NODE_ID),
        "name": _annotation(pod, _NODE_NAME),
        "type": "Pod",
        "phase": status.get("phase", ""),
        "message": status.get("message") or code,
        "finishedAt": ended.get("finishedAt", ""),
    }


def _annotation(pod: Mapping[str, Any], name: str) -> str:
    return (pod["metadata"].get("annotations") or {}).get(name, "")
