"""Where the seconds of a run went: to our containers, to the drivers, or to Argo."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from tests.kfp.cluster import Object, node

_MAIN, _DRIVER = "main", "-driver"
Span = tuple[float, float]


@dataclass(frozen=True)
class Shares:
    """Seconds of one run; the last three add up to the first."""

    seconds: float  # from its creation, or its retry, to its end
    ours: float  # with a step of this project at work; launch_tfjob is, while replicas train
    drivers: float  # with only a driver of Kubeflow Pipelines at work
    argo: float  # the rest: scheduling, pod starts and Argo's waits between two tasks


def shares(workflow: Object, pods: Iterable[Object], since: float = 0) -> Shares:
    """Return the shares of a run that is over, from its Workflow and the pods of its steps.

    What was before `since`, in seconds since 1970, for example before a retry, does not count.
    """
    began = max(_time(workflow["metadata"]["creationTimestamp"]), since)
    ended = _time(workflow["status"]["finishedAt"])
    spans: dict[bool, list[Span]] = {True: [], False: []}
    for pod in pods:
        of_driver = node(pod).endswith(_DRIVER)
        spans[of_driver] += _of_main(pod)
    ours = _covered(spans[False], began, ended)
    both = _covered(spans[False] + spans[True], began, ended)
    seconds = ended - began
    return Shares(seconds, ours, both - ours, seconds - both)


def _of_main(pod: Object) -> Iterator[Span]:
    for status in (pod["status"].get("containerStatuses")) or []:
        ended = status["state"].get("terminated") or {}
        if status["name"] == _MAIN and ended.get("startedAt") and ended.get("finishedAt"):
            yield _time(ended["startedAt"]), _time(ended["finishedAt"])


def _covered(spans: list[Span], first: float, last: float) -> float:
    """Return the seconds between two times that at least one span covers."""
    covered, until = 0.0, first
    for start, end in sorted(spans):
        start, end = max(start, until), min(end, last)
        covered += max(end - start, 0)
        until = max(until, end)
    return covered


def _time(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
