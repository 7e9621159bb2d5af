"""Represents any TFJob for the rules; absent fields have their default values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kfp_tfjob.jobs.labels import MANAGER, MANAGER_LABEL
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.tfjob import TFJOB
from kfp_tfjob.lint.document import Path

# The types that the operator knows, including Master, which TensorFlow 2 refuses.
KNOWN_ROLES = {**TFJOB.roles, "master": "Master"}
DECIDERS = ("Chief", "Master")
GPU = re.compile(r"(nvidia|amd)\.com/|gpu\.intel\.com/")
# The fields of runPolicy; in v1beta1, they were under spec.
RUN_POLICY = (
    "activeDeadlineSeconds",
    "backoffLimit",
    "cleanPodPolicy",
    "managedBy",
    "schedulingPolicy",
    "suspend",
    "ttlSecondsAfterFinished",
)


@dataclass(frozen=True)
class Container:
    """A container of a replica.

    Attributes:
        body: The object in the manifest.
        path: Where it is.
    """

    body: Object
    path: Path

    @property
    def name(self) -> str:
        """Its name; empty without one."""
        return text(self.body, "name")

    @property
    def env(self) -> list[Object]:
        """Its variables."""
        return items(self.body, "env")

    @property
    def words(self) -> list[tuple[Path, str]]:
        """Its command and arguments, each with its path; a text in place of a list is one word."""
        found: list[tuple[Path, str]] = []
        for key in ("command", "args"):
            value, path = self.body.get(key), (*self.path, key)
            if isinstance(value, str):
                found.append((path, value))
            elif isinstance(value, list):
                found += [((*path, i), w) for i, w in enumerate(value) if isinstance(w, str)]
        return found

    def resources(self, kind: str) -> Object:
        """Return its `limits` or `requests`."""
        return mapping(mapping(self.body, "resources"), kind)

    @property
    def gpus(self) -> Object:
        """The GPUs it asks for, by resource."""
        asked = self.resources("requests") | self.resources("limits")
        return {name: asked[name] for name in asked if GPU.match(name)}


@dataclass(frozen=True)
class Replica:
    """A replica type of a job.

    Attributes:
        key: As it is written.
        role: As the operator spells it; empty if it does not know the type.
        body: The object in the manifest.
        path: Where it is.
    """

    key: str
    role: str
    body: Object
    path: Path

    @property
    def count(self) -> int:
        """How many there are."""
        value = self.body.get("replicas")
        return value if isinstance(value, int) else 1

    @property
    def policy(self) -> str:
        """Its restart policy, or the default."""
        return text(self.body, "restartPolicy") or "Never"

    @property
    def metadata(self) -> Object:
        """Labels and annotations of its pods."""
        return mapping(mapping(self.body, "template"), "metadata")

    @property
    def pod(self) -> Object:
        """The spec of its pods."""
        return mapping(mapping(self.body, "template"), "spec")

    @property
    def pod_path(self) -> Path:
        """The path of that spec."""
        return (*self.path, "template", "spec")

    @property
    def containers(self) -> list[Container]:
        """Its containers that run side by side, without the native sidecars."""
        return [
            Container(body, (*self.pod_path, "containers", i))
            for i, body in enumerate(items(self.pod, "containers"))
        ]

    @property
    def all_containers(self) -> list[Container]:
        """Every container, the init containers first."""
        init = [
            Container(body, (*self.pod_path, "initContainers", i))
            for i, body in enumerate(items(self.pod, "initContainers"))
        ]
        return [*init, *self.containers]

    @property
    def trainer(self) -> Container | None:
        """The main container, if there is one."""
        return next((c for c in self.containers if c.name == TFJOB.container), None)

    @property
    def has_gpus(self) -> bool:
        """Whether its pods ask for GPUs."""
        asked = (count for container in self.all_containers for count in container.gpus.values())
        return any(str(count) != "0" for count in asked)


@dataclass(frozen=True)
class Job:
    """A TFJob.

    Attributes:
        body: The object.
        path: Where it is in its document.
    """

    body: Object
    path: Path = ()

    @property
    def name(self) -> str:
        """Its name; empty if it is generated or missing."""
        return text(mapping(self.body, "metadata"), "name")

    @property
    def spec(self) -> Object:
        """Its spec."""
        return mapping(self.body, "spec")

    @property
    def run_policy(self) -> Object:
        """Its runPolicy, including fields that are under spec, as in v1beta1."""
        stray = {key: self.spec[key] for key in RUN_POLICY if key in self.spec}
        return stray | mapping(self.spec, "runPolicy") if stray else mapping(self.spec, "runPolicy")

    @property
    def replicas(self) -> list[Replica]:
        """Its replica types."""
        specs = mapping(self.spec, TFJOB.replicas_key)
        return [
            Replica(key, KNOWN_ROLES.get(key.lower(), ""), mapping(specs, key), self.at(key))
            for key in specs
        ]

    def at(self, *path: str | int) -> Path:
        """Return the path of something below the replica types."""
        return (*self.path, "spec", TFJOB.replicas_key, *path)

    def of(self, *roles: str) -> list[Replica]:
        """Return the replica types of some roles."""
        return [replica for replica in self.replicas if replica.role in roles]

    @property
    def total(self) -> int:
        """How many pods it has."""
        return sum(max(replica.count, 0) for replica in self.replicas)

    @property
    def restarts(self) -> bool:
        """Whether Kubernetes or the operator ever restarts any part of it."""
        return any(replica.policy != "Never" for replica in self.replicas)

    @property
    def has_launcher(self) -> bool:
        """Whether our own launcher and supervisor manage it."""
        return mapping(mapping(self.body, "metadata"), "labels").get(MANAGER_LABEL) == MANAGER

    def every_container(self) -> Iterator[tuple[Replica, Container]]:
        """Yield every container of every replica type."""
        for replica in self.replicas:
            for container in replica.all_containers:
                yield replica, container


def mapping(parent: Object, key: str) -> Object:
    """Return the object at `key`; an empty one if there is none."""
    value = parent.get(key)
    return value if isinstance(value, dict) else {}


def items(parent: Object, key: str) -> list[Object]:
    """Return the objects of the list at `key`; none if there is no list."""
    value = parent.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def text(parent: Object, key: str) -> str:
    """Return the text at `key`; empty if there is none."""
    value = parent.get(key)
    return value if isinstance(value, str) else ""
