"""Makes an evaluated run's model the champion on a user's order, even against its verdict.

The gate may reject a model that a user wants, for example because the test rows changed. The
champion's record names the user and the reason, so the history shows that no gate decided. Called
by `kfp-tfjob models promote`, which shows the plan and asks before it executes it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kfp_tfjob.common.errors import (
    ConfigurationError,
    ObjectNotFoundError,
    Problem,
    SurpassedError,
)
from kfp_tfjob.registry.champion import PROMOTE, Champion, read_champion
from kfp_tfjob.registry.promotion import promote
from kfp_tfjob.registry.servable import publish_newest
from kfp_tfjob.registry.verdict_record import ModelVerdict, verdict_in_force
from kfp_tfjob.storage.address import S3Address

from ..step import Step
from .version_files import complete


@dataclass(frozen=True)
class ManualPromotion:
    """A promotion that was not done yet.

    Attributes:
        model_name: The model.
        run_id: The run that trained it.
        blessed: Whether the verdict blesses it.
        reasons: Why.
        now: The champion as text; empty if there is none.
        number: The number of the record that will make it the champion.
    """

    model_name: str
    run_id: str
    blessed: bool
    reasons: str
    now: str
    number: int


def plan(step: Step, model_name: str) -> ManualPromotion:
    """Return a checked plan to promote a run's model; nothing is written.

    Args:
        step: The run and its store.
        model_name: The model.

    Raises:
        ConfigurationError: The run was not evaluated, or trained another model.
        DataError: A record is damaged.
    """
    verdict = _verdict(step)
    if verdict.model_name != model_name:
        raise ConfigurationError(
            Problem(
                f"the run {step.run_id} trained another model",
                received=verdict.model_name,
                expected=model_name,
                fix="name a run of this model, or the model of this run",
            )
        )
    champion = read_champion(step.store, step.layout, model_name)
    now = f"version {champion.version} of run {champion.run_id}" if champion else ""
    return ManualPromotion(
        model_name,
        verdict.run_id,
        verdict.blessed,
        verdict.reason,
        now,
        champion.number + 1 if champion else 1,
    )


def execute(step: Step, planned: ManualPromotion, by: str, why: str) -> Champion:
    """Publish the run's model and make it the champion.

    Args:
        step: The run and its store.
        planned: From `plan`.
        by: Who decides.
        why: The reason, for the history.

    Returns:
        The champion's record.

    Raises:
        SurpassedError: The champion has changed since the plan.
        DataError: The model or its dataset is missing or damaged.
    """
    verdict = _verdict(step)
    model = S3Address.parse(verdict.model_uri, "model_uri")
    dataset = S3Address.parse(verdict.dataset_uri, "dataset_uri")
    now = read_champion(step.store, step.layout, planned.model_name)
    if now and now.action == PROMOTE and now.trained_by == (planned.run_id, step.task_key):
        # An earlier promotion of the same run may have been killed before this.
        publish_newest(step.store, step.layout, planned.model_name)
        return now
    completed, _ = complete(step, verdict, planned.number, model, dataset)
    try:
        champion = promote(
            step.store,
            step.layout,
            planned.model_name,
            replace(completed, action=PROMOTE, by=by, why=why),
        )
    except SurpassedError as error:
        raise SurpassedError(
            Problem(
                f"the champion of {planned.model_name} changed in the meantime",
                received=error.received,
                expected=planned.now or "no champion",
                fix="look at the new champion: kfp-tfjob models show. To promote the run anyway,"
                " repeat the command",
            )
        ) from error
    publish_newest(step.store, step.layout, planned.model_name)
    return champion


def _verdict(step: Step) -> ModelVerdict:
    try:
        return verdict_in_force(step.store, step.run)
    except ObjectNotFoundError as error:
        raise ConfigurationError(
            Problem(
                f"the run {step.run_id} was not evaluated",
                received=f"no {step.run.verdict}",
                expected="a run whose evaluate step has finished",
                fix="correct --run, --task or --output; a run that failed earlier has no model",
            )
        ) from error
