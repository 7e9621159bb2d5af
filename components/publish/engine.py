"""Publishes a blessed model: a new version, then the record that makes it champion.

1. The verdict must bless exactly this model of this run.
2. A version number is claimed with a conditional create; a retry of the run finds its own claim.
3. The files are copied and verified; the manifest makes the version complete.
4. The champion record is created under the number after the one the verdict was judged against.
   Of all runs judged against the same champion, only one can create it.
5. The folder that model servers read gets the champion's SavedModel.

A run that finds another champion than that of its verdict is judged once more. The second verdict
is created, never replaced, and is in force for this try and for every retry. A run that loses again
records that, and ends without a failure.
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from kfp_tfjob.components.publish.again import judge_again
from kfp_tfjob.components.publish.card import render
from kfp_tfjob.components.publish.request import request
from kfp_tfjob.components.step import Step
from kfp_tfjob.registry import versions
from kfp_tfjob.registry.promotion import promote, surpassed
from kfp_tfjob.registry.servable import publish_newest
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.champion import Champion, next_number, read_champion, read_record
from kfp_tfjob.storage.errors import (
    ConfigurationError,
    DataError,
    ObjectNotFoundError,
    Problem,
    Problems,
    SurpassedError,
)
from kfp_tfjob.storage.judged import LostRace, is_second, keep_lost_race, second_verdict
from kfp_tfjob.storage.layout import (
    DISTRIBUTIONS,
    MODEL,
    MODEL_CARD,
    REQUEST,
    RUN_KERAS_MODEL,
    RUN_MODEL,
    SCHEMA,
    STATISTICS,
    VERDICT,
)
from kfp_tfjob.storage.manifest import Manifest
from kfp_tfjob.storage.model_names import check_model_name
from kfp_tfjob.storage.text import code, prose
from kfp_tfjob.trainer.signature_columns import read as read_arguments
from kfp_tfjob.uploader import pull, push

log = logging.getLogger(__name__)


PUBLISHED, NOT_BLESSED = "published", "not_blessed"


@dataclass(frozen=True)
class Published:
    """What became of a blessed model.

    Attributes:
        outcome: `published`; `not_blessed` by the second verdict; or `lost_race`.
        card: The model card, or what happened instead; Markdown.
        version: The number of the version, from 1; 0 if nothing was published.
        version_uri: The directory of the version.
        champion_uri: The record that makes it the champion.
    """

    outcome: str
    card: str
    version: int = 0
    version_uri: str = ""
    champion_uri: str = ""


def run(
    step: Step,
    model_name: str,
    model_uri: str,
    verdict_uri: str,
    dataset_uri: str,
    again: Callable[[], object] | None = None,
) -> Published:
    """Publish the model of a run.

    Args:
        step: The run and its store.
        model_name: The name to publish it under.
        model_uri: The SavedModel, `<output_uri>/runs/<run_id>/output/model`.
        verdict_uri: The verdict that evaluate wrote.
        dataset_uri: The dataset it was judged on.
        again: Judges the model once more, and stores the second verdict; None to do it here.

    Raises:
        ConfigurationError: The name is not valid, or the verdict does not bless this model.
        DataError: The model or the dataset is missing or damaged.
    """
    wrong = Problems(check_model_name(model_name))
    dataset = wrong.of(lambda: S3Address.parse(dataset_uri, "dataset_uri"))
    model = wrong.of(lambda: S3Address.parse(model_uri, "model_uri"))
    verdict = wrong.of(lambda: _verdict(step, S3Address.parse(verdict_uri, "verdict_uri")))
    if wrong or not (dataset and model and verdict):
        raise ConfigurationError(*wrong)
    _require_blessed(verdict, model_name, model, verdict_uri, dataset)
    again = again or partial(judge_again, step, dataset_uri)
    verdict = second_verdict(step.store, step.run) or verdict
    while verdict["blessed"]:
        try:
            return _publish(step, verdict, verdict_uri, model, dataset)
        except SurpassedError:
            winner = read_record(step.store, step.layout, model_name, next_number(verdict))
        if is_second(verdict):
            lost = LostRace.to(winner, model_name)
            keep_lost_race(step.store, step.run, lost)
            log.warning("nothing is published: %s", lost.message)
            return Published(lost.verdict, _nothing(model_name, lost.message))
        log.info(
            "version %d of run %s was promoted after the verdict: the model is judged once more",
            winner.version,
            winner.run_id,
        )
        again()
        verdict = second_verdict(step.store, step.run)
        assert verdict is not None  # it was just stored
    reasons = "; ".join(verdict["reasons"])
    log.info("nothing is published: %s", reasons)
    return Published(NOT_BLESSED, _nothing(model_name, f"judged once more: {reasons}"))


def _publish(
    step: Step, verdict: dict[str, Any], verdict_uri: str, model: S3Address, dataset: S3Address
) -> Published:
    """Publish the model of the verdict in force.

    Raises:
        SurpassedError: Another run was promoted since that verdict.
    """
    model_name, number = verdict["model_name"], next_number(verdict)
    place = step.layout.model(model_name)
    trained_by = verdict["run_id"], step.task_key
    again = is_second(verdict)
    _require_unsurpassed(step, model_name, number, trained_by)
    version = versions.claim(step.store, place, *trained_by, again)
    champion = Champion(
        number=number,
        version=version,
        version_uri=str(place.version(version)),
        run_id=verdict["run_id"],
        exported_weights_sha256=_exported_weights(verdict),
        schema_digest=verdict["schema_digest"],
        dataset_digest=verdict["dataset_digest"],
        metrics={name: value for name, value in verdict["metrics"].items() if value is not None},
        verdict_uri=str(step.run.second_verdict) if again else verdict_uri,
        task_key=step.task_key,
    )
    folder = place.version(version)
    manifest, card = _copy(step, folder, model_name, champion, verdict, model, dataset)
    champion = replace(champion, manifest_sha256=manifest.digest)
    promote(step.store, step.layout, model_name, champion)
    publish_newest(step.store, step.layout, model_name)
    uris = champion.version_uri, str(place.champion(number))
    return Published(PUBLISHED, card, version, *uris)


def _nothing(model_name: str, why: str) -> str:
    return f"# Not published: {code(model_name)}\n\n{prose(why)}.\n"


def _verdict(step: Step, address: S3Address) -> dict[str, Any]:
    try:
        return json.loads(step.store.read(address))
    except ObjectNotFoundError as error:
        raise ConfigurationError(
            Problem(
                "there is no verdict on the model",
                received=f"no {address}",
                expected="the verdict that evaluate writes in the same run, with the same task_key",
                fix="run evaluate before publish",
            )
        ) from error


def _exported_weights(verdict: dict[str, Any]) -> str:
    """Return the hash of the judged weights, also from a verdict of an earlier version."""
    return verdict.get("exported_weights_sha256") or verdict["weights_digest"]


def _require_blessed(
    verdict: dict[str, Any],
    model_name: str,
    model: S3Address,
    verdict_uri: str,
    dataset: S3Address,
) -> None:
    """Refuse a verdict that does not bless this model."""
    if not verdict["blessed"]:
        raise ConfigurationError(
            Problem(
                f"the verdict {verdict_uri} does not bless the model",
                received="; ".join(verdict["reasons"]),
                expected="blessed",
                fix="train a better model, or change gate",
            )
        )
    expected = {
        "model_name": model_name,
        "model_uri": str(model),
        "dataset_digest": dataset.name,
    }
    ConfigurationError.raise_if(
        Problem(
            f"the verdict {verdict_uri} is about a different {name}",
            received=verdict[name],
            expected=value,
            fix="publish the model that evaluate judged",
        )
        for name, value in expected.items()
        if verdict[name] != value
    )


def _require_unsurpassed(
    step: Step, model_name: str, number: int, trained_by: tuple[str, str]
) -> None:
    """Refuse, before anything is written, if the champion changed after the verdict."""
    champion = read_champion(step.store, step.layout, model_name)
    if champion and champion.number >= number:
        record = step.layout.model(model_name).champion(number)
        if Champion.from_bytes(number, step.store.read(record)).trained_by != trained_by:
            raise surpassed(model_name, champion)


def _copy(
    step: Step,
    version: S3Address,
    model_name: str,
    champion: Champion,
    verdict: dict[str, Any],
    model: S3Address,
    dataset: S3Address,
) -> tuple[Manifest, str]:
    """Write the files of a version, unless an earlier attempt did; return manifest and card."""
    if complete := versions.manifest_of(step.store, version):
        return complete, step.store.read(version / MODEL_CARD).decode()
    run = S3Address(model.bucket, model.key.removesuffix(f"/{RUN_MODEL}"))
    with tempfile.TemporaryDirectory(prefix="publish-") as scratch:
        folder = Path(scratch) / "version"
        folder.mkdir()
        source = pull(step.store, run, Path(scratch) / "run", _published)
        if source.digest != verdict["model_digest"]:
            raise DataError(
                Problem(
                    f"the output of run {champion.run_id} is not the judged model",
                    received=f"a manifest with the digest {source.digest}",
                    expected=verdict["model_digest"],
                    fix="evaluate the model again",
                )
            )
        shutil.move(Path(scratch) / "run" / RUN_MODEL, folder / MODEL)
        keras = Path(scratch) / "run" / RUN_KERAS_MODEL
        if keras.exists():
            shutil.move(keras, folder / keras.name)
        pull(step.store, dataset, folder, _about_the_data)
        body = json.dumps(verdict, indent=1, ensure_ascii=False) + "\n"
        (folder / VERDICT).write_text(body)
        statistics = json.loads((folder / STATISTICS).read_bytes())
        arguments = read_arguments(folder / MODEL)
        schema = json.loads((folder / SCHEMA).read_bytes())
        card = render(model_name, champion, verdict, arguments, statistics, schema)
        (folder / MODEL_CARD).write_text(card, encoding="utf-8")
        if example := request(schema, statistics, arguments):
            (folder / REQUEST).write_text(example, encoding="utf-8")
        details = {
            "run_id": champion.run_id,
            "exported_weights_sha256": champion.exported_weights_sha256,
            "dataset_digest": champion.dataset_digest,
            "schema_digest": champion.schema_digest,
            "metrics": dict(champion.metrics),
        }
        written = push(
            step.store, folder, version, "model", champion.run_id, details=details, sha256=True
        )
        return written, card


def _about_the_data(key: str) -> bool:
    """Tell what a version keeps of its dataset; later data is compared with it."""
    return key in (SCHEMA, STATISTICS, DISTRIBUTIONS)


def _published(key: str) -> bool:
    return key == RUN_KERAS_MODEL or key.startswith(f"{RUN_MODEL}/")
