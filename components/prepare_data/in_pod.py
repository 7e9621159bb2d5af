"""Does the work of prepare_data in a pod of its own, which `pod.prepare` asks for."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from kfp_tfjob.components.prepare_data.engine import run
from kfp_tfjob.components.step import Step
from kfp_tfjob.components.step_job_pod import work


def prepare(step: Step, inputs: Mapping[str, Any]) -> None:
    """Prepare the dataset; its manifest in the store is the result.

    Args:
        step: The run and its store.
        inputs: The arguments of `engine.run`.
    """
    run(step, **inputs)


if __name__ == "__main__":
    sys.exit(work("prepare_data", prepare))
