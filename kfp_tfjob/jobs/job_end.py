"""Judges how a job ended, from its status and its pods."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from kfp_tfjob.jobs.kind import CHIEF
from kfp_tfjob.jobs.kinds import kind_of_pod
from kfp_tfjob.jobs.labels import SETUP, UPLOADER
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.status import (
    container_statuses,
    is_being_deleted,
    is_chief,
    job_condition,
    replica_of,
    true_condition,
)
from kfp_tfjob.jobs.verdict import ContainerFailure, Judgement, Verdict
from kfp_tfjob.storage import documents
from kfp_tfjob.supervisor import exit_codes

# Status reasons of a kubelet that cannot keep or admit a pod; the job is not at fault.
_OF_THE_NODE = frozenset(
    "NodeLost NodeShutdown Shutdown Terminated UnexpectedAdmissionError NodeAffinity".split()
)

_KERAS_2 = (
    "set train_options.keras to 2, with tf-keras in the image and tf.keras in the program; or write"
    " build_model: this project's trainer trains with Keras 3 on any number of replicas"
)
_DATA_POLICY = (
    "set options.experimental_distribute.auto_shard_policy of a tf.data.Options() to"
    " tf.data.experimental.AutoShardPolicy.DATA, and read rows.with_options(options)"
)
# What TensorFlow and Keras print of mistakes that programs from tutorials make, the cause and the
# remedy. The operator's own examples make them too.
_CAUSES = (
    (
        # The end of the error of keras#20585; in model.fit with parameter servers; in their input.
        r"unsupported type \(<class 'tensorflow.python.distribute.values.PerReplica'>\)"
        r"|/keras/src/[^\0]*ClusterCoordinator\.create_per_worker_dataset"
        r"|module 'keras\.\S*utils' has no attribute 'experimental'",
        "model.fit of Keras 3 does not work with this strategy",
        _KERAS_2,
    ),
    (
        # Of the reader; on a replica without a file, of model.fit.
        r"Could not apply FILE based sharding"
        r"|Unexpected result of `train_function` \(Empty logs\)",
        "a replica got no rows, because TensorFlow gives each replica some of the files, and there"
        " are fewer files than replicas",
        _DATA_POLICY,
    ),
)


def judge(job: Object | None, pods: Iterable[Object]) -> Judgement:
    """Return the verdict on a job that has ended, from its status and the last state of its pods.

    The operator can set Succeeded and Failed in one pass. Then the chief decides: the launcher
    verifies the stored output in any case.
    """
    pods = list(pods)
    if job is None:
        return Judgement(Verdict.CANCELLED, "something outside the run deleted the job")
    failed = job_condition(job, "failed")
    chief = next((pod for pod in pods if is_chief(pod)), None)
    chief_done = chief is not None and chief["status"]["phase"] == "Succeeded"
    if job_condition(job, "succeeded") is not None and (failed is None or chief_done):
        return Judgement(Verdict.SUCCEEDED, "the chief succeeded")
    if failed is None and is_being_deleted(job):
        return Judgement(Verdict.CANCELLED, "something outside the run is deleting the job")
    for pod in pods:
        if found := _of_pod(pod):
            return found
    failed_at = _time((failed or {}).get("lastTransitionTime"))
    removed = {replica_of(pod): found for pod in pods if (found := _removed(pod, failed_at))}
    ended = (item for pod in pods for item in _ended(pod))
    # A peer that is killed makes the others fail, often in the same second.
    killed = 128 + signal.SIGKILL
    causes = sorted(ended, key=lambda it: (not it.finished, it.finished, it.code != killed))
    # The exit of a pod that was told to stop says nothing about the job.
    own = [
        item
        for item in causes
        if item.replica not in removed or _time(item.finished) < removed[item.replica].at
    ]
    first = min(removed.values(), key=lambda item: (item.at, not item.certain), default=None)
    if first and not any(_speaks_before(item, first) for item in own):
        return Judgement(Verdict.LOST, first.sentence)
    if not causes:
        said = (failed or {}).get("message")
        return Judgement(Verdict.LOST, f"the job failed, and no container gives a reason: {said}")
    judgement = _of_containers(own or causes)
    story = "; ".join(filter(None, map(_of_sidecar, pods)))
    if judgement.verdict == Verdict.STORE_UNAVAILABLE and story:
        return replace(judgement, sentence=f"{judgement.sentence}; {story}")
    return judgement


def with_log(judgement: Judgement, lines: Iterable[str]) -> Judgement:
    """Return a judgement with the cause and the remedy that only the last lines of a log show."""
    if judgement.verdict != Verdict.USER_ERROR:
        return judgement
    text = "\n".join(lines)
    for pattern, cause, fix in _CAUSES:
        if re.search(pattern, text):
            who = judgement.sentence.partition(": ")[0]
            return replace(judgement, sentence=f"{who}: {cause}", fix=fix)
    return judgement


@dataclass(frozen=True)
class ChiefEnd:
    """The record that the chief's own pod leaves of its end.

    `kfp_tfjob/supervisor/termination_message.py` and `uploader/watch.py` write it.

    Attributes:
        code: The exit code; None if the pod was lost.
        reason: Why it ended.
        time: When, in UTC.
        seconds: How long it ran.
        step: The last step; 0 before the first one.
        stop_within: The seconds in which it was told to stop; None if it was not.
    """

    code: int | None
    reason: str
    time: str
    seconds: float
    step: int
    stop_within: float | None

    @classmethod
    def from_bytes(cls, data: bytes) -> ChiefEnd:
        """Read it back.

        Raises:
            InvalidDocumentError: It is not such a record, or is that of another version.
        """
        return documents.read(cls, data)


def judge_chief(end: ChiefEnd) -> Judgement:
    """Return the verdict on a job of which only the chief's own record is left."""
    replica, code = f"{CHIEF}-0", end.code
    if code == exit_codes.DONE:
        return Judgement(Verdict.SUCCEEDED, "the chief succeeded")
    if code is None:
        return Judgement(Verdict.LOST, f"{replica}: {end.reason}")
    said = ContainerFailure(replica, "", code, "", end.reason, end.time)
    if end.stop_within is None:
        return _of_containers([said])
    told = f"{replica} was told to stop within {end.stop_within:g} s"
    return Judgement(Verdict.CANCELLED, f"{told}; {said.sentence}")


def _of_sidecar(pod: Object) -> str:
    """Return how the uploader keeps failing; empty if it does not."""
    for item in pod["status"].get("initContainerStatuses") or []:
        ends = [item.get(key, {}).get("terminated") or {} for key in ("state", "lastState")]
        failed = next((end for end in ends if end.get("exitCode")), None)
        if item["name"] == UPLOADER and item.get("restartCount") and failed:
            reason = failed.get("reason") or "Error"
            return (
                f"{UPLOADER} of {replica_of(pod)} ended with exit code {failed['exitCode']}"
                f" ({reason}) and was restarted {item['restartCount']} times"
            )
    return ""


@dataclass(frozen=True)
class _Removed:
    """A pod that was told to stop before the job had failed."""

    at: datetime
    sentence: str
    certain: bool


def _removed(pod: Object, failed_at: datetime) -> _Removed | None:
    replica, metadata = replica_of(pod), pod["metadata"]
    disruption = true_condition(pod, "DisruptionTarget")
    if disruption:
        said = f"{disruption.get('reason', '')}: {disruption.get('message', '')}"
        at = _time(disruption.get("lastTransitionTime"))
        return _Removed(at, f"{replica} was removed from its node: {said}", True)
    if not is_being_deleted(pod):
        return None
    # The timestamp is the end of the grace period.
    grace = timedelta(seconds=metadata.get("deletionGracePeriodSeconds") or 0)
    at = _time(metadata["deletionTimestamp"]) - grace
    if at > failed_at:
        return None  # the operator cleans up after a failure
    certain = at < failed_at and not kind_of_pod(pod).stops_peers
    return _Removed(at, f"{replica} was deleted while it ran", certain)


def _speaks_before(item: ContainerFailure, removed: _Removed) -> bool:
    """Return whether a container failed for its own reason, apart from the removed pod."""
    if item.reason == "OOMKilled" or item.code in exit_codes.USER_ERRORS:
        return True
    if item.code in exit_codes.CONSEQUENCES:
        return False
    ended = _time(item.finished)
    return ended < removed.at or (ended == removed.at and not removed.certain)


def _time(text: Any) -> datetime:
    """Return a Kubernetes time to the second; a missing one is later than any other."""
    if not text:
        return datetime.max.replace(tzinfo=UTC)
    return datetime.fromisoformat(str(text).replace("Z", "+00:00")).replace(microsecond=0)


def _of_pod(pod: Object) -> Judgement | None:
    """Judge by the status that the kubelet reports for the whole pod."""
    replica, status = replica_of(pod), pod["status"]
    reason, message = status.get("reason", ""), status.get("message", "")
    said = f"{replica}: {reason}{': ' + message if message else ''}"
    if reason == "DeadlineExceeded":
        return Judgement(Verdict.DEADLINE, f"{replica} ran past the deadline of the job")
    if reason == "Evicted":
        words = ("ephemeral", "disk", "emptydir")
        # Other pods may have filled the node, unless the message says that this pod used too much.
        others = message.startswith(("The node", "Pod was rejected")) and "was using" not in message
        disk = any(word in message.lower() for word in words) and not others
        return Judgement(Verdict.OUT_OF_DISK if disk else Verdict.LOST, said)
    if reason in _OF_THE_NODE or reason.startswith("OutOf"):
        return Judgement(Verdict.LOST, said)
    return None


def _ended(pod: Object) -> Iterable[ContainerFailure]:
    names = (kind_of_pod(pod).container, SETUP)
    for item in container_statuses(pod):
        ended = item.get("state", {}).get("terminated")
        # A sidecar's exit code does not count, as on a cluster.
        if ended and ended["exitCode"] and item["name"] in names:
            yield ContainerFailure(
                replica_of(pod),
                item["name"],
                int(ended["exitCode"]),
                str(ended.get("reason", "")),
                str(ended.get("message", "")),
                str(ended.get("finishedAt") or ""),  # null if the kubelet has lost it
            )


def _of_containers(causes: list[ContainerFailure]) -> Judgement:
    """Judge by exit codes; there may be many, because a lost replica takes others with it.

    Programs return codes 2, 3 and 4 only on purpose, so these come first. Any program may exit with
    code 1 when its peers vanish, so code 1 counts only if nothing was killed before it.
    """
    for item in causes:
        if item.reason == "OOMKilled":
            return Judgement(Verdict.OUT_OF_MEMORY, f"{item.replica} ran out of memory", item)
    for item in causes:
        if item.code in exit_codes.USER_ERRORS:
            return Judgement(Verdict.USER_ERROR, item.sentence, item)
    first = next((item for item in causes if item.code not in exit_codes.CONSEQUENCES), causes[0])
    if first.code == exit_codes.NOT_STORED:
        return Judgement(Verdict.STORE_UNAVAILABLE, first.sentence, first)
    if first.code == exit_codes.ORPHANED:
        return Judgement(Verdict.ORPHANED, first.sentence, first)
    if first.reason == "StartError" and _is_no_program(first.message):
        return Judgement(Verdict.USER_ERROR, f"{first.replica} cannot start its program", first)
    if first.code >= 128:
        return Judgement(Verdict.LOST, first.sentence, first)
    return Judgement(Verdict.USER_ERROR, first.sentence, first)


def _is_no_program(message: str) -> bool:
    """Return whether the image, and not the node, kept a container from starting."""
    return 'exec: "' in message or "executable file" in message
