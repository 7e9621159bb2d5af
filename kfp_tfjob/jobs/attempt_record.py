"""The record of how an attempt ended: `runs/<run_id>/attempts/NNNN.end.json`.

The pods of a job and their logs are gone soon after it ends, and Kubeflow Pipelines loses the
outputs of a failed step. So this record keeps everything a person needs afterwards. The launcher
may be killed before the job has ended: then the record that the chief's own pod leaves,
`NNNN.chief.json`, takes its place or completes it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kfp_tfjob.jobs.job_end import ChiefEnd, judge_chief
from kfp_tfjob.jobs.kind import CHIEF, JobKind
from kfp_tfjob.jobs.labels import KEY_LABEL, SETUP, UPLOADER
from kfp_tfjob.jobs.log_masking import Mask
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.status import container_statuses, replica_of
from kfp_tfjob.jobs.tfjob import TFJOB
from kfp_tfjob.jobs.verdict import Judgement
from kfp_tfjob.storage import documents
from kfp_tfjob.storage.documents import InvalidDocumentError
from kfp_tfjob.storage.errors import ObjectNotFoundError
from kfp_tfjob.storage.layout import RunLayout

if TYPE_CHECKING:
    from kfp_tfjob.storage.store import Store

log = logging.getLogger(__name__)

# Free text from programs and controllers.
_FREE = {"sentence", "remedy", "message", "reason", "last_lines"}


@dataclass(frozen=True)
class EndedContainer:
    """A container in its last known state.

    Attributes:
        name: `setup`, `uploader` or the main one.
        state: `waiting`, `running` or `terminated`.
        exit_code: None unless it has ended.
        reason: The kubelet's reason.
        message: The kubelet's message, or the container's own termination message.
        restarts: Number of restarts.
        last_lines: The last lines of its log.
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
    """A pod in its last known state."""

    replica: str
    name: str
    phase: str
    node: str
    reason: str
    containers: tuple[EndedContainer, ...]

    @property
    def of_chief(self) -> tuple[EndedContainer, ...]:
        """Its containers apart from the sidecars, if it is the chief."""
        mine = self.replica.startswith(CHIEF)
        return tuple(it for it in self.containers if mine and it.name not in (SETUP, UPLOADER))


@dataclass(frozen=True)
class AttemptEnd:
    """Everything known about an attempt that has ended.

    Attributes:
        attempt: From 1.
        job: Name of the job; empty if only the chief's own record is left, and so is the kind.
        namespace: Where it was; empty in a local run.
        verdict: One word.
        code: Exit code of the step if this attempt is the last.
        sentence: What happened.
        remedy: What to do.
        conditions: The job's conditions.
        pods: Sorted by replica.
        seconds: How long the job was `queued`, `pending` and `running`.
        gpu_seconds: GPUs held times seconds, while `pending` and while `running`.
        kind: The kind of the job; an old record without it is about a TFJob.
        task_key: The key of the task that launched it; usually empty.
    """

    attempt: int
    job: str
    namespace: str
    verdict: str
    code: int
    sentence: str
    remedy: str
    conditions: tuple[Mapping[str, object], ...]
    pods: tuple[EndedPod, ...]
    seconds: Mapping[str, float] = field(default_factory=dict)
    gpu_seconds: Mapping[str, float] = field(default_factory=dict)
    kind: str = TFJOB.name
    task_key: str = ""

    @property
    def is_final(self) -> bool:
        """Whether it was written after the job had ended, not by a launcher that was killed."""
        return bool(self.job and (self.pods or self.seconds))

    def to_bytes(self) -> bytes:
        """Return the record as JSON, without secrets."""
        values = _masked(asdict(self), Mask())
        return (json.dumps(values, indent=1, ensure_ascii=False) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> AttemptEnd:
        """Read a record back."""
        return documents.read(cls, data)


def read_ends(
    store: Store, run: RunLayout, claimed: Sequence[int] | None = None
) -> dict[int, AttemptEnd | None]:
    """Return the record of every claimed attempt, by its number, the newest last.

    None means that the attempt is running, or ended without any record. A record that the chief
    alone has left names no job.
    """
    numbers = store.numbers(run.attempts) if claimed is None else claimed
    return {number: _read_end(store, run, number) for number in numbers}


def gpu_hours(
    store: Store, run: RunLayout, claimed: Sequence[int] | None = None
) -> dict[str, float]:
    """Return the GPU hours of all attempts, as far as they are recorded.

    `used` are those of the attempt whose output is complete in the store, `lost` those of the
    others; before its pods run, an attempt holds GPUs `pending`.
    """
    try:
        completed = store.read_manifest(run.manifest).attempt
    except ObjectNotFoundError:
        completed = 0
    hours = dict.fromkeys(("used", "pending", "lost"), 0.0)
    for attempt, end in read_ends(store, run, claimed).items():
        held = end.gpu_seconds if end else {}
        hours["used" if attempt == completed else "lost"] += held.get("running", 0) / 3600
        hours["pending"] += held.get("pending", 0) / 3600
    return {name: round(value, 4) for name, value in hours.items()}


def _read_end(store: Store, run: RunLayout, number: int) -> AttemptEnd | None:
    end: AttemptEnd | None = None
    try:
        end = AttemptEnd.from_bytes(store.read(run.attempt_end(number)))
        if any(item.exit_code is not None for pod in end.pods for item in pod.of_chief):
            return end
    except (ObjectNotFoundError, InvalidDocumentError) as error:
        _warn(error)
    try:
        chief = ChiefEnd.from_bytes(store.read(run.chief_end(number)))
    except (ObjectNotFoundError, InvalidDocumentError) as error:
        _warn(error)
        return end
    return _completed(end, number, chief)


def _warn(error: Exception) -> None:
    """Log that a record cannot be read; it may come from an image with another version."""
    if isinstance(error, InvalidDocumentError):
        log.warning("a record of how an attempt ended cannot be read: %s", error)


def _completed(end: AttemptEnd | None, number: int, chief: ChiefEnd) -> AttemptEnd:
    """Return a record with what the chief's own record adds to it."""
    found = judge_chief(chief)
    after = f", step {chief.step}" if chief.step else ""
    sentence = f"{Mask()(found.sentence)} ({chief.time}{after})"
    if end is None:
        own = replace(found, sentence=sentence)
        return end_of(number, None, None, "", own, (), {"running": chief.seconds})
    return end if sentence in end.sentence else replace(end, sentence=f"{end.sentence}; {sentence}")


def pods_of(
    pods: Iterable[Object], last_lines: Callable[[str, str], list[str]]
) -> tuple[EndedPod, ...]:
    """Return the pods for the record."""
    return tuple(sorted((_pod(pod, last_lines) for pod in pods), key=lambda pod: pod.replica))


def end_of(
    attempt: int,
    kind: JobKind | None,
    job: Object | None,
    name: str,
    judgement: Judgement,
    pods: tuple[EndedPod, ...],
    seconds: Mapping[str, float] | None = None,
    gpu_seconds: Mapping[str, float] | None = None,
) -> AttemptEnd:
    """Return an attempt's record."""
    conditions = ((job or {}).get("status") or {}).get("conditions") or ()
    metadata = (job or {"metadata": {}})["metadata"]
    return AttemptEnd(
        attempt=attempt,
        job=name,
        namespace=metadata.get("namespace", ""),
        verdict=str(judgement.verdict),
        code=0 if judgement.verdict == "succeeded" else judgement.code,
        sentence=judgement.sentence,
        remedy=judgement.remedy,
        conditions=tuple(dict(item) for item in conditions),
        pods=pods,
        seconds=_rounded(seconds),
        gpu_seconds=_rounded(gpu_seconds),
        kind=kind.name if kind else "",
        task_key=(metadata.get("labels") or {}).get(KEY_LABEL, ""),
    )


def _masked(value: Any, mask: Mask, free: bool = False) -> Any:
    """Return a record without secrets in its free text; programs read names and numbers back."""
    if isinstance(value, Mapping):
        return {key: _masked(item, mask, free or key in _FREE) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(item, mask, free) for item in value]
    return mask(value) if free and isinstance(value, str) else value


def _rounded(values: Mapping[str, float] | None) -> dict[str, float]:
    return {name: round(value, 1) for name, value in (values or {}).items()}


def _pod(pod: Object, last_lines: Callable[[str, str], list[str]]) -> EndedPod:
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
    return EndedPod(
        replica=replica,
        name=pod["metadata"]["name"],
        phase=status.get("phase", ""),
        node=(pod.get("spec") or {}).get("nodeName", ""),
        reason="; ".join(filter(None, said)),
        containers=tuple(_ended(it, replica, last_lines) for it in container_statuses(pod)),
    )


def _ended(
    status: Object, replica: str, last_lines: Callable[[str, str], list[str]]
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
