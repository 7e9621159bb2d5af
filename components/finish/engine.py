"""Reports how a run ended: the decision, or the failure and how to fix it.

It reads the records that the steps left in S3 and the run's state on the cluster, because the
status that KFP gives an exit task is not reliable: it says RUNNING for ended runs, and its error is
always empty. First it ends jobs that are still running. If no step could write its record to the
store, the Workflow and the logs of its pods have it. Called by the exit task, and by a local run
when it ends.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kfp_tfjob.cluster.backend import is_local
from kfp_tfjob.common.errors import ObjectNotFoundError, Problem, StepError
from kfp_tfjob.common.escaping import code, prose, row
from kfp_tfjob.jobs.attempt_record import AttemptEnd, read_ends
from kfp_tfjob.jobs.failure_record import Failure
from kfp_tfjob.jobs.log_masking import Mask
from kfp_tfjob.registry.outcome import BLESSED, LOST_RACE, NOT_EVALUATED, PUBLISHED, Outcome
from kfp_tfjob.registry.run_folder import newest_checkpoint, note
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.supervisor import exit_codes

from .. import notify
from ..notify_end import send_end_notice
from ..step import WHOLE_RUN, Step, local_failure, log_to_stdout, open_step
from ..summary import proven_summary, read_outcome, summary, unchanged_summary
from . import run_report
from .leftover_jobs import ClusterReport, end_jobs

log = logging.getLogger(__name__)

_PATIENCE = Patience(seconds=15, silence=15)  # an exit task is not worth a longer wait
_SHORT_PATIENCE = Patience(seconds=1, silence=5)  # a step has just given up on the store

_ENDED = Problem(
    "The run was stopped before it finished; no step recorded a failure",
    fix="retry it; finished steps are skipped",
)
CANCELLED = replace(
    Failure.of(WHOLE_RUN, StepError(_ENDED)), code=exit_codes.STOPPED, verdict="cancelled"
)


@dataclass(frozen=True)
class RunReport:
    """How a run ended: a page, and the failure; None if the run reached its verdict."""

    markdown: str
    failure: Failure | None


def run_as_exit_task(
    run_id: str, output_uri: str, storage_endpoint: str, storage_region: str, model_name: str
) -> str:
    """Return a report in Markdown on how a run ended, even when the store is unreachable."""
    log_to_stdout()
    cluster = None if is_local() else end_jobs(run_id)
    try:
        storage = (storage_endpoint, storage_region)
        step = open_step("finish", run_id, output_uri, *storage, patience=_patience())
        report = run(step, model_name, cluster)
        # A recorded failure may be from an earlier try, which was retried and so not reported.
        if cluster and not cluster.is_told and (cluster.unexplained or report.failure is CANCELLED):
            if report.failure:
                notice = notify.failure(run_id, report.failure, model_name)
                notify.notify(notice, step.store, step.whole_run)
            else:
                send_end_notice(step, model_name)
        return report.markdown
    except StepError as error:
        log.warning("cannot read how the run ended: %s", error)
        if cluster and cluster.cause and not cluster.is_told:
            notify.notify(notify.failure(run_id, cluster.cause, model_name), None, None)
        about = _lines(run_report.about(cluster, run_id)) if cluster else ""
        cluster = cluster or ClusterReport()
        if cluster.cause:
            _log(cluster.cause)
        return Mask()(about + _unread(run_id, error, cluster) + run_report.explain(cluster.ends))


def _patience() -> Patience:
    """Return how long to wait for the store; a failed preflight has already waited for it."""
    return _SHORT_PATIENCE if local_failure("preflight") else _PATIENCE


def run(step: Step, model_name: str, cluster: ClusterReport | None = None) -> RunReport:
    """Read the run's records and report how it ended.

    A failed run also gets `failure.md` next to `failure.json`, because KFP drops the outputs of a
    failed task.
    """
    tasks = _tasks(step)
    failures = {task: failure for task in tasks if (failure := _failure(task))}
    about = _lines(run_report.about(cluster, step.run_id)) if cluster else ""
    succeeded = cluster is not None and cluster.succeeded
    cluster = cluster or ClusterReport()
    outcomes = {task: read_outcome(task) for task in tasks}
    verdicts = {task: outcome.verdict for task, outcome in outcomes.items() if outcome.verdict}
    if not (failures or verdicts or cluster.cause) and (same := outcomes[step].earlier):
        log.info("nothing has changed since run %s: this run did not train", same.run_id)
        return RunReport(unchanged_summary(step, model_name, same), None)
    unevaluated = {
        task: outcome.why_not_evaluated
        for task, outcome in outcomes.items()
        if outcome.word == NOT_EVALUATED
    }
    words = {outcome.word for outcome in outcomes.values()}
    # If the cluster does not say that every task succeeded, publish or the launcher of another
    # task may have been killed before it wrote a record.
    is_open = any(_is_open(task, outcome) for task, outcome in outcomes.items())
    done = succeeded or not (is_open or words == {""} or BLESSED in words)
    # evaluate may have been killed after its verdict; a published model stays published.
    if not failures and (not done or (cluster.cause and not words <= {PUBLISHED, LOST_RACE})):
        failures[step] = cluster.cause or CANCELLED
        step.store.write(step.run.failure("json"), failures[step].to_bytes())
    if not failures:
        for verdict in verdicts.values():
            log.info("the run is done: %s", verdict.reason)
        parts = [summary(task, verdict.model_name) for task, verdict in verdicts.items()] or [
            _trained(tasks, unevaluated)
        ]
        return RunReport("\n".join(parts), None)
    report = (
        about
        + _failed(step, failures, outcomes, cluster)
        + run_report.explain(_ends(tasks, cluster))
    )
    markdown = Mask()(report)
    step.store.write(step.run.failure("md"), markdown.encode(), "text/markdown")
    for failure in failures.values():
        _log(failure)
    log.info("the full report is in %s", step.run.failure("md"))
    return RunReport(markdown, next(iter(failures.values())))


def _tasks(step: Step) -> list[Step]:
    """Return the step for the run itself and for every task of it with a key."""
    keys = step.store.folders(step.whole_run.tasks)
    return [step, *(replace(step, task_key=key, folder=step.whole_run) for key in keys)]


def _log(failure: Failure) -> None:
    message = Mask()(failure.message)
    where = _where(failure, failure.step)
    log.error("the run %s (%s): %s", where, failure.verdict, message)
    log.error("docs: %s", failure.docs_address)


def _where(failure: Failure, step: str) -> str:
    ended = failure.step == WHOLE_RUN or failure.verdict == CANCELLED.verdict
    return "was stopped" if ended else f"failed in {step}"


def _trained(tasks: Sequence[Step], unevaluated: Mapping[Step, str]) -> str:
    """Return the report of a run that trained without a verdict.

    Args:
        tasks: The run and its tasks.
        unevaluated: The reason of each task whose model was deliberately not evaluated.
    """
    trained = [task for task in tasks if note(task.store, task.run.manifest)]
    return _lines(
        [
            f"# Run {prose(tasks[0].run_id)} is complete",
            "",
            "No step failed, and no model was evaluated.",
            "",
            *(
                line
                for task, why in unevaluated.items()
                for line in (proven_summary(task, why), "")
            ),
            "| what | where |",
            "|---|---|",
            *(row(f"output{_of(task)}", code(task.run.output)) for task in trained),
            row("all of the run's output", code(tasks[0].run.base)),
            "",
        ]
    )


def _of(task: Step) -> str:
    return f" of task {code(task.task_key)}" if task.task_key else ""


def _ends(tasks: Sequence[Step], cluster: ClusterReport) -> list[AttemptEnd]:
    """Return every attempt's end: the launcher's record, else the cluster's, which is kept."""
    ends = {(end.task_key, end.attempt): end for end in cluster.ends}
    for task in tasks:
        for attempt, end in read_ends(task.store, task.run).items():
            key = task.task_key, attempt
            if end and (end.is_final or key not in ends):
                ends[key] = end
            elif key in ends:
                task.store.write(task.run.attempt_end(attempt), ends[key].to_bytes())
    return list(ends.values())


def _failed(
    step: Step,
    failures: Mapping[Step, Failure],
    outcomes: Mapping[Step, Outcome],
    cluster: ClusterReport,
) -> str:
    first = next(iter(failures.values()))
    listed_tasks = [
        task for task in outcomes if task == step or task in failures or _attempts(task)
    ]
    published = [
        f"This run published version {outcome.record.version} of"
        f" {code(outcome.verdict.model_name)}."
        for outcome in outcomes.values()
        if outcome.record and outcome.verdict
    ]
    if published and any(failure.step == "publish" for failure in failures.values()):
        published.append("A retry of `publish` completes the folder for model servers.")
    return _lines(
        [
            f"# Run {prose(step.run_id)} {_where(first, code(first.step))}",
            "",
            *(
                text
                for task, failure in failures.items()
                for text in (
                    *([f"## Task {code(task.task_key)}", ""] if task.task_key else []),
                    *run_report.describe(failure),
                )
            ),
            "| what | where |",
            "|---|---|",
            *(
                text
                for task in listed_tasks
                for text in (
                    row(f"attempts of the training job{_of(task)}", str(_attempts(task))),
                    row(f"newest stored checkpoint{_of(task)}", _newest_checkpoint(task)),
                )
            ),
            row("all of the run's output", code(step.run.base)),
            *run_report.on_cluster(cluster),
            "",
            *("\n\n".join(published) or "This run published nothing.", ""),
            *run_report.last_words(cluster.unexplained),
        ]
    )


def _unread(run_id: str, error: StepError, cluster: ClusterReport) -> str:
    """Return the report for a run when the store does not respond."""
    cluster_rows = run_report.on_cluster(cluster)
    lines = [
        *(
            [f"# Run {prose(run_id)} failed in {code(cluster.cause.step)}", ""]
            if cluster.cause
            else []
        ),
        *(run_report.describe(cluster.cause) if cluster.cause else []),
        *(["| what | where |", "|---|---|", *cluster_rows, ""] if cluster_rows else []),
        *run_report.last_words(cluster.unexplained),
        *(["## The store", ""] if cluster.cause else [f"# Run {prose(run_id)}", ""]),
        "How it ended cannot be read from the store.",
        "",
        *run_report.problems(Failure.of("finish", error)),
    ]
    return _lines(lines)


def _lines(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


def _failure(step: Step) -> Failure | None:
    try:
        return Failure.from_bytes(step.store.read(step.run.failure("json")))
    except ObjectNotFoundError:
        return None


def _attempts(step: Step) -> int:
    return len(step.store.numbers(step.run.attempts))


def _is_open(step: Step, outcome: Outcome) -> bool:
    """Return whether a training of this task began without a record of its end."""
    return not outcome.word and _attempts(step) > 0 and not step.store.has(step.run.manifest)


def _newest_checkpoint(step: Step) -> str:
    newest = newest_checkpoint(step.store, step.run)
    return f"step {newest}" if newest else "none"
