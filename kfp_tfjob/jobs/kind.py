"""Describes a kind of job: the names and shapes in which TFJob, PyTorchJob and JobSet differ.

The rest of the project uses only roles (`chief`, `worker`, ...), and the kind translates them to
its operator's names. The class contains the rules that the training operator's kinds share. A kind
fills in its names, and overrides a method for any other difference. Called by the launcher, the
checks and the back ends.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from .objects import Object

TF_CONFIG = "TF_CONFIG"
TOPOLOGY, REPLICA_INDEX = "TOPOLOGY", "REPLICA_INDEX"  # variables for the supervisor
CHIEF = "chief"  # the role that stores the output; the job ends when the chief ends
_LABEL = "training.kubeflow.org/"


@dataclass(frozen=True)
class Replica:
    """The pods of one role."""

    role: str
    count: int
    template: Object

    @property
    def pod(self) -> Object:
        """The spec of the pods."""
        return self.template["spec"]


@dataclass(frozen=True, eq=False)
class JobKind:
    """One kind of job.

    Attributes:
        name: The kind in manifests.
        plural: The resource name in the API and in RBAC.
        replicas_key: The key of the spec that holds the replicas.
        roles: The name of each role in the manifest, in the manifest's order.
        container: The main container's name, which the operator requires.
        operator: The name under which the operator marks its pods.
        variables: The variables that the operator or the supervisor sets in the main container.
        group: The API group.
        version: The API version.
        name_label: On every pod: its job's name.
        role_label: On every pod: its role, as `label_of` spells it.
        index_label: On every pod: its number within the role, from 0.
        operator_label: On every pod: `operator`.
        conditions: The condition types for `created`, `running`, `succeeded`, `failed` and
            `suspended`.
        prefix: The first letters of the names of jobs.
        longest_name: The most characters of a job's name, so that its pods' and Services' names
            are valid.
        names_pods: Whether the names of pods are known in advance.
        stops_peers: Whether pods are deleted before the job shows that one of them has failed.
        controller: The operator to install, with its version.
        called: The operator's name in messages.
        deployment: The operator's Deployment, to check if the operator does not respond.
        install: The command that installs the operator.
    """

    name: str
    plural: str
    replicas_key: str
    roles: Mapping[str, str]
    container: str
    operator: str
    variables: frozenset[str]
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
    prefix: str = ""
    # <job>-evaluator-0 and <job>-worker-999 must be Service names of at most 63 characters.
    longest_name: int = 50
    names_pods: bool = True
    stops_peers: bool = False
    controller: str = "the Kubeflow training operator v1.9"
    called: str = "the training operator"
    deployment: str = "its Deployment in the namespace kubeflow"
    install: str = (
        "kubectl apply --server-side -k"
        " 'github.com/kubeflow/trainer.git/manifests/overlays/standalone?ref=v1.9.3'"
    )

    def environment(
        self, hosts: Mapping[str, Sequence[str]], role: str, index: int
    ) -> dict[str, str]:
        """Return the variables of a main container in a local run.

        These are the variables that the operator would set. For every kind of job, they include
        TF_CONFIG if there are other replicas, because the supervisor reads their addresses there.
        """
        if sum(map(len, hosts.values())) < 2:
            return {}
        cluster = {name: list(addresses) for name, addresses in hosts.items()}
        task = {"type": role, "index": index}
        config = {"cluster": cluster, "task": task, "environment": "cloud"}
        return {TF_CONFIG: json.dumps(config)}

    @property
    def api_version(self) -> str:
        """The apiVersion of a manifest."""
        return f"{self.group}/{self.version}"

    @property
    def absent(self) -> str:
        """The remedy, for a message, if no operator creates a job's pods."""
        described = f"`kubectl describe {self.name.lower()}` shows why it creates no pods"
        named = self.controller.replace("Kubeflow ", "")
        return f"install or start {named}; if it runs, {described}, such as a quota"

    @property
    def in_sdk(self) -> bool:
        """Whether the training operator's SDK contains the kind."""
        return self.api_version == "kubeflow.org/v1"

    def spec(self, replicas: Sequence[Replica], ttl_seconds: int) -> Object:
        """Return the spec of a job that is never restarted and keeps its finished pods."""
        return {
            "runPolicy": {"cleanPodPolicy": "Running", "ttlSecondsAfterFinished": ttl_seconds},
            self.replicas_key: {
                self.roles[replica.role]: {
                    "replicas": replica.count,
                    "restartPolicy": "Never",
                    "template": replica.template,
                }
                for replica in replicas
                if replica.count
            },
        }

    def replicas(self, job: Object) -> list[Replica]:
        """Return the roles of a job with a spec from `spec`."""
        roles = {name: role for role, name in self.roles.items()}
        return [
            Replica(roles[name], int(entry["replicas"]), entry.get("template") or {})
            for name, entry in job["spec"][self.replicas_key].items()
        ]

    def run_policy(self, job: Object) -> Object:
        """Return the run policy from a job's spec."""
        return job["spec"]["runPolicy"]

    def sets(self, name: str, role: str, counts: Mapping[str, int]) -> list[Object]:
        """Return the variables by which a replica finds the others, if no operator sets them."""
        return []

    def is_noticed(self, job: Object) -> bool:
        """Return whether the operator handles a job."""
        return bool((job.get("status") or {}).get("conditions"))

    def creators(self, job: Object) -> list[str]:
        """Return the names of the objects whose events explain why pods are not created."""
        return [job["metadata"]["name"]]

    def suspends(self, job: Object) -> bool:
        """Return whether a job's spec suspends it."""
        return bool(self.run_policy(job).get("suspend"))

    def owns(self, labels: Mapping[str, str]) -> bool:
        """Return whether a pod with these labels belongs to a job of this kind."""
        return labels.get(self.operator_label) == self.operator

    def label_of(self, role: str) -> str:
        """Return the value of the role label for the pods of a role."""
        return self.roles[role].lower()

    def role_of(self, labels: Mapping[str, str]) -> str:
        """Return the role of the pod with these labels."""
        value = labels[self.role_label]
        return next((role for role in self.roles if self.label_of(role) == value), value)

    def pod_labels(self, name: str, role: str, index: int) -> dict[str, str]:
        """Return the labels that the operator puts on a pod."""
        labels = {
            self.operator_label: self.operator,
            self.name_label: name,
            self.role_label: self.label_of(role),
            self.index_label: str(index),
        }
        return labels | ({f"{_LABEL}job-role": "master"} if role == CHIEF else {})

    def pod_name(self, name: str, role: str, index: int) -> str:
        """Return a pod's name; unless `names_pods`, only the beginning of the name."""
        return f"{name}-{self.label_of(role)}-{index}"

    def log_name(self, replica: str, container: str) -> str:
        """Return the name in brackets before a log line, for example `chief-0/setup`."""
        return replica if container == self.container else f"{replica}/{container}"

    def pods_of(self, name: str) -> str:
        """Return the label selector of all pods of a job."""
        return f"{self.name_label}={name}"

    def _topology(
        self, host: Callable[[str], str], role: str, counts: Mapping[str, int]
    ) -> list[Object]:
        """Return the variables with the addresses of all replicas, for the supervisor."""
        replicas = {name: [count, host(name)] for name, count in counts.items()}
        path = f"metadata.labels['{self.index_label}']"
        index = {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}
        value = json.dumps({"replicas": replicas, "role": role}, sort_keys=True)
        return [
            {"name": TOPOLOGY, "value": value},
            {"name": REPLICA_INDEX, "valueFrom": index},
        ]
