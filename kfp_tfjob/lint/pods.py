"""Defines rules about pods: refused, never started, or unreachable for their peers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.tfjob import TFJOB
from kfp_tfjob.lint.job import Container, Job, Replica, items, text
from kfp_tfjob.lint.rule import Found, error, warning

_SHM = "/dev/shm"
_SECRET_NAMES = re.compile(
    r"(^|_)(SECRET|PASSWORD|PASSWD|TOKEN|(SECRET|PRIVATE|ACCESS|API)_KEY)$", re.IGNORECASE
)


@error(f"name the main container {TFJOB.container}")
def container_name(job: Job) -> Iterator[Found]:
    """The webhook refuses a replica without a container of that name.

    It is also the only container that gets TF_CONFIG.
    """
    for replica in job.replicas:
        found = replica.containers
        if found and not replica.trainer:
            names = ", ".join(container.name or "(no name)" for container in found)
            yield Found((*found[0].path, "name"), f"the containers are called {names}")


@error("add the container with its image")
def image(job: Job) -> Iterator[Found]:
    """The webhook refuses a replica without containers, or a container without an image."""
    for replica in job.replicas:
        if not replica.containers:
            path = (*replica.pod_path, "containers")
            yield Found(path, f"{replica.key} has no containers")
        for container in replica.all_containers:
            if not text(container.body, "image").strip():
                yield Found(container.path, f"container {container.name} has no image")


@error("rename one of them, or define the volume")
def wrong_names(job: Job) -> Iterator[Found]:
    """The API server refuses such a pod, and the operator retries forever."""
    for replica in job.replicas:
        every = replica.all_containers
        for group in ([(c.name, c.path) for c in every], _volumes(replica)):
            seen = Counter(name for name, _ in group)
            for name, path in group:
                if name and seen[name] > 1:
                    seen[name] = 0
                    yield Found(path, f"the name {name} is used twice")
        known = {name for name, _ in _volumes(replica)}
        for container in every:
            paths = Counter(text(m, "mountPath") for m in items(container.body, "volumeMounts"))
            for i, mount in enumerate(items(container.body, "volumeMounts")):
                path = (*container.path, "volumeMounts", i)
                if text(mount, "name") and mount["name"] not in known:
                    yield Found(path, f"there is no volume {mount['name']}")
                if paths[text(mount, "mountPath")] > 1:
                    paths[mount["mountPath"]] = 0
                    yield Found(path, f"{mount['mountPath']} is mounted twice")


@error("name the port")
def unnamed_port(job: Job) -> Iterator[Found]:
    """The Services of the replicas have the ports of this container.

    An unnamed port beside tfjob-port makes them invalid, and the job never gets a status.
    """
    for replica in job.replicas:
        if not (trainer := replica.trainer):
            continue
        ports = items(trainer.body, "ports")
        for i, port in enumerate(ports):
            if not port.get("name"):
                path = (*trainer.path, "ports", i)
                yield Found(path, "a port has no name")


@error("write the same whole number under limits")
def gpu_limits(job: Job) -> Iterator[Found]:
    """GPUs need limits that are whole numbers and equal to the requests.

    Any other pod is refused.
    """
    for _, container in job.every_container():
        limits, requests = container.resources("limits"), container.resources("requests")
        for resource, asked in container.gpus.items():
            path = (*container.path, "resources")
            if not re.fullmatch(r"[0-9]+", str(asked)):
                yield Found(path, f"{resource} is {asked}")
            elif resource not in limits:
                yield Found(path, f"{resource} has requests and no limits")
            elif resource in requests and str(requests[resource]) != str(limits[resource]):
                yield Found(path, f"{resource} has different requests and limits")


@error("write Mi or Gi")
def memory_unit(job: Job) -> Iterator[Found]:
    """512m of memory is half a byte; the pod is refused or killed at once."""
    for _, container in job.every_container():
        for kind in ("limits", "requests"):
            for resource in ("memory", "ephemeral-storage"):
                value = container.resources(kind).get(resource)
                if isinstance(value, str) and re.fullmatch(r"[0-9.]+m", value):
                    path = (*container.path, "resources", kind, resource)
                    yield Found(path, f"{resource} is {value}")


@warning(f"mount an emptyDir with medium: Memory at {_SHM}")
def shared_memory(job: Job) -> Iterator[Found]:
    """A container has 64 MB of /dev/shm.

    NCCL and data loaders that need more end with a bus error.
    """
    for replica in job.replicas:
        for container in replica.containers:
            if container.gpus and not _at_shm(container):
                yield Found(container.path, f"nothing is mounted at {_SHM}")


@warning("keep it in a Secret, and refer to that with valueFrom.secretKeyRef and optional: true")
def plain_secret(job: Job) -> Iterator[Found]:
    """Everyone who can read the job can read it, and the history of the file keeps it."""
    for _, container in job.every_container():
        for i, variable in enumerate(container.env):
            name = text(variable, "name")
            if _SECRET_NAMES.search(name) and variable.get("value") and not _is_path(variable):
                path = (*container.path, "env", i)
                yield Found(path, f"{name} is in the job manifest")


def _volumes(replica: Replica) -> list[tuple[str, Any]]:
    return [
        (text(volume, "name"), (*replica.pod_path, "volumes", i))
        for i, volume in enumerate(items(replica.pod, "volumes"))
    ]


def _at_shm(container: Container) -> set[str]:
    """Return the volumes that a container has at /dev/shm."""
    mounts = items(container.body, "volumeMounts")
    return {text(mount, "name") for mount in mounts if mount.get("mountPath") == _SHM}


def _is_path(variable: Object) -> bool:
    """Tell whether a variable has the place of a secret, and not the secret itself."""
    return str(variable["value"]).startswith(("/", "$(", "s3://", "http"))
