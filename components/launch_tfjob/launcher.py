"""Runs a training until its output is proven or somebody has to mend something.

1. An output that is complete is the end: whoever starts again finds it and does no work.
2. Claim the next attempt in the store; the highest number owns the run.
3. Create its job and follow it: every line, every change of a pod.
4. When it has ended, judge it by its status, its pods and what lies in the store.
5. Where the infrastructure was at fault, try again from the newest stored checkpoint, a bounded
   number of times; otherwise fail with the words of the replica that failed first.
"""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from components.launch_tfjob import verdict as verdicts
from components.launch_tfjob.backends import Backend
from components.launch_tfjob.follower import Follower
from components.launch_tfjob.manifest import CONTAINER, Identity, build_tfjob, spec_hash
from components.launch_tfjob.progress import Progress, read
from components.launch_tfjob.spec import JobSpec
from components.launch_tfjob.verdict import Judgement, Verdict, judge
from components.step import FAILURE_FILE, Failure, Step
from storage.errors import (
    ConfigurationError,
    DataError,
    ObjectExistsError,
    ObjectNotFoundError,
    Problem,
    StepError,
)
from trainer.supervisor import MEANING

log = logging.getLogger(__name__)

_LOOK_SECONDS = 30.0  # also without news, the job is looked at
_LAST_LINES_SECONDS = 10.0
_SHOWN_LINES = 12
_LONGEST_BACKOFF = 600.0


@dataclass(frozen=True)
class Launched:
    """A training whose output is complete in the store.

    Attributes:
        job_name: The job of the attempt that completed it.
        attempts: How many attempts the run has used, this one included.
        manifest: The TFJob of that attempt.
        progress: What the chief reported; its `final` are the metrics.
    """

    job_name: str
    attempts: int
    manifest: Mapping[str, Any]
    progress: Progress


class JobFailedError(StepError):
    """A job failed; its code and verdict are those of the replica that failed first."""

    def __init__(self, code: int, verdict: str, problem: Problem | str) -> None:
        super().__init__(problem)
        self.code = code  # type: ignore[misc]
        self.verdict = verdict  # type: ignore[misc]


@dataclass(frozen=True)
class Launcher:
    """One launch.

    Attributes:
        step: The run and its store.
        spec: What was asked for.
        backend: Where jobs run.
        owner: The ownerReference of the jobs; None without one.
        retry: Whether this is Kubeflow Pipelines' own retry and not a person's.
        clock: Seconds that never go back; a seam for tests.
        sleep: Waits for seconds; a seam for tests.
    """

    step: Step
    spec: JobSpec
    backend: Backend
    owner: Mapping[str, Any] | None = None
    retry: bool = False
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)

    def run(self) -> Launched:
        """Train.

        Raises:
            JobFailedError: With the last words of the replica that failed first.
        """
        failure: JobFailedError | None = None
        backoff = self.spec.options.backoff_seconds
        since = self._since()
        while True:
            if attempt := self._completed():
                return self._launched(attempt)
            attempt = self._next_attempt(since, failure)
            if failure:
                log.info("attempt %d begins in %.0f s", attempt, backoff)
                self.sleep(backoff)
                backoff = min(2 * backoff, _LONGEST_BACKOFF)
            manifest = self._claim(attempt, since)
            if not manifest:
                continue
            judgement, words = self._attempt(manifest)
            if judgement.verdict == Verdict.SUCCEEDED:
                if self._completed() == attempt:
                    return self._launched(attempt)
                judgement = Judgement(
                    Verdict.STORE_UNAVAILABLE,
                    "the job succeeded, but its output is not complete in the store",
                )
            failure = _failure(judgement, words)
            log.warning("%s: %s: %s", manifest["metadata"]["name"], failure.verdict, failure)
            if not judgement.verdict.recoverable:
                raise failure

    def _completed(self) -> int:
        """Return the attempt whose output is complete in the store, or 0."""
        store, run = self.step.store, self.step.run
        try:
            attempt = store.read_manifest(run.manifest).attempt
            completion = json.loads(store.read(run.completion))
        except ObjectNotFoundError:
            return 0
        if completion.get("attempt") != attempt:
            raise DataError(
                Problem(
                    f"{run.base} has the manifest of one attempt and the completion of another",
                    received=f"attempts {attempt} and {completion.get('attempt')}",
                    fix="start a new run; somebody else wrote into this one",
                )
            )
        return attempt

    def _since(self) -> int:
        """Return the first attempt that counts: what a person starts again is counted anew."""
        store, attempts = self.step.store, self.step.run.attempts
        last = max(store.numbers(attempts), default=0)
        if not (last and self.retry):
            return last + 1
        return int(json.loads(store.read(attempts / f"{last:04d}.json"))["since"])

    def _next_attempt(self, since: int, failure: JobFailedError | None) -> int:
        attempt = max(self.step.store.numbers(self.step.run.attempts), default=0) + 1
        if attempt - since < self.spec.options.max_attempts:
            return attempt
        raise failure or self._earlier_failure(attempt - since)

    def _earlier_failure(self, attempts: int) -> StepError:
        """Return what ended the last attempt: KFP starts a step that failed once more."""
        try:
            data = self.step.store.read(self.step.run.failure("json"))
            earlier = Failure.from_bytes(data)
        except (ObjectNotFoundError, ValueError, TypeError):
            earlier = None
        if earlier and earlier.step == self.step.name:
            return JobFailedError(earlier.code, earlier.verdict, earlier.message)
        return ConfigurationError(
            Problem(
                "the run has used all of its attempts",
                received=f"{attempts} attempts, none of which completed the output",
                expected=f"at most {self.spec.options.max_attempts}",
                fix="start a new run, or raise train_options.max_attempts",
            )
        )

    def _claim(self, attempt: int, since: int) -> dict[str, Any]:
        """Return the job of an attempt that is now ours, or nothing when somebody else has it."""
        manifest = build_tfjob(self.spec, Identity(self.step.run_id, attempt, owner=self.owner))
        record = {
            "run_id": self.step.run_id,
            "attempt": attempt,
            "since": since,
            "job": manifest["metadata"]["name"],
            "spec_hash": spec_hash(manifest),
            "launcher": uuid.uuid4().hex,  # two launchers must not both believe it is theirs
        }
        address = self.step.run.attempts / f"{attempt:04d}.json"
        try:
            self.step.store.create(address, json.dumps(record, indent=1).encode())
        except ObjectExistsError:
            log.info("attempt %d was claimed by another launcher", attempt)
            return {}
        return manifest

    def _attempt(self, manifest: Mapping[str, Any]) -> tuple[Judgement, list[str]]:
        """Run one job to its end; return what became of it and its last words."""
        name = manifest["metadata"]["name"]
        log.info(
            "creating %s: 1 chief, %d workers, %d GPUs",
            name,
            self.spec.workers,
            self.spec.total_gpus,
        )
        self.backend.create(manifest)
        follower = Follower(self.backend, name)
        follower.start()
        # The pods' own deadline comes first, so that the chief can save; this one counts waiting.
        grace = self.spec.pod.of("chief").grace_seconds or 0
        deadline = self.clock() + self.spec.options.deadline_seconds + grace
        late = False
        while (job := follower.look()) and not _over(job) and not late:
            left = deadline - self.clock()
            late = left <= 0
            self.backend.watch(name, min(max(left, 0), _LOOK_SECONDS))
        if late:
            judgement = Judgement(Verdict.DEADLINE, "the job ran longer than its deadline")
        else:
            judgement = judge(job, follower.pods)
        if late or judgement.verdict.recoverable:
            self.backend.delete(name)  # any other end stays for people to look at
        follower.finish(_LAST_LINES_SECONDS)
        return judgement, _words(judgement, follower)

    def _launched(self, attempt: int) -> Launched:
        manifest = build_tfjob(self.spec, Identity(self.step.run_id, attempt, owner=self.owner))
        progress = read(self.step.store, self.step.run)
        attempts = max(self.step.store.numbers(self.step.run.attempts), default=attempt)
        log.info("the output of attempt %d is complete in the store", attempt)
        return Launched(manifest["metadata"]["name"], attempts, manifest, progress)


def run(step: Step, spec: JobSpec, backend: Backend) -> Launched:
    """Train, or return at once when the output of the run is complete.

    Args:
        step: The run and its store.
        spec: What was asked for.
        backend: Where jobs run.

    Raises:
        JobFailedError: With the last words of the replica that failed first.
    """
    return Launcher(step, spec, backend, retry=_is_retry()).run()


def _is_retry() -> bool:
    """Tell an automatic retry from a person's, whose index begins at 0 again."""
    record = os.environ.get(FAILURE_FILE)  # of the local run, which has no index
    return int(os.environ.get("KFP_RETRY_INDEX") or 0) > 0 or bool(record and Path(record).exists())


def _over(job: Mapping[str, Any]) -> bool:
    return any(verdicts.condition(job, kind) is not None for kind in ("Succeeded", "Failed"))


def _words(judgement: Judgement, follower: Follower) -> list[str]:
    """Return the last words of the container that ended the job, else of the chief."""
    cause = judgement.cause
    if not cause:
        return follower.last_lines("chief-0", _SHOWN_LINES)
    # What the supervisor says when the program itself left no words is in the sentence already.
    if cause.message and cause.message not in MEANING.values():
        return cause.message.splitlines()
    suffix = "" if cause.container == CONTAINER else f"/{cause.container}"
    return follower.last_lines(cause.replica + suffix, _SHOWN_LINES)


def _failure(judgement: Judgement, words: list[str]) -> JobFailedError:
    message = str(Problem(judgement.sentence, fix=judgement.verdict.remedy))
    if words:
        message += "\n".join([" Its last words:", *(f"    {line}" for line in words)])
    return JobFailedError(judgement.code, str(judgement.verdict), message)
