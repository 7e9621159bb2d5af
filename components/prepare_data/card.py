"""The dataset as an artifact of Kubeflow Pipelines.

Called by prepare_data's `component.py`.
"""

from __future__ import annotations

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import LONGEST_SCHEMA, MANIFEST, SCHEMA

from ..cards import Artifact, Card, DatasetCard
from ..step import Step
from .dataset import Prepared


def write_card(step: Step, done: Prepared, artifact: Artifact) -> None:
    """Write schema.json as it is stored, and what identifies the dataset."""
    base = S3Address.parse(done.dataset_uri)
    manifest = step.store.read_manifest(base / MANIFEST)
    card = DatasetCard(
        run_id=step.run_id,
        step=step.name,
        task_key=step.task_key,
        uri=done.dataset_uri,
        size_bytes=manifest.size,
        manifest_sha256=manifest.digest,
        dataset_digest=done.dataset_digest,
        schema_digest=done.schema.schema_digest,
        reused=done.reused,
        task=done.schema.task,
        label=done.schema.label.name,
        features=len(done.schema.features),
        rows=done.rows,
    )
    card.write(artifact, step.store.read(base / SCHEMA, LONGEST_SCHEMA))


def write_empty_card(step: Step, artifact: Artifact) -> None:
    """Write the card of a run without data; it contains no dataset address."""
    Card(run_id=step.run_id, step=step.name, task_key=step.task_key).write(artifact, b"{}\n")
