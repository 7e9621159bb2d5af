"""Declares the run parameters: name, type, default and meaning.

The form of Kubeflow Pipelines, preflight's table, the command line and the documentation follow
this list. Only the signatures of the steps repeat it, because KFP reads them; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from .data import DataOptions
from .gate import DEFAULT_GATE, GateOptions
from .parse import Group, whole_numbers
from .pod import PodOptions
from .table_formats import FORMAT_WORDS
from .train import TrainOptions

# The default of train_batch_size for each GPU, or for all replicas on CPUs: only the rows of a GPU
# have to fit into its memory, so more GPUs get a larger batch.
ROWS_PER_STEP = 64


@dataclass(frozen=True)
class Parameter:
    """One run parameter.

    Attributes:
        meaning: Its meaning, in Markdown.
        default: None for a required parameter; the type of other parameters follows from it.
        group: The typed form of a dict with known keys.
        option: The short option of the command line, and the name of its value there.
        least: The smallest value of a number.
    """

    meaning: str
    default: str | int | dict[str, Any] | None = ""
    group: type[Group] | None = None
    option: tuple[str, str] | None = None
    least: int = 0

    @property
    def is_required(self) -> bool:
        """Whether the parameter lacks a default."""
        return self.default is None

    @property
    def type(self) -> type:
        """The parameter's type in KFP: str, int or dict."""
        return str if self.default is None else type(self.default)

    @property
    def words(self) -> str:
        """The meaning without Markdown."""
        return self.meaning.replace("`", "")

    @property
    def sentence(self) -> str:
        """The meaning as a sentence, in Markdown."""
        full_stop = "" if self.meaning.endswith(".") else "."
        return f"{self.meaning[0].upper()}{self.meaning[1:]}{full_stop}"

    @property
    def plain_sentence(self) -> str:
        """The sentence without Markdown, as Kubeflow Pipelines shows it."""
        return self.sentence.replace("`", "")


PARAMETERS: dict[str, Parameter] = {
    "data_uri": Parameter(
        f"A table as {FORMAT_WORDS}: a file, a folder, a pattern such as `part-*.csv`, or several"
        " separated by commas; or a folder of images with one folder per class. `s3://...` or, in a"
        " local run, a path. `{date}`, `{hour}` and `{date-1d}` come from the scheduled tick, in"
        " UTC. Empty only for your own program (`train_options.command`) that needs no data",
        option=("--data", "URI"),
    ),
    "data_label": Parameter(
        "the column to predict; empty for images, whose folders are the classes",
        option=("--label", "COLUMN"),
    ),
    "data_options": Parameter(
        "dict with the keys `task`, `columns`, `drop`, `split`, `on_bad_row`, ...; for example"
        ' `{"drop": ["id"], "task": "regression"}`',
        default={},
        group=DataOptions,
    ),
    "model_name": Parameter(
        "the name under which the model is published, such as `churn`; models with the same"
        " name are compared",
        default=None,
        option=("--name", "NAME"),
    ),
    "model_code": Parameter(
        "`module:function` in the image, or a `.py` file, folder or zip with `:function`; for your"
        " own program (`train_options.command`), a path alone: a file, any folder or a zip",
        default="kfp_tfjob.trainer.models:mlp",
        option=("--model", "CODE"),
    ),
    "model_hyperparameters": Parameter(
        "dict of keyword arguments for the function in `model_code`", default={}
    ),
    "output_uri": Parameter(
        "`s3://bucket/prefix` for all output, or `s3://bucket/prefix/runs/{model_name}/{date}` to"
        " shape the folders of runs",
        default=None,
        option=("--output", "URI"),
    ),
    "storage_endpoint": Parameter(
        "the store's URL; empty for AWS or the endpoint in the Secret",
        option=("--endpoint", "URL"),
    ),
    "storage_region": Parameter(
        "the store's region; empty for the one in the Secret or the environment",
        option=("--region", "REGION"),
    ),
    "storage_secret": Parameter(
        "Kubernetes Secret with `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, ...",
        default="objstore-cred",
        option=("--secret", "NAME"),
    ),
    "train_workers": Parameter(
        "replicas in addition to the chief", default=1, option=("--workers", "N")
    ),
    "train_gpus": Parameter("GPUs per replica", default=0, option=("--gpus", "N")),
    "train_epochs": Parameter(
        "passes over the training rows", default=20, option=("--epochs", "N"), least=1
    ),
    "train_batch_size": Parameter(
        f"rows of one training step, over all GPUs of all replicas; 0 is {ROWS_PER_STEP} for each"
        f" GPU, or on CPUs {ROWS_PER_STEP} rounded up to a multiple of the replicas",
        default=0,
        option=("--batch-size", "ROWS"),
    ),
    # The default comes from `kfp-tfjob compile`.
    "train_image": Parameter("image of the container `tensorflow`", option=("--image", "IMAGE")),
    "train_options": Parameter(
        "dict with the keys `seed`, `class_weight`, `early_stopping`, `reduce_lr_on_plateau`,"
        ' `command`, ...; for example `{"seed": 1, "class_weight": "balanced"}`',
        default={},
        group=TrainOptions,
    ),
    "gate": Parameter(
        "dict of the conditions under which a model is published; if empty, no model is",
        default=DEFAULT_GATE,
        group=GateOptions,
    ),
    "pod": Parameter(
        "dict of the pods' settings (`cpu`, `memory`, `tolerations`, `env`, ...) under `all`,"
        " `chief`, `worker`, `ps`, `evaluator`, and for two steps under `prepare` and `evaluate`;"
        ' for example `{"all": {"cpu": "4", "memory": "8Gi"}}`',
        default={},
        group=PodOptions,
    ),
}


class RunParameters(TypedDict):
    """The value of each run parameter."""

    data_uri: str
    data_label: str
    data_options: dict[str, Any]
    model_name: str
    model_code: str
    model_hyperparameters: dict[str, Any]
    output_uri: str
    storage_endpoint: str
    storage_region: str
    storage_secret: str
    train_workers: int
    train_gpus: int
    train_epochs: int
    train_batch_size: int
    train_image: str
    train_options: dict[str, Any]
    gate: dict[str, Any]
    pod: dict[str, Any]


def completed(*values: Mapping[str, Any]) -> RunParameters:
    """Return the run parameters of several dicts; later dicts override earlier ones.

    A whole number such as 1e3 becomes an int.
    """
    merged: Any = {name: value for layer in values for name, value in layer.items()}
    for name in merged.keys() & PARAMETERS.keys():
        if PARAMETERS[name].type is int and isinstance(merged[name], float):
            merged[name] = whole_numbers(merged[name])
    return merged
