"""Notifies of a run that has come to its end without a failure."""

from __future__ import annotations

from kfp_tfjob.components import notify
from kfp_tfjob.components.notify import Notice
from kfp_tfjob.components.step import Step
from kfp_tfjob.options.metric_names import in_short
from kfp_tfjob.registry.records import record_of
from kfp_tfjob.storage.run_folder import note
from kfp_tfjob.storage.store import Store
from kfp_tfjob.storage.verdict_record import LostRace, ModelVerdict, lost_race, verdict_or_none


def tell_end(step: Step | None, model_name: str, key: str = "") -> None:
    """Send the notification of a run that has not failed; never raises.

    Args:
        step: The step that ends the run; None if it could not begin.
        model_name: The run's model.
        key: Tells the run's tries apart; empty for the pod of this step.
    """
    if not step:
        return
    if notify.is_wanted(key) and (notice := notify.within(lambda: of_end(step, model_name))):
        notify.notify(notice, step.store, step.whole_run, key)


def of_end(step: Step, model_name: str) -> Notice:
    """Return the notice of a run that has not failed.

    Raises:
        StepError: Its records cannot be read.
    """
    store = step.store.within(0)
    if verdict := verdict_or_none(store, step.run):
        return _of_verdict(step, store, model_name, verdict)
    if earlier := note(store, step.run.unchanged):
        said = f"nothing has changed since run {earlier['run_id']}: the model was not trained again"
        ended = (notify.SKIPPED, step.run_id, "preflight", "unchanged", 0)
        return Notice(*ended, said, model_name=model_name)
    ended = (notify.SUCCEEDED, step.run_id, step.name, notify.SUCCEEDED, 0)
    said = "every step has succeeded"
    if record := note(store, step.run.not_evaluated):
        said = f"the output is stored and verified; no model was evaluated: {record['why']}"
    return Notice(*ended, said, model_name=model_name)


def _of_verdict(step: Step, store: Store, model_name: str, verdict: ModelVerdict) -> Notice:
    addresses = {"report": str(step.run.report), "model": str(step.run.model)}
    if lost := lost_race(store, step.run):
        return _of_lost_race(step, model_name, lost, addresses)
    blessed, mine = verdict.blessed, (step.run_id, step.task_key)
    if blessed and (record := record_of(store, step.layout, model_name, mine, verdict.met)):
        addresses["version"] = record.version_uri
    return Notice(
        outcome=notify.PUBLISHED if blessed else notify.NOT_BLESSED,
        run_id=step.run_id,
        step="publish" if blessed or verdict.is_second else "evaluate",
        verdict="blessed" if blessed else "not_blessed",
        code=0,
        message=verdict.reason,
        remedy="" if blessed else "train a better model, or change gate",
        model_name=model_name,
        addresses=addresses,
        metrics=in_short(verdict.metrics),
    )


def _of_lost_race(step: Step, model_name: str, lost: LostRace, addresses: dict[str, str]) -> Notice:
    message, _, remedy = lost.message.partition("; ")
    ended = (notify.LOST_RACE, step.run_id, "publish", lost.verdict, lost.code, message, remedy)
    return Notice(*ended, model_name=model_name, addresses=addresses)
