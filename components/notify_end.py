"""Reports a run that ended without a failure."""

from __future__ import annotations

from kfp_tfjob.cluster.backend import is_local
from kfp_tfjob.components import notify
from kfp_tfjob.components.step import Step
from kfp_tfjob.options.metric_names import in_short
from kfp_tfjob.registry.outcome import LOST_RACE, NOT_BLESSED, PUBLISHED, Outcome, outcome_of


def step_ended(step: Step | None, model_name: str) -> None:
    """Report a run that this step ended without a failure; does nothing if it could not begin."""
    if step and not is_local():  # a local run reports its own end
        tell_end(step, model_name)


def tell_end(step: Step, model_name: str) -> None:
    """Send the notification of a run that has not failed."""
    if notice := notify.within(lambda: of_end(step, model_name)):
        notify.notify(notice, step.store, step.whole_run)


def of_end(step: Step, model_name: str) -> notify.Notice:
    """Return the notice about a run that has not failed."""
    trained_by = (step.run_id, step.task_key)
    ended = outcome_of(step.store.within(0), step.layout, step.run, trained_by)
    if (verdict := ended.verdict) is None:
        return _without_verdict(step, model_name, ended)
    addresses = {"report": str(step.run.report), "model": str(step.run.model)}
    if ended.lost:
        message, _, remedy = ended.lost.message.partition("; ")
        about = (LOST_RACE, step.run_id, "publish", ended.lost.verdict, ended.lost.code)
        return notify.Notice(*about, message, remedy, model_name, addresses)
    if ended.record:
        addresses["version"] = ended.record.version_uri
    published = ended.word == PUBLISHED
    return notify.Notice(
        # A pipeline may evaluate a model and not publish it.
        outcome=ended.word if ended.word in (PUBLISHED, NOT_BLESSED) else notify.SUCCEEDED,
        run_id=step.run_id,
        step="publish" if published or verdict.is_second else "evaluate",
        verdict="blessed" if verdict.blessed else "not_blessed",
        code=0,
        message=verdict.reason,
        remedy="train a better model, or change gate" if ended.word == NOT_BLESSED else "",
        model_name=model_name,
        addresses=addresses,
        metrics=in_short(verdict.metrics),
    )


def _without_verdict(step: Step, model_name: str, ended: Outcome) -> notify.Notice:
    if ended.earlier:
        said = (
            f"nothing has changed since run {ended.earlier.run_id}: the model was not trained again"
        )
        about = (notify.SKIPPED, step.run_id, "preflight", ended.word, 0)
        return notify.Notice(*about, said, model_name=model_name)
    why = ended.why_not_evaluated
    said = f"the output is stored and verified; no model was evaluated: {why}"
    about = (notify.SUCCEEDED, step.run_id, step.name, notify.SUCCEEDED, 0)
    return notify.Notice(*about, said, model_name=model_name)
