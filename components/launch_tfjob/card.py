"""The trained model as an artifact of Kubeflow Pipelines.

Called by launch_tfjob's engine.
"""

from __future__ import annotations

from kfp_tfjob.features.saved_model_version import tensorflow_version
from kfp_tfjob.pages.template import render as fill
from kfp_tfjob.storage.layout import RUN_MODEL, SAVED_MODEL
from kfp_tfjob.storage.manifest import Manifest

from ..cards import TENSORFLOW, TrainedModelCard
from .launch_context import Launch
from .records import Dataset
from .report import TrainingHistory


def trained_model(
    launch: Launch, output: Manifest, job_name: str, attempts: int, history: TrainingHistory
) -> TrainedModelCard:
    """Return the metadata of the artifact `trained_model`.

    Args:
        launch: The launch.
        output: The manifest of its complete output.
        job_name: The job that completed it.
        attempts: How many jobs the run needed.
        history: The training as the chief reported it.
    """
    step, run = launch.step, launch.step.run
    sizes = {item.key: item.size for item in output.objects}
    has_model = f"{RUN_MODEL}/{SAVED_MODEL}" in sizes
    model_size = sum(size for key, size in sizes.items() if key.startswith(f"{RUN_MODEL}/"))
    dataset = launch.records.dataset(launch.spec) or Dataset("")
    version = tensorflow_version(step.store, run.model) if has_model else ""
    return TrainedModelCard(
        run_id=step.run_id,
        step=step.name,
        task_key=step.task_key,
        uri=str(run.model if has_model else run.output),
        size_bytes=model_size if has_model else output.size,
        manifest_sha256=output.digest,
        dataset_digest=dataset.digest,
        schema_digest=dataset.schema_digest,
        model_name=launch.spec.model_name,
        framework=TENSORFLOW if has_model else "",
        framework_version=version,
        metrics=history.final,
        saved_model=has_model,
        trained_uri=str(run.output),
        trained_weights_sha256=history.trained_weights_sha256,
        job_kind=launch.spec.kind.name,
        job_name=job_name,
        attempts=attempts,
    )


def render(card: TrainedModelCard) -> str:
    """Return the card as Markdown."""
    return fill("components/launch_tfjob/card.md.j2", card=card)
