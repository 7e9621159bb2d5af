"""`pod`: resources and placement of the replicas."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pydantic

from kfp_tfjob.jobs.labels import LABEL_VALUE
from kfp_tfjob.options.parse import Group, option

_DAY = 24 * 3600  # seconds
# What every pod gets that neither `pod.all` nor the setting of its role changes.
DEFAULTS: dict[str, Any] = {
    "cpu": "4",
    "memory": "16Gi",
    "gpu_resource": "nvidia.com/gpu",
    "ephemeral_storage": "20Gi",
    "shared_memory": "2Gi",
    "run_as_user": 1000,
}
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
    """A key of a Kubernetes Secret."""

    secret: str = option(..., "The name of the Secret.")
    key: str = option(..., "The key in it.")


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
    """What can be said of the pods of a replica type; what is not said is None."""

    cpu: Cpu | None = option(
        None, "Cores of the container `tensorflow`, request and limit; 4 unless said."
    )
    memory: Bytes | None = option(
        None, "Bytes, request and limit; 16Gi unless said. shared_memory is part of it."
    )
    gpu_resource: Key | None = option(
        None,
        "The name GPUs are asked for by, nvidia.com/gpu or, for instance, that of a MIG slice.",
    )
    ephemeral_storage: Bytes | None = option(
        None, "Bytes of local disk for data, checkpoints and the model; 20Gi."
    )
    shared_memory: Bytes | None = option(
        None, "Bytes of /dev/shm, which NCCL uses between the GPUs of a replica; 2Gi."
    )
    node_selector: dict[Key, LabelValue] | None = option(None, "Labels a node must have.")
    tolerations: tuple[Toleration, ...] | None = option(None, "Taints the pods tolerate.")
    affinity: Affinity | None = option(None, "Preferences among nodes.")
    env: dict[Variable, VariableValue] | None = option(
        None,
        "Variables of the container `tensorflow`; Kubernetes expands `$(NAME)` in them."
        ' A value is a text or, so that no secret is a parameter, `{"secret": "NAME",'
        ' "key": "KEY"}` of a Kubernetes Secret; one that does not exist ends the run.'
        " In a local run it is the file secrets/NAME/KEY in --home.",
    )
    volumes: tuple[Volume, ...] | None = option(None, "Claims to mount.")
    priority_class: ObjectName | None = option(None, "Name of a PriorityClass.")
    scheduler: ObjectName | None = option(None, "Name of a scheduler other than the cluster's own.")
    service_account: ObjectName | None = option(
        None, "For access to a store without a Secret; no token is mounted by us."
    )
    image_pull_secret: ObjectName | None = option(None, "For a private registry.")
    annotations: dict[Key, Text] | None = option(None, "Of the pods.")
    labels: dict[Key, LabelValue] | None = option(None, "Of the pods.")
    run_as_user: int | None = option(None, "User id; 1000 unless said, and 0 is refused.", ge=1)
    grace_seconds: int | None = option(
        None,
        "From SIGTERM to SIGKILL, 60 unless said; on the chief 600, for the sidecar has"
        " to store what is left.",
        ge=1,
        le=_DAY,
    )


class AllSettings(PodSettings):
    """The settings of every pod, and those of the job."""

    queue: LabelValue | None = option(
        None, "A LocalQueue of Kueue; it belongs to the job and not to a pod."
    )


class ChiefSettings(PodSettings):
    """The settings of the chief."""

    output_claim: ObjectName | None = option(
        None, "A claim (PVC) for what the chief writes, where the node's disk is too small."
    )


class ExtraSettings(PodSettings):
    """The settings of replicas that only a user's own command knows what to do with."""

    replicas: int = option(0, "How many there are.", ge=0, le=999)
    gpus: int = option(0, "GPUs of each.", ge=0)


class EvaluatorSettings(ExtraSettings):
    """The settings of the evaluator; TensorFlow allows one."""

    replicas: int = option(0, "How many there are: one at most.", ge=0, le=1)


class PodOptions(Group):
    """`pod`: what the replica types have in common, and what is different for one of them."""

    all: AllSettings = option(AllSettings(), "For every pod.")
    chief: ChiefSettings = option(ChiefSettings(), "For the chief, and `output_claim`.")
    worker: PodSettings = option(PodSettings(), "For the workers.")
    ps: ExtraSettings = option(
        ExtraSettings(),
        "For parameter servers, with `replicas` and `gpus`; they need train_options.command.",
    )
    evaluator: EvaluatorSettings = option(EvaluatorSettings(), "For the evaluator, with the same.")

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
        merged: dict[str, Any] = dict(DEFAULTS, grace_seconds=600 if role == "chief" else 60)
        own: PodSettings = getattr(self, role)
        for settings in (self.all, own):
            for name in PodSettings.model_fields:
                value = getattr(settings, name)
                if value is None:
                    continue
                both = isinstance(value, dict) and isinstance(merged.get(name), dict)
                merged[name] = merged[name] | value if both else value
        return PodSettings.model_construct(**merged)
