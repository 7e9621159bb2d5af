"""Writes the version of an evaluated model, and the record that would make it the champion.

The manifest is written last and the record after it, so readers never see half a version. A
publisher that was killed is repeated: a complete version stays, an incomplete one is written again.
Called by `engine.py` for a blessed model, and by `manual_promotion.py` for a user.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.features.schema import Schema
from kfp_tfjob.features.signature_columns import read as read_arguments
from kfp_tfjob.features.statistics import StatisticsDocument
from kfp_tfjob.registry import versions
from kfp_tfjob.registry.champion import Champion
from kfp_tfjob.registry.verdict_record import ModelVerdict
from kfp_tfjob.storage.address import S3Address
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
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader import pull, push

from ..step import Step
from ..summary import suspicious_columns
from .card import render, request

_OF_THE_DATASET = (SCHEMA, STATISTICS, DISTRIBUTIONS)  # later data is compared with them
_LONGEST_WHY = 1000  # characters; every reader of the champions reads this record


def complete(
    step: Step, verdict: ModelVerdict, number: int, model: S3Address, dataset: S3Address
) -> tuple[Champion, str]:
    """Complete the version of a verdict, unless an earlier try did.

    Args:
        step: The run and its store.
        verdict: The verdict in force.
        number: The number of the champion record.
        model: The run's SavedModel.
        dataset: The dataset it was evaluated on.

    Returns:
        The record that makes the version the champion, and the model card.

    Raises:
        DataError: The model or the dataset is missing or damaged.
    """
    run_id = verdict.run_id
    model_layout = step.layout.model(verdict.model_name)
    claimed = (step.store, model_layout, run_id, step.task_key, verdict.is_second)
    version, digest = versions.claim(*claimed), sha256(verdict.stored).hexdigest()
    if _verdict_in(step.store, model_layout.version(version)) not in ("", digest):
        version = versions.claim(*claimed, verdict=digest)
    champion = Champion(
        number=number,
        version=version,
        version_uri=str(model_layout.version(version)),
        run_id=run_id,
        exported_weights_sha256=verdict.exported_weights_sha256,
        schema_digest=verdict.schema_digest,
        dataset_digest=verdict.dataset_digest,
        metrics={name: value for name, value in verdict.metrics.items() if value is not None},
        verdict_uri=str(verdict.address(step.run)),
        task_key=step.task_key,
        why=verdict.reason[:_LONGEST_WHY],  # stays if the version goes
    )
    folder = model_layout.version(version)
    manifest, card = _copy(step, folder, champion, verdict, model, dataset)
    return replace(champion, manifest_sha256=manifest.digest), card


def _verdict_in(store: Store, version: S3Address) -> str:
    """Return the SHA-256 of the verdict in a complete version; empty if there is none."""
    if not (manifest := versions.manifest_of(store, version)):
        return ""
    return next((entry.sha256 or "" for entry in manifest.objects if entry.key == VERDICT), "")


def _copy(
    step: Step,
    version: S3Address,
    champion: Champion,
    verdict: ModelVerdict,
    model: S3Address,
    dataset: S3Address,
) -> tuple[Manifest, str]:
    """Write a version's files, unless an earlier attempt did; return manifest and card."""
    if complete := versions.manifest_of(step.store, version):
        return complete, step.store.read(version / MODEL_CARD).decode()
    run = S3Address(model.bucket, model.key.removesuffix(f"/{RUN_MODEL}"))
    with tempfile.TemporaryDirectory(prefix="publish-") as scratch:
        folder = Path(scratch) / "version"
        folder.mkdir()
        source = pull(step.store, run, Path(scratch) / "run", _published)
        if source.digest != verdict.model_digest:
            raise DataError(
                Problem(
                    f"the output of run {champion.run_id} is not the evaluated model",
                    received=f"a model with the digest {source.digest}",
                    expected=f"the evaluated model, with the digest {verdict.model_digest}",
                    fix="start a new run, so that evaluate and publish use the same output",
                )
            )
        shutil.move(Path(scratch) / "run" / RUN_MODEL, folder / MODEL)
        keras = Path(scratch) / "run" / RUN_KERAS_MODEL
        if keras.exists():
            shutil.move(keras, folder / keras.name)
        pull(step.store, dataset, folder, lambda key: key in _OF_THE_DATASET)
        (folder / VERDICT).write_bytes(verdict.stored)
        statistics = StatisticsDocument.from_bytes((folder / STATISTICS).read_bytes())
        arguments = read_arguments(folder / MODEL)
        schema = Schema.from_bytes((folder / SCHEMA).read_bytes())
        example = request(schema, statistics, arguments)
        suspicious = suspicious_columns(step.store, verdict.dataset_uri)
        card = render(champion, verdict, bool(example), suspicious, schema.classes)
        (folder / MODEL_CARD).write_text(card, encoding="utf-8")
        if example:
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


def _published(key: str) -> bool:
    return key == RUN_KERAS_MODEL or key.startswith(f"{RUN_MODEL}/")
