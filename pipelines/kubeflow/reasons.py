"""Says why a run failed, waits, or published nothing, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kfp_tfjob.checks.finding import Finding, Status, only
from kfp_tfjob.components.finish.workflow import cause
from kfp_tfjob.components.preflight.parameters import defaults, job_spec
from kfp_tfjob.jobs.attempt_record import AttemptEnd
from kfp_tfjob.jobs.log_masking import Mask
from kfp_tfjob.options.pipeline import PARAMETERS, completed
from kfp_tfjob.pipelines.kubeflow import cluster_checks
from kfp_tfjob.pipelines.kubeflow.connection import BackEnd
from kfp_tfjob.pipelines.kubeflow.pods import RunOnCluster
from kfp_tfjob.pipelines.kubeflow.records import Progress, Records
from kfp_tfjob.pipelines.kubeflow.runs import Run, all_parameters
from kfp_tfjob.storage.errors import StepError
from kfp_tfjob.storage.failure_record import Failure
from kfp_tfjob.storage.formatting import minutes
from kfp_tfjob.storage.verdict_record import Check, ModelVerdict

_LINES = 12  # of a log
# The parameters that every pipeline has whose runs decide what the replicas request.
_OF_JOB = {name for name in PARAMETERS if name.startswith(("train_", "pod"))}
_TAINT = "tolerate the taints of more nodes with pod.all.tolerations in a new run"


@dataclass(frozen=True)
class Attempt:
    """One attempt of the training job.

    Attributes:
        number: From 1.
        verdict: One word; empty while it runs.
        sentence: What happened.
        remedy: What to do.
        log: The last lines of the containers that failed.
    """

    number: int
    verdict: str
    sentence: str
    remedy: str
    log: tuple[str, ...] = ()


@dataclass(frozen=True)
class Why:
    """Why a run is as it is.

    Attributes:
        run: The run, with its verdict.
        summary: The state in one sentence.
        reason: What happened, or what it waits for.
        remedy: What to do; empty for nothing.
        step: The step that failed or that runs; empty for none.
        code: The exit code of the step that failed; None for none.
        attempts: The attempts of the training job, the newest last.
        checks: The checks of the gate.
        log: The last lines of the failed step, if only they say something.
        notes: What could not be read, and why.
    """

    run: Run
    summary: str
    reason: str
    remedy: str = ""
    step: str = ""
    code: int | None = None
    attempts: tuple[Attempt, ...] = ()
    checks: tuple[Check, ...] = ()
    log: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def explain(back_end: BackEnd, run: Run, endpoint: str = "") -> Why:
    """Return why a run is as it is; `endpoint` is the store's URL as this machine reaches it."""
    records = Records(run, endpoint)
    run = records.judged()
    if run.state == "succeeded":
        found = _green(run, records)
    else:
        found = (_ended if run.is_over else _going)(run, records, back_end)
    return (
        replace(found, notes=(*found.notes, "this run is archived")) if run.is_archived else found
    )


def _green(run: Run, records: Records) -> Why:
    ended = records.outcome
    verdict = ended.verdict
    if ended.earlier:
        return Why(
            run,
            "The run succeeded without training, because nothing has changed.",
            f"the run {ended.earlier.run_id} had the same data, code and options",
            "nothing; to train anyway: --set train_options.when_unchanged=train",
        )
    if why := ended.why_not_evaluated:
        summary = "The run succeeded: its output is stored and verified. It evaluated no model."
        fix = "nothing; to evaluate: --set train_options.evaluate=true, with a table in data_uri"
        return Why(run, summary, why, fix)
    if verdict is None:
        trouble = records.trouble
        reason = f"its verdict cannot be read: {trouble}" if trouble else "it stored no verdict"
        return Why(run, "The run succeeded.", reason, notes=_notes(records))
    # That the primary metric has a value says nothing new.
    checks = tuple(it for it in verdict.checks if it.name != "primary_metric" or not it.passed)
    found = Why(run, "", verdict.reason, checks=checks, notes=_notes(records))
    if ended.record:
        summary = f"Published as version {ended.record.version} of {run.model}."
        return replace(found, summary=summary)
    if lost := ended.lost:
        reason, _, remedy = lost.message.partition("; ")
        summary = "The run succeeded, and its model was not published: it lost the race."
        told = {"reason": reason, "remedy": remedy, "step": "publish", "code": lost.code}
        return replace(found, summary=summary, **told)
    if verdict.blessed:
        summary = "The model passed the gate, but its record as champion cannot be found."
        return replace(found, summary=summary)
    failed = "; ".join(check.explanation for check in checks if not check.passed)
    summary = "The run succeeded, and its model was not published: it did not pass the gate."
    remedy = _gate_remedy(verdict, checks)
    return replace(found, summary=summary, reason=failed or verdict.reason, remedy=remedy)


def _gate_remedy(verdict: ModelVerdict, checks: Sequence[Check]) -> str:
    failed = {check.name for check in checks if not check.passed}
    if "gate" in failed:
        return "set `gate`, for example --set gate.mode=superior"
    if "same_model" in failed:
        return "nothing: the champion has the same weights and predicts the same"
    if "taken_back" in failed:
        return (
            "correct the data or the model; to publish it anyway: kfp-tfjob models promote"
            f" {verdict.model_name} --run {verdict.run_id} --reason TEXT"
        )
    if "champion" in failed and verdict.champion and verdict.champion.obstacle:
        return "set gate.incompatible_champion to treat_as_first to replace the champion anyway"
    if "threshold" in failed:
        return "improve the model or its data, or change gate.thresholds"
    return "improve the model, or provide more test rows: kfp-tfjob explain gate shows the modes"


def _ended(run: Run, records: Records, back_end: BackEnd) -> Why:
    attempts = _attempts(run, records.ends())
    failure, log, notes = _cause(run, records, back_end)
    run = _with_verdict(run, failure)
    if run.was_cancelled and (failure is None or _says_nothing(failure)):
        # Argo only says that a step exceeded its deadline: ending a run sets it to zero.
        step = next((it.name for it in run.steps if it.state == "failed"), "")
        reason = f"a user ended it{f' during {step}' if step else ''}"
        remedy = f"to continue: kfp-tfjob retry {run.run_id[:8]}"
        code = failure.code if failure else None
        said = "The run was cancelled."
        return Why(run, said, reason, remedy, step, code, attempts, notes=notes)
    if failure is None:
        step = next((it.name for it in run.steps if it.state == "failed"), "")
        said = run.error or next((it.error for it in run.steps if it.error), "")
        reason = said or "neither the store, nor the cluster, nor the back end gives a reason"
        remedy = f"read the log of {step or 'the failed step'} at {run.page}"
        return Why(run, _sentence(run, step), reason, remedy, step, None, attempts, (), log, notes)
    remedy = failure.fix if len(failure.problems) == 1 else ""  # several are in the reason
    reason, remedy = map(Mask(), (failure.reason, remedy))
    last = attempts[-1] if attempts else None
    # All attempts of another launch in this run may have succeeded.
    if last and last.verdict != "succeeded" and failure.step == "launch_tfjob" and not remedy:
        remedy = last.remedy
    step = "" if failure.step == "run" else failure.step
    return Why(
        run,
        _sentence(run, step, failure),
        reason,
        remedy,
        step,
        failure.code,
        attempts,
        (),
        log,
        notes,
    )


def judged(back_end: BackEnd, records: Records, away: list[str] | None = None) -> Run:
    """Return the run with the verdict that `explain` shows.

    Args:
        back_end: The back end.
        records: The run's records.
        away: Gets the reason why the cluster cannot be asked. With one, nothing waits for it.
    """
    run = records.judged()
    if run.state not in ("failed", "canceled"):
        return run
    return _with_verdict(run, _cause(run, records, back_end, away)[0])


def _with_verdict(run: Run, failure: Failure | None) -> Run:
    word = failure.verdict if failure else "cancelled" if run.was_cancelled else ""
    return replace(run, verdict=word)


def _cause(
    run: Run, records: Records, back_end: BackEnd, away: list[str] | None = None
) -> tuple[Failure | None, tuple[str, ...], tuple[str, ...]]:
    """Return what ended a run: its record, else what the cluster shows, with its log; and notes."""
    failure, notes = records.failure(), _notes(records)
    if away or run.was_cancelled or not (failure is None or _says_nothing(failure)):
        return failure, (), notes
    cluster = RunOnCluster(run.run_id, back_end.namespace)
    if away is not None and cluster.trouble:
        away.append(cluster.trouble)
    tasks = cluster.failed()
    found = cause(tasks, None)
    if found and not (failure and found.code == 143):
        log = tuple(line for task in tasks for line in task.last_words[-_LINES:])
        return found, log, notes
    if failure is None and cluster.trouble:
        notes = (*notes, f"the run's pods cannot be read: {cluster.trouble}")
    return failure, (), notes


def _says_nothing(failure: Failure) -> bool:
    """Return whether the record only says that the run was ended."""
    return failure.step == "run"


def _sentence(run: Run, step: str, failure: Failure | None = None) -> str:
    if failure and failure.verdict == "cancelled":
        return "The run was cancelled."
    where = f" in {step}" if step else ""
    word = f" ({failure.verdict})" if failure else ""
    return f"The run {run.state}{where}{word}."


def _going(run: Run, records: Records, back_end: BackEnd) -> Why:
    cluster = RunOnCluster(run.run_id, back_end.namespace)
    seen = cluster.look()
    notes = _notes(records)
    if cluster.trouble:
        notes += (f"the cluster cannot be reached: {cluster.trouble}",)
    current = run.current
    step = current.name if current else ""
    attempts = _attempts(run, records.ends())
    if seen and seen.waits:
        waits = "; ".join(seen.waits)
        remedy = _wait_remedy(waits)
        if "nodes are available" in waits and (small := _too_small(run, back_end)):
            waits, remedy = "; ".join([*(it.what for it in small), waits]), small[0].fix
        summary = f"The run is waiting in {step}." if step else "The run is waiting."
        return Why(run, summary, waits, remedy, step, None, attempts, notes=notes)
    progress = records.progress() if step == "launch_tfjob" else None
    if progress:
        reason = f"it is training: {progress_line(progress)}"
    elif step == "launch_tfjob":
        reason = "the training job has not reported progress yet"
    elif current and current.state == "pending":
        reason = f"the pod of {step} is being created"
    elif current:
        reason = f"{step} is running"
    elif not run.steps and run.root_driver:
        reason = f"{run.root_driver}; Kubeflow Pipelines retries it"
    elif not run.steps:
        reason = "Kubeflow Pipelines has not started its first step yet"
    else:
        reason = "the back end is between two steps"
    return Why(run, f"The run is {run.state}.", reason, "", step, None, attempts, notes=notes)


def _too_small(run: Run, back_end: BackEnd) -> list[Finding]:
    """Return which replicas no node can hold, the largest node, and the parameter to change."""
    try:
        parameters = all_parameters(back_end, run.run_id)
        if not parameters.keys() >= _OF_JOB:
            return []  # another pipeline decides what its job requests
        given = {name: it for name, it in parameters.items() if it != ""}
        spec = job_spec(completed(defaults(), given))
    except StepError:
        return []
    return only(cluster_checks.look(spec, back_end.namespace), Status.WAITS)


def _wait_remedy(waits: str) -> str:
    """Return what to do about pods that wait, by the words of Kubernetes."""
    if "ImagePull" in waits or "InvalidImageName" in waits:
        return (
            "push the image to its registry, correct its name, or give the nodes access with"
            " pod.all.image_pull_secret or the imagePullSecrets of the service account; the pod"
            " then retries on its own"
        )
    if "secret" in waits.lower() and "not found" in waits:
        return "create the Secret; the pod then retries on its own"
    free = "free the resources that it waits for"
    if "untolerated taint" in waits:
        free += f", {_TAINT}"
    return f"{free}, or cancel the run and request less"


def progress_line(progress: Progress) -> str:
    """Return the progress of a training run on one line."""
    values = " ".join(f"{name} {value:.4g}" for name, value in progress.metrics.items())
    parts = [f"epoch {progress.epoch}", f"step {progress.step:,} of {progress.steps:,}", values]
    if progress.examples_per_second:
        parts.append(f"{progress.examples_per_second:,.0f} rows/s")
    if progress.eta_seconds is not None and progress.step < progress.steps:
        parts.append(f"{minutes(progress.eta_seconds)} left")
    return ", ".join(part for part in parts if part)


def _attempts(run: Run, ends: Mapping[int, AttemptEnd | None]) -> tuple[Attempt, ...]:
    if run.is_over:
        why = "its launcher was stopped before it recorded the end"
    else:
        why = "it is running, or its launcher was lost"
    return tuple(
        Attempt(number, "", why, "")
        if end is None
        else Attempt(number, end.verdict, end.sentence, end.remedy, _log(end))
        for number, end in sorted(ends.items())
    )


def _log(end: AttemptEnd) -> tuple[str, ...]:
    if end.verdict == "succeeded":
        return ()
    return tuple(
        f"[{pod.replica}{'' if len(pod.containers) == 1 else '/' + container.name}] {line}"
        for pod in end.pods
        for container in pod.containers
        if container.exit_code
        for line in container.last_lines
    )


def _notes(records: Records) -> tuple[str, ...]:
    return (f"the run's records cannot be read: {records.trouble}",) if records.trouble else ()
