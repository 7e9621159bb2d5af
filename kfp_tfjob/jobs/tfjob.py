"""Describes the TFJob of the training operator."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from kfp_tfjob.jobs.kind import JobKind

TF_CONFIG = "TF_CONFIG"


def tf_config(hosts: Mapping[str, Sequence[str]], role: str, index: int) -> dict[str, str]:
    """Return TF_CONFIG, which is set only for more than one replica; arguments as `environment`."""
    if sum(map(len, hosts.values())) < 2:
        return {}
    cluster = {name: list(found) for name, found in hosts.items()}
    config = {"cluster": cluster, "task": {"type": role, "index": index}, "environment": "cloud"}
    return {TF_CONFIG: json.dumps(config)}


class _TFJob(JobKind):
    def environment(
        self, hosts: Mapping[str, Sequence[str]], role: str, index: int
    ) -> dict[str, str]:
        """Return what the training operator sets."""
        return tf_config(hosts, role, index)


TFJOB = _TFJob(
    name="TFJob",
    plural="tfjobs",
    replicas_key="tfReplicaSpecs",
    roles={"chief": "Chief", "worker": "Worker", "ps": "PS", "evaluator": "Evaluator"},
    container="tensorflow",
    operator="tfjob-controller",
    variables=frozenset({TF_CONFIG}),
    prefix="tfjob",
)
