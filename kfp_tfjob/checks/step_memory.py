"""The remedy for a step that needs more memory than its pod has.

A step may need it after its memory ran out, so this module imports nothing large. Called when a
step fails for lack of memory, and by the exit task if it was killed.
"""

from __future__ import annotations

from kfp_tfjob.cluster.backend import is_local
from kfp_tfjob.common.errors import Problem

# The key of `pod` for each step; publish may evaluate the model again.
KEYS = {"prepare_data": "prepare", "evaluate": "evaluate", "publish": "evaluate"}


def out_of_memory(step: str, received: str) -> Problem:
    """Return the problem of a step that ran out of memory, with the option that raises its limit.

    Args:
        step: The step, for example `prepare_data`.
        received: The received part of the message.
    """
    key = KEYS.get(step)
    parameter = f"pod.{key}.memory, or " if key else ""
    remedy = (
        "free memory on this machine"
        if is_local()
        else f"give this step more memory: {parameter}`kfp-tfjob compile --step-resources"
        f" {step}.memory=8Gi`"
    )
    return Problem(
        f"{step} ran out of memory",
        received=received,
        expected="enough memory for this data and this model",
        fix=f"{remedy}; or start a new run with less data",
        path=f"pod.{key}.memory" if key and not is_local() else "",
    )
