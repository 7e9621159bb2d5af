"""Defines rules about pods: refused, never started, or unreachable for their peers."""

from __future__ import annotations

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
