"""Finds state that a training step uses but no checkpoint contains."""

from __future__ import annotations

from typing import Any

import keras

from kfp_tfjob.trainer.replicas import parts_of

# Operations that draw from a generator inside TensorFlow; those of Keras have different names.
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
    found = []
    if names := _variables(step, model):
        found.append(
            f"the variables {', '.join(names)} are used in a step, but are not part of the model:"
            " they are not resumed exactly after an interruption, and may differ between"
            " replicas; make them attributes of a layer"
        )
    if drawn := _draws(step):
        found.append(
            f"a step draws numbers from tf.random ({', '.join(drawn)}): they are not resumed"
            " exactly after an interruption, and are the same on all replicas; use keras.random"
        )
    return found


def _variables(step: Any, model: keras.Model) -> list[str]:
    metrics = (item for metric in model.metrics for item in metric.variables)
    known = {
        id(part)
        for item in (*model.variables, *model.optimizer.variables, *metrics)
        for part in (item.value, *parts_of(item))
    }
    names = (item.name.partition(":")[0] for item in step.graph.variables if id(item) not in known)
    # The copy on a second GPU has the same name with a number.
    return sorted({name.partition("/replica_")[0] for name in names})


def _draws(step: Any) -> list[str]:
    graph = step.graph.as_graph_def()
    nodes = (node for function in graph.library.function for node in function.node_def)
    return sorted({node.op for node in (*graph.node, *nodes)} & _DRAWS)
