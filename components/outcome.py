"""Notifies of a run that has a verdict."""

from __future__ import annotations

import json

from kfp_tfjob.components.notify import NOT_BLESSED, PUBLISHED, Notice, notify, within
from kfp_tfjob.components.step import Step
from kfp_tfjob.storage.champion import read_champion


def tell_verdict(step: Step, model_name: str, key: str = "") -> None:
    """Send the notification of a run that published its model or was not blessed; never raises.

    Args:
        step: The step that ends the run.
        model_name: The model of the run.
        key: Tells the tries of the run apart; empty for the pod of this step.
    """
    if notice := within(lambda: of_verdict(step, model_name)):
        notify(notice, step.store, step.whole_run, key)


def of_verdict(step: Step, model_name: str) -> Notice:
    """Return the notice of a run with a verdict.

    Raises:
        StepError: The verdict cannot be read.
    """
    store = step.store.within(0)
    verdict = json.loads(store.read(step.run.verdict))
    addresses = {"report": str(step.run.report), "model": str(step.run.model)}
    champion = read_champion(store, step.layout, model_name) if verdict["blessed"] else None
    if champion and champion.run_id == step.run_id:
        addresses["version"] = champion.version_uri
    metrics = {
        name: float(value)
        for name, value in verdict["metrics"].items()
        if isinstance(value, int | float)
    }
    return Notice(
        outcome=PUBLISHED if verdict["blessed"] else NOT_BLESSED,
        run_id=step.run_id,
        step="publish" if verdict["blessed"] else "evaluate",
        verdict="blessed" if verdict["blessed"] else "not_blessed",
        code=0,
        message="; ".join(verdict["reasons"]),
        remedy="" if verdict["blessed"] else "train a better model, or change gate",
        model_name=model_name,
        addresses=addresses,
        metrics=metrics,
    )
