"""Reads a job of this project back: the run parameters that render it.

What a run stores in a job under names of its own, such as EPOCHS, is a parameter again. Nothing
needs a comment, apart from data and code that are only copies in the store.
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
from kfp_tfjob.jobs.manifest import JOB_DIR, OUTPUT_DIR, POD_ANNOTATIONS, TRAINER
from kfp_tfjob.jobs.pods import Container, Mount, PodSpec, Variable
from kfp_tfjob.jobs.pytorchjob import PYTORCHJOB
from kfp_tfjob.jobs.tfjob import TFJOB
from kfp_tfjob.options.address_fields import safe
from kfp_tfjob.options.pipeline import PARAMETERS
from kfp_tfjob.options.pod import CHIEF_GRACE, DEFAULTS, NATIVE_RESOURCES
from kfp_tfjob.options.train import TrainOptions
from kfp_tfjob.pipelines.job_import.pod_settings import merged
from kfp_tfjob.pipelines.job_import.report import Report
from kfp_tfjob.pipelines.job_import.source_job import SourceJob, SourceRole
from kfp_tfjob.storage.layout import RUNS, TASKS
from kfp_tfjob.supervisor import keras

_STORE = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_STORE += ("AWS_ENDPOINT_URL", "AWS_REGION")
_CHIEF_IN_TF_CONFIG = "CHIEF_IN_TF_CONFIG"
_NUMBERS = ("EPOCHS", "BATCH_SIZE", "STORE_DEADLINE", "START_DEADLINE", "EXPECTED_GPUS")
_OBJECTS = ("HYPERPARAMETERS", "TRAIN_OPTIONS")
_OF_US = {TOPOLOGY, REPLICA_INDEX, _CHIEF_IN_TF_CONFIG}
_KERAS = {"1": 2, "0": 3}  # by the value of TF_USE_LEGACY_KERAS
_KINDS = {JOBSET: "jobset", PYTORCHJOB: "pytorchjob"}  # `auto` renders a TFJob


def parameters_of_own(job: SourceJob, report: Report) -> dict[str, Any]:
    """Return the run parameters of a job that this project has rendered.

    Args:
        job: The job, as `render` prints it or as it is on a cluster.
        report: Where to note what the job does not contain.
    """
    for field in _missing(job):
        report.refuse(
            field,
            "missing or changed",
            "a job as this project has rendered it",
            "render the job again; or remove the label app.kubernetes.io/managed-by, to import it"
            " as a job of another tool",
        )
    report.raise_if_refused()
    roles = {role.role: _OwnRole(role) for role in job.roles}
    chief = roles[CHIEF]
    keras_version = _keras(job, roles)
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


def _missing(job: SourceJob) -> Iterator[str]:
    """Yield the fields of a rendered job that are needed here, and are not as they were."""
    grace = job.metadata.annotations.get(CANCEL_GRACE_ANNOTATION, "60")
    if not grace.isdecimal():
        yield CANCEL_GRACE_ANNOTATION
    for role in job.roles:
        spec, main = role.template.spec, role.template.spec.containers[0]
        setup = next((it for it in spec.init_containers if it.name == SETUP), None)
        values = {it.name: it.value for it in setup.env} if setup else {}
        numbers = [*_NUMBERS, *(["ORPHAN_TIMEOUT"] if role.role == CHIEF else [])]
        numbers += ["MAX_RESTARTS"] if "MAX_RESTARTS" in values else []
        wrong = [it for it in numbers if not values.get(it, "").isdecimal()]
        wrong += [it for it in _OBJECTS if not _is_object(values.get(it, "{}"))]
        wrong += [] if values.get("RUN_URI") else ["RUN_URI"]
        yield from (f"{role.name}.initContainers.setup.env.{it}" for it in wrong)
        if "--" not in main.command:
            yield f"{role.name}.command"
        if not NATIVE_RESOURCES.keys() <= main.resources.limits.keys():
            yield f"{role.name}.resources.limits"
        for mount in filter(_is_users, main.volume_mounts):
            if not _source(spec, mount):
                yield f"{role.name}.volumes.{mount.name}"


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text.replace("$$", "$")), dict)
    except ValueError:
        return False


def _source(spec: PodSpec, mount: Mount) -> dict[str, str]:
    """Return the source of a mount's volume as `pod.*.volumes` spells it; nothing for another."""
    volume = spec.volume(mount.name)
    return volume.source if volume else {}


class _OwnRole:
    """A role of a job that this project has rendered."""

    def __init__(self, role: SourceRole) -> None:
        self.role, self.template = role.role, role.template
        spec = role.template.spec
        self.main: Container = spec.containers[0]
        setup = next(it for it in spec.init_containers if it.name == SETUP)
        # The variables of `setup` are those of every container of the pod.
        self.base = {it.name: it for it in setup.env}
        self.values = {name: it.value.replace("$$", "$") for name, it in self.base.items()}
        own = next((it for it in self.main.env if it.name == _CHIEF_IN_TF_CONFIG), None)
        self.chief_in_tf_config = own is None or own.value != "0"

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
        """The program behind the supervisor; empty for the project's own trainer."""
        program = self.main.command[self.main.command.index("--") + 1 :]
        return [] if program == list(TRAINER) else program

    @property
    def storage_secret(self) -> str:
        """The Secret with the store's keys."""
        volume = self.spec.volume("storage")
        return volume.secret.secret_name if volume and volume.secret else ""

    @property
    def keras(self) -> Variable | None:
        """TF_USE_LEGACY_KERAS where `train_options.keras` puts it: before the user's variables."""
        for it in self.main.env:
            if it.name == keras.VARIABLE:
                return it
            # A user's value for a variable of the job itself stands in its place, before.
            if it.name not in {*self.base, *_STORE, _CHIEF_IN_TF_CONFIG}:
                return None
        return None

    def _is_of_user(self, variable: Variable) -> bool:
        name, source = variable.name, variable.value_from
        if name in self.base:
            return variable != self.base[name]
        is_key = source and source.secret_key_ref and source.secret_key_ref.optional
        return name not in _OF_US and not (name in _STORE and is_key)

    def environment(self, keras_version: int) -> dict[str, Any]:
        """Return the variables that `pod` sets."""
        variables: dict[str, Any] = {}
        for it in self.main.env:
            is_option = it.name == keras.VARIABLE and _KERAS.get(it.value) == keras_version
            if is_option or not self._is_of_user(it):
                continue
            secret = it.value_from.secret_key_ref if it.value_from else None
            variables[it.name] = {"secret": secret.name, "key": secret.key} if secret else it.value
        return variables

    def settings(self, keras_version: int) -> dict[str, Any]:
        """Return the settings of the pods that are not defaults."""
        spec, limits = self.spec, self.main.resources.limits
        memory = spec.volume("shared-memory")
        extended = {name: limits[name] for name in limits if name not in NATIVE_RESOURCES}
        gpu = next(iter(extended), "") if self.gpus else ""
        settings: dict[str, Any] = {ours: limits[name] for name, ours in NATIVE_RESOURCES.items()}
        settings |= {
            "gpu_resource": extended.pop(gpu, None) and gpu,
            "resources": extended,
            "shared_memory": memory.empty_dir.size_limit if memory and memory.empty_dir else None,
            "volumes": [self._volume(it) for it in self.main.volume_mounts if _is_users(it)],
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
            "run_as_user": spec.security_context.run_as_user,
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
        return {**_source(self.spec, mount), "path": mount.mount_path, **read_only}

    @property
    def output(self) -> dict[str, Any]:
        """The settings of the output."""
        volume = self.spec.volume("output")
        claim = volume.persistent_volume_claim if volume else None
        paths = [
            it.mount_path
            for it in self.main.volume_mounts
            if it.name in ("output", "job") and it.mount_path not in (OUTPUT_DIR, JOB_DIR)
        ]
        output = {"output_claim": claim.claim_name} if claim else {}
        return output | ({"output_path": paths[0]} if paths else {})


def _is_users(mount: Mount) -> bool:
    """Return whether `pod.*.volumes` names a mount's volume."""
    return mount.name not in ("job", "output", "podinfo", "storage", "shared-memory")


def _keras(job: SourceJob, roles: Mapping[str, _OwnRole]) -> int:
    """Return `train_options.keras`; 0 if the variable is one of the user's, or is not set.

    Only TOPOLOGY, which a TFJob does not have, separates the option from the user's variables.
    """
    variables = [role.keras for role in roles.values()]
    values = [it.value for it in variables if it and it.value in _KERAS]
    if None in variables or (job.kind is TFJOB and len(values) < len(variables)):
        return 0
    return _KERAS[values[0]] if values else 2


def _train_options(job: SourceJob, chief: _OwnRole, keras_version: int) -> dict[str, Any]:
    values, metadata = chief.values, job.metadata
    options: dict[str, Any] = json.loads(values.get("TRAIN_OPTIONS", "{}"))
    ttl = job.policies.get("runPolicy.ttlSecondsAfterFinished")
    options |= {
        "command": chief.command,
        "stage_data": bool(values.get("DATA_DIR") or not values.get("DATASET_URI"))
        if chief.command
        else True,
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
    job: SourceJob, roles: Mapping[str, _OwnRole], keras_version: int
) -> dict[str, dict[str, Any]]:
    settings = {name: role.settings(keras_version) for name, role in roles.items()}
    pod: dict[str, dict[str, Any]] = merged(settings, _user_labels(job.metadata.labels))
    added: dict[str, dict[str, Any]] = {name: role.output for name, role in roles.items()}
    if queue := job.metadata.labels.get(QUEUE_LABEL):
        added["all"] = {"queue": queue}
    for name, role in roles.items():
        its = added.setdefault(name, {})
        if name in ("ps", "evaluator"):
            its |= {"replicas": job.counts[name]} | ({"gpus": role.gpus} if role.gpus else {})
        if role.main.image != roles[CHIEF].main.image:
            its["image"] = role.main.image
    for name, its in added.items():
        if its:
            pod[name] = pod.get(name, {}) | its
    return pod


def _user_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that are not those of this project."""
    return {
        name: value
        for name, value in labels.items()
        if not name.startswith("kfp-tfjob/")
        and name not in (MANAGER_LABEL, QUEUE_LABEL)
        and (name, value) != (INJECT, "false")
    }


def _output_uri(job: SourceJob, values: Mapping[str, str]) -> str:
    """Return `output_uri` from the folder of the run below it."""
    folder = values["RUN_URI"]
    if key := values.get("TASK_KEY"):
        folder = folder.removesuffix(f"/{TASKS}/{key}")
    above = folder.rpartition("/")[0]
    if above.endswith(f"/{RUNS}"):
        return above.removesuffix(f"/{RUNS}")
    name = job.metadata.labels.get(MODEL_LABEL, "")
    if "{" not in above and name:  # the field {model_name} is filled in
        root, _, below = above.partition(f"/{RUNS}/")
        parts = ["{model_name}" if part == safe(name) else part for part in below.split("/")]
        return "/".join([root, RUNS, *parts])
    return above
