"""Explains why a run failed, is waiting, or published nothing, and what to do about it.

The best source is the record of the failed step in the store. A step that was killed leaves none,
so the pods are read next, and last the message of the back end. Called by `kfp-tfjob why` and
`watch`, by the Python client, and for local runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from kfp_tfjob.checks.finding import Finding, Status, only
from kfp_tfjob.cluster import waiting_reasons
from kfp_tfjob.common.docs_page import address_of
from kfp_tfjob.common.errors import StepError
from kfp_tfjob.common.formatting import minutes
from kfp_tfjob.common.progress import ProgressReport
from kfp_tfjob.components.finish.workflow import FailedTask, cause
from kfp_tfjob.components.preflight.parameters import defaults
from kfp_tfjob.components.preflight.plan import job_spec
from kfp_tfjob.jobs.attempt_record import AttemptEnd
from kfp_tfjob.jobs.failure_record import Failure
from kfp_tfjob.jobs.log_masking import Mask
from kfp_tfjob.options.parameters import PARAMETERS, completed
from kfp_tfjob.registry.verdict_record import Check, ModelVerdict

from . import submit_checks
from .pods import ClusterSnapshot
from .records import Progress, Records
from .runs import Run

_LINES = 12  # of a log, for a terminal; `kfp-tfjob logs` shows all lines
# The parameters that a pipeline has if its runs decide what the replicas request.
_JOB_PARAMETERS = {name for name in PARAMETERS if name.startswith(("train_", "pod"))}


@dataclass(frozen=True)
class Attempt:
    """One attempt of the training job.

    Attributes:
        number: The attempt's number, from 1.
        verdict: One word; empty while it runs.
        sentence: The attempt's end in words, or that it has not ended.
        remedy: The remedy; empty if none is needed.
        log: The last lines of the containers that failed.
    """

    number: int
    verdict: str
    sentence: str
    remedy: str
    log: tuple[str, ...] = ()


@dataclass(frozen=True)
class Why:
    """The explanation of a run's state.

    Attributes:
        run: The run, with its verdict.
        summary: The state in one sentence.
        reason: The cause of the state, for example an error, or the object that the run waits for.
        remedy: The remedy; empty if none is needed.
        step: The step that failed or that runs; empty if there is none.
        code: The exit code of the failed step; None if no step failed.
        attempts: The attempts of the training job, the newest last.
        checks: The checks of the gate.
        log: The last lines of the failed step, if it left no record.
        notes: The things that could not be read, and why.
        docs: The address of the section of docs/failures.md that explains the state; empty if
            there is none.
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
    docs: str = ""


class Machines(Protocol):
    """The run's pods on a cluster, or the processes of a local run.

    Attributes:
        trouble: The reason why they cannot be read; empty if they can.
        namespace: The namespace of the pods; empty if unknown.
    """

    trouble: str
    namespace: str

    def snapshot(self) -> ClusterSnapshot | None:
        """Return the existing objects; None if they cannot be read."""
        ...

    def failed(self) -> list[FailedTask]:
        """Return the tasks that failed, with the last lines of their logs."""
        ...


Connect = Callable[[], Machines]
ReadParameters = Callable[[], Mapping[str, Any]]


def explain(
    run: Run, records: Records, connect: Connect, read_parameters: ReadParameters | None = None
) -> Why:
    """Return the explanation of a run's state.

    Args:
        run: The run.
        records: Its records.
        connect: Connects to the run's pods or processes; called only if the records do not explain
            the state.
        read_parameters: Reads all parameters of the run, with the defaults of its pipeline; called
            only if pods wait for a node. None for those that `run` has.
    """
    run = records.with_verdict()
    if run.state == "succeeded":
        explanation = _explain_success(run, records)
    elif run.is_over:
        explanation = _explain_failure(run, records, connect)
    else:
        read_parameters = read_parameters or (lambda: run.parameters)
        explanation = _explain_progress(run, records, connect, read_parameters)
    if run.is_archived:
        return replace(explanation, notes=(*explanation.notes, "this run is archived"))
    return explanation


def _explain_success(run: Run, records: Records) -> Why:
    outcome = records.outcome
    verdict = outcome.verdict
    if outcome.earlier:
        return Why(
            run,
            "The run succeeded without training, because nothing has changed.",
            f"the run {outcome.earlier.run_id} had the same data, code and options",
            "nothing; to train anyway: --set train_options.when_unchanged=train",
        )
    if reason := outcome.why_not_evaluated:
        summary = "The run succeeded: its output is stored and verified. It evaluated no model."
        fix = "nothing; to evaluate: --set train_options.evaluate=true, with a table in data_uri"
        return Why(run, summary, reason, fix)
    if verdict is None:
        trouble = records.trouble
        reason = f"its verdict cannot be read: {trouble}" if trouble else "it stored no verdict"
        return Why(run, "The run succeeded.", reason, notes=_notes(records))
    # A passed check of the primary metric only means that the metric has a value.
    checks = tuple(
        check for check in verdict.checks if check.name != "primary_metric" or not check.passed
    )
    explanation = Why(run, "", verdict.reason, checks=checks, notes=_notes(records))
    if outcome.record:
        summary = f"Published as version {outcome.record.version} of {run.model}."
        return replace(explanation, summary=summary)
    if lost := outcome.lost:
        reason, _, remedy = lost.message.partition("; ")
        summary = "The run succeeded, and its model was not published: it lost the race."
        return replace(
            explanation,
            summary=summary,
            reason=reason,
            remedy=remedy,
            step="publish",
            code=lost.code,
            docs=address_of("surpassed"),
        )
    if verdict.blessed:
        summary = "The model passed the gate, but its record as champion cannot be found."
        return replace(explanation, summary=summary)
    failed = "; ".join(check.explanation for check in checks if not check.passed)
    summary = "The run succeeded, and its model was not published: it did not pass the gate."
    remedy, docs = _gate_remedy(verdict, checks), address_of("not-blessed")
    reason = failed or verdict.reason
    return replace(explanation, summary=summary, reason=reason, remedy=remedy, docs=docs)


def _gate_remedy(verdict: ModelVerdict, checks: Sequence[Check]) -> str:
    """Return the remedy for a model that did not pass the gate, by the failed checks."""
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


def _explain_failure(run: Run, records: Records, connect: Connect) -> Why:
    attempts = _attempts(run, records.ends())
    failure, log, notes = _find_cause(run, records, connect)
    run = _replace_verdict(run, failure)
    failed_step = next((step.name for step in run.steps if step.state == "failed"), "")
    if run.was_cancelled and (failure is None or _only_says_ended(failure)):
        # Argo merely reports that a step exceeded its deadline: ending a run sets it to zero.
        reason = f"a user ended it{f' during {failed_step}' if failed_step else ''}"
        remedy = f"to continue: {run.to_continue}"
        code = failure.code if failure else None
        return Why(
            run,
            "The run was cancelled.",
            reason,
            remedy,
            failed_step,
            code,
            attempts,
            notes=notes,
            docs=address_of("cancelled"),
        )
    if failure is None:
        back_end_message = run.error or next((step.error for step in run.steps if step.error), "")
        reason = (
            back_end_message
            or "neither the store, nor the cluster, nor the back end gives a reason"
        )
        remedy = f"read the log of {failed_step or 'the failed step'} at {run.page}"
        return Why(
            run,
            _summarize(run, failed_step),
            reason,
            remedy=f"to continue: {run.to_continue}" if run.is_local else remedy,
            step=failed_step,
            attempts=attempts,
            log=log,
            notes=notes,
            docs=address_of("failed"),
        )
    remedy = failure.fix if len(failure.problems) == 1 else ""  # several are in the reason
    # A record may quote the output of a program, which may contain a secret.
    reason, remedy = map(Mask(), (failure.reason, remedy))
    last = attempts[-1] if attempts else None
    # All attempts of another launch in this run may have succeeded.
    if last and last.verdict != "succeeded" and failure.step == "launch_tfjob" and not remedy:
        remedy = last.remedy
    step = "" if failure.step == "run" else failure.step
    return Why(
        run,
        _summarize(run, step, failure),
        reason,
        remedy,
        step,
        failure.code,
        attempts,
        log=log,
        notes=notes,
        docs=failure.docs_address,
    )


def with_verdict(
    records: Records, connect: Connect, cluster_troubles: list[str] | None = None
) -> Run:
    """Return the run with the verdict that `explain` shows.

    Args:
        records: The run's records.
        connect: Connects to the run's pods or processes.
        cluster_troubles: Collects the reasons why the cluster cannot be asked. If it is not empty,
            the cluster is not asked, so that a list of runs waits for it only once.
    """
    run = records.with_verdict()
    if run.state not in ("failed", "canceled"):
        return run
    return _replace_verdict(run, _find_cause(run, records, connect, cluster_troubles)[0])


def _replace_verdict(run: Run, failure: Failure | None) -> Run:
    verdict = failure.verdict if failure else "cancelled" if run.was_cancelled else ""
    return replace(run, verdict=verdict)


def _find_cause(
    run: Run, records: Records, connect: Connect, cluster_troubles: list[str] | None = None
) -> tuple[Failure | None, tuple[str, ...], tuple[str, ...]]:
    """Return a run's failure from the store, or else from the cluster.

    Returns:
        The failure, or None; the last lines of the failed pods, if it comes from the cluster; and
        notes on things that could not be read.
    """
    failure, notes = records.failure(), _notes(records)
    if cluster_troubles or run.was_cancelled or not (failure is None or _only_says_ended(failure)):
        return failure, (), notes
    cluster = connect()
    if cluster_troubles is not None and cluster.trouble:
        cluster_troubles.append(cluster.trouble)
    tasks = cluster.failed()
    pod_failure = cause(tasks, None)
    # 143 is the stop of a step by the run's end, which the record already reports.
    if pod_failure and not (failure and pod_failure.code == 143):
        log = tuple(line for task in tasks for line in task.last_words[-_LINES:])
        return pod_failure, log, notes
    if failure is None and cluster.trouble:
        notes = (*notes, f"the run's pods cannot be read: {cluster.trouble}")
    return failure, (), notes


def _only_says_ended(failure: Failure) -> bool:
    """Return whether a record merely reports that the run was ended, without a failed step."""
    return failure.step == "run"


def _summarize(run: Run, step: str, failure: Failure | None = None) -> str:
    if failure and failure.verdict == "cancelled":
        return "The run was cancelled."
    location = f" in {step}" if step else ""
    verdict = f" ({failure.verdict})" if failure else ""
    return f"The run {run.state}{location}{verdict}."


def _explain_progress(
    run: Run, records: Records, connect: Connect, read_parameters: ReadParameters
) -> Why:
    cluster = connect()
    snapshot = cluster.snapshot()
    notes = _notes(records)
    if cluster.trouble:
        notes += (f"the cluster cannot be reached: {cluster.trouble}",)
    current = run.current
    step = current.name if current else ""
    attempts = _attempts(run, records.ends())
    if snapshot and snapshot.waits:
        waits = "; ".join(snapshot.waits)
        remedy, docs = waiting_reasons.remedy_for(waits)
        findings = []
        if "nodes are available" in waits:
            findings = _node_findings(read_parameters, cluster.namespace)
        if findings:
            waits = "; ".join([*(finding.what for finding in findings), waits])
            remedy = findings[0].fix
        summary = f"The run is waiting in {step}." if step else "The run is waiting."
        return Why(run, summary, waits, remedy, step, None, attempts, notes=notes, docs=docs)
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


def _node_findings(read_parameters: ReadParameters, namespace: str) -> list[Finding]:
    """Return findings about replicas that no node can hold, with the parameter to change."""
    try:
        parameters = read_parameters()
        if not parameters.keys() >= _JOB_PARAMETERS:
            return []  # the pipeline of another author sets these itself
        parameters = {name: setting for name, setting in parameters.items() if setting != ""}
        spec = job_spec(completed(defaults(), parameters))
    except StepError:  # an addition to the reasons, which come first
        return []
    return only(submit_checks.check_cluster(spec, namespace), Status.WAITS)


def progress_line(progress: Progress) -> str:
    """Return the progress of a training run on one line."""
    values = " ".join(f"{name} {value:.4g}" for name, value in progress.metrics.items())
    parts = [f"epoch {progress.epoch}", f"step {progress.step:,} of {progress.steps:,}", values]
    if progress.examples_per_second:
        parts.append(f"{progress.examples_per_second:,.0f} rows/s")
    if progress.eta_seconds is not None and progress.step < progress.steps:
        parts.append(f"{minutes(progress.eta_seconds)} left")
    return ", ".join(part for part in parts if part)


def training_report(progress: Progress) -> ProgressReport:
    """Return the progress of a training run for a live line."""
    share = progress.step / progress.steps if progress.steps else 0.0
    rate = progress.examples_per_second
    # The rate comes first, because a line ends at the terminal's edge.
    parts = [f"epoch {progress.epoch}", f"{rate:,.0f} rows/s" if rate else ""]
    parts.append(f"step {progress.step:,} of {progress.steps:,}")
    parts += [f"{name} {value:.4g}" for name, value in progress.metrics.items()]
    detail = ", ".join(part for part in parts if part)
    return ProgressReport("training", share, detail, progress.eta_seconds)


def _attempts(run: Run, ends: Mapping[int, AttemptEnd | None]) -> tuple[Attempt, ...]:
    if run.is_over:
        without_record = "its launcher was stopped before it recorded the end"
    else:
        without_record = "it is running, or its launcher was lost"
    return tuple(
        Attempt(number, "", without_record, "")
        if end is None
        else Attempt(number, end.verdict, end.sentence, end.remedy, _failed_lines(end))
        for number, end in sorted(ends.items())
    )


def _failed_lines(end: AttemptEnd) -> tuple[str, ...]:
    """Return the last lines of an attempt's failed containers, each with its replica."""
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
