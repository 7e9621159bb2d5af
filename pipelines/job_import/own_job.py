"""Reads a job of this project back: the run parameters that render it.

A run stores its parameters in the job under other names, such as EPOCHS, and each becomes a
parameter again. Only data and code need a comment, because the job names their copies in the store.
Called by `conversion.py` for a job that a run of this project created.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from kfp_tfjob.jobs.jobset import JOBSET
from kfp_tfjob.jobs.kind import CHIEF, REPLICA_INDEX, TOPOLOGY
from kfp_tfjob.jobs.labels import (
    CANCEL_GRACE_ANNOTATION,
    INJECT,
    MANAGER_LABEL,
    MODEL_LABEL,
    QUEUE_LABEL,
    SETUP,
)
from kfp_tfjob.jobs.pod_template import JOB_DIR, OUTPUT_DIR, POD_ANNOTATIONS, TRAINER
from kfp_tfjob.jobs.pytorchjob import PYTORCHJOB
from kfp_tfjob.jobs.tfjob import TFJOB
from kfp_tfjob.jobs.user_pod_schema import Container, Mount, PodSpec, Variable
from kfp_tfjob.options.address_fields import safe
from kfp_tfjob.options.parameters import PARAMETERS
from kfp_tfjob.options.pod import CHIEF_GRACE, DEFAULTS, NATIVE_RESOURCES
from kfp_tfjob.options.train import TrainOptions
from kfp_tfjob.storage.layout import RUNS, TASKS
from kfp_tfjob.supervisor import keras

from .pod_settings import merged
from .report import Report
from .source_job import SourceJob, SourceRole

_STORE = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_STORE += ("AWS_ENDPOINT_URL", "AWS_REGION")
_CHIEF_IN_TF_CONFIG = "CHIEF_IN_TF_CONFIG"
_NUMBERS = ("EPOCHS", "BATCH_SIZE", "STORE_DEADLINE", "START_DEADLINE", "EXPECTED_GPUS")
_OBJECTS = ("HYPERPARAMETERS", "TRAIN_OPTIONS")
_PROJECT_VARIABLES = {TOPOLOGY, REPLICA_INDEX, _CHIEF_IN_TF_CONFIG}
_KERAS = {"1": 2, "0": 3}  # by the value of TF_USE_LEGACY_KERAS
_KINDS = {JOBSET: "jobset", PYTORCHJOB: "pytorchjob"}  # `auto` renders a TFJob


def parameters_of_own(job: SourceJob, report: Report) -> dict[str, Any]:
    """Return the run parameters of a job that this project has rendered.

    Args:
        job: The job, as `render` prints it or as it is on a cluster.
        report: Receives notes about parameters that the job does not contain.
    """
    for field in _damaged_fields(job):
        report.refuse(
            field,
            "missing or changed",
            "a job as this project has rendered it",
            "render the job again; or remove the label app.kubernetes.io/managed-by, to import it"
            " as a job of another tool",
        )
    report.raise_if_refused()
    roles = {role.role: _RenderedRole(role) for role in job.roles}
    chief = roles[CHIEF]
    keras_version = _keras_option(job, roles)
    parameters: dict[str, Any] = {
        "data_uri": chief.values.get("DATASET_URI", ""),
        "model_name": job.metadata.labels.get(MODEL_LABEL, ""),
        "model_code": chief.values.get("MODEL_CODE", ""),
        "model_hyperparameters": json.loads(chief.values.get("HYPERPARAMETERS", "{}")),
        "output_uri": _output_uri(job, chief.values),
        "storage_endpoint": chief.values.get("AWS_ENDPOINT_URL", ""),
        "storage_region": chief.values.get("AWS_REGION", ""),
        "storage_secret": chief.storage_secret,
        "train_workers": job.counts.get("worker", 0),
        "train_gpus": chief.gpus,
        "train_epochs": int(chief.values["EPOCHS"]),
        "train_batch_size": int(chief.values["BATCH_SIZE"]),
        "train_image": chief.main.image,
        "train_options": _train_options(job, chief, keras_version),
        "pod": _pod(job, roles, keras_version),
    }
    if parameters["data_uri"]:
        report.note(
            "DATASET_URI", "the job does not name the table", "name it again", ("data_uri",)
        )
    if chief.values.get("CODE_URI"):
        report.note(
            f"CODE_URI: {chief.values['CODE_URI']}",
            "the job has a copy of the code",
            "name the code's own path again",
            ("model_code",),
        )
    return {
        name: value
        for name, value in parameters.items()
        if value != PARAMETERS[name].default or name == "train_image"
    }


def _damaged_fields(job: SourceJob) -> Iterator[str]:
    """Yield the fields of a rendered job that are needed here but are missing or invalid."""
    grace = job.metadata.annotations.get(CANCEL_GRACE_ANNOTATION, "60")
    if not grace.isdecimal():
        yield CANCEL_GRACE_ANNOTATION
    for role in job.roles:
        spec, main = role.template.spec, role.template.spec.containers[0]
        setup = next((init for init in spec.init_containers if init.name == SETUP), None)
        values = {variable.name: variable.value for variable in setup.env} if setup else {}
        numbers = [*_NUMBERS, *(["ORPHAN_TIMEOUT"] if role.role == CHIEF else [])]
        numbers += ["MAX_RESTARTS"] if "MAX_RESTARTS" in values else []
        invalid = [name for name in numbers if not values.get(name, "").isdecimal()]
        invalid += [name for name in _OBJECTS if not _is_object(values.get(name, "{}"))]
        invalid += [] if values.get("RUN_URI") else ["RUN_URI"]
        yield from (f"{role.name}.initContainers.setup.env.{name}" for name in invalid)
        if "--" not in main.command:
            yield f"{role.name}.command"
        if not NATIVE_RESOURCES.keys() <= main.resources.limits.keys():
            yield f"{role.name}.resources.limits"
        for mount in filter(_is_user_mount, main.volume_mounts):
            if not _volume_source(spec, mount):
                yield f"{role.name}.volumes.{mount.name}"


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text.replace("$$", "$")), dict)
    except ValueError:
        return False


def _volume_source(spec: PodSpec, mount: Mount) -> dict[str, str]:
    """Return the source of a mount's volume as `pod.*.volumes` spells it; {} for other sources."""
    volume = spec.volume(mount.name)
    return volume.source if volume else {}


class _RenderedRole:
    """A role of a job that this project has rendered."""

    def __init__(self, role: SourceRole) -> None:
        self.role, self.template = role.role, role.template
        spec = role.template.spec
        self.main: Container = spec.containers[0]
        setup = next(init for init in spec.init_containers if init.name == SETUP)
        # Every container of the pod has the variables of `setup`.
        self.base = {variable.name: variable for variable in setup.env}
        self.values = {
            name: variable.value.replace("$$", "$") for name, variable in self.base.items()
        }
        option = next(
            (variable for variable in self.main.env if variable.name == _CHIEF_IN_TF_CONFIG), None
        )
        self.chief_in_tf_config = option is None or option.value != "0"

    @property
    def spec(self) -> PodSpec:
        """The spec of the pods."""
        return self.template.spec

    @property
    def gpus(self) -> int:
        """The GPUs of one pod."""
        return int(self.values.get("EXPECTED_GPUS", "0"))

    @property
    def command(self) -> list[str]:
        """The program that the supervisor starts; empty for the project's trainer."""
        program = self.main.command[self.main.command.index("--") + 1 :]
        return [] if program == list(TRAINER) else program

    @property
    def storage_secret(self) -> str:
        """The Secret with the store's keys."""
        volume = self.spec.volume("storage")
        return volume.secret.secret_name if volume and volume.secret else ""

    @property
    def keras(self) -> Variable | None:
        """TF_USE_LEGACY_KERAS if `train_options.keras` may have set it; None otherwise.

        The option's variable comes before the user's variables.
        """
        for variable in self.main.env:
            if variable.name == keras.VARIABLE:
                return variable
            # A user's value for one of the job's variables replaces it in its place, before.
            if variable.name not in {*self.base, *_STORE, _CHIEF_IN_TF_CONFIG}:
                return None
        return None

    def _is_of_user(self, variable: Variable) -> bool:
        name, source = variable.name, variable.value_from
        if name in self.base:
            return variable != self.base[name]
        is_key = source and source.secret_key_ref and source.secret_key_ref.optional
        return name not in _PROJECT_VARIABLES and not (name in _STORE and is_key)

    def environment(self, keras_version: int) -> dict[str, Any]:
        """Return the variables that `pod` sets.

        Args:
            keras_version: `train_options.keras`, whose variable is omitted; 0 if it is not set.
        """
        variables: dict[str, Any] = {}
        for variable in self.main.env:
            is_option = (
                variable.name == keras.VARIABLE and _KERAS.get(variable.value) == keras_version
            )
            if is_option or not self._is_of_user(variable):
                continue
            secret = variable.value_from.secret_key_ref if variable.value_from else None
            variables[variable.name] = (
                {"secret": secret.name, "key": secret.key} if secret else variable.value
            )
        return variables

    def settings(self, keras_version: int) -> dict[str, Any]:
        """Return the settings of the pods that are not defaults."""
        spec, limits = self.spec, self.main.resources.limits
        memory = spec.volume("shared-memory")
        extended = {name: limits[name] for name in limits if name not in NATIVE_RESOURCES}
        gpu = next(iter(extended), "") if self.gpus else ""
        settings: dict[str, Any] = {key: limits[name] for name, key in NATIVE_RESOURCES.items()}
        settings |= {
            "gpu_resource": extended.pop(gpu, None) and gpu,
            "resources": extended,
            "shared_memory": memory.empty_dir.size_limit if memory and memory.empty_dir else None,
            "volumes": [
                self._volume(mount) for mount in self.main.volume_mounts if _is_user_mount(mount)
            ],
            "env": self.environment(keras_version),
            "node_selector": spec.node_selector,
            "tolerations": spec.tolerations,
            "affinity": spec.affinity,
            "priority_class": spec.priority_class_name,
            "scheduler": spec.scheduler_name,
            "service_account": spec.service_account_name,
            "image_pull_secret": spec.image_pull_secrets[0].name if spec.image_pull_secrets else "",
            "labels": _user_labels(self.template.metadata.labels),
            "annotations": {
                name: value
                for name, value in self.template.metadata.annotations.items()
                if POD_ANNOTATIONS.get(name) != value
            },
            "run_as_user": spec.security_context.run_as_user or "none",
            "grace_seconds": spec.termination_grace_period_seconds,
        }
        defaults = DEFAULTS | ({"grace_seconds": CHIEF_GRACE} if self.role == CHIEF else {})
        return {
            name: value
            for name, value in settings.items()
            if value not in (None, "", {}, []) and value != defaults.get(name)
        }

    def _volume(self, mount: Mount) -> dict[str, Any]:
        read_only = {"read_only": True} if mount.read_only else {}
        return {**_volume_source(self.spec, mount), "path": mount.mount_path, **read_only}

    @property
    def output(self) -> dict[str, Any]:
        """The keys `output_claim` and `output_path`, if they are not defaults."""
        volume = self.spec.volume("output")
        claim = volume.persistent_volume_claim if volume else None
        paths = [
            mount.mount_path
            for mount in self.main.volume_mounts
            if mount.name in ("output", "job") and mount.mount_path not in (OUTPUT_DIR, JOB_DIR)
        ]
        output = {"output_claim": claim.claim_name} if claim else {}
        return output | ({"output_path": paths[0]} if paths else {})


def _is_user_mount(mount: Mount) -> bool:
    """Return whether `pod.*.volumes` contains a mount's volume."""
    return mount.name not in ("job", "output", "podinfo", "storage", "shared-memory")


def _keras_option(job: SourceJob, roles: Mapping[str, _RenderedRole]) -> int:
    """Return `train_options.keras`; 0 if the user set the variable, or if it is not set.

    Only TOPOLOGY, which a TFJob does not have, separates the option from the user's variables.
    """
    variables = [role.keras for role in roles.values()]
    values = [variable.value for variable in variables if variable and variable.value in _KERAS]
    if None in variables or (job.kind is TFJOB and len(values) < len(variables)):
        return 0
    return _KERAS[values[0]] if values else 2


def _stage_data(values: Mapping[str, str]) -> bool | str:
    """Return `train_options.stage_data` of a job with a command."""
    is_staged = bool(values.get("DATA_DIR") or not values.get("DATASET_URI"))
    return values.get("STAGE_DATA") or is_staged


def _train_options(job: SourceJob, chief: _RenderedRole, keras_version: int) -> dict[str, Any]:
    values, metadata = chief.values, job.metadata
    options: dict[str, Any] = json.loads(values.get("TRAIN_OPTIONS", "{}"))
    ttl = job.policies.get("runPolicy.ttlSecondsAfterFinished")
    options |= {
        "command": chief.command,
        "stage_data": _stage_data(values) if chief.command else True,
        "keras": keras_version or "auto",
        "chief_in_tf_config": chief.chief_in_tf_config,
        "job": _KINDS.get(job.kind, "auto"),
        "deadline_seconds": chief.spec.active_deadline_seconds,
        "ttl_seconds": ttl or job.policies.get("ttlSecondsAfterFinished"),
        "cancel_grace_seconds": int(metadata.annotations.get(CANCEL_GRACE_ANNOTATION, "60")),
        "store_deadline_seconds": int(values["STORE_DEADLINE"]),
        "start_timeout_seconds": int(values["START_DEADLINE"]),
        "orphan_timeout_seconds": int(values["ORPHAN_TIMEOUT"]),
    }
    if not chief.command:
        options["max_restarts"] = int(values.get("MAX_RESTARTS") or 0)
    defaults = TrainOptions().model_dump(mode="json")
    return {
        name: value
        for name, value in options.items()
        if value is not None and value != defaults.get(name)
    }


def _pod(
    job: SourceJob, roles: Mapping[str, _RenderedRole], keras_version: int
) -> dict[str, dict[str, Any]]:
    settings = {name: role.settings(keras_version) for name, role in roles.items()}
    pod: dict[str, dict[str, Any]] = merged(settings, _user_labels(job.metadata.labels))
    # Keys that belong to one role, or to the whole job, and are never merged into `all`.
    added: dict[str, dict[str, Any]] = {name: role.output for name, role in roles.items()}
    if queue := job.metadata.labels.get(QUEUE_LABEL):
        added["all"] = {"queue": queue}
    for name, role in roles.items():
        role_keys = added.setdefault(name, {})
        if name in ("ps", "evaluator"):
            role_keys |= {"replicas": job.counts[name]}
            role_keys |= {"gpus": role.gpus} if role.gpus else {}
        if role.main.image != roles[CHIEF].main.image:
            role_keys["image"] = role.main.image
    for name, keys in added.items():
        if keys:
            pod[name] = pod.get(name, {}) | keys
    return pod


def _user_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that this project did not add."""
    return {
        name: value
        for name, value in labels.items()
        if not name.startswith("kfp-tfjob/")
        and name not in (MANAGER_LABEL, QUEUE_LABEL)
        and (name, value) != (INJECT, "false")
    }


def _output_uri(job: SourceJob, values: Mapping[str, str]) -> str:
    """Return `output_uri`, inferred from the run's folder below it."""
    folder = values["RUN_URI"]
    if key := values.get("TASK_KEY"):
        folder = folder.removesuffix(f"/{TASKS}/{key}")
    parent = folder.rpartition("/")[0]
    if parent.endswith(f"/{RUNS}"):
        return parent.removesuffix(f"/{RUNS}")
    name = job.metadata.labels.get(MODEL_LABEL, "")
    if "{" not in parent and name:  # the field {model_name} is filled in
        root, _, below_runs = parent.partition(f"/{RUNS}/")
        parts = ["{model_name}" if part == safe(name) else part for part in below_runs.split("/")]
        return "/".join([root, RUNS, *parts])
    return parent
