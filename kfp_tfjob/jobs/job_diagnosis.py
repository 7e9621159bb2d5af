"""Judges how a job ended, from its status and its pods.

When one replica fails, the others fail with it, and operators name only the job. So the verdict
comes from the first container that failed for its own reason: its exit code, its termination
message, and the last lines of its log. Called by `attempt.py` and `earlier_job.py` of the launcher,
and by `leftover_jobs.py` of the exit task.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from kfp_tfjob.storage import documents
from kfp_tfjob.supervisor import exit_codes

from .kind import CHIEF
from .kinds import kind_of_pod
from .labels import SETUP, UPLOADER
from .objects import Object
from .status import (
    container_statuses,
    is_being_deleted,
    is_chief,
    job_condition,
    replica_of,
    true_condition,
)
from .verdict import ContainerFailure, Judgement, Verdict

# Status reasons of a kubelet that cannot keep or admit a pod; the job is not at fault.
_NODE_REASONS = frozenset(
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
# Patterns of the errors of TensorFlow and Keras about common mistakes, with the cause and the
# remedy. Programs from tutorials, and the operator's own examples, make these mistakes.
_CAUSES = (
    (
        # The last line of keras#20585; model.fit with parameter servers; their input.
        r"unsupported type \(<class 'tensorflow.python.distribute.values.PerReplica'>\)"
        r"|/keras/src/[^\0]*ClusterCoordinator\.create_per_worker_dataset"
        r"|module 'keras\.\S*utils' has no attribute 'experimental'",
        "model.fit of Keras 3 does not work with this strategy",
        _KERAS_2,
    ),
    (
        # The reader's error; model.fit's error on a replica without a file.
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
        if judgement := _judge_pod(pod):
            return judgement
    failed_at = _time((failed or {}).get("lastTransitionTime"))
    removals = ((replica_of(pod), _removal(pod, failed_at)) for pod in pods)
    removed = {replica: removal for replica, removal in removals if removal}
    ended = (failure for pod in pods for failure in _container_failures(pod))
    # A peer that is killed makes the others fail, often in the same second.
    killed = 128 + signal.SIGKILL
    causes = sorted(
        ended, key=lambda failure: (not failure.finished, failure.finished, failure.code != killed)
    )
    # The exit of a pod that was ordered to stop does not show why the job failed.
    own_causes = [
        failure
        for failure in causes
        if failure.replica not in removed or _time(failure.finished) < removed[failure.replica].at
    ]
    first = min(
        removed.values(), key=lambda removal: (removal.at, not removal.certain), default=None
    )
    if first and not any(_explains(failure, first) for failure in own_causes):
        return Judgement(Verdict.LOST, first.sentence)
    if not causes:
        message = (failed or {}).get("message")
        return Judgement(
            Verdict.LOST, f"the job failed, and no container gives a reason: {message}"
        )
    judgement = _judge_containers(own_causes or causes)
    sidecar_failures = "; ".join(filter(None, map(_sidecar_failures, pods)))
    if judgement.verdict == Verdict.STORE_UNAVAILABLE and sidecar_failures:
        return replace(judgement, sentence=f"{judgement.sentence}; {sidecar_failures}")
    return judgement


def with_log(judgement: Judgement, lines: Iterable[str]) -> Judgement:
    """Return a judgement with the cause and the remedy that only the last lines of a log show."""
    if judgement.verdict != Verdict.USER_ERROR:
        return judgement
    log_text = "\n".join(lines)
    for pattern, cause, fix in _CAUSES:
        if re.search(pattern, log_text):
            replica = judgement.sentence.partition(": ")[0]
            return replace(judgement, sentence=f"{replica}: {cause}", fix=fix)
    return judgement


@dataclass(frozen=True)
class ChiefEnd:
    """The record of the chief's end, which the chief's own pod writes.

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
            InvalidDocumentError: It is not such a record, or another version wrote it.
        """
        return documents.read(cls, data)


def judge_chief(end: ChiefEnd) -> Judgement:
    """Return the verdict on a job if only the chief's own record is left of it."""
    replica, code = f"{CHIEF}-0", end.code
    if code == exit_codes.DONE:
        return Judgement(Verdict.SUCCEEDED, "the chief succeeded")
    if code is None:
        return Judgement(Verdict.LOST, f"{replica}: {end.reason}")
    # "Error" is also what the kubelet reports for a program that ended by itself.
    failure = ContainerFailure(replica, "", code, "Error", end.reason, end.time)
    if end.stop_within is None:
        return _judge_containers([failure])
    order = f"{replica} was told to stop within {end.stop_within:g} s"
    return Judgement(Verdict.CANCELLED, f"{order}; {failure.sentence}")


def _sidecar_failures(pod: Object) -> str:
    """Return a sentence about an uploader that keeps failing; empty if it does not."""
    for status in pod["status"].get("initContainerStatuses") or []:
        ends = [status.get(key, {}).get("terminated") or {} for key in ("state", "lastState")]
        failed = next((end for end in ends if end.get("exitCode")), None)
        if status["name"] == UPLOADER and status.get("restartCount") and failed:
            reason = failed.get("reason") or "Error"
            return (
                f"{UPLOADER} of {replica_of(pod)} ended with exit code {failed['exitCode']}"
                f" ({reason}) and was restarted {status['restartCount']} times"
            )
    return ""


@dataclass(frozen=True)
class _Removal:
    """The order to stop a pod before the job had failed.

    Attributes:
        at: The time of the order, to the second.
        sentence: The order, for a message.
        certain: Whether it cannot have been a reaction to the job's failure.
    """

    at: datetime
    sentence: str
    certain: bool


def _removal(pod: Object, failed_at: datetime) -> _Removal | None:
    """Return the order to stop a pod, if it came before the job had failed."""
    replica, metadata = replica_of(pod), pod["metadata"]
    disruption = true_condition(pod, "DisruptionTarget")
    if disruption:
        reason = f"{disruption.get('reason', '')}: {disruption.get('message', '')}"
        removed_at = _time(disruption.get("lastTransitionTime"))
        return _Removal(removed_at, f"{replica} was removed from its node: {reason}", True)
    if not is_being_deleted(pod):
        return None
    # The timestamp is the end of the grace period.
    grace = timedelta(seconds=metadata.get("deletionGracePeriodSeconds") or 0)
    removed_at = _time(metadata["deletionTimestamp"]) - grace
    if removed_at > failed_at:
        return None  # the operator cleans up after a failure
    certain = removed_at < failed_at and not kind_of_pod(pod).stops_peers
    return _Removal(removed_at, f"{replica} was deleted while it ran", certain)


def _explains(failure: ContainerFailure, removal: _Removal) -> bool:
    """Return whether a container failed for its own reason, not because a pod was removed."""
    if failure.reason == "OOMKilled" or failure.code in exit_codes.USER_ERRORS:
        return True
    if failure.code in exit_codes.CONSEQUENCES:
        return False
    ended = _time(failure.finished)
    return ended < removal.at or (ended == removal.at and not removal.certain)


def _time(text: Any) -> datetime:
    """Return a Kubernetes time to the second; a missing one is later than any other."""
    if not text:
        return datetime.max.replace(tzinfo=UTC)
    return datetime.fromisoformat(str(text).replace("Z", "+00:00")).replace(microsecond=0)


def _judge_pod(pod: Object) -> Judgement | None:
    """Judge by the status that the kubelet reports for the whole pod."""
    replica, status = replica_of(pod), pod["status"]
    reason, message = status.get("reason", ""), status.get("message", "")
    sentence = f"{replica}: {reason}{': ' + message if message else ''}"
    if reason == "DeadlineExceeded":
        return Judgement(Verdict.DEADLINE, f"{replica} ran past the deadline of the job")
    if reason == "Evicted":
        disk_words = ("ephemeral", "disk", "emptydir")
        # Other pods may have filled the node, unless the message says that this pod used too much.
        is_of_other_pods = (
            message.startswith(("The node", "Pod was rejected")) and "was using" not in message
        )
        disk = any(word in message.lower() for word in disk_words) and not is_of_other_pods
        return Judgement(Verdict.OUT_OF_DISK if disk else Verdict.LOST, sentence)
    if reason in _NODE_REASONS or reason.startswith("OutOf"):
        return Judgement(Verdict.LOST, sentence)
    return None


def _container_failures(pod: Object) -> Iterable[ContainerFailure]:
    """Yield the failures of a pod's main container and of `setup`."""
    names = (kind_of_pod(pod).container, SETUP)
    for status in container_statuses(pod):
        termination = status.get("state", {}).get("terminated")
        # A sidecar's exit code does not count, as Kubernetes ignores it too.
        if termination and termination["exitCode"] and status["name"] in names:
            yield ContainerFailure(
                replica_of(pod),
                status["name"],
                int(termination["exitCode"]),
                str(termination.get("reason", "")),
                str(termination.get("message", "")),
                str(termination.get("finishedAt") or ""),  # null if the kubelet has lost it
            )


def _judge_containers(causes: list[ContainerFailure]) -> Judgement:
    """Judge by exit codes; there may be many, because a lost replica takes others with it.

    Programs return codes 2, 3 and 4 only on purpose, so these come first. Any program may exit with
    code 1 when its peers vanish, so code 1 counts only if nothing was killed before it. So do codes
    above 192, which no signal has.
    """
    for failure in causes:
        if failure.reason == "OOMKilled":
            return Judgement(Verdict.OUT_OF_MEMORY, f"{failure.replica} ran out of memory", failure)
    for failure in causes:
        if failure.code in exit_codes.USER_ERRORS:
            return Judgement(Verdict.USER_ERROR, failure.sentence, failure)
    first = next(
        (failure for failure in causes if failure.code not in exit_codes.CONSEQUENCES), causes[0]
    )
    if first.code == exit_codes.NOT_STORED:
        return Judgement(Verdict.STORE_UNAVAILABLE, first.sentence, first)
    if first.code == exit_codes.ORPHANED:
        return Judgement(Verdict.ORPHANED, first.sentence, first)
    if first.reason == "StartError" and _is_missing_program(first.message):
        return Judgement(Verdict.USER_ERROR, f"{first.replica} cannot start its program", first)
    # 255 is also the code of a container that the runtime has lost, with the reason Unknown.
    is_own_code = first.code > 192 and first.reason == "Error"
    if first.code >= 128 and not is_own_code:
        return Judgement(Verdict.LOST, first.sentence, first)
    return Judgement(Verdict.USER_ERROR, first.sentence, first)


def _is_missing_program(message: str) -> bool:
    """Return whether the image, and not the node, kept a container from starting."""
    return 'exec: "' in message or "executable file" in message
