"""Runs the pipeline with kfp.local, in a process of its own so that it can be ended.

python -m kfp_tfjob.pipelines.local.pipeline_process OUTPUTS < PARAMETERS.json
"""

from __future__ import annotations

import json
import sys
import warnings


def main() -> None:
    """Run the pipeline; whether it failed is told by what its steps left."""
    values = json.load(sys.stdin)
    # What kfp.local warns of is known: images and resources mean nothing to a process.
    warnings.filterwarnings("ignore", module=r"kfp\.")
    from kfp import local
    from kfp.local import subprocess_task_handler

    from kfp_tfjob.pipelines.tfjob_training import tfjob_training

    # kfp.local replaces the text python3 wherever it stands in a task's command, and so in the
    # parameters too: a path below lib/python3.11 becomes one that does not exist. The interpreter
    # is found by PATH instead, which the caller has set.
    subprocess_task_handler.replace_python_executable = lambda command, _executable: command

    runner = local.SubprocessRunner(use_venv=False)
    local.init(runner, pipeline_root=sys.argv[1], raise_on_error=False)
    tfjob_training(**values)


if __name__ == "__main__":
    main()
