"""The TFJob of the training operator: the names it gives to roles and containers."""

from __future__ import annotations

CONTAINER = "tensorflow"  # the only name the operator gives TF_CONFIG to
UPLOADER = "uploader"
ROLES = {"chief": "Chief", "worker": "Worker", "ps": "PS", "evaluator": "Evaluator"}
