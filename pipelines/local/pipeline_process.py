"""Runs the pipeline with kfp.local, in a separate process that can be killed.

python -m kfp_tfjob.pipelines.local.pipeline_process OUTPUTS < PARAMETERS.json
"""

from __future__ import annotations

import json
import sys
import warnings


def main() -> None:
    """Run the pipeline; the files that its steps leave show whether it failed."""
    values = json.load(sys.stdin)
    # kfp.local warns that a process ignores images and resources, which is expected.
    warnings.filterwarnings("ignore", module=r"kfp\.")
    from kfp import dsl, local
    from kfp.local import subprocess_task_handler

    # kfp.local cannot fill this in; the steps of a local run find the tick in their environment.
    dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER = ""
    from kfp_tfjob.pipelines.tfjob_training import tfjob_training

    # kfp.local replaces the text python3 everywhere in a task's command, including parameters, so
    # a path below lib/python3.11 would break. PATH selects the interpreter instead; the caller
    # sets it.
    subprocess_task_handler.replace_python_executable = lambda command, _executable: command

    runner = local.SubprocessRunner(use_venv=False)
    local.init(runner, pipeline_root=sys.argv[1], raise_on_error=False)
    tfjob_training(**values)


if __name__ == "__main__":
    main()
