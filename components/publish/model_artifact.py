"""The published model, or why there is none, as an artifact of Kubeflow Pipelines.

Called by `component.py`.
"""

from __future__ import annotations

from dataclasses import replace

from kfp_tfjob.features.saved_model_version import tensorflow_version
from kfp_tfjob.registry.champion import read_champion
from kfp_tfjob.registry.verdict_record import verdict_in_force
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import MANIFEST, MODEL

from ..cards import TENSORFLOW, PublishedModelCard
from ..step import Step
from .engine import Published


def published_model(step: Step, model_name: str, done: Published) -> PublishedModelCard:
    """Return the metadata of the artifact `published_model`, also if nothing was published."""
    verdict = verdict_in_force(step.store, step.run)
    card = PublishedModelCard(
        run_id=step.run_id,
        step=step.name,
        task_key=step.task_key,
        model_name=model_name,
        outcome=done.outcome,
        champion=False,
        reason=done.reason,
        verdict_uri=str(verdict.address(step.run)),
        dataset_digest=verdict.dataset_digest,
        schema_digest=verdict.schema_digest,
        trained_manifest_sha256=verdict.model_digest,
    )
    record = done.champion
    if not record:
        return card
    uri = S3Address.parse(record.version_uri)
    manifest = step.store.read_manifest(uri / MANIFEST)
    newest = read_champion(step.store, step.layout, model_name)
    return replace(
        card,
        champion=newest is not None and newest.version == record.version,
        uri=record.version_uri,
        size_bytes=manifest.size,
        manifest_sha256=manifest.digest,
        framework=TENSORFLOW,
        framework_version=tensorflow_version(step.store, uri / MODEL),
        metrics=record.metrics,
        version=record.version,
        champion_uri=done.champion_uri,
        exported_weights_sha256=record.exported_weights_sha256,
    )
