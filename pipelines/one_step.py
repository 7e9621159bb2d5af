"""Makes a pipeline of one step, for other pipelines and for a run by itself.

A KFP component contains neither the store's Secret nor the run's id. A pipeline of one task does,
and `components.load_component_from_file` reads its YAML as a component. Called by `compilation.py`.
"""

import inspect
from collections import namedtuple
from collections.abc import Mapping
from typing import Any

from kfp import dsl
from kfp.dsl.graph_component import GraphComponent

from kfp_tfjob.components.preflight.parameters import defaults
from kfp_tfjob.options.parameters import PARAMETERS

from .signature import REQUIRED, Field, with_signature
from .step_pod import with_store

_SECRET = "storage_secret"


def one_step(step: Any, of_the_run: Mapping[str, str]) -> GraphComponent:
    """Return the pipeline of one step, with its inputs, the name of the Secret, and its outputs.

    Args:
        step: The step's component.
        of_the_run: Placeholders for the inputs that belong to a run and are no inputs of the
            pipeline, by name.
    """
    signature = inspect.signature(step.python_func)
    # In a signature, parameters without a default come first.
    fields = sorted(
        _fields(step, signature, of_the_run), key=lambda field: field.default is not REQUIRED
    )
    outputs = _outputs(step, signature)

    def pipeline(*values: Any) -> Any:
        inputs = {field.name: value for field, value in zip(fields, values, strict=True)}
        secret = inputs[_SECRET]
        inputs |= of_the_run
        task = step(**{name: inputs[name] for name in step.component_spec.inputs})
        task_outputs = with_store(task, secret).outputs
        return outputs(**{name: task_outputs[name] for name in outputs._fields})

    pipeline.__doc__ = step.description
    # With the name of the step itself, KFP would read only that step from the YAML.
    name = f"{step.name}-step"
    return dsl.pipeline(name=name, description=step.description)(
        with_signature(pipeline, fields, outputs)
    )


def _outputs(step: Any, signature: inspect.Signature) -> Any:
    """Return the named tuple of all outputs of a step: its parameters, then its artifacts."""
    returned = signature.return_annotation
    parameters = getattr(returned, "__annotations__", {"Output": returned})
    if returned is REQUIRED:
        parameters = {}
    artifacts = {
        name: signature.parameters[name].annotation.__origin__  # Model of dsl.Output[dsl.Model]
        for name in step.component_spec.outputs
        if name not in parameters
    }
    fields = {**parameters, **artifacts}
    outputs = namedtuple("Outputs", fields)
    outputs.__annotations__ = fields
    return outputs


def _fields(step: Any, signature: inspect.Signature, of_the_run: Mapping[str, str]) -> list[Field]:
    """Return the inputs of the pipeline: the step's own, and the name of the Secret."""
    fields = []
    for name, declared in step.component_spec.inputs.items():
        if name in of_the_run or name == _SECRET:
            continue
        parameter = signature.parameters[name]
        default = parameter.default
        if default is not REQUIRED and name in PARAMETERS:
            default = defaults()[name]  # the image that was compiled in
        words = " ".join((declared.description or "").split())
        fields.append(Field(name, parameter.annotation, default, words))
    secret = PARAMETERS[_SECRET]
    return [*fields, Field(_SECRET, str, secret.default, secret.plain_sentence)]
