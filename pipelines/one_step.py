"""Makes a pipeline of one step, for other pipelines and for a run by itself.

A component of KFP carries neither the store's Secret nor the run's id. A pipeline of one
task does, and `components.load_component_from_file` reads its YAML as a component.
"""

import inspect
from collections import namedtuple
from collections.abc import Mapping
from typing import Any

from kfp import dsl
from kfp.dsl.graph_component import GraphComponent

from kfp_tfjob.components.preflight.parameters import defaults
from kfp_tfjob.options.pipeline import PARAMETERS
from kfp_tfjob.pipelines.signature import REQUIRED, Field, with_form
from kfp_tfjob.pipelines.task import with_store

_SECRET = "storage_secret"


def one_step(step: Any, of_the_run: Mapping[str, str]) -> GraphComponent:
    """Return the pipeline of one step, with its inputs, the name of the Secret, and its outputs."""
    signature = inspect.signature(step.python_func)
    fields = sorted(_fields(step, signature, of_the_run), key=lambda it: it.default is not REQUIRED)
    outputs = _outputs(step, signature)

    def pipeline(*values: Any) -> Any:
        given = {field.name: value for field, value in zip(fields, values, strict=True)}
        secret = given[_SECRET]
        given |= of_the_run
        task = step(**{name: given[name] for name in step.component_spec.inputs})
        made = with_store(task, secret).outputs
        return outputs(**{name: made[name] for name in outputs._fields})

    pipeline.__doc__ = step.description
    # With the name of the step itself, KFP would read only that step from the YAML.
    name = f"{step.name}-step"
    return dsl.pipeline(name=name, description=step.description)(
        with_form(pipeline, fields, outputs)
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
    found = []
    for name, item in step.component_spec.inputs.items():
        if name in of_the_run or name == _SECRET:
            continue
        taken = signature.parameters[name]
        default = taken.default
        if default is not REQUIRED and name in PARAMETERS:
            default = defaults()[name]  # the image that was compiled in
        words = " ".join((item.description or "").split())
        found.append(Field(name, taken.annotation, default, words))
    secret = PARAMETERS[_SECRET]
    return [*found, Field(_SECRET, str, secret.default, secret.plain_sentence)]
