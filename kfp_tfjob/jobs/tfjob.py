"""Describes the TFJob of the training operator."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from kfp_tfjob.jobs.kind import JobKind


class _TFJob(JobKind):
    def environment(
        self, hosts: Mapping[str, Sequence[str]], role: str, index: int
    ) -> dict[str, str]:
        """Return TF_CONFIG, which the operator sets only for more than one replica."""
        if sum(map(len, hosts.values())) < 2:
            return {}
        cluster = {self.label_of(name): list(found) for name, found in hosts.items()}
        task = {"type": self.label_of(role), "index": index}
        config = {"cluster": cluster, "task": task, "environment": "cloud"}
        return {TF_CONFIG: json.dumps(config)}


TF_CONFIG = "TF_CONFIG"
TFJOB = _TFJob(
    name="TFJob",
    plural="tfjobs",
    replicas_key="tfReplicaSpecs",
    roles={"chief": "Chief", "worker": "Worker", "ps": "PS", "evaluator": "Evaluator"},
    container="tensorflow",
    operator="tfjob-controller",
    variables=frozenset({TF_CONFIG}),
)
