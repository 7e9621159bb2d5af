"""Trains until the output is verified in the store, or a user has to fix something.

A training outlives its launcher. So an attempt is claimed in the store before its job exists, a
launcher that starts later adopts the job, and only a complete manifest counts as success. Each
attempt continues from the newest stored checkpoint. Called by the step's `component.py`.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kfp_tfjob.checks.finding import Finding, Status, only
from kfp_tfjob.checks.subject import Subject, open_cluster
from kfp_tfjob.cluster.backend import Backend, JobExistsError, is_local
from kfp_tfjob.cluster.log_writer import RunLogs
from kfp_tfjob.common.errors import ConfigurationError, Problem, Problems, StepError
from kfp_tfjob.common.formatting import counted
from kfp_tfjob.jobs.attempt_record import end_of, gpu_hours
from kfp_tfjob.jobs.kinds import kind_named
from kfp_tfjob.jobs.log_masking import hide
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.jobs.verdict import JobFailedError, Judgement, Verdict, cancelled
from kfp_tfjob.options import container_images
from kfp_tfjob.options.parameter_masking import secrets_in

from ..cards import TrainedModelCard
from ..step import Step, is_retry
from ..summary import tensorboard_command
from ..task_claim import claim_task
from . import earlier_job
from .attempt import Attempt, Outcome
from .attempt_budget import Claim
from .card import trained_model
from .disk import with_disk
from .earlier_job import JobState
from .launch_context import Launch, open_backend
from .records import Records, require_same
from .report import TrainingHistory, curves_html, job_html, read
from .task import apply

log = logging.getLogger(__name__)

_ON_EXIT_SECONDS = (
    1.5  # SIGKILL may follow SIGTERM within seconds, and stopping the job comes first
)
_LONGEST_BACKOFF = 600.0  # doubling goes on no further: nodes that are free again stay idle so long
_MOST_MARKED = 20  # attempts on the page of a training; each is a request to the store


@dataclass(frozen=True)
class Launched:
    """A training whose output is complete in the store, with its job, metrics and GPU hours."""

    manifest: Object
    progress: TrainingHistory
    card: TrainedModelCard
    model_uri: str = ""
    gpu_hours: Mapping[str, float] = field(default_factory=dict)

    @property
    def job_name(self) -> str:
        """The job that completed the output."""
        return self.card.job_name

    @property
    def attempts(self) -> int:
        """How many jobs the run needed."""
        return self.card.attempts


@dataclass
class Launcher:
    """Trains in one attempt after the other."""

    launch: Launch
    claimed: list[int] = field(default_factory=list)
    claim: Claim | None = None
    failure: JobFailedError | None = None
    _backoff: float = 0.0
    _waited: float = 0.0  # for nodes, in all attempts of this launcher
    _verdict: Verdict | None = None  # of the last attempt of this launcher
    _lost: bool = False  # whether a different launcher has just claimed the next attempt

    def train(self) -> Launched:
        """Train until the output is complete in the store.

        1. If the output is complete, the run is done.
        2. Look at the newest attempt: adopt a running job, and decide about a failed one.
        3. Otherwise claim the next attempt in the store; the highest number owns the run.
        4. Build its job and create it. A job of that name is adopted if it is the same.
        5. Watch the job, its log lines and its limits; judge how it ended, and record that.
        6. If the infrastructure failed, start a new attempt from the newest stored checkpoint,
           within the run's limits. Otherwise fail with the last lines of the replica that
           failed first.

        Raises:
            JobFailedError: The training failed.
            ConfigurationError: A job of this name does not belong to this run.
        """
        # Listed once: the store rejects a number that a different launcher takes meanwhile.
        self._list_claims()
        if done := self._completed_before():
            return self._launched(done)
        job = self._adopt()
        # Without an earlier attempt, nothing can have completed since the first look.
        while not (self.claimed and (done := self.launch.records.completed())):
            if self._lost:
                job = self._adopt()
            if not job:
                self._next_claim()
                job = self._claim_and_create()
            if not job:
                continue
            outcome = self._follow()
            if outcome.judgement.verdict == Verdict.SUCCEEDED:
                return self._launched(self.claimed[-1])
            self._recover(outcome)
            job = False
        return self._launched(done)

    def _list_claims(self) -> None:
        """List the claimed attempts; all of them continue the MLflow run of the first.

        When a person retries the run, the back end's plugin creates another MLflow run.
        """
        self.claimed = self.launch.records.claimed()
        if self.claimed:
            first = self.launch.records.claim(self.claimed[0])
            self.launch = replace(self.launch, tracking=first.tracking)

    def _completed_before(self) -> int:
        """Return the attempt whose output an earlier start has completed, or 0."""
        records = self.launch.records
        completed = records.completed()
        if self.claimed and (completed or records.newest_checkpoint()):
            before = records.claim(self.claimed[-1]).inputs
            require_same(before, records.inputs(self.launch.spec))
        if completed:
            succeeded = Judgement(Verdict.SUCCEEDED, "the chief succeeded")
            earlier_job.record_end(self.launch, completed, succeeded)
        return completed

    def _adopt(self) -> bool:
        """Return whether the job of the newest attempt must be followed, and read its claim."""
        job = earlier_job.adopt(self.launch, self.claimed, self._lost)
        # Without a retry, a person started the run, and the count of the attempts restarts.
        counts = self.claimed and (self.launch.retry or job or self._lost)
        self.claim = self.launch.records.claim(self.claimed[-1]) if counts else None
        self._lost = False
        return job

    def _next_claim(self) -> None:
        """Prepare the claim of the next attempt, unless the run has reached a limit; then pause."""
        launch, options, last = self.launch, self.launch.spec.options, self.claim
        attempt = max(self.claimed, default=0) + 1
        checkpoint = launch.records.newest_checkpoint()
        if last is None:
            self.claim = Claim.first(attempt, checkpoint)
            return
        self.claim = claim = last.next(attempt, checkpoint, self._verdict)
        used = claim.used(options.max_attempts)
        if claim.fruitless >= options.max_attempts:
            raise self.failure.after(used) if self.failure else self._earlier_failure(used)
        if self.failure:
            log.info("%s", used)
            if claim.checkpoint > last.checkpoint:
                self._backoff = 0
            backoff = self._backoff or options.backoff_seconds
            # Two jobs that release GPUs for each other must not return at the same time.
            pause = backoff * random.uniform(0.5, 1.0)
            log.info("attempt %d starts in %.0f s", attempt, pause)
            launch.sleep(pause)
            self._backoff = max(backoff, min(2 * backoff, _LONGEST_BACKOFF))

    def _claim_and_create(self) -> bool:
        """Store the claim and create its job; return False if a different launcher was faster.

        A job that exists is adopted if it has the same owner and spec.
        """
        launch, claim = self.launch, self.claim
        assert claim
        launch.fail_if_ended()
        manifest = launch.manifest(claim.attempt)
        name = manifest["metadata"]["name"]
        if not launch.records.save_claim(claim, launch.spec, manifest, launch.tracking):
            self._list_claims()
            self._lost = True
            return False
        self.claimed.append(claim.attempt)
        workers, gpus = launch.spec.workers, launch.spec.total_gpus
        replicas = f"{counted(workers, 'worker')}, {counted(gpus, 'GPU')}"
        log.info("creating %s: 1 chief, %s", name, replicas)
        try:
            launch.backend.create(manifest)
        except JobExistsError:
            state = earlier_job.job_state(launch.backend.get(name), [], manifest)
            if state in (JobState.OTHER_OWNER, JobState.OTHER_SPEC):
                raise earlier_job.foreign_job_error(manifest, state) from None
            log.info("%s already exists and is adopted", name)
        launch.fail_if_ended(name)
        return True

    def _follow(self) -> Outcome:
        """Follow the job of the newest claim to its end."""
        assert self.claim
        return Attempt(self.launch, self.claim.attempt, self._waited).follow()

    def _recover(self, outcome: Outcome) -> None:
        """Return if a new attempt may succeed; raise the failure if none may."""
        verdict, self.failure = outcome.judgement.verdict, outcome.failure
        log.warning("%s: %s: %s", outcome.end.job, verdict, self.failure)
        self._verdict = verdict
        # Time limits the wait for nodes, not the number of attempts.
        self._waited += 0 if verdict.uses_budget else outcome.end.seconds["pending"]
        waits = (
            verdict.uses_budget or self._waited < self.launch.spec.options.pending_timeout_seconds
        )
        if not (verdict.recoverable and waits):
            raise self._in_the_end(self.failure)

    def _in_the_end(self, failure: JobFailedError) -> JobFailedError:
        """Return a failure, with the attempts that the run has used if there were several."""
        claim = self.claim
        assert claim
        if claim.attempt == claim.since:
            return failure
        try:
            ended = claim.next(claim.attempt + 1, self.launch.records.newest_checkpoint())
        except StepError as error:
            log.warning("the number of earlier attempts is unknown: %s", error)
            return failure
        return failure.after(ended.used(self.launch.spec.options.max_attempts))

    def _earlier_failure(self, used: str) -> StepError:
        """Return the failure of the last attempt: KFP starts a failed step again."""
        if earlier := self.launch.records.failure():
            return JobFailedError.again(earlier)
        return ConfigurationError(
            Problem(
                "the run has used all of its attempts",
                received=used,
                expected="an attempt that stores a newer checkpoint, or completes the output",
                fix="start a new run, or raise train_options.max_attempts",
                name="no-attempts-left",
            )
        )

    def _launched(self, attempt: int) -> Launched:
        launch, step = self.launch, self.launch.step
        manifest = launch.manifest(attempt)
        log.info("the output of attempt %d is complete in the store", attempt)
        gpus = launch.spec.total_gpus
        hours = gpu_hours(step.store, step.run, self.claimed) if gpus else {}
        output, history = launch.records.output(), read(step.store, step.run)
        history = replace(history, resumed=launch.records.resumed(self.claimed[-_MOST_MARKED:]))
        attempts = max(self.claimed, default=attempt)
        return Launched(
            manifest,
            history,
            trained_model(launch, output, manifest["metadata"]["name"], attempts, history),
            launch.records.model_uri(output),
            {f"gpu_hours_{name}": value for name, value in hours.items()},
        )


def run(step: Step, parameters: Mapping[str, Any], curves: str, job: str) -> Launched:
    """Train with the run parameters, as KFP delivered them, and write the two HTML pages.

    Raises:
        ConfigurationError: Parameters are wrong, or the back end does not exist.
        JobFailedError: The training failed.
    """
    problems = Problems()
    arguments, task = apply(parameters, problems)
    hide(secrets_in(arguments["model_hyperparameters"]))
    hide(secrets_in(arguments["pod"]))
    claim_task(step)
    arguments["train_image"] = arguments["train_image"] or container_images.TRAIN
    decided = arguments.pop("job_kind", "")
    is_checked = bool(arguments["model_entry"])  # which preflight returns
    if not is_checked:
        # Most launches need no checks.
        from .standalone import prepared

        launch = prepared(step, arguments, problems)
        arguments, task = launch.parameters, replace(task, findings=launch.findings)
    arguments.pop("model_code", None)
    spec = problems.of(lambda: JobSpec.parse(trained=Records(step).trained_inputs(), **arguments))
    if problems or not spec:
        raise ConfigurationError(*problems)
    if not arguments["train_batch_size"]:
        log.info("train_batch_size 0: a step has %d rows over all replicas", spec.batch_size)
    spec = with_disk(step, settled(step, spec, decided))
    if is_checked and task.settings:
        task = replace(task, findings=checked_again(step, spec))
    # The local back end ends its jobs when it is closed, and their last lines are stored after it.
    with RunLogs(step.store, step.run) as logs, open_backend(spec) as backend:
        launched = train(step, spec, backend, logs)
    title = f"Training of {spec.model_name or step.task_key or step.run_id}"
    Path(curves).write_text(curves_html(launched.progress, title))
    Path(job).write_text(job_html(launched.manifest, tensorboard_command(step), task))
    return launched


def checked_again(step: Step, spec: JobSpec) -> list[Finding]:
    """Return the result of preflight's checks of the cluster, with the settings of the task.

    Preflight could not see these settings, because Kubeflow Pipelines passes them to their own task
    only.

    Raises:
        ConfigurationError: The job would fail.
    """
    from .standalone import check_cluster

    if step.store.numbers(step.run.attempts):
        return []  # the run's own job may fill a quota
    findings = check_cluster(step, spec)
    if problems := only(findings, Status.PROBLEM):
        notes = [finding.text for finding in only(findings, Status.WARNING, Status.WAITS)]
        raise ConfigurationError(*problems, notes=notes)
    return findings


def settled(step: Step, spec: JobSpec, decided: str) -> JobSpec:
    """Return the job with the kind that the run began with, else with one that the cluster runs."""
    if recorded_kind := Records(step).kind():
        if spec.options.job not in ("auto", recorded_kind.name.lower()):
            log.warning(
                "train_options.job is ignored, because this run began with a %s", recorded_kind.name
            )
        return replace(spec, kind=recorded_kind)
    if decided:
        return replace(spec, kind=kind_named(decided))
    if is_local():
        return spec
    api = open_cluster(spec.options.api_timeout_seconds, spec.kind)
    return Subject(api, spec, run_id=step.run_id, task_key=step.task_key).settled.spec


def train(step: Step, spec: JobSpec, backend: Backend, logs: RunLogs | None = None) -> Launched:
    """Train, or return at once if the run's output is complete; stop if the run is ended.

    Raises:
        JobFailedError: The training failed; the last lines of the replica that failed first.
    """

    def on_exit(why: str) -> None:
        launch = Launch(step, spec, backend, owner)
        recording = threading.Thread(target=record_cancelled, args=(launch, why), daemon=True)
        recording.start()
        if logs:
            logs.flush(_ON_EXIT_SECONDS)
        recording.join(_ON_EXIT_SECONDS)

    owner, seconds = backend.owner(), spec.options.cancel_grace_seconds
    with backend.watch_workflow(step.run_id, owner, seconds, on_exit) as ended:
        return Launcher(Launch(step, spec, backend, owner, is_retry(), ended, logs=logs)).train()


def record_cancelled(launch: Launch, why: str) -> None:
    """Record that the run was ended, before its job has; nothing without a reason."""
    if not why:
        return
    step, ended = launch.step, cancelled(why)
    try:
        attempt = launch.records.claimed()[-1]
        end = end_of(attempt, launch.spec.kind, None, launch.name(attempt), ended, ())
        launch.records.save_end(replace(end, task_key=step.task_key), final=False)
    except (StepError, IndexError):
        log.info("no attempt has been recorded")
