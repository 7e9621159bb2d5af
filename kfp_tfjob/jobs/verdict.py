"""Verdicts on jobs: one word for the result, the evidence, and the remedy.

The word decides whether a new attempt may help and which exit code the step has. Programs read it
in failure.json, and docs/failures.md has a section for each. Made by
`job_diagnosis.py` and `time_limits.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from kfp_tfjob.common.docs_page import split_address
from kfp_tfjob.common.errors import Problem, StepError
from kfp_tfjob.common.escaping import lines
from kfp_tfjob.supervisor import exit_codes

from .failure_record import Failure
from .labels import SETUP, UPLOADER


class Verdict(StrEnum):
    """The result of a job in one word."""

    SUCCEEDED = "succeeded"
    USER_ERROR = "user_error"
    OUT_OF_MEMORY = "out_of_memory"
    OUT_OF_DISK = "out_of_disk"
    IMAGE_PULL = "image_pull"
    UNSCHEDULABLE = "unschedulable"
    PARTLY_PLACED = "partly_placed"
    LOST = "preempted_or_lost"
    STORE_UNAVAILABLE = "store_unavailable"
    DEADLINE = "deadline"
    STALLED = "stalled"
    CANCELLED = "cancelled"
    ORPHANED = "orphaned"
    REFUSED = "refused"
    OPERATOR_ABSENT = "operator_absent"

    @property
    def remedy(self) -> str:
        """The remedy, as a sentence without a full stop."""
        return _REMEDIES[self]

    @property
    def recoverable(self) -> bool:
        """Whether the same job may succeed in a new attempt."""
        return self in (
            Verdict.LOST,
            Verdict.STORE_UNAVAILABLE,
            Verdict.ORPHANED,
            Verdict.PARTLY_PLACED,
        )

    @property
    def uses_budget(self) -> bool:
        """Whether an attempt that ended so counts towards max_attempts, if it made no progress.

        One whose pods did not all get nodes does not: time limits the wait for nodes.
        """
        return self != Verdict.PARTLY_PLACED


_RESUMES = "it resumes from the newest stored checkpoint, if there is one"
_REMEDIES = {
    Verdict.SUCCEEDED: "nothing",
    Verdict.USER_ERROR: "correct the error in the message, then start a new run",
    Verdict.OUT_OF_MEMORY: "raise pod.all.memory, or set a smaller train_batch_size",
    Verdict.OUT_OF_DISK: "raise pod.all.ephemeral_storage, or set pod.chief.output_claim",
    Verdict.IMAGE_PULL: "correct train_image, or set pod.all.image_pull_secret",
    Verdict.UNSCHEDULABLE: "request fewer resources, or nodes that exist: pod.all.node_selector,"
    " pod.all.tolerations, train_gpus",
    Verdict.PARTLY_PLACED: "lower train_workers, or have all pods of a job placed together: with"
    " Kueue (pod.all.queue), or with Volcano or the coscheduling plugin (pod.all.scheduler)",
    Verdict.LOST: f"retry the run; {_RESUMES}",
    Verdict.STORE_UNAVAILABLE: "check that the store is reachable, then retry the run; " + _RESUMES,
    Verdict.DEADLINE: f"retry the run; {_RESUMES}; for longer attempts, start a new run with a"
    " larger train_options.deadline_seconds",
    Verdict.STALLED: "read the last log lines of the chief, then retry the run; if it prints whole"
    " lines less often, start a new run with a larger train_options.stall_timeout_seconds",
    Verdict.CANCELLED: "retry the run if you did not delete the job yourself",
    Verdict.ORPHANED: f"retry the run; {_RESUMES}",
    Verdict.REFUSED: "correct the error in the cluster's message",
    Verdict.OPERATOR_ABSENT: "install or start the training operator v1.9; if it runs,"
    " `kubectl describe tfjob` shows why it creates no pods, such as a quota",
}


@dataclass(frozen=True)
class ContainerFailure:
    """A container that ended with an error.

    Attributes:
        replica: The replica, for example `chief-0`.
        container: The container's name; empty if it is not recorded.
        code: The exit code.
        reason: The kubelet's reason, for example `OOMKilled`.
        message: The termination message.
        finished: The time of its end in a sortable form; empty if it is not known.
    """

    replica: str
    container: str
    code: int
    reason: str
    message: str
    finished: str

    @property
    def sentence(self) -> str:
        """The container, its exit code and the code's meaning, without a full stop."""
        meaning = exit_codes.of_replica(self.code)
        if not meaning:
            killed = f"killed by signal {self.code - 128}"
            # Linux has 64 signals; 255 is what a program returns with exit(-1).
            meaning = killed if 128 < self.code <= 192 else "the program's own code"
        where = f"{self.container} of " if self.container in (SETUP, UPLOADER) else ""
        return f"{where}{self.replica} ended with exit code {self.code}: {meaning}"


@dataclass(frozen=True)
class Judgement:
    """A verdict and its evidence.

    Attributes:
        verdict: The result of the job.
        sentence: What happened, without a full stop.
        cause: The container that ended the job; None if no container did.
        fix: What to do in this case; empty to use the remedy of the verdict.
    """

    verdict: Verdict
    sentence: str
    cause: ContainerFailure | None = None
    fix: str = ""

    @property
    def remedy(self) -> str:
        """The remedy, as a sentence without a full stop."""
        return self.fix or self.verdict.remedy

    @property
    def code(self) -> int:
        """The exit code of the step: the container's own if the user has to fix the cause."""
        code = self.cause.code if self.cause else exit_codes.FAILED
        if self.verdict == Verdict.PARTLY_PLACED:
            return exit_codes.CONFIGURATION
        if self.verdict == Verdict.USER_ERROR and not self.cause:
            return exit_codes.CONFIGURATION
        if self.verdict == Verdict.USER_ERROR or self.verdict.recoverable:
            return code
        return exit_codes.CONFIGURATION  # the user has to change a limit or a name

    def failure(self, last_lines: Sequence[str] = ()) -> JobFailedError:
        """Return the error of a step whose job ended this way, with a replica's last lines."""
        _, name = split_address(self.cause.message) if self.cause else ("", "")
        problem = Problem(self.sentence, fix=self.remedy, name=name)
        if self.code == exit_codes.NOT_FINITE and not name:
            problem = replace(problem, name="loss-not-finite")
        return JobFailedError(self.code, str(self.verdict), problem, last_lines)


def cancelled(why: str) -> Judgement:
    """Return the verdict on a job whose run was ended, for example `its Workflow was deleted`."""
    fix = "retry it; it continues from its newest stored checkpoint"
    return Judgement(Verdict.CANCELLED, f"the run was stopped: {why}", fix=fix)


class JobFailedError(StepError):
    """A job failed; the replica that failed first determines the code and the verdict."""

    def __init__(
        self,
        code: int,
        verdict: str,
        problem: Problem | str,
        last_lines: Sequence[str] = (),
        record: Failure | None = None,
    ) -> None:
        super().__init__(problem)
        self.code = code  # type: ignore[misc]
        self.verdict = verdict  # type: ignore[misc]
        self.last_lines, self.record = tuple(last_lines), record

    def __str__(self) -> str:
        """Return the problem, the last lines, and how many attempts there were."""
        message_lines = [f"{self.problems[0]}{' Its last lines:' if self.last_lines else ''}"]
        message_lines += (f"    {line}" for line in self.last_lines)
        return lines("\n".join([*message_lines, *self.remarks]))

    def after(self, used: str) -> JobFailedError:
        """Return this error with the attempts that the run has used."""
        error = JobFailedError(self.code, self.verdict, self.problems[0], self.last_lines)
        error.remarks = (f"No more attempts: {used}.",)
        return error

    @classmethod
    def again(cls, earlier: Failure) -> JobFailedError:
        """Return the error that an earlier launch in this run has stored."""
        return cls(earlier.code, earlier.verdict, earlier.message, record=earlier)
