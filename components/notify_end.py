"""Sends the notification of a run that ended without a failure.

Which step ends a run depends on what happened: preflight if nothing has changed, sync_output if no
model is evaluated, evaluate without a blessing, otherwise publish. So each of them calls
`step_ended`, and the notice is made from the records in the store. The exit task and a local run
call `send_end_notice` for a run whose last step could not send it.
"""

from __future__ import annotations

from kfp_tfjob.cluster.backend import is_local
from kfp_tfjob.options.metric_names import in_short
from kfp_tfjob.registry.outcome import LOST_RACE, NOT_BLESSED, PUBLISHED, Outcome, outcome_of

from . import notify
from .step import Step


def step_ended(step: Step | None, model_name: str) -> None:
    """Send the notification of the run that `step` ended; None if the step could not begin."""
    if step and not is_local():  # a local run sends it when its process ends
        send_end_notice(step, model_name)


def send_end_notice(step: Step, model_name: str) -> None:
    """Send the notification of a run that has not failed."""
    notify.notify_from_store(lambda: of_end(step, model_name), step.store, step.whole_run)


def of_end(step: Step, model_name: str) -> notify.Notice:
    """Return the notice of a run that has not failed, from its records in the store."""
    trained_by = (step.run_id, step.task_key)
    outcome = outcome_of(step.store.with_patience(0), step.layout, step.run, trained_by)
    if (verdict := outcome.verdict) is None:
        return _notice_without_verdict(step, model_name, outcome)
    addresses = {"report": str(step.run.report), "model": str(step.run.model)}
    if outcome.lost:
        message, _, remedy = outcome.lost.message.partition("; ")
        return notify.Notice(
            outcome=LOST_RACE,
            run_id=step.run_id,
            step="publish",
            verdict=outcome.lost.verdict,
            code=outcome.lost.code,
            message=message,
            remedy=remedy,
            model_name=model_name,
            addresses=addresses,
        )
    if outcome.record:
        addresses["version"] = outcome.record.version_uri
    published = outcome.word == PUBLISHED
    return notify.Notice(
        # A pipeline may evaluate a model and not publish it.
        outcome=outcome.word if outcome.word in (PUBLISHED, NOT_BLESSED) else notify.SUCCEEDED,
        run_id=step.run_id,
        step="publish" if published or verdict.is_second else "evaluate",
        verdict="blessed" if verdict.blessed else "not_blessed",
        code=0,
        message=verdict.reason,
        remedy="train a better model, or change gate" if outcome.word == NOT_BLESSED else "",
        model_name=model_name,
        addresses=addresses,
        metrics=in_short(verdict.metrics),
    )


def _notice_without_verdict(step: Step, model_name: str, outcome: Outcome) -> notify.Notice:
    """Return the notice of a run that did not train, or whose model was not evaluated."""
    if outcome.earlier:
        return notify.Notice(
            outcome=notify.SKIPPED,
            run_id=step.run_id,
            step="preflight",
            verdict=outcome.word,
            code=0,
            message=f"nothing has changed since run {outcome.earlier.run_id}: the model was not"
            " trained again",
            model_name=model_name,
        )
    return notify.Notice(
        outcome=notify.SUCCEEDED,
        run_id=step.run_id,
        step=step.name,
        verdict=notify.SUCCEEDED,
        code=0,
        message="the output is stored and verified; no model was evaluated:"
        f" {outcome.why_not_evaluated}",
        model_name=model_name,
    )
