"""Gives the replicas the settings that a pipeline's author makes on the task that launches them.

A component that takes a `dsl.TaskConfig` gets the resources, placement, variables and volumes of
its own task as fragments of a pod. Here they become settings in the form of `pod.all`. So the
checks of the cluster, their remedies and the job manifest treat them as they treat `pod`, which
wins wherever it has the same setting. Called by launch_tfjob's `task.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import pydantic

from kfp_tfjob.common.errors import ConfigurationError, Problem, Problems
from kfp_tfjob.options.parse import parse, whole_numbers
from kfp_tfjob.options.pod import DEFAULTS, NATIVE_RESOURCES, PodOptions, PodSettings
from kfp_tfjob.registry.tracking import PLUGIN_VARIABLES, RUN_ID
from kfp_tfjob.storage.credentials import MOUNT

from .spec import RESERVED, is_protected
from .user_pod_schema import DEFAULT_MODE, SHARED_MEMORY, Mount, Part, Resources, Variable, Volume

# Kubeflow Pipelines gives every task the proxy of its own API server, in both spellings. Replicas
# must not use it: gRPC between them and requests to the store would go through it, too.
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_OUR_VARIABLES = "KFP_TFJOB_"  # they configure steps: the images, for example
_WHOLE = re.compile(r"[1-9]\d*")
# These settings of `pod` and of the task are merged by name, as in PodOptions.of.
_MERGED = ("env", "node_selector")
_ACCELERATOR = "set_accelerator_type and set_accelerator_limit"


class TaskConfig(Part):
    """The fragments of a pod; `dsl.TaskConfig` of Kubeflow Pipelines has the same fields."""

    model_config = pydantic.ConfigDict(populate_by_name=True)

    affinity: dict[str, Any] = {}
    tolerations: list[dict[str, Any]] = []
    node_selector: dict[str, str] = {}
    env: list[Variable] = []
    volumes: list[Volume] = []
    volume_mounts: list[Mount] = []
    resources: Resources = Resources()


def is_passed(config: Mapping[str, Any]) -> bool:
    """Return whether the back end has filled in a `dsl.TaskConfig`, perhaps with empty values.

    kfp.local leaves all fields None. A back end always passes at least empty resources.
    """
    return config.get("resources") is not None


@dataclass(frozen=True)
class TaskSettings:
    """The settings of a task for the replicas that it launches.

    Attributes:
        settings: In the form of `pod.all`.
        gpus: GPUs per replica; 0 for a task without an accelerator.
        notes: Sentences about settings that the replicas get in another form, or do not get.
    """

    settings: Mapping[str, Any]
    gpus: int = 0
    notes: tuple[str, ...] = ()

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> TaskSettings:
        """Convert a `dsl.TaskConfig`.

        Args:
            config: Its fields; their values are Kubernetes JSON.

        Raises:
            ConfigurationError: Everything that replicas cannot get, in one error.
        """
        task = TaskConfig.model_validate(whole_numbers(config))
        problems, notes = Problems(), list[str]()
        accelerator, gpus = _accelerator(task.resources, problems)
        settings: dict[str, Any] = {
            **_requests(task.resources, notes),
            "gpu_resource": accelerator,
            "node_selector": task.node_selector,
            "tolerations": task.tolerations,
            "affinity": task.affinity,
            "env": _environment(task.env, problems, notes),
            "shared_memory": _shared_memory(task, notes),
            "volumes": _volumes(task, problems, notes),
        }
        settings = {key: value for key, value in settings.items() if value}
        problems.of(lambda: parse(PodSettings, "task_config", settings))
        ConfigurationError.raise_if(problems)
        return cls(settings, gpus, tuple(notes))

    def below(self, parameters: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Apply the settings to the run parameters, where `pod` does not have the same setting.

        Args:
            parameters: The run parameters, among them `pod` and `train_gpus`.

        Returns:
            The run parameters with the settings in `pod.all` and the accelerator in `train_gpus`,
            and a sentence for each setting that `pod` replaces.

        Raises:
            ConfigurationError: The GPUs of both differ.
        """
        try:
            pod = parse(PodOptions, "pod", parameters["pod"])
        except ConfigurationError:
            return dict(parameters), []  # JobSpec.parse reports it
        ConfigurationError.raise_if(self._contradictions(parameters["train_gpus"], pod))
        pod_parameter = dict(parameters["pod"])
        shared = {
            key: value
            for key, value in (pod_parameter.get("all") or {}).items()
            if value is not None
        }
        for key in _MERGED:
            if key in shared and key in self.settings:
                shared[key] = {**self.settings[key], **shared[key]}
        pod_parameter["all"] = {**self.settings, **shared}
        merged = {**parameters, "pod": pod_parameter}
        if self.gpus and parameters["train_gpus"] == 0:
            merged["train_gpus"] = self.gpus
        return merged, list(self._replaced(pod))

    def _contradictions(self, train_gpus: Any, pod: PodOptions) -> Iterator[Problem]:
        """Yield one problem if the parameters have other GPUs than the task."""
        if not self.gpus:
            return
        accelerator = self.settings["gpu_resource"]
        contrary, ways = [], []
        if isinstance(train_gpus, int | float) and train_gpus > 0 and train_gpus != self.gpus:
            contrary.append(f"train_gpus {train_gpus:g}")
            ways.append("set train_gpus to 0")
        for role in ("all", "chief", "worker"):
            resource = pod.of_replicas[role].gpu_resource
            if resource not in (None, accelerator):
                contrary.append(f"pod.{role}.gpu_resource {resource}")
                ways.append(f"remove pod.{role}.gpu_resource")
        if contrary:
            yield Problem(
                "the task's accelerator contradicts the run parameters",
                received=f"{self.gpus} {accelerator} on the task, but {' and '.join(contrary)}",
                expected="the same GPUs for each replica in both, or only in one of them",
                fix=f"{' and '.join(ways)}, or remove {_ACCELERATOR} from the task",
                path="task_config.resources",
            )

    def _replaced(self, pod: PodOptions) -> Iterator[str]:
        """Yield a sentence for each of the task's settings that `pod` replaces."""
        task = parse(PodSettings, "task_config", self.settings)
        for role, settings in pod.of_replicas.items():
            for key in self.settings:
                pod_value, task_value = getattr(settings, key), getattr(task, key)
                if pod_value is None or pod_value == task_value:
                    continue
                if key not in _MERGED:
                    yield f"pod.{role}.{key} replaces the task's {key}"
                    continue
                for name in sorted(set(pod_value) & set(task_value)):
                    if pod_value[name] != task_value[name]:
                        yield f"pod.{role}.{key}.{name} replaces the task's {name}"


def _requests(resources: Resources, notes: list[str]) -> dict[str, str]:
    """Return cpu, memory and ephemeral_storage; a replica's requests equal its limits."""
    settings = {}
    for name, key in NATIVE_RESOURCES.items():
        request, limit = resources.requests.get(name), resources.limits.get(name)
        if request and limit and request != limit:
            notes.append(
                f"the task requests {request} {name} and limits it to {limit}; a replica requests"
                f" its limit, {limit}"
            )
        if request and not limit:
            notes.append(
                f"the task requests {request} {name} without a limit; a replica is limited to it"
            )
        settings[key] = resources.of(name)
    return settings


def _accelerator(resources: Resources, problems: Problems) -> tuple[str, int]:
    """Return the resource and the number of GPUs; "" and 0 without an accelerator."""
    accelerators = {
        name: resources.of(name)
        for name in resources.names
        if name not in NATIVE_RESOURCES and resources.of(name) not in ("", "0")
    }
    if not accelerators:
        return "", 0
    name, amount = next(iter(accelerators.items()))
    if len(accelerators) > 1 or "/" not in name or not _WHOLE.fullmatch(amount):
        problems.append(
            Problem(
                "the task's accelerator is not a number of GPUs that a node can have",
                received=", ".join(f"{amount} {name}" for name, amount in accelerators.items()),
                expected="a whole number of one resource DOMAIN/NAME, such as 1 nvidia.com/gpu",
                fix=f"correct {_ACCELERATOR} of the task, as `kubectl describe node` shows them",
                path="task_config.resources",
            )
        )
        return "", 0
    return name, int(amount)


def _environment(variables: list[Variable], problems: Problems, notes: list[str]) -> dict[str, Any]:
    environment: dict[str, Any] = {}
    proxies = []
    # The launcher reads these itself, because they must not change on a retry.
    has_run = any(variable.name == RUN_ID for variable in variables)
    from_plugin = PLUGIN_VARIABLES if has_run else ()
    for variable in variables:
        name, source = variable.name, variable.value_from
        path = f"task_config.env.{name}"
        if name.startswith(_OUR_VARIABLES) or name in from_plugin:
            continue
        if name.upper() in _PROXIES:
            proxies.append(name)
        elif name in RESERVED:
            problems.append(
                Problem(
                    f"the task sets the variable {name}, which the job sets itself",
                    received=name,
                    expected="a name that the job does not use itself",
                    fix=f"remove the variable {name} from the task",
                    path=path,
                )
            )
        elif source is None:
            environment[name] = variable.value
        elif secret := source.secret_key_ref:
            environment[name] = {"secret": secret.name, "key": secret.key}
            if secret.optional:
                notes.append(
                    f"the variable {name} is optional on the task, but the replicas wait for the"
                    f" Secret {secret.name}"
                )
        else:
            kind = "a ConfigMap's key" if source.config_map_key_ref else "a field of the step's pod"
            problems.append(
                Problem(
                    f"the task's variable {name} cannot be given to the replicas",
                    received=kind,
                    expected="a plain value, or a key of a Secret",
                    fix=f"remove the variable {name} from the task; mount a ConfigMap with"
                    " kubernetes.use_config_map_as_volume, or write its value into pod.all.env",
                    path=path,
                )
            )
    if proxies:
        notes.append(
            f"the replicas do not get {', '.join(proxies)}, because Kubeflow Pipelines sets its"
            " proxy on every task; pod.all.env can set one for the replicas"
        )
    return environment


def _shared_memory(task: TaskConfig, notes: list[str]) -> str:
    """Return the size of an empty folder that the task mounts at /dev/shm; "" without one."""
    names = {mount.name for mount in task.volume_mounts if mount.is_shared_memory}
    for volume in task.volumes:
        if volume.name not in names or not volume.empty_dir:
            continue
        if not volume.empty_dir.size_limit:
            notes.append(
                f"the task sets no size of {SHARED_MEMORY}; a replica has"
                f" {DEFAULTS['shared_memory']}, unless pod.all.shared_memory sets another one"
            )
        return volume.empty_dir.size_limit
    return ""


def _volumes(task: TaskConfig, problems: Problems, notes: list[str]) -> list[dict[str, Any]]:
    volumes = {volume.name: volume for volume in task.volumes}
    settings = []
    for mount in task.volume_mounts:
        path = PurePosixPath(mount.mount_path)
        if path == MOUNT:  # the store's Secret, which every replica has anyway
            continue
        volume = volumes.get(mount.name)
        if mount.is_shared_memory and volume and volume.empty_dir:
            continue
        if mount.sub_path or is_protected(path) or not (volume and volume.source):
            problems.append(
                Problem(
                    f"the task's volume at {path} cannot be given to the replicas",
                    received=f"sub_path {mount.sub_path}" if mount.sub_path else mount.name,
                    expected="a whole claim, Secret or ConfigMap at a path that a replica does not"
                    " need itself",
                    fix="mount it without sub_path"
                    if mount.sub_path
                    else "mount it at another path"
                    if is_protected(path)
                    else "mount a claim, a Secret or a ConfigMap instead",
                    path="task_config.volumes",
                )
            )
            continue
        if volume.is_optional:
            notes.append(
                f"the volume {volume.name} is optional on the task, but the replicas wait for it"
            )
        if volume.changed_mode:
            notes.append(
                f"the volume {volume.name} has the mode {volume.changed_mode} on the task, but the"
                f" replicas mount its files with {DEFAULT_MODE}; start a script by its interpreter"
            )
        settings.append(volume.mounted(str(path), mount.read_only))
    return settings
