"""The record of how an attempt ended: `runs/<run_id>/attempts/NNNN.end.json`.

The pods of a job and their logs are gone soon after it ends, and Kubeflow Pipelines loses the
outputs of a failed step. So this record keeps everything a person needs afterwards. The launcher
may be killed before the job has ended: then the record that the chief's own pod leaves,
`NNNN.chief.json`, takes its place or completes it. Called by the launcher, which writes it, and by
the exit task and the commands, which read it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kfp_tfjob.common.errors import ObjectNotFoundError
from kfp_tfjob.storage import documents
from kfp_tfjob.storage.documents import InvalidDocumentError
from kfp_tfjob.storage.layout import RunLayout

from .job_diagnosis import ChiefEnd, judge_chief
from .kind import CHIEF, JobKind
from .labels import KEY_LABEL, SETUP, UPLOADER
from .log_masking import Mask
from .objects import Object
from .status import container_statuses, replica_of
from .tfjob import TFJOB
from .verdict import Judgement

if TYPE_CHECKING:
    from kfp_tfjob.storage.store import Store

log = logging.getLogger(__name__)

# The fields with free text from programs and controllers, which may contain secrets.
_FREE_TEXT_FIELDS = {"sentence", "remedy", "message", "reason", "last_lines"}


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
        """The chief's containers apart from the sidecars; empty for another pod."""
        is_chief = self.replica.startswith(CHIEF)
        return tuple(
            container
            for container in self.containers
            if is_chief and container.name not in (SETUP, UPLOADER)
        )


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
    """Return the recorded GPU hours of all attempts: `used`, `pending` and `lost`.

    The attempt whose output is complete in the store has `used` its GPUs; the other attempts have
    `lost` theirs. Before its pods run, an attempt holds GPUs `pending`.
    """
    try:
        completed = store.read_manifest(run.manifest).attempt
    except ObjectNotFoundError:
        completed = 0
    hours = dict.fromkeys(("used", "pending", "lost"), 0.0)
    for attempt, end in read_ends(store, run, claimed).items():
        gpu_seconds = end.gpu_seconds if end else {}
        hours["used" if attempt == completed else "lost"] += gpu_seconds.get("running", 0) / 3600
        hours["pending"] += gpu_seconds.get("pending", 0) / 3600
    return {name: round(total, 4) for name, total in hours.items()}


def _read_end(store: Store, run: RunLayout, number: int) -> AttemptEnd | None:
    """Return the launcher's record, completed by the chief's if the chief's exit is missing."""
    end: AttemptEnd | None = None
    try:
        end = AttemptEnd.from_bytes(store.read(run.attempt_end(number)))
        if any(container.exit_code is not None for pod in end.pods for container in pod.of_chief):
            return end
    except (ObjectNotFoundError, InvalidDocumentError) as error:
        _warn_if_invalid(error)
    try:
        chief = ChiefEnd.from_bytes(store.read(run.chief_end(number)))
    except (ObjectNotFoundError, InvalidDocumentError) as error:
        _warn_if_invalid(error)
        return end
    return _with_chief_end(end, number, chief)


def _warn_if_invalid(error: Exception) -> None:
    """Log that a record cannot be read; it may come from an image with another version."""
    if isinstance(error, InvalidDocumentError):
        log.warning("a record of how an attempt ended cannot be read: %s", error)


def _with_chief_end(end: AttemptEnd | None, number: int, chief: ChiefEnd) -> AttemptEnd:
    """Return a record with the chief's own record added; without one, a record of that alone."""
    judgement = judge_chief(chief)
    last_step = f", step {chief.step}" if chief.step else ""
    sentence = f"{Mask()(judgement.sentence)} ({chief.time}{last_step})"
    if end is None:
        chief_judgement = replace(judgement, sentence=sentence)
        return end_of(number, None, None, "", chief_judgement, (), {"running": chief.seconds})
    return end if sentence in end.sentence else replace(end, sentence=f"{end.sentence}; {sentence}")


def pods_of(
    pods: Iterable[Object], last_lines: Callable[[str, str], list[str]]
) -> tuple[EndedPod, ...]:
    """Return the last known states of pods for the record, sorted by replica."""
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
    """Return an attempt's record; `kind` and `job` are None if only the chief's record is left."""
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
        conditions=tuple(dict(condition) for condition in conditions),
        pods=pods,
        seconds=_rounded(seconds),
        gpu_seconds=_rounded(gpu_seconds),
        kind=kind.name if kind else "",
        task_key=(metadata.get("labels") or {}).get(KEY_LABEL, ""),
    )


def _masked(content: Any, mask: Mask, free: bool = False) -> Any:
    """Return a record without secrets in its free text, but with all names and numbers."""
    if isinstance(content, Mapping):
        return {
            key: _masked(entry, mask, free or key in _FREE_TEXT_FIELDS)
            for key, entry in content.items()
        }
    if isinstance(content, list | tuple):
        return [_masked(entry, mask, free) for entry in content]
    return mask(content) if free and isinstance(content, str) else content


def _rounded(values: Mapping[str, float] | None) -> dict[str, float]:
    return {name: round(value, 1) for name, value in (values or {}).items()}


def _pod(pod: Object, last_lines: Callable[[str, str], list[str]]) -> EndedPod:
    status, replica = pod["status"], replica_of(pod)
    reasons = [status.get("reason", ""), status.get("message", "")]
    reasons += [
        f"{condition['type']}: {condition.get('reason', '')}: {condition.get('message', '')}"
        for condition in status.get("conditions") or []
        if (condition["type"], condition["status"])
        in (("DisruptionTarget", "True"), ("PodScheduled", "False"))
    ]
    if pod["metadata"].get("deletionTimestamp"):
        reasons.append("being deleted")
    return EndedPod(
        replica=replica,
        name=pod["metadata"]["name"],
        phase=status.get("phase", ""),
        node=(pod.get("spec") or {}).get("nodeName", ""),
        reason="; ".join(filter(None, reasons)),
        containers=tuple(
            _ended(container, replica, last_lines) for container in container_statuses(pod)
        ),
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
