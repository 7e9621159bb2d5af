"""Publishes a blessed model: a new version, then the record that makes it champion.

1. The verdict must bless exactly this model of this run.
2. A version number is claimed with a conditional create; a retry finds its own claim.
3. The files are copied and verified; the manifest makes the version complete.
4. The champion record is created under the number after the one the verdict was evaluated against.
   Of all runs evaluated against the same champion, only one can create it.
5. The folder that model servers read gets the champion's SavedModel.

A run that finds a champion other than the one in its verdict is evaluated again. The second verdict
is created, never replaced, and is in force for this try and for every retry. A run that loses again
records that, and ends without a failure. Called by `component.py`.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from kfp_tfjob.common.errors import (
    ConfigurationError,
    DataError,
    ObjectNotFoundError,
    Problem,
    Problems,
    SurpassedError,
)
from kfp_tfjob.common.escaping import code, prose
from kfp_tfjob.common.formatting import counted
from kfp_tfjob.common.names import check_model_name
from kfp_tfjob.registry import mirror
from kfp_tfjob.registry.champion import (
    PROMOTE,
    Champion,
    read_champion,
    read_record,
)
from kfp_tfjob.registry.champion_records import champions
from kfp_tfjob.registry.promotion import promote, surpassed
from kfp_tfjob.registry.servable import publish_newest
from kfp_tfjob.registry.verdict_record import (
    LostRace,
    ModelVerdict,
    save_lost_race,
    save_second,
    second_verdict,
)
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import MANIFEST, MODEL_CARD, dataset_digest

from ..step import Step
from .version_files import complete

log = logging.getLogger(__name__)


PUBLISHED, NOT_BLESSED = "published", "not_blessed"


@dataclass(frozen=True)
class PublishRequest:
    """The typed parameters of publish, parsed once.

    Attributes:
        model_name: The name to publish the model under.
        model: The SavedModel of a run.
        dataset: The dataset it was evaluated on.
        gpus: How many GPUs the models may use if this one is evaluated again.
        variables: Variables of the run's replicas that name MLflow's server.
    """

    model_name: str
    model: S3Address
    dataset: S3Address
    gpus: int
    variables: Mapping[str, str]

    @classmethod
    def parse(
        cls,
        model_name: str,
        model_uri: str,
        dataset_uri: str,
        gpus: int,
        variables: Mapping[str, str],
    ) -> PublishRequest:
        """Parse the step's parameters; `run` describes them.

        Raises:
            ConfigurationError: A parameter is invalid; it lists every problem.
        """
        problems = Problems(check_model_name(model_name))
        dataset = problems.of(lambda: S3Address.parse(dataset_uri, "dataset_uri"))
        model = problems.of(lambda: S3Address.parse(model_uri, "model_uri"))
        if problems or not (dataset and model):
            raise ConfigurationError(*problems)
        return cls(model_name, model, dataset, gpus, variables)


@dataclass(frozen=True)
class Published:
    """The outcome of publishing a blessed model.

    Attributes:
        outcome: `published`; `not_blessed` by the second verdict; or `lost_race`.
        card: The model card, or a page with the reason why there is none; Markdown.
        version: The number of the version, from 1; 0 if nothing was published.
        version_uri: The directory of the version.
        champion_uri: The record that makes it the champion.
        reason: Why this is the outcome.
        champion: The content of that record; None if nothing was published.
    """

    outcome: str
    card: str
    version: int = 0
    version_uri: str = ""
    champion_uri: str = ""
    reason: str = ""
    champion: Champion | None = None

    @classmethod
    def version_of(cls, step: Step, model_name: str, champion: Champion, card: str) -> Published:
        """Return the outcome of a run whose version became the champion."""
        record = str(step.layout.model(model_name).champion(champion.number))
        version, uri = champion.version, champion.version_uri
        return cls(PUBLISHED, card, version, uri, record, champion.why, champion)

    @classmethod
    def nothing(cls, outcome: str, model_name: str, reason: str) -> Published:
        """Return the outcome of a run that published nothing."""
        card = f"# Not published: {code(model_name)}\n\n{prose(reason)}.\n"
        return cls(outcome, card, reason=reason)


def run(
    step: Step,
    model_name: str,
    model_uri: str,
    verdict_uri: str,
    dataset_uri: str,
    gpus: int = 0,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Published:
    """Publish a run's model.

    Args:
        step: The run and its store.
        model_name: The name to publish it under.
        model_uri: The SavedModel, `<output_uri>/runs/<run_id>/output/model`.
        verdict_uri: The verdict that evaluate wrote.
        dataset_uri: The dataset it was evaluated on.
        gpus: How many GPUs the models may use if this one is evaluated again.
        variables: Variables of the run's replicas that name MLflow's server.

    Raises:
        ConfigurationError: The name is not valid, or the verdict does not bless this model.
        DataError: The model, the dataset or the verdict is missing or damaged.
    """
    problems = Problems()
    request = problems.of(
        lambda: PublishRequest.parse(model_name, model_uri, dataset_uri, gpus, variables)
    )
    verdict = problems.of(lambda: _verdict(step, S3Address.parse(verdict_uri, "verdict_uri")))
    if problems or not (request and verdict):
        raise ConfigurationError(*problems)
    _require_blessed(step, verdict, verdict_uri, request)
    return _publish_once(step, verdict, request)


def _publish_once(step: Step, verdict: ModelVerdict, request: PublishRequest) -> Published:
    """Publish the model of a verdict, unless another model or a person has been faster."""
    model_name = request.model_name
    number = verdict.met + 1
    verdict = second_verdict(step.store, step.run) or verdict
    while (done := _made_by_person(step, request, number)) is None:
        if not verdict.blessed:
            log.info("the model is not published: %s", verdict.reason)
            return Published.nothing(NOT_BLESSED, model_name, f"evaluated again: {verdict.reason}")
        try:
            return _publish(step, verdict, request)
        except SurpassedError:
            winner = _winner(step, model_name, verdict.met + 1)
        is_own = winner.trained_by == (step.run_id, step.task_key)
        if is_own and winner.action == PROMOTE and winner.number >= number:
            continue  # a user has just done it
        if verdict.is_second:
            lost = LostRace.to(winner, model_name)
            save_lost_race(step.store, step.run, lost)
            log.warning("the model is not published: %s", lost.message)
            return Published.nothing(lost.verdict, model_name, lost.message)
        log.info(
            "version %d of run %s was promoted after the verdict, so the model is evaluated again",
            winner.version,
            winner.run_id,
        )
        verdict = evaluate_again(step, verdict, request)
    return done


def evaluate_again(step: Step, first: ModelVerdict, request: PublishRequest) -> ModelVerdict:
    """Evaluate the model against the current champion, and store the second verdict.

    Raises:
        ConfigurationError: There are fewer GPUs.
        DataError: The model or the dataset is gone or damaged.
    """
    from kfp_tfjob.judging.judge import EvaluationRequest, judge

    evaluation = EvaluationRequest.parse(
        first.model_name, first.model_uri, str(request.dataset), first.gate
    )
    with tempfile.TemporaryDirectory(prefix="publish-") as scratch:
        judged = judge(step.store, step.layout, evaluation, Path(scratch), request.gpus)
    save_second(step.store, step.run, judged.verdict)
    rows = counted(judged.verdict.rows, "test row")
    log.info("second verdict on %s: %s", rows, judged.decision.line)
    stored = second_verdict(step.store, step.run)
    assert stored is not None
    return stored


def _publish(step: Step, verdict: ModelVerdict, request: PublishRequest) -> Published:
    """Publish the model of the verdict in force.

    Raises:
        SurpassedError: Another run was promoted since that verdict.
    """
    model_name, number = verdict.model_name, verdict.met + 1
    _require_unsurpassed(step, model_name, number, verdict)
    champion, card = complete(step, verdict, number, request.model, request.dataset)
    # A retry may have written another version, because the first one was pruned meanwhile.
    champion = promote(step.store, step.layout, model_name, champion)
    publish_newest(step.store, step.layout, model_name)
    mirror.sync(step.store, step.layout, model_name, variables=request.variables)
    return Published.version_of(step, model_name, champion, card)


def _made_by_person(step: Step, request: PublishRequest, number: int) -> Published | None:
    """Return the version that a user has promoted from this run since its verdict, if any.

    Such a run is neither evaluated against itself, nor published a second time.

    Args:
        step: The run and its store.
        request: The step's parameters.
        number: The number of the champion record that the first verdict allows.
    """
    model_name = request.model_name
    run = (step.run_id, step.task_key)
    for champion in champions(step.store, step.layout, model_name, above=number - 1):
        if champion.action == PROMOTE and champion.trained_by == run:
            break
    else:
        return None
    note = f"{champion.by} made it the champion already: {champion.why}"
    log.info("version %d of %s is published: %s", champion.version, model_name, note)
    publish_newest(step.store, step.layout, model_name)
    mirror.sync(step.store, step.layout, model_name, variables=request.variables)
    model = step.layout.model(model_name)
    card = step.store.read(model.version(champion.version) / MODEL_CARD).decode()
    card += f"\n{prose(note)}.\n"
    return Published.version_of(step, model_name, champion, card)


def _winner(step: Step, model_name: str, number: int) -> Champion:
    """Return the record that a run wanted to create; if it is damaged or gone, the champion."""
    try:
        return read_record(step.store, step.layout, model_name, number)
    except (ObjectNotFoundError, DataError):
        champion = read_champion(step.store, step.layout, model_name)
        assert champion is not None  # it is why the run was surpassed
        return champion


def _verdict(step: Step, address: S3Address) -> ModelVerdict:
    try:
        return ModelVerdict.read(step.store, address)
    except ObjectNotFoundError as error:
        raise ConfigurationError(
            Problem(
                "there is no verdict on the model",
                received=f"no {address}",
                expected="the verdict that evaluate writes in the same run, with the same task_key",
                fix="run evaluate before publish",
            )
        ) from error


def _require_blessed(
    step: Step, verdict: ModelVerdict, verdict_uri: str, request: PublishRequest
) -> None:
    """Reject a verdict that does not bless this model."""
    if not verdict.blessed:
        raise ConfigurationError(
            Problem(
                f"the verdict {verdict_uri} does not bless the model",
                received=verdict.reason,
                expected="blessed",
                fix="train a better model, or change gate",
            )
        )
    dataset = request.dataset
    digest = dataset_digest(dataset, step.store.read_manifest(dataset / MANIFEST))
    expected = {
        "model_name": request.model_name,
        "model_uri": str(request.model),
        "dataset_digest": digest,
    }
    ConfigurationError.raise_if(
        Problem(
            f"the verdict {verdict_uri} is about a different {name}",
            received=getattr(verdict, name),
            expected=value,
            fix="pass publish the same model_name, model_uri and dataset_uri as evaluate",
        )
        for name, value in expected.items()
        if getattr(verdict, name) != value
    )


def _require_unsurpassed(step: Step, model_name: str, number: int, verdict: ModelVerdict) -> None:
    """Reject, before anything is written, if the champion changed after the verdict."""
    champion = read_champion(step.store, step.layout, model_name)
    if champion and champion.number >= number:
        winner = _winner(step, model_name, number)
        trained_by = (verdict.run_id, step.task_key)
        if (winner.number, winner.trained_by, winner.action) != (number, trained_by, ""):
            raise surpassed(model_name, champion)
    elif champion:  # a record that a person removed leaves its number to the next
        met = verdict.champion
        if not met or (champion.version, champion.run_id) != (met.version, met.run_id):
            raise surpassed(model_name, champion)
