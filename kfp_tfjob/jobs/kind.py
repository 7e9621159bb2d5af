"""Describes a kind of job: the names and shapes in which TFJob, PyTorchJob and JobSet differ.

The rest of the project knows roles (`chief`, `worker`, ...) and asks the kind how its operator
writes them. This class holds what the kinds of the training operator share. A kind fills in its
names, and overrides any other difference.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kfp_tfjob.jobs.objects import Object

TF_CONFIG = "TF_CONFIG"
TOPOLOGY, REPLICA_INDEX = "TOPOLOGY", "REPLICA_INDEX"  # variables for the supervisor
CHIEF = "chief"  # the role that stores the output, and whose end is that of the job
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
        longest_name: The most characters of a name, so that those of pods and Services fit.
        names_pods: Whether the names of pods are known in advance.
        stops_peers: Whether pods are deleted before the job shows that one of them has failed.
        controller: What to install.
        called: What messages call it.
        deployment: Where to look if it does not respond.
        install: The command that installs it.
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

        They are those of the operator; besides, TF_CONFIG tells the supervisor of any job where
        the other replicas are, if there are any.
        """
        if sum(map(len, hosts.values())) < 2:
            return {}
        cluster = {name: list(found) for name, found in hosts.items()}
        task = {"type": role, "index": index}
        config = {"cluster": cluster, "task": task, "environment": "cloud"}
        return {TF_CONFIG: json.dumps(config)}

    @property
    def api_version(self) -> str:
        """The apiVersion of a manifest."""
        return f"{self.group}/{self.version}"

    @property
    def absent(self) -> str:
        """What to do if nothing creates a job's pods."""
        described = f"`kubectl describe {self.name.lower()}` shows why it creates no pods"
        named = self.controller.replace("Kubeflow ", "")
        return f"install or start {named}; if it runs, {described}, such as a quota"

    @property
    def in_sdk(self) -> bool:
        """Whether the SDK of the training operator knows the kind."""
        return self.api_version == "kubeflow.org/v1"

    def spec(self, replicas: Sequence[Replica], ttl_seconds: int) -> Object:
        """Return the spec of a job that is never restarted and keeps its finished pods."""
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

    def replicas(self, job: Object) -> list[Replica]:
        """Return the roles of a job with a spec from `spec`."""
        ours = {name: role for role, name in self.roles.items()}
        return [
            Replica(ours[name], int(item["replicas"]), item.get("template") or {})
            for name, item in job["spec"][self.replicas_key].items()
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
        """Return the names of the objects whose events say why pods are not created."""
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
        """Return the name of a pod of a job; only its beginning unless `names_pods`."""
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
        """Return the variables from which the supervisor learns where the other replicas are."""
        replicas = {name: [count, host(name)] for name, count in counts.items()}
        path = f"metadata.labels['{self.index_label}']"
        index = {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}
        value = json.dumps({"replicas": replicas, "role": role}, sort_keys=True)
        return [
            {"name": TOPOLOGY, "value": value},
            {"name": REPLICA_INDEX, "valueFrom": index},
        ]
