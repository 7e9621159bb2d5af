"""The typed forms of the dict parameters `train_options` and `pod`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

from kfp_tfjob.jobs.labels import LABEL_VALUE
from kfp_tfjob.options.parse import Group

DAY = 24 * 3600  # seconds
# What the trainer is told; the rest of train_options is for the launcher.
TRAINER_OPTIONS = (
    "seed",
    "class_weight",
    "early_stopping",
    "reduce_lr_on_plateau",
    "mixed_precision",
    "checkpoint_seconds",
    "checkpoint_keep",
    "checkpoint_best",
    "micro_batches",
    "sync_batch_norm",
    "jit_compile",
    "tf32",
    "deterministic_ops",
)
_NUMBER = r"\d+(?:\.\d+)?"
_CPU = re.compile(rf"{_NUMBER}m?")
_BYTES = re.compile(rf"({_NUMBER})([kMGTPE]|[KMGTPE]i)?")
_KEY = re.compile(rf"(?:[a-z0-9](?:[a-z0-9.-]{{0,251}}[a-z0-9])?/)?{LABEL_VALUE}")
_DNS_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_KEY = re.compile(r"[A-Za-z0-9._-]{1,253}")


def _cpu(value: Any) -> str:
    text = _text(value)
    if not _CPU.fullmatch(text) or not float(text.rstrip("m")):
        raise ValueError("a number of cores above 0, for instance 4, 0.5 or 500m")
    return text


def _bytes(value: Any) -> str:
    text = _text(value)
    found = _BYTES.fullmatch(text)
    if not found or not float(found[1]) or (not found[2] and float(found[1]) < 1e6):
        # 512m is a valid quantity and means half a byte, and 16 means 16 bytes: nobody means that.
        raise ValueError("bytes above 0, for instance 16Gi, 512Mi or 2G")
    return text


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("a text or a number")
    return str(value).strip()


def _dns_name(value: str) -> str:
    if not _DNS_NAME.fullmatch(value):
        raise ValueError("the name of a Kubernetes object: small letters, digits, - and .")
    return value


def _key(value: str) -> str:
    if not _KEY.fullmatch(value):
        raise ValueError("a key of Kubernetes: NAME or PREFIX/NAME")
    return value


def _label_value(value: str) -> str:
    if value and not re.fullmatch(LABEL_VALUE, value):
        raise ValueError(
            "at most 63 letters, digits, -, _ and ., with a letter or digit at the ends"
        )
    return value


def _variable(value: str) -> str:
    if not _VARIABLE.fullmatch(value):
        raise ValueError("the name of an environment variable")
    return value


def _absolute(value: str) -> str:
    if not value.startswith("/") or ".." in value.split("/") or not value.strip("/"):
        raise ValueError("an absolute path below /")
    return "/" + value.strip("/")


class SecretKey(Group):
    """A key of a Kubernetes Secret.

    Attributes:
        secret: The name of the Secret.
        key: The key in it.
    """

    secret: str
    key: str


def _variable_value(value: Any) -> str | SecretKey:
    if isinstance(value, SecretKey):
        return value
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return _text(value)
    given = value if isinstance(value, Mapping) else {}
    name, key = given.get("secret"), given.get("key")
    right = set(given) == {"secret", "key"} and isinstance(name, str) and isinstance(key, str)
    if not (right and _DNS_NAME.fullmatch(name) and _SECRET_KEY.fullmatch(key)):
        raise ValueError('a text, or {"secret": "NAME", "key": "KEY"} of a Kubernetes Secret')
    return SecretKey(secret=name, key=key)


VariableValue = Annotated[str | SecretKey, pydantic.BeforeValidator(_variable_value)]
Cpu = Annotated[str, pydantic.BeforeValidator(_cpu)]
Bytes = Annotated[str, pydantic.BeforeValidator(_bytes)]
ObjectName = Annotated[str, pydantic.AfterValidator(_dns_name)]
Key = Annotated[str, pydantic.AfterValidator(_key)]
LabelValue = Annotated[str, pydantic.BeforeValidator(_text), pydantic.AfterValidator(_label_value)]
Text = Annotated[str, pydantic.BeforeValidator(_text)]
Variable = Annotated[str, pydantic.AfterValidator(_variable)]
Path = Annotated[str, pydantic.AfterValidator(_absolute)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Seconds = Annotated[int, Field(ge=1, le=365 * DAY)]


class _Monitor(Group):
    monitor: str | None = None
    patience: Annotated[int, Field(ge=0)] | None = None
    min_delta: Number | None = None
    mode: Literal["auto", "min", "max"] | None = None


class EarlyStopping(_Monitor):
    """The arguments of keras.callbacks.EarlyStopping; what is not said is left to Keras."""

    baseline: Number | None = None
    restore_best_weights: bool | None = None
    start_from_epoch: Annotated[int, Field(ge=0)] | None = None


class ReduceLROnPlateau(_Monitor):
    """The arguments of keras.callbacks.ReduceLROnPlateau; what is not said is left to Keras."""

    factor: Annotated[float, Field(gt=0, lt=1)] | None = None
    cooldown: Annotated[int, Field(ge=0)] | None = None
    min_lr: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


class TrainOptions(Group):
    """`train_options`.

    Attributes:
        seed: Of the weights and of the order of the rows.
        class_weight: Weight by class, or `balanced`.
        early_stopping: When to stop before the last epoch.
        reduce_lr_on_plateau: When to lower the learning rate.
        mixed_precision: Whether to compute in 16 bits where that is safe, or a policy of Keras.
        checkpoint_seconds: The longest time between two checkpoints.
        checkpoint_keep: How many of the newest checkpoints stay.
        checkpoint_best: The metric by which one more checkpoint stays, the best; null for none.
        micro_batches: In how many parts, one after the other, a replica takes its rows of a step.
        sync_batch_norm: Whether every BatchNormalization is made a synchronized one.
        jit_compile: Whether XLA compiles the forward and the backward pass on GPUs.
        tf32: Whether GPUs may round factors of float32 products to 10 bits, which is much faster.
        deterministic_ops: Whether to use only operations that give the same bits every time; GPUs
            need it for that, and are slower.
        command: A user's own program instead of the project's trainer; its image has python3.
        stage_data: Whether such a program finds the dataset in DATA_DIR; without it, it reads
            DATASET_URI itself.
        deadline_seconds: How long the pods of one attempt may run.
        run_deadline_seconds: How long the whole run may take, from the claim of its first attempt,
            with every pause and queue; a run that a person starts again has all of it once more.
        start_timeout_seconds: How long a replica waits for the others to appear.
        store_deadline_seconds: How long a trained model may wait for the store.
        max_restarts: How often the trainer of a replica that died is started again in its pod.
        warm_spare: Whether a replica keeps a second process with TensorFlow loaded, so that it goes
            on two seconds after it died; it takes 0.6 GB of memory.
        max_attempts: How many attempts in a row may be lost to the infrastructure without having
            stored a newer checkpoint; one that has stored one is free.
        backoff_seconds: The pause before the second attempt; it doubles with every further one
            that stores no newer checkpoint.
        ttl_seconds: How long a finished TFJob and its pods stay for people to look at, and for the
            launcher to read how it ended.
        operator_timeout_seconds: How long the training operator may say nothing.
        pending_timeout_seconds: How long pods may wait for a node, all attempts together; longer
            than a node takes to be made.
        partly_placed_seconds: How long some replicas may hold GPUs while others wait for them.
        image_pull_timeout_seconds: How long a container may fail to start for its image or its
            configuration.
        queue_timeout_seconds: How long a job may be suspended in a queue; of the other limits it
            counts for run_deadline_seconds alone.
        stall_timeout_seconds: How long the chief may log nothing.
        orphan_timeout_seconds: After how long without its launcher the chief saves and stops.
        cancel_grace_seconds: How long the chief may save and store when a person ends the run.
        api_timeout_seconds: How long the API server may be away before the step fails; the job
            runs on meanwhile, and a step that is started again takes it over.
    """

    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    class_weight: dict[str, Weight] | Literal["balanced"] | None = None
    early_stopping: EarlyStopping | None = None
    reduce_lr_on_plateau: ReduceLROnPlateau | None = None
    mixed_precision: bool | Literal["", "mixed_bfloat16", "mixed_float16"] = False
    checkpoint_seconds: Annotated[float, Field(gt=0)] = 60
    checkpoint_keep: Annotated[int, Field(ge=1)] = 3
    checkpoint_best: Annotated[str, Field(min_length=1)] | None = "val_loss"
    micro_batches: Annotated[int, Field(ge=1)] = 1
    sync_batch_norm: bool = False
    jit_compile: bool = False
    tf32: bool = True
    deterministic_ops: bool = False
    command: tuple[str, ...] = ()
    stage_data: bool = True
    deadline_seconds: Seconds = 7 * DAY
    run_deadline_seconds: Seconds = 7 * DAY
    start_timeout_seconds: Seconds = 900
    store_deadline_seconds: Seconds = 3600
    max_restarts: Annotated[int, Field(ge=0, le=1000)] = 10
    warm_spare: bool = False
    max_attempts: Annotated[int, Field(ge=1, le=99)] = 3
    backoff_seconds: Annotated[float, Field(ge=0, le=3600)] = 10
    ttl_seconds: Annotated[int, Field(ge=60)] = DAY
    operator_timeout_seconds: Seconds = 60
    pending_timeout_seconds: Seconds = 1800
    partly_placed_seconds: Seconds = 300
    image_pull_timeout_seconds: Seconds = 300
    queue_timeout_seconds: Seconds = 7 * DAY
    stall_timeout_seconds: Seconds = 3600
    orphan_timeout_seconds: Seconds = 1800
    cancel_grace_seconds: Annotated[int, Field(ge=1, le=3600)] = 60
    api_timeout_seconds: Seconds = 900

    @pydantic.field_validator("command")
    @classmethod
    def _has_program(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        if command and not command[0].strip():
            raise ValueError('a list that starts with a program, for instance ["python3", "t.py"]')
        return command

    @property
    def for_trainer(self) -> dict[str, Any]:
        """The content of TRAIN_OPTIONS."""
        values = self.model_dump(mode="json", include=set(TRAINER_OPTIONS), exclude_none=True)
        return {name: values.get(name) for name in TRAINER_OPTIONS}


class Toleration(Group):
    """A toleration, as Kubernetes spells it."""

    key: str | None = None
    operator: Literal["Exists", "Equal"] | None = None
    value: Text | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    tolerationSeconds: int | None = None  # noqa: N815


class Affinity(Group):
    """An affinity, as Kubernetes spells it; what stands in its parts is left to Kubernetes."""

    nodeAffinity: dict[str, Any] | None = None  # noqa: N815
    podAffinity: dict[str, Any] | None = None  # noqa: N815
    podAntiAffinity: dict[str, Any] | None = None  # noqa: N815


class Volume(Group):
    """A claim (PVC) mounted into every container `tensorflow` it is named for."""

    claim: ObjectName
    path: Path
    read_only: bool = False


class PodSettings(Group):
    """What can be said of the pods of a replica type; what is not said is None.

    Attributes:
        cpu: Cores of the container `tensorflow`, request and limit; 4 unless said.
        memory: Bytes, request and limit; 16Gi unless said. shared_memory is part of it.
        gpu_resource: The name GPUs are asked for by, nvidia.com/gpu or, for instance, that
            of a MIG slice.
        ephemeral_storage: Bytes of local disk for data, checkpoints and the model; 20Gi.
        shared_memory: Bytes of /dev/shm, which NCCL uses between the GPUs of a replica; 2Gi.
        node_selector: Labels a node must have.
        tolerations: Taints the pods tolerate.
        affinity: Preferences among nodes.
        env: Variables of the container `tensorflow`; Kubernetes expands `$(NAME)` in them. A value
            is a text or, so that no secret is a parameter, `{"secret": "NAME", "key": "KEY"}` of a
            Kubernetes Secret; one that does not exist ends the run. In a local run it is the file
            secrets/NAME/KEY in --home.
        volumes: Claims to mount.
        priority_class: Name of a PriorityClass.
        scheduler: Name of a scheduler other than the cluster's own.
        service_account: For access to a store without a Secret; no token is mounted by us.
        image_pull_secret: For a private registry.
        annotations: Of the pods.
        labels: Of the pods.
        run_as_user: User id; 1000 unless said, and 0 is refused.
        grace_seconds: From SIGTERM to SIGKILL, 60 unless said; on the chief 600, for the sidecar
            has to store what is left.
    """

    cpu: Cpu | None = None
    memory: Bytes | None = None
    gpu_resource: Key | None = None
    ephemeral_storage: Bytes | None = None
    shared_memory: Bytes | None = None
    node_selector: dict[Key, LabelValue] | None = None
    tolerations: tuple[Toleration, ...] | None = None
    affinity: Affinity | None = None
    env: dict[Variable, VariableValue] | None = None
    volumes: tuple[Volume, ...] | None = None
    priority_class: ObjectName | None = None
    scheduler: ObjectName | None = None
    service_account: ObjectName | None = None
    image_pull_secret: ObjectName | None = None
    annotations: dict[Key, Text] | None = None
    labels: dict[Key, LabelValue] | None = None
    run_as_user: Annotated[int, Field(ge=1)] | None = None
    grace_seconds: Annotated[int, Field(ge=1, le=DAY)] | None = None


class AllSettings(PodSettings):
    """The settings of every pod, and those of the job.

    Attributes:
        queue: A LocalQueue of Kueue; it belongs to the job and not to a pod.
    """

    queue: LabelValue | None = None


class ChiefSettings(PodSettings):
    """The settings of the chief.

    Attributes:
        output_claim: A claim (PVC) for what the chief writes, where the node's disk is too small.
    """

    output_claim: ObjectName | None = None


class ExtraSettings(PodSettings):
    """The settings of replicas that only a user's own command knows what to do with.

    Attributes:
        replicas: How many there are.
        gpus: GPUs of each.
    """

    replicas: Annotated[int, Field(ge=0, le=999)] = 0
    gpus: Annotated[int, Field(ge=0)] = 0


class EvaluatorSettings(ExtraSettings):
    """The settings of the evaluator; TensorFlow allows one."""

    replicas: Annotated[int, Field(ge=0, le=1)] = 0


class PodOptions(Group):
    """`pod`: what the replica types have in common, and what is different for one of them.

    Attributes:
        all: For every pod.
        chief: For the chief, and `output_claim`.
        worker: For the workers.
        ps: For parameter servers, with `replicas` and `gpus`; they need train_options.command.
        evaluator: For the evaluator, with the same.
    """

    all: AllSettings = AllSettings()
    chief: ChiefSettings = ChiefSettings()
    worker: PodSettings = PodSettings()
    ps: ExtraSettings = ExtraSettings()
    evaluator: EvaluatorSettings = EvaluatorSettings()

    @pydantic.model_validator(mode="before")
    @classmethod
    def _no_master(cls, value: Any) -> Any:
        if isinstance(value, dict) and any(str(key).lower() == "master" for key in value):
            raise ValueError(
                "no key master: TensorFlow 2 refuses a cluster with the task type master in every"
                " replica; use chief"
            )
        return value

    def of(self, role: str) -> PodSettings:
        """Return the settings of a role: its own, else those of `all`, else the defaults.

        Dicts of names (env, labels, annotations, node_selector) are added up; every other key of
        the role replaces that of `all`.

        Args:
            role: `chief`, `worker`, `ps` or `evaluator`.
        """
        merged: dict[str, Any] = dict(_DEFAULTS, grace_seconds=600 if role == "chief" else 60)
        own: PodSettings = getattr(self, role)
        for settings in (self.all, own):
            for name in PodSettings.model_fields:
                value = getattr(settings, name)
                if value is None:
                    continue
                both = isinstance(value, dict) and isinstance(merged.get(name), dict)
                merged[name] = merged[name] | value if both else value
        return PodSettings.model_construct(**merged)


_DEFAULTS: dict[str, Any] = {
    "cpu": "4",
    "memory": "16Gi",
    "gpu_resource": "nvidia.com/gpu",
    "ephemeral_storage": "20Gi",
    "shared_memory": "2Gi",
    "run_as_user": 1000,
}
