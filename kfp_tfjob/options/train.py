"""The typed form of the parameter `train_options`, for the trainer and the launcher."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

from kfp_tfjob.common.errors import Problem
from kfp_tfjob.supervisor.flags import REFERENCE

from .parse import Group, option

DAY = 24 * 3600  # seconds
Number = Annotated[float, Field(allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Seconds = Annotated[int, Field(ge=1, le=365 * DAY)]  # a longer limit is a mistake, or none at all


class CallbackArguments(Group):
    """The arguments of a Keras callback; Keras uses its defaults for those that are not set."""

    monitor: str | None = None
    patience: int | None = Field(None, ge=0)
    min_delta: Number | None = None
    mode: Literal["auto", "min", "max"] | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The arguments that are set."""
        return self.model_dump(exclude_none=True)


class EarlyStopping(CallbackArguments):
    """The arguments of keras.callbacks.EarlyStopping."""

    baseline: Number | None = None
    restore_best_weights: bool | None = None
    start_from_epoch: int | None = Field(None, ge=0)


class ReduceLROnPlateau(CallbackArguments):
    """The arguments of keras.callbacks.ReduceLROnPlateau."""

    factor: float | None = Field(None, gt=0, lt=1)
    cooldown: int | None = Field(None, ge=0)
    min_lr: float | None = Field(None, ge=0, allow_inf_nan=False)


class Profile(Group):
    """The steps of a training that the chief records for TensorBoard's profile plugin."""

    start: int = Field(ge=1)
    steps: int = Field(ge=1, le=100)

    @property
    def last(self) -> int:
        """The last recorded step."""
        return self.start + self.steps - 1


class TrainerOptions(Group):
    """The keys of `train_options` that the trainer gets, as TRAIN_OPTIONS."""

    seed: int = option(
        0, "Seed for the weights, the order of the rows and dropout.", ge=0, lt=2**31
    )
    class_weight: dict[str, Weight] | Literal["balanced"] | None = option(
        None, "Weight of each class, by name; `balanced` gives every class the same total."
    )
    early_stopping: EarlyStopping | None = option(
        None, "When to stop before the last epoch: the arguments of keras.callbacks.EarlyStopping."
    )
    reduce_lr_on_plateau: ReduceLROnPlateau | None = option(
        None, "When to lower the learning rate: the arguments of keras.callbacks.ReduceLROnPlateau."
    )
    mixed_precision: bool | Literal["", "mixed_bfloat16", "mixed_float16"] = option(
        False, "Compute in 16 bits where that is safe: true, or a Keras policy."
    )
    checkpoint_seconds: float = option(
        60, "The longest time between two checkpoints.", gt=0, allow_inf_nan=False
    )
    checkpoint_keep: int = option(3, "Number of newest checkpoints to keep.", ge=1)
    micro_batches: int = option(
        1,
        "Number of parts into which a replica splits its rows of a step, to process one at a time.",
        ge=1,
    )
    sync_batch_norm: bool | Literal["auto"] = option(
        "auto",
        "Compute the statistics of every BatchNormalization layer over the rows of all replicas;"
        " `auto` does so with more than one. With `false`, several replicas refuse such a layer.",
    )
    profile: Profile | None = option(
        None,
        "The steps that the chief records for TensorBoard's profile plugin, counted from 1 over all"
        ' epochs, such as `{"start": 20, "steps": 5}`; at most 100.',
    )
    jit_compile: bool = option(False, "Let XLA compile the forward and backward pass on GPUs.")
    tf32: bool = option(
        True,
        "Let GPUs round the factors of float32 multiplications to 10 bits, which is much faster.",
    )
    deterministic_ops: bool = option(
        False,
        "Use only operations whose results are bitwise reproducible. Only GPUs need this, and it"
        " slows them down.",
    )

    @property
    def precision(self) -> str:
        """The policy of Keras; empty for float32."""
        return "mixed_bfloat16" if self.mixed_precision is True else self.mixed_precision or ""

    def synchronizes(self, replicas: int) -> bool:
        """Return whether this number of replicas synchronizes every BatchNormalization layer."""
        return replicas > 1 if self.sync_batch_norm == "auto" else self.sync_batch_norm


# The value of `stage_data` for `.npy` files.
NPY = "npy"
# The trainer's keys that do not affect the trained model: the micro-batches of a step give the
# result of the whole step, in less memory.
_WITHOUT_EFFECT = ("checkpoint_seconds", "checkpoint_keep", "micro_batches", "profile")
# The launcher's keys that affect the model of a user's own program.
_OF_A_COMMAND = ("command", "stage_data", "keras")


class TrainOptions(TrainerOptions):
    """The keys of `train_options`, for the trainer and for the launcher."""

    command: tuple[str, ...] = option(
        (), "Your own program instead of this project's trainer; its image needs python3."
    )
    stage_data: bool | Literal["npy"] = option(
        True,
        "Download the dataset to DATA_DIR for your own program; if false, the program"
        " reads DATASET_URI itself. `npy` converts a table to one `.npy` file for each column and"
        " split, for an image without pyarrow.",
    )
    chief_in_tf_config: bool = option(
        True,
        "Whether TF_CONFIG names a chief for your own program. If false, the chief is worker 0 and"
        " the workers follow it, as in a TFJob of workers without a chief.",
    )
    keras: Literal["auto", 2, 3] = option(
        "auto",
        "The version of `tf.keras` in your own program. `auto` chooses 2 if the program calls"
        " `model.fit` with a strategy that Keras 3 does not support. 2 needs tf-keras in the"
        " image.",
    )
    evaluate: bool = option(
        True,
        "Evaluate the model and publish it if it is blessed; if false, or without `data_uri`, the"
        " run needs no model and ends once its output is verified.",
    )
    when_unchanged: Literal["train", "skip"] = option(
        "train",
        "What a run does if a run with the same data, code and options was evaluated before:"
        " `train` again, or `skip` training and end at once.",
    )
    job: Literal["auto", "tfjob", "jobset", "pytorchjob"] = option(
        "auto",
        "The kind of job: `auto` is a TFJob if the cluster runs the training operator, otherwise a"
        " JobSet. All attempts of a run have the same kind.",
    )
    deadline_seconds: Seconds = option(7 * DAY, "How long the pods of one attempt may run.")
    start_timeout_seconds: Seconds = option(
        900, "How long a replica waits for the others to appear."
    )
    store_deadline_seconds: Seconds = option(
        3600, "How long a trained model may wait for the store."
    )
    max_restarts: int = option(
        10,
        "How often a replica's trainer may be restarted in its pod.",
        ge=0,
        le=1000,
    )
    max_attempts: int = option(
        3,
        "How many consecutive attempts may fail because of the infrastructure without storing a"
        " newer checkpoint.",
        ge=1,
        le=99,
    )
    backoff_seconds: float = option(
        10,
        "The pause before the second attempt; it doubles, up to 600 s, after each attempt that"
        " stores no newer checkpoint.",
        ge=0,
        le=3600,
    )
    ttl_seconds: int = option(
        DAY,
        "How long a finished job and its pods are kept, for you to inspect and for the"
        " launcher to read the result.",
        ge=60,
    )
    operator_timeout_seconds: Seconds = option(
        60, "How long the job may go without a status from the training operator."
    )
    pending_timeout_seconds: Seconds = option(
        1800,
        "How long pods may wait for a node, over all attempts; allow more than your cluster"
        " needs to add a node.",
    )
    partly_placed_seconds: Seconds = option(
        300, "How long some replicas may hold GPUs while others wait for them."
    )
    image_pull_timeout_seconds: Seconds = option(
        300, "How long a container may fail to start because of its image or configuration."
    )
    queue_timeout_seconds: Seconds = option(
        7 * DAY,
        "How long a job may be suspended in a queue; no other limit includes this time.",
    )
    stall_timeout_seconds: Seconds = option(3600, "How long the chief may log nothing.")
    orphan_timeout_seconds: Seconds = option(
        1800, "How long the chief trains without its launcher before it saves and stops."
    )
    cancel_grace_seconds: int = option(
        60,
        "Time for the chief to save and store its checkpoint when you end the run.",
        ge=1,
        le=3600,
    )
    api_timeout_seconds: Seconds = option(
        900,
        "How long the API server may be unreachable before the step fails; the job"
        " continues, and a restarted step takes it over.",
    )

    @pydantic.field_validator("command")
    @classmethod
    def _has_program(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        if command and not command[0].strip():
            raise ValueError('a list that starts with a program, for example ["python3", "t.py"]')
        if any(REFERENCE in element and element != REFERENCE for element in command):
            raise ValueError(f"{REFERENCE} as an element of its own, which becomes several")
        return command

    @property
    def for_result(self) -> dict[str, Any]:
        """The keys that affect the trained model."""
        options = self.model_dump(mode="json")
        affects = {
            name: options[name]
            for name in (*TrainerOptions.model_fields, *_OF_A_COMMAND)
            if name not in _WITHOUT_EFFECT
        }
        # At its default it is omitted, so that earlier runs keep their digests.
        return affects if self.chief_in_tf_config else affects | {"chief_in_tf_config": False}

    @property
    def for_trainer(self) -> dict[str, Any]:
        """The content of TRAIN_OPTIONS."""
        names = TrainerOptions.model_fields
        values = self.model_dump(mode="json", include=set(names), exclude_none=True)
        return {name: values.get(name) for name in names}


def npy_problem(what: str, received: str, expected: str) -> Problem:
    """Return the problem of a dataset that `stage_data: npy` cannot convert.

    Args:
        what: The reason.
        received: The part of the dataset that cannot be converted.
        expected: What can be converted.
    """
    return Problem(
        f"train_options.stage_data is {NPY}, but {what}",
        received=received,
        expected=expected,
        fix="set train_options.stage_data to true, which downloads Parquet files, or to false for a"
        " program that reads DATASET_URI itself",
        path="train_options.stage_data",
        suggestion="true",
    )


def images_as_npy() -> Problem:
    """Return the problem of images with `stage_data: npy`."""
    return npy_problem("the rows are images", "a dataset of images", "a table with columns")
