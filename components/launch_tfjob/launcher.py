"""Runs a training until its output is verified or a person has to fix something.

1. If the output is complete, the run is done.
2. Look at the newest attempt: adopt a running job, and decide about a failed one (start.py).
3. Otherwise claim the next attempt in the store; the highest number owns the run.
4. Create its job, and follow its log lines, its pods and its limits (attempt.py).
5. When the job has ended, judge it by its status, its pods and the stored output.
6. If the infrastructure failed, start a new attempt from the newest stored checkpoint, within the
   limits of claim.py. Otherwise fail with the last lines of the replica that failed first.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from kfp_tfjob.cluster.backend import Backend, JobExistsError
from kfp_tfjob.cluster.log_writer import CLOSING_SECONDS, RunLogs
from kfp_tfjob.components import notify
from kfp_tfjob.components.launch_tfjob import start
from kfp_tfjob.components.launch_tfjob.attempt import Attempt, cancelled, words
from kfp_tfjob.components.launch_tfjob.claim import Claim
from kfp_tfjob.components.launch_tfjob.progress import TrainingHistory, read
from kfp_tfjob.components.launch_tfjob.records import Records
from kfp_tfjob.components.launch_tfjob.start import Action, Found
from kfp_tfjob.components.launch_tfjob.watchdogs import out_of_time
from kfp_tfjob.components.step import Step, is_retry
from kfp_tfjob.jobs.judge import judge
from kfp_tfjob.jobs.manifest import Identity, build_job, spec_hash
from kfp_tfjob.jobs.record import end_of, gpu_hours, read_ends
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.jobs.status import is_being_deleted, is_over
from kfp_tfjob.jobs.verdict import Judgement, Verdict
from kfp_tfjob.options.secret_values import masked
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import (
    ConfigurationError,
    ObjectNotFoundError,
    Problem,
    StepError,
)
from kfp_tfjob.storage.layout import MANIFEST, dataset_digest
from kfp_tfjob.storage.words import counted

log = logging.getLogger(__name__)

_FAREWELL_SECONDS = 1.5
_LOOK_AGAIN_SECONDS = 1.0
_LOST_NODE_SECONDS = 60.0
_CREATE_SECONDS = 100.0  # one create may take 95; after that, its launcher counts as gone
_LONGEST_BACKOFF = 600.0
_UNSEEN = Judgement(
    Verdict.LOST, "it ended while no launcher was there, and its chief left no record"
)


@dataclass(frozen=True)
class Launched:
    """A training whose output is complete in the store.

    Attributes:
        job_name: The job of the attempt that completed it.
        attempts: How many attempts the run has used, this one included.
        manifest: The job of that attempt.
        progress: The reports of the chief; `final` has the metrics.
        model_uri: The SavedModel; empty if the training stored none.
        gpu_hours: GPU hours by name; empty for a training without GPUs.
    """

    job_name: str
    attempts: int
    manifest: Mapping[str, Any]
    progress: TrainingHistory
    model_uri: str = ""
    gpu_hours: Mapping[str, float] = field(default_factory=dict)


class JobFailedError(StepError):
    """A job failed; its code and verdict are those of the replica that failed first."""

    def __init__(self, code: int, verdict: str, problem: Problem | str) -> None:
        super().__init__(problem)
        self.code = code  # type: ignore[misc]
        self.verdict = verdict  # type: ignore[misc]

    def after(self, used: str) -> JobFailedError:
        """Return this error with the attempts that the run has used."""
        return JobFailedError(self.code, self.verdict, f"{self}\nNo more attempts: {used}.")


@dataclass(frozen=True)
class Launcher:
    """One launch.

    Attributes:
        step: The run and its store.
        spec: The requested job.
        backend: The back end that runs the jobs.
        owner: The ownerReference of the jobs, or None.
        retry: Whether Kubeflow Pipelines, not a person, retries the step.
        ended: Returns why the whole run ended; empty while it has not.
        clock: A monotonic clock; tests replace it.
        sleep: Waits for seconds; tests replace it.
        logs: Stores the log lines of the jobs; None to store none.
    """

    step: Step
    spec: JobSpec
    backend: Backend
    owner: Mapping[str, Any] | None = None
    retry: bool = False
    ended: Callable[[], str] = field(default=lambda: "", repr=False)
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)
    logs: RunLogs | None = field(default=None, repr=False)

    @property
    def _records(self) -> Records:
        return Records(self.step)

    def run(self) -> Launched:
        """Train.

        Raises:
            JobFailedError: The training failed; the last lines of the replica that failed first.
            ConfigurationError: A job of this name does not belong to this run.
        """
        # Listed once: the store refuses a number that a different launcher takes meanwhile.
        claimed, lost = self._records.claimed(), False
        done = self._records.completed()
        if claimed and (done or self._records.newest_checkpoint()):
            self._require_same(self._records.claim(claimed[-1]).inputs)
        if done:
            self._record_end(done, Judgement(Verdict.SUCCEEDED, "the chief succeeded"))
            return self._launched(done, claimed)
        failure: JobFailedError | None = None
        backoff, waited, placed = self.spec.options.backoff_seconds, 0.0, True
        manifest = self._adopted(claimed)
        claim = self._last_claim(claimed, adopted=bool(manifest))
        while True:
            # Without an earlier attempt, nothing can have completed since the first look.
            if claimed and (done := self._records.completed()):
                return self._launched(done, claimed)
            if lost:  # the next number would fence the job of the launcher that was faster
                manifest, lost = self._adopted(claimed, lost), False
                claim = self._last_claim(claimed, adopted=True)
            if not manifest:
                last, claim = claim, self._next_claim(claimed, claim, failure, placed)
                if failure:
                    if last and claim.checkpoint > last.checkpoint:
                        backoff = self.spec.options.backoff_seconds
                    # Two jobs that release GPUs for each other must not return at the same time.
                    pause = backoff * random.uniform(0.5, 1.0)
                    log.info("attempt %d begins in %.0f s", claim.attempt, pause)
                    self.sleep(pause)
                    backoff = min(2 * backoff, _LONGEST_BACKOFF)
                self._fail_if_ended()
                manifest = self._keep_claim(claim)
                if not manifest:
                    claimed, lost = self._records.claimed(), True
                    continue
                claimed = [*claimed, claim.attempt]
                self._create(manifest)
                self._fail_if_ended(manifest["metadata"]["name"])
            attempt = int(manifest["metadata"]["labels"]["kfp-tfjob/attempt"])
            assert claim  # the claim of the adopted job, or the new one
            run_left = claim.left(self.spec.options.run_deadline_seconds)
            outcome = Attempt(
                self.backend,
                manifest,
                self.spec,
                attempt,
                waited,
                self.ended,
                run_left,
                partial(self._has_completed, attempt),
                self.clock,
                self.logs.attempt(attempt) if self.logs else None,
            ).follow()
            if self.logs:
                self.logs.flush(CLOSING_SECONDS)  # the record of the end says that it is stored
            self._records.keep_end(outcome.end)
            judgement = outcome.judgement
            if judgement.verdict == Verdict.SUCCEEDED:
                return self._launched(attempt, claimed)
            failure = _failure(judgement, outcome.words)
            log.warning("%s: %s: %s", manifest["metadata"]["name"], failure.verdict, failure)
            if not judgement.verdict.recoverable:
                raise self._in_the_end(failure, claim)
            placed = judgement.verdict != Verdict.PARTLY_PLACED
            if not placed:
                # Time limits the wait for nodes, not the number of attempts.
                waited += outcome.end.seconds["pending"]
                if waited >= self.spec.options.pending_timeout_seconds:
                    raise self._in_the_end(failure, claim)
            manifest = {}

    @cached_property
    def _inputs(self) -> Mapping[str, Any]:
        """What decides which model is trained, by parameter; a record holds no secret."""
        given = masked(self.spec.for_result)
        if not self.spec.dataset_uri:
            return given
        dataset = S3Address.parse(self.spec.dataset_uri, "dataset_uri")
        try:
            manifest = self.step.store.read_manifest(dataset / MANIFEST)
        except ObjectNotFoundError:  # a program may read files of any kind
            return given | {"data": str(dataset)}
        return given | {"data": dataset_digest(dataset, manifest)}

    def _require_same(self, before: Mapping[str, Any]) -> None:
        """Refuse to continue a training, or to use its output, with other inputs.

        Args:
            before: The inputs in the newest claim. An earlier version stored fewer or none.

        Raises:
            ConfigurationError: It names every parameter that differs.
        """
        now = self._inputs
        ConfigurationError.raise_if(
            Problem(
                f"{name} has changed since this run trained",
                received=json.dumps(now[name], ensure_ascii=False),
                expected=json.dumps(then, ensure_ascii=False),
                fix="start a new run without --run-id, or continue with the original value",
                path="" if name == "data" else name,
            )
            for name, then in before.items()
            if name in now and now[name] != then
        )

    def _adopted(self, claimed: Sequence[int], lost: bool = False) -> dict[str, Any]:
        """Return the manifest of the newest attempt if its job must be followed, else {}.

        Args:
            claimed: The numbers of the attempts so far.
            lost: Whether a different launcher has just claimed the newest one, and follows it.

        Raises:
            JobFailedError: The user has to fix something, and Kubeflow Pipelines retried by itself.
            ConfigurationError: The job of that name does not belong to this run.
        """
        if not claimed:
            return {}
        manifest = self._manifest(claimed[-1])
        name = manifest["metadata"]["name"]
        told, began = False, self.clock()
        # Attempts have different names and are fenced, so pods of a dead node do no harm.
        grace = float(self.spec.pod.of("chief").grace_seconds or 0)
        while True:
            job = self.backend.get(name)
            pods = self.backend.pods(name) if job else []
            found = start.look_at(job, pods, manifest)
            action, longest = start.decide(found, self.retry or lost), _LOST_NODE_SECONDS + grace
            if lost and found == Found.NOTHING:  # its launcher is about to create it
                action, longest = Action.WAIT, _CREATE_SECONDS
            if not told:
                log.info("found %s from an earlier start: %s; %s", name, found, action)
                told = True
            if action == Action.WAIT and self.clock() - began < longest:
                self.sleep(_LOOK_AGAIN_SECONDS)
                continue
            if action == Action.REFUSE:
                raise _not_ours(manifest, found)
            if action == Action.ADOPT:
                return manifest
            self._record_end(claimed[-1], _UNSEEN)
            if action == Action.REPEAT:
                judgement = judge(job, pods)
                if end := read_ends(self.step.store, self.step.run, claimed[-1:])[claimed[-1]]:
                    # Its launcher saw the log, too.
                    judgement = replace(judgement, sentence=end.sentence, fix=end.remedy)
                raise _failure(judgement, words(judgement, self.spec.kind.container, lambda *_: []))
            if found == Found.NOTHING and self.retry and (earlier := self._recorded()):
                raise earlier
            if found == Found.FAILED_FOR_NOW:
                self.backend.delete(name)
            return {}

    def _recorded(self) -> JobFailedError | None:
        """Return the recorded failure that the user has to fix, for a job that is gone."""
        earlier = self._records.failure()
        if not earlier or not earlier.final:
            return None
        if earlier.verdict == Verdict.CANCELLED:
            return None  # a person started it again on purpose
        return JobFailedError(earlier.code, earlier.verdict, earlier.message)

    def _create(self, manifest: Mapping[str, Any]) -> None:
        """Create a job; an existing job with the same owner and spec is adopted."""
        name = manifest["metadata"]["name"]
        log.info(
            "creating %s: 1 chief, %s, %s",
            name,
            counted(self.spec.workers, "worker"),
            counted(self.spec.total_gpus, "GPU"),
        )
        try:
            self.backend.create(manifest)
        except JobExistsError:
            found = start.look_at(self.backend.get(name), [], manifest)
            if found in (Found.OTHER_OWNER, Found.OTHER_SPEC):
                raise _not_ours(manifest, found) from None
            log.info("%s exists already and is adopted", name)

    def _fail_if_ended(self, made: str = "") -> None:
        """Start no job for a run that was ended, and delete a job that was just created.

        Raises:
            JobFailedError: The run was ended.
        """
        if why := self.ended():
            if made:
                self.backend.delete(made)
            raise _failure(cancelled(why), [])

    def _record_end(self, attempt: int, unseen: Judgement) -> None:
        """Record the end of an attempt whose launcher was killed before it could; never raises.

        Args:
            attempt: The attempt; its job has ended, or is about to.
            unseen: The verdict if neither its job nor its chief's own record is left.
        """
        manifest = self._manifest(attempt)
        name = manifest["metadata"]["name"]
        try:
            end = read_ends(self.step.store, self.step.run, [attempt])[attempt]
            if end and end.is_final:
                return
            job, until = self.backend.get(name), self.clock() + CLOSING_SECONDS
            while job and not (is_over(job) or is_being_deleted(job)) and self.clock() < until:
                self.sleep(_LOOK_AGAIN_SECONDS)
                job = self.backend.get(name)
            if job and is_over(job) and not is_being_deleted(job):
                keep = self.logs.attempt(attempt) if self.logs else None
                found = Attempt(self.backend, manifest, self.spec, attempt, keep=keep).follow()
                self._records.keep_end(found.end)
            elif job is None or is_being_deleted(job):
                found = end or end_of(attempt, self.spec.kind, job, name, unseen, ())
                whose = {"job": name, "kind": self.spec.kind.name, "task_key": self.step.task_key}
                self._records.keep_end(replace(found, **whose))
        except StepError as error:
            log.info("the end of attempt %d is not recorded: %s", attempt, error)

    def record_cancel(self, why: str) -> None:
        """Record that the run was ended, before its job has; a later record replaces this one."""
        try:
            attempt = self._records.claimed()[-1]
        except (StepError, IndexError):
            return
        name = self._manifest(attempt)["metadata"]["name"]
        end = end_of(attempt, self.spec.kind, None, name, cancelled(why), ())
        self._records.keep_end(replace(end, task_key=self.step.task_key), final=False)

    def _has_completed(self, attempt: int) -> bool:
        return self._records.completed() == attempt

    def _last_claim(self, claimed: Sequence[int], adopted: bool) -> Claim | None:
        """Return the newest claim, or None if a person started the run and the count restarts."""
        if not (claimed and (self.retry or adopted)):
            return None
        return self._records.claim(claimed[-1])

    def _next_claim(
        self,
        claimed: Sequence[int],
        last: Claim | None,
        failure: JobFailedError | None,
        placed: bool,
    ) -> Claim:
        """Return the claim of the next attempt, unless the run has reached a limit.

        Args:
            claimed: The numbers of the attempts so far.
            last: The newest claim that counts; None before the first.
            failure: The failure that ended it, if this launcher saw it.
            placed: Whether all its pods had nodes.
        """
        attempt = max(claimed, default=0) + 1
        checkpoint = self._records.newest_checkpoint()
        if last is None:
            return Claim.first(attempt, checkpoint)
        options = self.spec.options
        claim = last.next(attempt, checkpoint, placed)
        used = claim.used(options.max_attempts)
        if claim.fruitless >= options.max_attempts:
            raise failure.after(used) if failure else self._earlier_failure(used)
        if claim.left(options.run_deadline_seconds) <= 0:
            raise _failure(out_of_time(options), []).after(used)
        if failure:
            log.info("%s", used)
        return claim

    def _in_the_end(self, failure: JobFailedError, claim: Claim) -> JobFailedError:
        """Return a failure, with the attempts that the run has used if there were several."""
        if failure.verdict != Verdict.DEADLINE and claim.attempt == claim.since:
            return failure
        try:
            ended = claim.next(claim.attempt + 1, self._records.newest_checkpoint())
        except StepError as error:
            log.warning("the number of attempts so far is not known: %s", error)
            return failure
        return failure.after(ended.used(self.spec.options.max_attempts))

    def _earlier_failure(self, used: str) -> StepError:
        """Return the failure of the last attempt: KFP starts a failed step again."""
        if earlier := self._records.failure():
            return JobFailedError(earlier.code, earlier.verdict, earlier.message)
        return ConfigurationError(
            Problem(
                "the run has used all of its attempts",
                received=used,
                expected="an attempt that stores a newer checkpoint, or completes the output",
                fix="start a new run, or raise train_options.max_attempts",
            )
        )

    def _keep_claim(self, claim: Claim) -> dict[str, Any]:
        """Store a claim and return its manifest, or {} if a different launcher was faster."""
        manifest = self._manifest(claim.attempt)
        name = manifest["metadata"]["name"]
        record = replace(claim, inputs=self._inputs).to_bytes(
            self.step.run_id, name, spec_hash(manifest)
        )
        return manifest if self._records.keep_claim(claim.attempt, record) else {}

    def _manifest(self, attempt: int) -> dict[str, Any]:
        run, key = self.step.run_id, self.step.task_key
        run_uri = str(self.step.run.base)
        identity = Identity(run, attempt, task_key=key, owner=self.owner, run_uri=run_uri)
        return build_job(self.spec, identity)

    def _launched(self, attempt: int, claimed: Sequence[int] = ()) -> Launched:
        """Return the result; without `claimed`, the attempts are listed."""
        manifest = self._manifest(attempt)
        progress = read(self.step.store, self.step.run)
        claimed = claimed or self._records.claimed()
        attempts = max(claimed, default=attempt)
        log.info("the output of attempt %d is complete in the store", attempt)
        known = self.step.store, self.step.run, claimed
        found = gpu_hours(*known) if self.spec.total_gpus else {}
        hours = {f"gpu_hours_{name}": value for name, value in found.items()}
        name = manifest["metadata"]["name"]
        return Launched(name, attempts, manifest, progress, self._records.model_uri(), hours)


def run(step: Step, spec: JobSpec, backend: Backend, logs: RunLogs | None = None) -> Launched:
    """Train, or return at once if the output of the run is complete.

    Args:
        step: The run and its store.
        spec: The requested job.
        backend: The back end that runs the jobs.
        logs: Stores the log lines of the jobs; None to store none.

    Raises:
        JobFailedError: The training failed; the last lines of the replica that failed first.
    """

    def farewell(why: str) -> None:
        ended = Launcher(step, spec, backend, owner)
        telling = threading.Thread(target=_tell_end, args=(ended, why), daemon=True)
        telling.start()
        if logs:
            logs.flush(_FAREWELL_SECONDS)
        telling.join(_FAREWELL_SECONDS)

    owner, seconds = backend.owner(), spec.options.cancel_grace_seconds
    with backend.watch_workflow(step.run_id, owner, seconds, farewell) as ended:
        return Launcher(step, spec, backend, owner, is_retry(), ended, logs=logs).run()


def _tell_end(launcher: Launcher, why: str) -> None:
    """Record and notify that the run was ended; the launcher may be killed before it fails."""
    step, spec = launcher.step, launcher.spec
    if why:
        launcher.record_cancel(why)
        ended = _failure(cancelled(why), [])
        said = (step.run_id, step.name, ended.code, ended.verdict, str(ended))
        notice = replace(notify.failure(*said), model_name=spec.model_name)
        notify.notify(notice, step.store, step.whole_run)


def _not_ours(manifest: Mapping[str, Any], found: Found) -> ConfigurationError:
    name = f"{manifest['kind']} {manifest['metadata']['name']}"
    if found is Found.OTHER_SPEC:
        return ConfigurationError(
            Problem(
                f"{name} of this run was created with different parameters, or by a"
                " different version of kfp-tfjob",
                received=f"a job with {found}",
                expected="the job that this version creates from the parameters of the run",
                fix="let the version that created it finish it, or delete the job and retry: the"
                " run continues from its newest stored checkpoint",
            )
        )
    return ConfigurationError(
        Problem(
            f"{name} exists already, and this run did not create it",
            received=f"a job with {found}",
            expected="the same run, Workflow and spec hash",
            fix="start a new run, or delete that job if it is not needed",
        )
    )


def _failure(judgement: Judgement, words: list[str]) -> JobFailedError:
    message = str(Problem(judgement.sentence, fix=judgement.remedy))
    if words:
        message += "\n".join([" Its last lines:", *(f"    {line}" for line in words)])
    return JobFailedError(judgement.code, str(judgement.verdict), message)
