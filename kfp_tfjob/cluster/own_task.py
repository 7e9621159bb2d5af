"""Identifies the task that this process runs, by the name that Argo gives its pod's node.

The name is a path: `run.root.exit-handler-1.preflight.executor`. With a retry strategy, which
KFP 2.17 sets for every template, each level ends with `(N)`, the number of the attempt. Without
these numbers, the path is the same on every retry, and differs between a loop's iterations. Called
by the steps' claim of a task, and by the exit task.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .client import ClusterClient

POD_NAME = "KFP_POD_NAME"
NODE_NAME = "workflows.argoproj.io/node-name"
_ATTEMPT = re.compile(r"\(\d+\)$")

log = logging.getLogger(__name__)


def node_path(name: str) -> tuple[str, ...]:
    """Return the levels of a node's name without attempt numbers; the first is the Workflow."""
    return tuple(_ATTEMPT.sub("", level) for level in name.split("."))


def own_task(api: ClusterClient, pod_name: str) -> tuple[str, ...]:
    """Return this pod's node path; empty if Argo did not create the pod."""
    from .api_errors import ForbiddenError

    try:
        pod = api.get(api.core("pods", pod_name))
    except ForbiddenError as error:
        log.warning("tasks with the same task_key cannot be detected: %s", error)
        return ()
    node = ((pod or {}).get("metadata", {}).get("annotations") or {}).get(NODE_NAME, "")
    return node_path(node) if node else ()
