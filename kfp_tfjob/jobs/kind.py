"""Describes a kind of job: the names and shapes in which TFJob, PyTorchJob and JobSet differ.

The rest of the project knows roles (`chief`, `worker`, ...) and asks the kind how its operator
writes them. This class holds what the kinds of the training operator share. A kind fills in its
names, defines the environment that its operator sets, and overrides any other difference.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

CHIEF = "chief"  # the role that stores the output and reports progress
_LABEL = "training.kubeflow.org/"


@dataclass(frozen=True)
class Replica:
    """The pods of one role.

    Attributes:
        role: For instance `worker`.
        count: Number of pods.
        template: The pod template.
    """

    role: str
    count: int
    template: Mapping[str, Any]

    @property
    def pod(self) -> Mapping[str, Any]:
        """The spec of the pods."""
        return self.template["spec"]


@dataclass(frozen=True, eq=False)
class JobKind(ABC):
    """One kind of job.

    Attributes:
        name: The kind in manifests.
        plural: The resource name in the API and in RBAC.
        replicas_key: The key of the spec that holds the replicas.
        roles: The name of each role in the manifest, in the manifest's order.
        container: The main container's name, which the operator requires.
        operator: The name under which the operator marks its pods.
        variables: The variables that the operator sets in the main container.
        decider: The role that ends the job when it ends.
        group: The API group.
        version: The API version.
        name_label: On every pod: the name of its job.
        role_label: On every pod: its role, as `label_of` spells it.
        index_label: On every pod: its number within the role, from 0.
        operator_label: On every pod: `operator`.
        conditions: The condition types for `created`, `running`, `succeeded`, `failed` and
            `suspended`.
    """

    name: str
    plural: str
    replicas_key: str
    roles: Mapping[str, str]
    container: str
    operator: str
    variables: frozenset[str]
    decider: str = CHIEF
    group: str = "kubeflow.org"
    version: str = "v1"
    name_label: str = f"{_LABEL}job-name"
    role_label: str = f"{_LABEL}replica-type"
    index_label: str = f"{_LABEL}replica-index"
    operator_label: str = f"{_LABEL}operator-name"
    conditions: Mapping[str, str] = field(
        default_factory=lambda: {
            state: state.capitalize()
            for state in ("created", "running", "succeeded", "failed", "suspended")
        }
    )

    @abstractmethod
    def environment(
        self, hosts: Mapping[str, Sequence[str]], role: str, index: int
    ) -> dict[str, str]:
        """Return the variables that the operator sets in a main container.

        Args:
            hosts: HOST:PORT of every replica, by role.
            role: The replica's role.
            index: The replica's number within its role.
        """

    @property
    def api_version(self) -> str:
        """The apiVersion of a manifest."""
        return f"{self.group}/{self.version}"

    @property
    def in_sdk(self) -> bool:
        """Whether the SDK of the training operator knows the kind."""
        return self.api_version == "kubeflow.org/v1"

    def spec(self, replicas: Sequence[Replica], ttl_seconds: int) -> dict[str, Any]:
        """Return the spec of a job that is never restarted and keeps its finished pods.

        Args:
            replicas: Its roles; one without pods is omitted.
            ttl_seconds: How long the finished job is kept.
        """
        return {
            "runPolicy": {"cleanPodPolicy": "Running", "ttlSecondsAfterFinished": ttl_seconds},
            self.replicas_key: {
                self.roles[item.role]: {
                    "replicas": item.count,
                    "restartPolicy": "Never",
                    "template": item.template,
                }
                for item in replicas
                if item.count
            },
        }

    def replicas(self, job: Mapping[str, Any]) -> list[Replica]:
        """Return the roles of a job with a spec from `spec`."""
        ours = {name: role for role, name in self.roles.items()}
        return [
            Replica(ours[name], int(item["replicas"]), item.get("template") or {})
            for name, item in job["spec"][self.replicas_key].items()
        ]

    def run_policy(self, job: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the run policy from the spec of a job."""
        return job["spec"]["runPolicy"]

    def decides(self, role: str) -> bool:
        """Tell whether a job ends when the pod of this role ends."""
        return role == self.decider

    def suspends(self, job: Mapping[str, Any]) -> bool:
        """Tell whether the spec of a job suspends it."""
        return bool(self.run_policy(job).get("suspend"))

    def label_of(self, role: str) -> str:
        """Return the value of the role label for the pods of a role."""
        return self.roles[role].lower()

    def role_of(self, labels: Mapping[str, str]) -> str:
        """Return the role of the pod with these labels."""
        value = labels[self.role_label]
        return next((role for role in self.roles if self.label_of(role) == value), value)

    def index_of(self, labels: Mapping[str, str]) -> str:
        """Return the number of the pod with these labels within its role."""
        return labels[self.index_label]

    def pod_labels(self, name: str, role: str, index: int) -> dict[str, str]:
        """Return the labels that the operator puts on a pod.

        Args:
            name: The job's name.
            role: The pod's role.
            index: The pod's number within its role.
        """
        labels = {
            self.operator_label: self.operator,
            self.name_label: name,
            self.role_label: self.label_of(role),
            self.index_label: str(index),
        }
        return labels | ({f"{_LABEL}job-role": "master"} if role == self.decider else {})

    def pod_name(self, name: str, role: str, index: int) -> str:
        """Return the name of a pod of a job."""
        return f"{name}-{self.label_of(role)}-{index}"

    def log_name(self, replica: str, container: str) -> str:
        """Return the name in brackets before a log line, for instance `chief-0/setup`."""
        return replica if container == self.container else f"{replica}/{container}"

    def pods_of(self, name: str) -> str:
        """Return the label selector of all pods of a job."""
        return f"{self.name_label}={name}"

    def other_pods_of(self, name: str, role: str) -> str:
        """Return the label selector of a job's pods in all other roles."""
        return f"{self.pods_of(name)},{self.role_label}!={self.label_of(role)}"
