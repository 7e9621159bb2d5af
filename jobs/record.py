"""The end of an attempt as it stays in the store: `runs/<run_id>/attempts/NNNN.end.json`.

The pods of a job, and their logs, are gone soon after it has ended, and Kubeflow Pipelines loses
whatever a failed step had to show. So everything a person needs afterwards is kept here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from kfp_tfjob.jobs.kind import JobKind
from kfp_tfjob.jobs.masking import Mask
from kfp_tfjob.jobs.status import replica_of
from kfp_tfjob.jobs.tfjob import TFJOB
from kfp_tfjob.jobs.verdict import Judgement
from kfp_tfjob.storage.errors import ObjectNotFoundError
from kfp_tfjob.storage.layout import RunLayout

if TYPE_CHECKING:
    from kfp_tfjob.storage.store import Store

# Where programs and controllers have their say.
_FREE = {"sentence", "remedy", "message", "reason", "last_lines"}


@dataclass(frozen=True)
class EndedContainer:
    """A container as it was seen last.

    Attributes:
        name: `setup`, `uploader` or the main one.
        state: `waiting`, `running` or `terminated`.
        exit_code: None unless it has ended.
        reason: As the kubelet says.
        message: As the kubelet says, or the last words of the container itself.
        restarts: How often it was started again.
        last_lines: Of its log.
    """

    name: str
    state: str
    exit_code: int | None
    reason: str
    message: str
    restarts: int
    last_lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class EndedPod:
    """A pod as it was seen last."""

    replica: str
    name: str
    phase: str
    node: str
    reason: str
    containers: tuple[EndedContainer, ...]


@dataclass(frozen=True)
class AttemptEnd:
    """Everything that is known of an attempt that has ended.

    Attributes:
        attempt: From 1.
        job: Name of the job.
        namespace: Where it was; empty in a local run.
        verdict: One word.
        code: Exit code of the step, were this attempt the last.
        sentence: What happened.
        remedy: What to do.
        conditions: Of the job.
        pods: By replica.
        seconds: How long the job was `queued`, `pending` and `running`.
        gpu_seconds: GPUs held times seconds, while `pending` and while `running`.
        kind: The kind of the job; an old record does not name it and is of a TFJob.
    """

    attempt: int
    job: str
    namespace: str
    verdict: str
    code: int
    sentence: str
    remedy: str
    conditions: tuple[Mapping[str, str], ...]
    pods: tuple[EndedPod, ...]
    seconds: Mapping[str, float] = field(default_factory=dict)
    gpu_seconds: Mapping[str, float] = field(default_factory=dict)
    kind: str = TFJOB.name

    def to_bytes(self) -> bytes:
        """Return the record as JSON, without secrets."""
        values = _masked(asdict(self), Mask())
        return (json.dumps(values, indent=1, ensure_ascii=False) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> AttemptEnd:
        """Read a record back."""
        values = json.loads(data)
        values["conditions"] = tuple(values["conditions"])
        values["pods"] = tuple(
            EndedPod(**pod | {"containers": tuple(_container(c) for c in pod["containers"])})
            for pod in values["pods"]
        )
        return cls(**values)


def read_ends(store: Store, run: RunLayout) -> dict[int, AttemptEnd | None]:
    """Return the record of every claimed attempt, by its number, the newest last.

    None stands for an attempt that runs, or that ended while its launcher was not there.

    Raises:
        StepError: The store cannot be read.
    """
    ends: dict[int, AttemptEnd | None] = {}
    for number in store.numbers(run.attempts):
        try:
            ends[number] = AttemptEnd.from_bytes(store.read(run.attempt_end(number)))
        except ObjectNotFoundError:
            ends[number] = None
    return ends


def pods_of(
    pods: Iterable[Mapping[str, Any]], last_lines: Callable[[str, str], list[str]]
) -> tuple[EndedPod, ...]:
    """Return pods for the record.

    Args:
        pods: As Kubernetes shows them.
        last_lines: Returns the last lines of a replica and container.
    """
    return tuple(sorted((_pod(pod, last_lines) for pod in pods), key=lambda pod: pod.replica))


def end_of(
    attempt: int,
    kind: JobKind,
    job: Mapping[str, Any] | None,
    name: str,
    judgement: Judgement,
    pods: tuple[EndedPod, ...],
    seconds: Mapping[str, float] | None = None,
    gpu_seconds: Mapping[str, float] | None = None,
) -> AttemptEnd:
    """Return the record of an attempt.

    Args:
        attempt: From 1.
        kind: Of the job.
        job: The job as it was seen last.
        name: Its name.
        judgement: What became of it.
        pods: See `pods_of`.
        seconds: See AttemptEnd.
        gpu_seconds: See AttemptEnd.
    """
    conditions = ((job or {}).get("status") or {}).get("conditions") or ()
    return AttemptEnd(
        attempt=attempt,
        job=name,
        namespace=(job or {"metadata": {}})["metadata"].get("namespace", ""),
        verdict=str(judgement.verdict),
        code=0 if judgement.verdict == "succeeded" else judgement.code,
        sentence=judgement.sentence,
        remedy=judgement.remedy,
        conditions=tuple(dict(item) for item in conditions),
        pods=pods,
        seconds=_rounded(seconds),
        gpu_seconds=_rounded(gpu_seconds),
        kind=kind.name,
    )


def _masked(value: Any, mask: Mask, free: bool = False) -> Any:
    """Return a record whose free texts have no secrets: names and numbers are read back."""
    if isinstance(value, Mapping):
        return {key: _masked(item, mask, free or key in _FREE) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(item, mask, free) for item in value]
    return mask(value) if free and isinstance(value, str) else value


def _rounded(values: Mapping[str, float] | None) -> dict[str, float]:
    return {name: round(value, 1) for name, value in (values or {}).items()}


def _container(values: Mapping[str, Any]) -> EndedContainer:
    return EndedContainer(**dict(values) | {"last_lines": tuple(values["last_lines"])})


def _pod(pod: Mapping[str, Any], last_lines: Callable[[str, str], list[str]]) -> EndedPod:
    status, replica = pod["status"], replica_of(pod)
    said = [status.get("reason", ""), status.get("message", "")]
    said += [
        f"{item['type']}: {item.get('reason', '')}: {item.get('message', '')}"
        for item in status.get("conditions") or []
        if (item["type"], item["status"])
        in (("DisruptionTarget", "True"), ("PodScheduled", "False"))
    ]
    if pod["metadata"].get("deletionTimestamp"):
        said.append("being deleted")
    statuses = [
        *(status.get("initContainerStatuses") or []),
        *(status.get("containerStatuses") or []),
    ]
    return EndedPod(
        replica=replica,
        name=pod["metadata"]["name"],
        phase=status.get("phase", ""),
        node=(pod.get("spec") or {}).get("nodeName", ""),
        reason="; ".join(filter(None, said)),
        containers=tuple(_ended(item, replica, last_lines) for item in statuses),
    )


def _ended(
    status: Mapping[str, Any], replica: str, last_lines: Callable[[str, str], list[str]]
) -> EndedContainer:
    state, values = next(iter((status.get("state") or {}).items()), ("waiting", {}))
    return EndedContainer(
        name=status["name"],
        state=state,
        exit_code=values.get("exitCode"),
        reason=str(values.get("reason", "")),
        message=str(values.get("message", "")),
        restarts=int(status.get("restartCount", 0)),
        last_lines=tuple(last_lines(replica, status["name"])),
    )
