"""Defines rules about pods: refused, never started, or unreachable for their peers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kfp_tfjob.jobs.tfjob import TFJOB
from kfp_tfjob.lint.job import Container, Job, items, text
from kfp_tfjob.lint.rule import Found, error, warning

_SHM = "/dev/shm"


@error(f"name the main container {TFJOB.container}")
def container_name(job: Job) -> Iterator[Found]:
    """The webhook refuses a replica without a container of that name.

    It is also the only container that gets TF_CONFIG.
    """
    for replica in job.replicas:
        found = replica.containers
        if not found:
            yield Found((*replica.pod_path, "containers"), f"{replica.key} has no containers")
        elif not replica.trainer:
            names = ", ".join(container.name or "(no name)" for container in found)
            yield Found((*found[0].path, "name"), f"the containers are called {names}")


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


@warning(f"mount an emptyDir with medium: Memory at {_SHM}")
def shared_memory(job: Job) -> Iterator[Found]:
    """A container has 64 MB of /dev/shm.

    NCCL and data loaders that need more end with a bus error.
    """
    for replica in job.replicas:
        for container in replica.containers:
            if container.gpus and not _at_shm(container):
                yield Found(container.path, f"nothing is mounted at {_SHM}")


def _at_shm(container: Container) -> set[str]:
    """Return the volumes that a container has at /dev/shm."""
    mounts = items(container.body, "volumeMounts")
    return {text(mount, "name") for mount in mounts if mount.get("mountPath") == _SHM}
