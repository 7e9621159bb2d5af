"""`train_options`: what the trainer and the launcher are told."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

from kfp_tfjob.options.parse import Group, option

DAY = 24 * 3600  # seconds
Number = Annotated[float, Field(allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Seconds = Annotated[int, Field(ge=1, le=365 * DAY)]


class CallbackArguments(Group):
    """The arguments of a callback of Keras; those that are not set are left to Keras."""

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


class TrainerOptions(Group):
    """The keys of `train_options` that the trainer gets, as TRAIN_OPTIONS."""

    seed: int = option(0, "Of the weights and of the order of the rows.", ge=0, lt=2**31)
    class_weight: dict[str, Weight] | Literal["balanced"] | None = option(
        None, "Weight by class, or `balanced`."
    )
    early_stopping: EarlyStopping | None = option(None, "When to stop before the last epoch.")
    reduce_lr_on_plateau: ReduceLROnPlateau | None = option(
        None, "When to lower the learning rate."
    )
    mixed_precision: bool | Literal["", "mixed_bfloat16", "mixed_float16"] = option(
        False, "Whether to compute in 16 bits where that is safe, or a policy of Keras."
    )
    checkpoint_seconds: float = option(60, "The longest time between two checkpoints.", gt=0)
    checkpoint_keep: int = option(3, "How many of the newest checkpoints stay.", ge=1)
    checkpoint_best: str | None = option(
        "val_loss",
        "The metric by which one more checkpoint stays, the best; null for none.",
        min_length=1,
    )
    micro_batches: int = option(
        1, "In how many parts, one after the other, a replica takes its rows of a step.", ge=1
    )
    sync_batch_norm: bool = option(
        False, "Whether every BatchNormalization is made a synchronized one."
    )
    jit_compile: bool = option(
        False, "Whether XLA compiles the forward and the backward pass on GPUs."
    )
    tf32: bool = option(
        True, "Whether GPUs may round factors of float32 products to 10 bits, which is much faster."
    )
    deterministic_ops: bool = option(
        False,
        "Whether to use only operations that give the same bits every time; GPUs need"
        " it for that, and are slower.",
    )

    @property
    def precision(self) -> str:
        """The policy of Keras; empty for float32."""
        return "mixed_bfloat16" if self.mixed_precision is True else self.mixed_precision or ""


class TrainOptions(TrainerOptions):
    """The keys of `train_options`: those of the trainer, and those of the launcher."""

    command: tuple[str, ...] = option(
        (), "A user's own program instead of the project's trainer; its image has python3."
    )
    stage_data: bool = option(
        True,
        "Whether such a program finds the dataset in DATA_DIR; without it, it reads"
        " DATASET_URI itself.",
    )
    deadline_seconds: Seconds = option(7 * DAY, "How long the pods of one attempt may run.")
    run_deadline_seconds: Seconds = option(
        7 * DAY,
        "How long the whole run may take, from the claim of its first attempt, with"
        " every pause and queue; a run that a person starts again has all of it once"
        " more.",
    )
    start_timeout_seconds: Seconds = option(
        900, "How long a replica waits for the others to appear."
    )
    store_deadline_seconds: Seconds = option(
        3600, "How long a trained model may wait for the store."
    )
    max_restarts: int = option(
        10,
        "How often the trainer of a replica that died is started again in its pod.",
        ge=0,
        le=1000,
    )
    warm_spare: bool = option(
        False,
        "Whether a replica keeps a second process with TensorFlow loaded, so that it"
        " goes on two seconds after it died; it takes 0.6 GB of memory.",
    )
    max_attempts: int = option(
        3,
        "How many attempts in a row may be lost to the infrastructure without having"
        " stored a newer checkpoint; one that has stored one is free.",
        ge=1,
        le=99,
    )
    backoff_seconds: float = option(
        10,
        "The pause before the second attempt; it doubles with every further one that"
        " stores no newer checkpoint.",
        ge=0,
        le=3600,
    )
    ttl_seconds: int = option(
        DAY,
        "How long a finished TFJob and its pods stay for people to look at, and for the"
        " launcher to read how it ended.",
        ge=60,
    )
    operator_timeout_seconds: Seconds = option(
        60, "How long the training operator may say nothing."
    )
    pending_timeout_seconds: Seconds = option(
        1800,
        "How long pods may wait for a node, all attempts together; longer than a node"
        " takes to be made.",
    )
    partly_placed_seconds: Seconds = option(
        300, "How long some replicas may hold GPUs while others wait for them."
    )
    image_pull_timeout_seconds: Seconds = option(
        300, "How long a container may fail to start for its image or its configuration."
    )
    queue_timeout_seconds: Seconds = option(
        7 * DAY,
        "How long a job may be suspended in a queue; of the other limits it counts for"
        " run_deadline_seconds alone.",
    )
    stall_timeout_seconds: Seconds = option(3600, "How long the chief may log nothing.")
    orphan_timeout_seconds: Seconds = option(
        1800, "After how long without its launcher the chief saves and stops."
    )
    cancel_grace_seconds: int = option(
        60, "How long the chief may save and store when a person ends the run.", ge=1, le=3600
    )
    api_timeout_seconds: Seconds = option(
        900,
        "How long the API server may be away before the step fails; the job runs on"
        " meanwhile, and a step that is started again takes it over.",
    )

    @pydantic.field_validator("command")
    @classmethod
    def _has_program(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        if command and not command[0].strip():
            raise ValueError('a list that starts with a program, for instance ["python3", "t.py"]')
        return command

    @property
    def for_trainer(self) -> dict[str, Any]:
        """The content of TRAIN_OPTIONS."""
        names = TrainerOptions.model_fields
        values = self.model_dump(mode="json", include=set(names), exclude_none=True)
        return {name: values.get(name) for name in names}
