"""Finds state that a training step uses but no checkpoint contains.

Such state is lost when a run resumes, so that its result differs without an error. The trainer
warns about it, because a run that is never interrupted is not affected. Called by `train_step.py`.
"""

from __future__ import annotations

from typing import Any

import keras

from .replicas import parts_of

# Operations that draw from a generator inside TensorFlow; Keras's operations have other names.
_DRAWS = {
    *("RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal"),
    *("RandomShuffle", "Multinomial", "RandomGamma", "RandomPoissonV2"),
    "ParameterizedTruncatedNormal",
}


def warnings(step: Any, model: keras.Model) -> list[str]:
    """Return warnings about a compiled step.

    Args:
        step: The concrete function.
        model: The step's model.
    """
    warnings = []
    if names := _variables(step, model):
        warnings.append(
            f"the variables {', '.join(names)} are used in a step, but are not part of the model:"
            " they are not resumed exactly after an interruption, and may differ between"
            " replicas; make them attributes of a layer"
        )
    if draws := _draws(step):
        warnings.append(
            f"a step draws numbers from tf.random ({', '.join(draws)}): they are not resumed"
            " exactly after an interruption, and are the same on all replicas; use keras.random"
        )
    return warnings


def _variables(step: Any, model: keras.Model) -> list[str]:
    metrics = (variable for metric in model.metrics for variable in metric.variables)
    tracked_ids = {
        id(part)
        for variable in (*model.variables, *model.optimizer.variables, *metrics)
        for part in (variable.value, *parts_of(variable))
    }
    names = (
        variable.name.partition(":")[0]
        for variable in step.graph.variables
        if id(variable) not in tracked_ids
    )
    # The copy on a second GPU has the same name with a number.
    return sorted({name.partition("/replica_")[0] for name in names})


def _draws(step: Any) -> list[str]:
    graph = step.graph.as_graph_def()
    nodes = (node for function in graph.library.function for node in function.node_def)
    return sorted({node.op for node in (*graph.node, *nodes)} & _DRAWS)
