"""Judges a model again in a separate pod, as `pod.evaluate` asks."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from kfp_tfjob.components.publish.again import judge_again
from kfp_tfjob.components.step import Step
from kfp_tfjob.components.step_job import GPUS
from kfp_tfjob.components.step_job_pod import work


def publish(step: Step, inputs: Mapping[str, Any]) -> None:
    """Store the second verdict.

    Args:
        step: The run and its store.
        inputs: The arguments of `judge_again`.
    """
    judge_again(step, **inputs, gpus=int(os.environ.get(GPUS, 0)))


if __name__ == "__main__":
    sys.exit(work("publish", publish))
