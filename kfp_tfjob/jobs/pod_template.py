"""Builds the pod template of one role of a job: its containers, variables, volumes and settings.

Every replica has the init container `setup` and the main container. The chief also has the native
sidecar `uploader`. Kubernetes never restarts a training: the supervisor restarts it in place, and
the launcher starts a new attempt. Called by manifest.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from kfp_tfjob.options.pod import PodSettings, SecretKey, Volume
from kfp_tfjob.options.train import NPY
from kfp_tfjob.storage.credentials import MOUNT, MOUNT_VARIABLE
from kfp_tfjob.storage.layout import OUTPUT, Layout
from kfp_tfjob.supervisor import keras
from kfp_tfjob.supervisor.pack import NAME

from .job_identity import Identity
from .labels import HEARTBEAT_ANNOTATION, INJECT, SETUP, STOP_WITHIN_ANNOTATION, UPLOADER
from .objects import Object
from .spec import JobSpec

# -S skips the unused site-packages for a faster start: until then, a SIGTERM is lost.
SUPERVISOR = ("python3", "-S", f"$(JOB_DIR)/{NAME}")
TRAINER = ("python3", "-m", "kfp_tfjob.trainer")
JOB_DIR = "/kfp-tfjob/job"
DATA_DIR = f"{JOB_DIR}/data"
OUTPUT_DIR = "/kfp-tfjob/output"
PODINFO_DIR = "/kfp-tfjob/podinfo"
_STORAGE = "storage"  # the volume with the store's Secret
# For the containers of the tools image, which only copy files between the store and volumes.
_HELPER = {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"}
# The sidecar runs as long as the trainer and is mostly idle, so it reserves no whole core.
_HELPER_REQUESTS = _HELPER | {"cpu": "250m"}
_AWS_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_AWS_PLACES = ("AWS_ENDPOINT_URL", "AWS_REGION")
# For every pod: an evicted pod fails the whole job. A proxy would outlive the trainer; besides,
# replicas use gRPC on plain ports.
POD_ANNOTATIONS = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
    INJECT: "false",
}


@dataclass(frozen=True)
class PodTemplate:
    """The pod template of one role."""

    spec: JobSpec
    identity: Identity
    role: str

    @property
    def is_chief(self) -> bool:
        """Whether the role is the chief, whose pod has the uploader and the output volume."""
        return self.role == "chief"

    @property
    def stages_data(self) -> bool:
        """Whether `setup` downloads the dataset, which our trainer does itself; ps need no data."""
        options = self.spec.options
        is_needed = options.command and options.stage_data and self.spec.dataset_uri
        return bool(is_needed) and self.role != "ps"

    @cached_property
    def settings(self) -> PodSettings:
        """The role's settings: `pod.all` with its own on top."""
        return self.spec.pod.of(self.role)

    @property
    def output_claim(self) -> str | None:
        """The PersistentVolumeClaim for OUTPUT_DIR; None for a volume that ends with the pod."""
        return self.spec.pod.chief.output_claim if self.is_chief else None

    @property
    def output_dir(self) -> str:
        """The program's OUTPUT_DIR; the uploader mirrors the chief's."""
        if not self.is_chief:
            return f"{JOB_DIR}/{OUTPUT}"
        # A claim outlives the job. Files of an earlier attempt must not count as our output.
        own = f"{OUTPUT_DIR}/{self.identity.job_name(self.spec.kind)}"
        return own if self.output_claim else OUTPUT_DIR

    def render(self, labels: Mapping[str, str]) -> Object:
        """Return the pod template with these labels, which win over the settings' labels."""
        settings = self.settings  # their defaults are declared in kfp_tfjob/options/pod.py
        init = [self._setup()]
        if self.is_chief:
            init.append(self._uploader())
        return _pod_template(
            settings,
            labels,
            {
                "activeDeadlineSeconds": self.spec.options.deadline_seconds,
                "containers": [self._main()],
                "initContainers": init,
                "terminationGracePeriodSeconds": settings.grace_seconds,
                "volumes": self._volumes(),
            },
        )

    def _main(self) -> Object:
        spec, settings = self.spec, self.settings
        command = list(spec.options.command) or list(TRAINER)
        resources = {
            "cpu": settings.cpu,
            "memory": settings.memory,
            "ephemeral-storage": settings.ephemeral_storage,
        }
        if gpus := spec.gpus_of(self.role):
            resources[str(settings.gpu_resource)] = str(gpus)
        resources |= settings.resources or {}
        environment = self._environment()
        if spec.options.command:
            environment += keys_of_the_store(spec)
            if not spec.options.chief_in_tf_config:
                environment += _variables({"CHIEF_IN_TF_CONFIG": "0"})
            if spec.options.keras != "auto":  # without it, the supervisor chooses
                legacy = "1" if spec.options.keras == 2 else "0"
                environment += _variables({keras.VARIABLE: legacy})
        name = self.identity.job_name(spec.kind)
        environment += spec.kind.sets(name, self.role, spec.counts)
        if self.is_chief:
            environment += _variables(self.identity.tracking)
        environment += [_variable(name, value) for name, value in (settings.env or {}).items()]
        environment = list(
            {variable["name"]: variable for variable in environment}.values()
        )  # names are unique
        container = self._container(
            spec.kind.container, spec.image_of(self.role), resources, environment
        )
        container["command"] = [*SUPERVISOR, "--", *command]
        container["volumeMounts"] += [
            {"name": "shared-memory", "mountPath": "/dev/shm"},
            *self._output_path(),
            *(
                {"name": _volume_name(number, volume), "mountPath": volume.path}
                | ({"readOnly": True} if volume.read_only else {})
                for number, volume in enumerate(settings.volumes or ())
            ),
        ]
        return container

    def _output_path(self) -> list[Object]:
        """Return the second mount of OUTPUT_DIR, which shows the same files at another path."""
        path = getattr(self.spec.pod, self.role).output_path
        if not path:
            return []
        volume, above = ("output", OUTPUT_DIR) if self.is_chief else ("job", JOB_DIR)
        # `setup` has created the folder below the volume before the program starts.
        below = str(PurePosixPath(self.output_dir).relative_to(above))
        return [{"name": volume, "mountPath": path} | ({} if below == "." else {"subPath": below})]

    def _setup(self) -> Object:
        return self._helper(SETUP, "python3 -m kfp_tfjob.components.launch_tfjob.setup")

    def _uploader(self) -> Object:
        command = "python3 -m kfp_tfjob.uploader watch $(OUTPUT_DIR) $(RUN_URI) --grace"
        container = self._helper(UPLOADER, f"{command} {self.settings.grace_seconds}")
        # This policy makes an init container a native sidecar, which does not delay the end.
        return container | {"restartPolicy": "Always"}

    def _helper(self, name: str, command: str) -> Object:
        """Return a container with the tools image."""
        container = self._container(name, self.spec.tools_image, _HELPER, self._environment())
        container["resources"]["requests"] = dict(_HELPER_REQUESTS)
        return container | {"command": command.split()}

    def _container(
        self,
        name: str,
        image: str,
        resources: Mapping[str, str | None],
        environment: Sequence[Object],
    ) -> Object:
        mounts: list[Object] = [{"name": "job", "mountPath": JOB_DIR}]
        if self.is_chief:
            mounts.append({"name": "output", "mountPath": OUTPUT_DIR})
            mounts.append({"name": "podinfo", "mountPath": PODINFO_DIR, "readOnly": True})
        mounts.append({"name": _STORAGE, "mountPath": str(MOUNT), "readOnly": True})
        return {
            "name": name,
            "image": image,
            "env": list(environment),
            "resources": {"limits": dict(resources), "requests": dict(resources)},
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            },
            "volumeMounts": mounts,
        }

    def _environment(self) -> list[Object]:
        spec, identity = self.spec, self.identity
        run = Layout.parse(spec.output_uri).run(identity.run_id).task(identity.task_key)
        run_uri = identity.run_uri or run.base
        values = {
            "RUN_ID": self.identity.run_id,
            "ATTEMPT": str(self.identity.attempt),
            "RUN_URI": str(run_uri),
            "TASK_KEY": identity.task_key,
            "DATASET_URI": spec.dataset_uri,
            "CODE_URI": spec.code_uri,
            "MODEL_CODE": spec.model_entry,
            "HYPERPARAMETERS": _json(spec.hyperparameters),
            "EPOCHS": str(spec.epochs),
            "BATCH_SIZE": str(spec.batch_size),
            "TRAIN_OPTIONS": _json(spec.options.for_trainer),
            "JOB_DIR": JOB_DIR,
            "DATA_DIR": DATA_DIR if self.stages_data else "",
            "STAGE_DATA": NPY if self.stages_data and spec.options.stage_data == NPY else "",
            "OUTPUT_DIR": self.output_dir,
            "EXPECTED_REPLICAS": str(spec.replicas),
            "EXPECTED_GPUS": str(spec.gpus_of(self.role)),
            "STORE_DEADLINE": str(spec.options.store_deadline_seconds),
            "START_DEADLINE": str(spec.options.start_timeout_seconds),
            # A user's own program is never restarted in place.
            "MAX_RESTARTS": "" if spec.options.command else str(spec.options.max_restarts or ""),
            "ORPHAN_TIMEOUT": str(spec.options.orphan_timeout_seconds) if self.is_chief else "",
            "PODINFO_DIR": PODINFO_DIR if self.is_chief else "",
            "FLUSH_BARRIER": "1" if self.is_chief else "",
            "RESTORE": "1" if self.is_chief else "",
            MOUNT_VARIABLE: str(MOUNT),
            "AWS_ENDPOINT_URL": spec.storage_endpoint,
            "AWS_REGION": spec.storage_region,
            # The image does not have a home folder for the pod's user id.
            "HOME": f"{JOB_DIR}/home",
            "TMPDIR": f"{JOB_DIR}/tmp",
            "PYTHONUNBUFFERED": "1",
        }
        return _variables(values)

    def _volumes(self) -> list[Object]:
        volumes: list[Object] = [{"name": "job", "emptyDir": {}}]
        if self.output_claim:
            claim = {"claimName": self.output_claim}
            volumes.append({"name": "output", "persistentVolumeClaim": claim})
        elif self.is_chief:
            volumes.append({"name": "output", "emptyDir": {}})
        if self.is_chief:
            volumes.append({"name": "podinfo", "downwardAPI": {"items": _podinfo()}})
        # Without `optional`, the pod would wait for a missing Secret without an error.
        secret = {"secretName": self.spec.storage_secret, "optional": True}
        memory = {"medium": "Memory", "sizeLimit": self.settings.shared_memory}
        return [
            *volumes,
            {"name": _STORAGE, "secret": secret},
            {"name": "shared-memory", "emptyDir": memory},
            *(
                {"name": _volume_name(number, volume)} | volume.source
                for number, volume in enumerate(self.settings.volumes or ())
            ),
        ]


def keys_of_the_store(spec: JobSpec) -> list[Object]:
    """Return the AWS variables for a program that finds the store only through them."""
    places = zip(_AWS_PLACES, (spec.storage_endpoint, spec.storage_region), strict=True)
    names = [*_AWS_KEYS, *(name for name, value in places if not value)]
    references = ({"name": spec.storage_secret, "key": name, "optional": True} for name in names)
    return [
        {"name": reference["key"], "valueFrom": {"secretKeyRef": reference}}
        for reference in references
    ]


def _pod_template(settings: PodSettings, labels: Mapping[str, str], spec: Object) -> Object:
    """Return a pod template without a cluster token, as Pod Security `restricted` admits it."""
    user = None if settings.run_as_user == "none" else settings.run_as_user
    security: Object = {
        "fsGroup": user,
        "fsGroupChangePolicy": "OnRootMismatch",
        "runAsGroup": user,
        "runAsNonRoot": True,
        "runAsUser": user,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    pod: Object = {
        "affinity": settings.affinity.model_dump(exclude_none=True) if settings.affinity else None,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "imagePullSecrets": [{"name": settings.image_pull_secret}]
        if settings.image_pull_secret
        else None,
        "nodeSelector": settings.node_selector,
        "priorityClassName": settings.priority_class,
        "schedulerName": settings.scheduler,
        "securityContext": {name: value for name, value in security.items() if value is not None},
        "serviceAccountName": settings.service_account,
        "tolerations": [
            toleration.model_dump(exclude_none=True) for toleration in settings.tolerations
        ]
        if settings.tolerations
        else None,
        **spec,
    }
    return {
        "metadata": {
            "annotations": POD_ANNOTATIONS | (settings.annotations or {}),
            "labels": {INJECT: "false", **(settings.labels or {}), **labels},
        },
        "spec": {key: value for key, value in sorted(pod.items()) if value is not None},
    }


def _variables(values: Mapping[str, str]) -> list[Object]:
    """Return variables with these literal values; empty ones are omitted."""
    return [
        # Kubernetes expands $(NAME), and $$ is a literal dollar.
        {"name": name, "value": value.replace("$", "$$")}
        for name, value in values.items()
        if value
    ]


def _variable(name: str, value: str | SecretKey) -> Object:
    if isinstance(value, str):
        return {"name": name, "value": value}
    # Not optional: the program must not start without it, and the launcher reports it missing.
    reference = {"name": value.secret, "key": value.key}
    return {"name": name, "valueFrom": {"secretKeyRef": reference}}


def _volume_name(number: int, volume: Volume) -> str:
    return f"{volume.kind}-{number}"


def _podinfo() -> list[Object]:
    """Return the annotations that control the chief's pod, as files that follow every change."""
    return [
        {
            "path": name.rpartition("/")[2],
            "fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{name}']"},
        }
        for name in (HEARTBEAT_ANNOTATION, STOP_WITHIN_ANNOTATION)
    ]


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=dict)
