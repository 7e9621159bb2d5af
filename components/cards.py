"""The cards of datasets and models in Kubeflow Pipelines: the typed artifacts of a run.

The files stay in the store of output_uri. The launcher of Kubeflow Pipelines fails a task whose
artifact has an address outside the run's own pipeline root, and copies a step's input artifacts
into its pod. So an artifact is a small file, a card, whose metadata contains the address, and steps
pass addresses as strings. The UI therefore draws no edge between them. Equal digests connect a
published model with its training and its dataset. Made by prepare_data, launch_tfjob and publish.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from kfp_tfjob.common.escaping import line

TENSORFLOW = "tensorflow"


class Artifact(Protocol):
    """An output artifact of a component."""

    metadata: dict[str, Any]

    @property
    def path(self) -> str:
        """The file that the launcher uploads."""
        ...


@dataclass(frozen=True, kw_only=True)
class Card:
    """The metadata that all cards share; each field is a key.

    A key is absent if its field is empty, because Kubeflow Pipelines cannot store null, and an
    empty address or digest looks like a real one.

    Attributes:
        run_id: The run whose step made the card.
        step: That step.
        task_key: The key of its task, if it has one.
        uri: The address of the files.
        size_bytes: The size of the files at that address.
        manifest_sha256: SHA-256 of the manifest that lists them.
        dataset_digest: Digest of the dataset.
        schema_digest: Digest of the dataset's schema.
    """

    run_id: str
    step: str
    task_key: str = ""
    uri: str = ""
    size_bytes: int | None = None
    manifest_sha256: str = ""
    dataset_digest: str = ""
    schema_digest: str = ""

    @property
    def metadata(self) -> dict[str, Any]:
        """The fields that are not empty, as printable strings, numbers, booleans and flat dicts."""
        fields = {name: _plain(content) for name, content in vars(self).items()}
        return {
            name: content
            for name, content in fields.items()
            if content is not None and content not in ("", {})
        }

    def write(self, artifact: Artifact, content: bytes) -> None:
        """Write the card's file, and its metadata."""
        Path(artifact.path).write_bytes(content)
        artifact.metadata.update(self.metadata)


@dataclass(frozen=True, kw_only=True)
class DatasetCard(Card):
    """The metadata of a prepared dataset; its file is schema.json.

    Attributes:
        reused: Whether an earlier run had prepared it.
        task: `classification` or `regression`.
        label: The label's column.
        features: The number of features.
        rows: The rows by split.
    """

    reused: bool
    task: str
    label: str
    features: int
    rows: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class ModelCard(Card):
    """The metadata that all cards of models have.

    Attributes:
        model_name: The model's name.
        framework: `tensorflow` for a SavedModel.
        framework_version: The version that wrote it.
        metrics: Its metrics by name.
    """

    model_name: str = ""
    framework: str = ""
    framework_version: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TrainedModelCard(ModelCard):
    """The metadata of a run's model, before it is evaluated.

    `uri` and `size_bytes` describe the SavedModel, or all output if there is no SavedModel.
    `manifest_sha256` always describes all output.

    Attributes:
        saved_model: Whether there is a SavedModel.
        trained_uri: The folder with all output.
        trained_weights_sha256: Digest of the weights that the project's trainer reported.
        job_kind: The kind of the job.
        job_name: The job that completed the output.
        attempts: How many jobs the run needed.
    """

    saved_model: bool
    trained_uri: str
    trained_weights_sha256: str = ""
    job_kind: str
    job_name: str
    attempts: int


@dataclass(frozen=True, kw_only=True)
class PublishedModelCard(ModelCard):
    """The outcome of publishing a model.

    If nothing was published, the version and its address, size and digest are absent.

    Attributes:
        outcome: `published`, `not_blessed` or `lost_race`.
        champion: Whether the version was the champion when the step ended.
        reason: Why, from the verdict, the race or the person.
        version: Its number.
        champion_uri: The record that made it the champion.
        verdict_uri: The verdict in force.
        trained_manifest_sha256: `manifest_sha256` of the trained model.
        exported_weights_sha256: Digest of the variables in the SavedModel.
    """

    outcome: str
    champion: bool
    reason: str
    version: int | None = None
    champion_uri: str = ""
    verdict_uri: str = ""
    trained_manifest_sha256: str = ""
    exported_weights_sha256: str = ""


def _plain(value: Any) -> Any:
    """Escape unprintable characters in a string or in a mapping's keys."""
    if isinstance(value, Mapping):
        return {line(name): number for name, number in value.items()}
    return line(value) if isinstance(value, str) else value
