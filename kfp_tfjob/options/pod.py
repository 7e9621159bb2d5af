"""The typed form of the parameter `pod`: resources and placement of the replicas and steps.

Called by preflight, the launcher, the checks and `kfp-tfjob import`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pydantic

from .parse import Group, option

_DAY = 24 * 3600  # seconds; the longest grace period: a node that is drained waits this long
# Every pod's settings, unless `pod.all` or its role's settings replace them.
DEFAULTS: dict[str, Any] = {
    "cpu": "4",
    "memory": "16Gi",
    "gpu_resource": "nvidia.com/gpu",
    "ephemeral_storage": "20Gi",
    "shared_memory": "2Gi",
    "run_as_user": 1000,
    "grace_seconds": 60,
}
# Kubernetes' resources that have their own key, by name.
NATIVE_RESOURCES = {
    "cpu": "cpu",
    "memory": "memory",
    "ephemeral-storage": "ephemeral_storage",
}
CHIEF_GRACE = 600  # seconds, because the sidecar has to store the remaining files
_NUMBER = r"\d+(?:\.\d+)?"
_CPU = re.compile(rf"{_NUMBER}m?")
_BYTES = re.compile(rf"({_NUMBER})([kMGTPE]|[KMGTPE]i)?")
LABEL_VALUE = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"(?:[a-z0-9](?:[a-z0-9.-]{{0,251}}[a-z0-9])?/)?{LABEL_VALUE}")
_DNS_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_KEY = re.compile(r"[A-Za-z0-9._-]{1,253}")


def _cpu(value: Any) -> str:
    text = _text(value)
    if not _CPU.fullmatch(text) or not float(text.rstrip("m")):
        raise ValueError("a number of cores above 0, for example 4, 0.5 or 500m")
    return text


def _bytes(value: Any) -> str:
    text = _text(value)
    if not bytes_of(text):
        raise ValueError("bytes above 0, for example 16Gi, 512Mi or 2G")
    return text


def bytes_of(quantity: str) -> float:
    """Return the bytes of a quantity such as 16Gi; 0 for a string that is not a quantity."""
    match = _BYTES.fullmatch(quantity)
    if not match or (not match[2] and float(match[1]) < 1e6):
        # 512m is a valid quantity of half a byte, and 16 means 16 bytes; both must be mistakes.
        return 0
    unit = match[2] or " "
    base = 1024 if unit.endswith("i") else 1000
    return float(match[1]) * base ** " KMGTPE".index(unit[0].upper())


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("a string or a number")
    return str(value).strip()


def _pod_string(value: Any) -> str:
    """Return a string for a pod; a whole number is accepted, but 1.10 would become 1.1."""
    if isinstance(value, float):
        raise ValueError('a string; write a decimal number in quotes, such as "1.10"')
    return _text(value)


def _matching(pattern: re.Pattern[str], words: str) -> pydantic.AfterValidator:
    """Return a validator that a whole string matches a pattern.

    Args:
        pattern: The pattern.
        words: The expected value in words, for the message.
    """

    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            raise ValueError(words)
        return value

    return pydantic.AfterValidator(check)


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
        return _pod_string(value)
    reference = value if isinstance(value, Mapping) else {}
    name, key = reference.get("secret"), reference.get("key")
    if set(reference) == {"secret", "key"} and isinstance(name, str) and isinstance(key, str):
        if _DNS_NAME.fullmatch(name) and _SECRET_KEY.fullmatch(key):
            return SecretKey(secret=name, key=key)
    raise ValueError('a string, or {"secret": "NAME", "key": "KEY"} of a Kubernetes Secret')


VariableValue = Annotated[str | SecretKey, pydantic.BeforeValidator(_variable_value)]
Cpu = Annotated[str, pydantic.BeforeValidator(_cpu)]
Bytes = Annotated[str, pydantic.BeforeValidator(_bytes)]
Quantity = Annotated[str, pydantic.BeforeValidator(_text)]
ObjectName = Annotated[
    str,
    _matching(_DNS_NAME, "the name of a Kubernetes object: lowercase letters, digits, - and ."),
]
Key = Annotated[str, _matching(_KEY, "a Kubernetes key: NAME or PREFIX/NAME")]
LabelValue = Annotated[
    str,
    pydantic.BeforeValidator(_pod_string),
    _matching(
        re.compile(f"({LABEL_VALUE})?"),
        "at most 63 letters, digits, -, _ and ., with a letter or digit at the ends",
    ),
]
Text = Annotated[str, pydantic.BeforeValidator(_pod_string)]
Variable = Annotated[str, _matching(_VARIABLE, "the name of an environment variable")]
Path = Annotated[str, pydantic.AfterValidator(_absolute)]


class Toleration(Group):
    """A toleration, as Kubernetes spells it.

    Neither the API server nor an operator checks it in a job, but no pod with a wrong one starts.
    """

    key: Key | Literal[""] | None = None
    operator: Literal["Exists", "Equal"] | None = None
    value: LabelValue | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    tolerationSeconds: int | None = None  # noqa: N815

    @pydantic.model_validator(mode="after")
    def _of_kubernetes(self) -> Toleration:
        if self.tolerationSeconds is not None and self.effect != "NoExecute":
            raise ValueError('tolerationSeconds only with "effect": "NoExecute"')
        if self.operator == "Exists" and self.value:
            raise ValueError('no value with "operator": "Exists"')
        if not self.key and self.operator != "Exists":
            raise ValueError('a key; without one, "operator": "Exists" tolerates every taint')
        return self


class Affinity(Group):
    """An affinity, as Kubernetes spells it; Kubernetes checks its parts."""

    nodeAffinity: dict[str, Any] | None = None  # noqa: N815
    podAffinity: dict[str, Any] | None = None  # noqa: N815
    podAntiAffinity: dict[str, Any] | None = None  # noqa: N815


class Volume(Group):
    """A claim (PVC), or a Secret or ConfigMap as files, mounted into the container `tensorflow`."""

    claim: ObjectName | None = None
    secret_name: ObjectName | None = None
    config_map: ObjectName | None = None
    path: Path
    read_only: bool = False

    @pydantic.model_validator(mode="after")
    def _one(self) -> Volume:
        sources = (self.claim, self.secret_name, self.config_map)
        if sum(source is not None for source in sources) != 1:
            raise ValueError(
                'one of claim, secret_name and config_map, for example {"claim": "c", "path": "/c"}'
            )
        return self

    @property
    def kind(self) -> str:
        """The beginning of the volume's name in a pod."""
        return "claim" if self.claim else "secret" if self.secret_name else "config-map"

    @property
    def source(self) -> dict[str, Any]:
        """The source as Kubernetes spells it."""
        if self.claim:
            return {"persistentVolumeClaim": {"claimName": self.claim}}
        if self.secret_name:
            return {"secret": {"secretName": self.secret_name}}
        return {"configMap": {"name": self.config_map}}


class PodSettings(Group):
    """The settings of the pods of a role; None for those that are not set."""

    cpu: Cpu | None = option(
        None,
        f"CPU cores of the container `tensorflow`, as request and limit. Default:"
        f" {DEFAULTS['cpu']}.",
    )
    memory: Bytes | None = option(
        None,
        "Memory of that container, as request and limit; shared_memory is part of it."
        f" Default: {DEFAULTS['memory']}.",
    )
    ephemeral_storage: Bytes | None = option(
        None,
        "Local disk space for data, checkpoints and the model. Default:"
        f" {DEFAULTS['ephemeral_storage']}, or 10Gi more than the data needs, if that is more.",
    )
    node_selector: dict[Key, LabelValue] | None = option(None, "Labels that a node must have.")
    tolerations: tuple[Toleration, ...] | None = option(
        None, "Taints that the pods tolerate, as Kubernetes tolerations."
    )
    affinity: Affinity | None = option(
        None, "Rules and preferences for choosing nodes, as a Kubernetes affinity."
    )
    env: dict[Variable, VariableValue] | None = option(
        None,
        "Environment variables of the container `tensorflow`, as strings; Kubernetes expands"
        ' `$(NAME)` in them. For a secret, use `{"secret": "NAME", "key": "KEY"}`, which names a'
        " key of a Kubernetes Secret; the run fails if it does not exist. A local run reads the"
        " file"
        " secrets/NAME/KEY in --home. `MLFLOW_TRACKING_URI` makes the chief log the training to"
        " MLflow.",
    )
    priority_class: ObjectName | None = option(None, "Name of a PriorityClass.")
    scheduler: ObjectName | None = option(
        None, "Name of a scheduler other than the cluster's default."
    )
    service_account: ObjectName | None = option(
        None,
        "Service account, for access to a store without a Secret. No token is mounted.",
    )
    image_pull_secret: ObjectName | None = option(
        None, "Name of the Secret for a private registry."
    )
    annotations: dict[Key, Text] | None = option(None, "Annotations of the pods.")
    labels: dict[Key, LabelValue] | None = option(None, "Labels of the pods.")
    run_as_user: Annotated[int, pydantic.Field(ge=1)] | Literal["none"] | None = option(
        None,
        "User id, not 0, or `none` to let the cluster choose, as OpenShift requires. Default:"
        f" {DEFAULTS['run_as_user']}.",
    )
    gpu_resource: Key | None = option(
        None,
        f"Resource name of the GPUs, which may be MIG slices. Default: {DEFAULTS['gpu_resource']}.",
    )
    shared_memory: Bytes | None = option(
        None,
        "Size of /dev/shm, which NCCL uses between the GPUs of a replica. Default:"
        f" {DEFAULTS['shared_memory']}.",
    )
    resources: dict[Key, Quantity] | None = option(
        None,
        "Other resources of the container `tensorflow`, as requests and limits, such as"
        ' `{"vpc.amazonaws.com/efa": 4, "hugepages-2Mi": "5Gi"}` or `{"rdma/ib": 1}`.',
    )
    volumes: tuple[Volume, ...] | None = option(
        None,
        "Claims (PVCs), and Secrets and ConfigMaps as files, to mount into the container"
        " `tensorflow`. A local run reads a ConfigMap from the folder config_maps/NAME in --home.",
    )
    grace_seconds: int | None = option(
        None,
        f"Time between SIGTERM and SIGKILL. Default: {DEFAULTS['grace_seconds']}; on the"
        f" chief {CHIEF_GRACE}, because its sidecar still has to store files.",
        ge=1,
        le=_DAY,
    )


class StepPodSettings(Group):
    """The settings of a step's pod; None for what was compiled in."""

    cpu: Cpu | None = option(None, "CPU cores that the pod requests.")
    memory: Bytes | None = option(None, "Memory of the pod, as request and limit.")
    node_selector: dict[Key, LabelValue] | None = option(None, "Labels that a node must have.")
    tolerations: tuple[Toleration, ...] | None = option(None, "Taints that the pod tolerates.")


class EvaluatePodSettings(StepPodSettings):
    """The settings of the pods that score, which may have GPUs."""

    gpus: int = option(
        0,
        "GPUs of the pod, for a model that is too slow or too large for CPUs; TensorFlow puts a"
        " model on the first one, unless the model says otherwise.",
        ge=0,
        le=16,
    )
    gpu_resource: Key | None = option(
        None, f"The resource name of these GPUs. Default: {DEFAULTS['gpu_resource']}."
    )


class AllSettings(PodSettings):
    """The settings of every pod and of the job."""

    queue: LabelValue | None = option(None, "A LocalQueue of Kueue, for the whole job.")


class RoleSettings(PodSettings):
    """The settings of one role's replicas."""

    image: str | None = option(
        None, "Image of the role's container `tensorflow`, if it is not `train_image`."
    )
    output_path: Path | None = option(
        None,
        "Another path for the folder OUTPUT_DIR, for a program that does not read this variable."
        " Only what the chief writes there is stored.",
    )


class ChiefSettings(RoleSettings):
    """The chief's settings."""

    output_claim: ObjectName | None = option(
        None, "A claim (PVC) for the chief's output, if the node's disk is too small."
    )


class ExtraSettings(RoleSettings):
    """The settings of replicas that only your own command can use."""

    replicas: int = option(0, "Number of replicas.", ge=0, le=999)
    gpus: int = option(0, "GPUs per replica.", ge=0)


class EvaluatorSettings(ExtraSettings):
    """The settings of the evaluator; TensorFlow allows one."""

    replicas: int = option(0, "Number of evaluators, at most 1.", ge=0, le=1)


class PodOptions(Group):
    """The keys of `pod`: settings of all replicas, of each role, and of the pods of steps."""

    all: AllSettings = option(AllSettings(), "Settings of every pod.")
    chief: ChiefSettings = option(ChiefSettings(), "Settings of the chief.")
    worker: RoleSettings = option(RoleSettings(), "Settings of the workers.")
    ps: ExtraSettings = option(
        ExtraSettings(),
        "Settings of the parameter servers, with `replicas` and `gpus`; they need"
        " train_options.command.",
    )
    evaluator: EvaluatorSettings = option(
        EvaluatorSettings(), "Settings of the evaluator, with the same keys."
    )
    prepare: StepPodSettings = option(
        StepPodSettings(),
        "`cpu` (a request, and the number of workers), `memory` (request and limit),"
        " `node_selector` and `tolerations` of prepare_data's pod, which does not use `all`."
        " Default: what was compiled in.",
    )
    evaluate: EvaluatePodSettings = option(
        EvaluatePodSettings(),
        "The same for the pods of evaluate, and of publish, which may evaluate a model again. With"
        " `gpus` of the type `gpu_resource`, they use the default training image.",
    )

    @pydantic.model_validator(mode="before")
    @classmethod
    def _no_master(cls, value: Any) -> Any:
        if isinstance(value, dict) and any(str(key).lower() == "master" for key in value):
            raise ValueError(
                "no key master: TensorFlow 2 rejects a cluster that contains the task type master;"
                " use chief"
            )
        return value

    @property
    def of_replicas(self) -> dict[str, PodSettings]:
        """The settings of replicas by key: `all` and the roles."""
        groups = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: group for name, group in groups.items() if isinstance(group, PodSettings)}

    def of(self, role: str) -> PodSettings:
        """Return the settings of a role, completed from `all` and then from DEFAULTS.

        Dicts of names (env, labels, annotations, node_selector, resources) are merged; every other
        key of the role replaces the same key of `all`.

        Args:
            role: `chief`, `worker`, `ps` or `evaluator`.
        """
        defaults = DEFAULTS | ({"grace_seconds": CHIEF_GRACE} if role == "chief" else {})
        own = {name: getattr(getattr(self, role), name) for name in PodSettings.model_fields}
        shared = {name: getattr(self.all, name) for name in PodSettings.model_fields}
        return PodSettings.model_construct(**_merged(defaults, shared, own))


def _merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of all layers.

    A later layer replaces the values of earlier ones, merges dicts with theirs, and leaves them
    unchanged by None.
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            if value is not None:
                are_dicts = isinstance(value, dict) and isinstance(merged.get(name), dict)
                merged[name] = merged[name] | value if are_dicts else value
    return merged
