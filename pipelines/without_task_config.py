"""The launcher's component for our own compiled pipelines: without the input `dsl.TaskConfig`.

Users cannot set anything on a task of a compiled pipeline, so the input would always be empty
there. Besides, back ends before 2.15 reject a pipeline that contains such an input. Called by
`tfjob_training.py`.
"""

from copy import deepcopy
from typing import Any

from kfp.dsl.python_component import PythonComponent

from kfp_tfjob.components.launch_tfjob.component import launch_tfjob as with_task_config

_INPUT = "task_config"
_DECLARATION = f"    {_INPUT}: dsl.TaskConfig = None,\n"


def without_task_config(component: Any) -> PythonComponent:
    """Return a copy of a component without the input `task_config`.

    Args:
        component: The PythonComponent that `@dsl.component` has made.

    Raises:
        ValueError: The component's function does not declare the input on a line of its own.
    """
    spec: Any = deepcopy(component.component_spec)
    # Kubeflow Pipelines runs the source of the function, which is the last part of the command.
    *start, source = spec.implementation.container.command
    if source.count(_DECLARATION) != 1:
        raise ValueError(f"{component.name} does not declare {_INPUT} as `{_DECLARATION.strip()}`")
    spec.implementation.container.command = [*start, source.replace(_DECLARATION, "")]
    del spec.inputs[_INPUT]
    spec.task_config_passthroughs = None
    return PythonComponent(spec, component.python_func)


launch_tfjob = without_task_config(with_task_config)
