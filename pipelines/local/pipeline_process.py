"""Runs the pipeline with kfp.local, in a separate process that can be killed.

python -m kfp_tfjob.pipelines.local.pipeline_process OUTPUTS TICK < PARAMETERS.json

`run.py` starts it.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any


def main() -> None:
    """Run the pipeline; exit with 1 if a step failed, even if it left no record of its failure."""
    outputs, tick = sys.argv[1:]
    values = json.load(sys.stdin)
    # kfp.local warns that a process ignores images and resources, which is expected.
    warnings.filterwarnings("ignore", module=r"kfp\.")
    from kfp import local
    from kfp.local import subprocess_task_handler
    from kfp.local.orchestrator.enhanced_dag_orchestrator import ConditionEvaluator

    from kfp_tfjob.options.address_fields import TICK

    from .. import tfjob_training as module

    # kfp.local replaces the text python3 everywhere in a task's command, including parameters, so
    # a path below lib/python3.11 would break. PATH selects the interpreter instead; the caller
    # sets it.
    subprocess_task_handler.replace_python_executable = lambda command, _executable: command

    tasks = module.tasks_of(module.tfjob_training)
    # kfp.local does not replace the placeholder for the time of a schedule.
    tasks[module.CHANGED[0]].inputs.parameters[TICK].runtime_value.constant.string_value = tick
    # kfp.local cannot resolve a named output in a condition, and it runs tasks that need the output
    # of a skipped task. So every task gets the condition, and the output is resolved here.
    for name, task in tasks.items():
        if name != module.CHANGED[0] and not task.trigger_policy.condition:
            module.only_if(task)
    evaluator: Any = ConditionEvaluator
    resolve_otherwise = evaluator._resolve_pipeline_channel

    def resolve(channel: str, store: Any) -> Any:
        for output in (module.CHANGED, module.EVALUATE, module.BLESSED):
            if channel == module.input_of(output):
                return store.get_task_output(*output)
        return resolve_otherwise(channel, store)

    evaluator._resolve_pipeline_channel = staticmethod(resolve)

    runner = local.SubprocessRunner(use_venv=False)
    local.init(runner, pipeline_root=outputs)
    try:
        module.tfjob_training(**values)
    except RuntimeError as error:  # of kfp.local; its trace would look like lines of a step
        sys.exit(str(error))


if __name__ == "__main__":
    main()
