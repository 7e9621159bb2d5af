"""The parts of a pod that a user has written, as Kubernetes spells them.

`kfp-tfjob import` reads whole jobs, and launch_tfjob reads the settings of its task in a pipeline.
Every part also keeps the fields that it does not declare (`others`), so that a caller can report an
unknown field, and no setting is dropped silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pydantic
from pydantic.alias_generators import to_camel

SHARED_MEMORY = "/dev/shm"
DEFAULT_MODE = "0644"  # of the files of a Secret or ConfigMap


class Part(pydantic.BaseModel):
    """A part of a Kubernetes object; null means absent, as in Kubernetes."""

    model_config = pydantic.ConfigDict(
        alias_generator=to_camel, coerce_numbers_to_str=True, extra="allow", frozen=True
    )

    @pydantic.model_validator(mode="before")
    @classmethod
    def _without_null(cls, part: Any) -> Any:
        if not isinstance(part, Mapping):
            return part
        return {str(key): field for key, field in part.items() if field is not None}

    @property
    def others(self) -> dict[str, Any]:
        """The fields that this model does not declare and that are not empty."""
        extra = self.model_extra or {}
        return {name: value for name, value in extra.items() if value not in (False, "", [], {})}


class KeyReference(Part):
    """A key of a Secret or ConfigMap."""

    name: str = ""
    key: str = ""
    optional: bool = False


class VariableSource(Part):
    """Where a variable's value comes from; exactly one field is set."""

    secret_key_ref: KeyReference | None = None
    config_map_key_ref: KeyReference | None = None
    field_ref: dict[str, Any] | None = None
    resource_field_ref: dict[str, Any] | None = None


class Variable(Part):
    """A variable of a container."""

    name: str
    value: str = ""
    value_from: VariableSource | None = None


class ObjectReference(Part):
    """The name of a Secret or ConfigMap."""

    name: str = ""
    optional: bool = False


class VariablesSource(Part):
    """An object all of whose keys become variables."""

    prefix: str = ""
    secret_ref: ObjectReference | None = None
    config_map_ref: ObjectReference | None = None


class Mount(Part):
    """A volume's mount in a container."""

    name: str
    mount_path: str
    read_only: bool = False
    sub_path: str = ""

    @property
    def is_shared_memory(self) -> bool:
        """Whether it is at /dev/shm, whose size is `pod.all.shared_memory`."""
        return self.mount_path.rstrip("/") == SHARED_MEMORY


class Resources(Part):
    """Quantities by resource name."""

    limits: dict[str, str] = {}
    requests: dict[str, str] = {}

    def of(self, name: str) -> str:
        """Return the limit of a resource, or its request; empty without either."""
        return self.limits.get(name) or self.requests.get(name, "")

    @property
    def names(self) -> list[str]:
        """The resources that have a limit or a request."""
        return list(dict.fromkeys([*self.limits, *self.requests]))


class SecurityContext(Part):
    """The security context of a pod or container."""

    run_as_user: int | None = None
    privileged: bool = False


class Container(Part):
    """A container of a pod."""

    name: str
    image: str = ""
    command: list[str] = []
    args: list[str] = []
    working_dir: str = ""
    env: list[Variable] = []
    env_from: list[VariablesSource] = []
    volume_mounts: list[Mount] = []
    resources: Resources = Resources()
    security_context: SecurityContext = SecurityContext()
    restart_policy: str = ""

    @property
    def text(self) -> str:
        """The command and its arguments as one string."""
        return " ".join([*self.command, *self.args])

    def value(self, name: str) -> str:
        """Return the plain value of a variable; empty without one."""
        return next((variable.value for variable in self.env if variable.name == name), "")


class Claim(Part):
    """A reference to a claim."""

    claim_name: str
    read_only: bool = False


class SecretVolume(Part):
    """A Secret as files."""

    secret_name: str = ""
    default_mode: int | None = None
    optional: bool = False


class EmptyDir(Part):
    """A folder that lives as long as its pod."""

    medium: str = ""
    size_limit: str = ""


class ConfigMapVolume(Part):
    """A ConfigMap as files."""

    name: str = ""
    default_mode: int | None = None
    optional: bool = False


class Volume(Part):
    """A volume of a pod; a source of another type stays in `others`."""

    name: str
    persistent_volume_claim: Claim | None = None
    secret: SecretVolume | None = None
    config_map: ConfigMapVolume | None = None
    empty_dir: EmptyDir | None = None

    @property
    def source(self) -> dict[str, str]:
        """The source as `pod.*.volumes` spells it; empty for one that a run cannot mount."""
        if self.persistent_volume_claim:
            return {"claim": self.persistent_volume_claim.claim_name}
        if self.secret and not self.secret.others.get("items"):
            return {"secret_name": self.secret.secret_name}
        if self.config_map and self.config_map.name and not self.config_map.others:
            return {"config_map": self.config_map.name}
        return {}

    def mounted(self, path: str, read_only: bool) -> dict[str, Any]:
        """Return this volume at a path, in the form of an item of `pod.*.volumes`.

        Args:
            path: The path in the container.
            read_only: Whether the mount is; a claim's volume can be read-only itself.
        """
        claim = self.persistent_volume_claim
        is_read_only = read_only or (claim is not None and claim.read_only)
        return {**self.source, "path": path, **({"read_only": True} if is_read_only else {})}

    @property
    def is_optional(self) -> bool:
        """Whether a pod starts without the Secret or ConfigMap."""
        return any(source.optional for source in (self.secret, self.config_map) if source)

    @property
    def changed_mode(self) -> str:
        """The mode of a Secret's or ConfigMap's files; empty for Kubernetes' default."""
        modes = (source.default_mode for source in (self.secret, self.config_map) if source)
        digits = [f"{mode:04o}" for mode in modes if mode is not None]
        return next((mode for mode in digits if mode != DEFAULT_MODE), "")


def is_scratch(mount: Mount, volume: Volume | None) -> bool:
    """Return whether a mount is an empty folder on the node's disk for files of the program."""
    is_empty = volume is not None and volume.empty_dir is not None and not volume.empty_dir.medium
    is_system = mount.is_shared_memory or mount.mount_path.rstrip("/") == "/tmp"
    return is_empty and not mount.sub_path and not is_system


class PodSpec(Part):
    """The spec of a pod."""

    containers: list[Container]
    init_containers: list[Container] = []
    volumes: list[Volume] = []
    node_selector: dict[str, str] = {}
    tolerations: list[dict[str, Any]] = []
    affinity: dict[str, Any] = {}
    priority_class_name: str = ""
    scheduler_name: str = ""
    service_account_name: str = ""
    image_pull_secrets: list[ObjectReference] = []
    security_context: SecurityContext = SecurityContext()
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    restart_policy: str = ""

    @pydantic.field_validator("containers")
    @classmethod
    def _has_container(cls, containers: list[Container]) -> list[Container]:
        if not containers:
            raise ValueError("at least one container")
        return containers

    def volume(self, name: str) -> Volume | None:
        """Return the volume with this name."""
        return next((volume for volume in self.volumes if volume.name == name), None)


class Metadata(Part):
    """The metadata of an object or a pod template, without what the API server adds."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Template(Part):
    """A pod template."""

    metadata: Metadata = Metadata()
    spec: PodSpec
