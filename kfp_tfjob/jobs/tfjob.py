"""Describes the TFJob of the training operator.

Called through the list in `kinds.py`, and by `kfp-tfjob import`.
"""

from __future__ import annotations

from .kind import TF_CONFIG, JobKind

TFJOB = JobKind(
    name="TFJob",
    plural="tfjobs",
    replicas_key="tfReplicaSpecs",
    roles={"chief": "Chief", "worker": "Worker", "ps": "PS", "evaluator": "Evaluator"},
    container="tensorflow",
    operator="tfjob-controller",
    variables=frozenset({TF_CONFIG}),
    prefix="tfjob",
)
