"""Tests before training that the trained model can be exported, loaded elsewhere and asked.

    python -m kfp_tfjob.trainer.export_test MODEL DATASET

is the process that loads the exported model. Like evaluate and a server, it does not have the
user's code. Called by `__main__.py`.
"""

from __future__ import annotations

import logging
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kfp_tfjob.common.errors import ConfigurationError, Problem, StepError
from kfp_tfjob.common.escaping import uncolored
from kfp_tfjob.common.formatting import listed
from kfp_tfjob.features.schema import Schema
from kfp_tfjob.features.served_model import ServedModel
from kfp_tfjob.features.tensorflow_import import load
from kfp_tfjob.storage.layout import MODEL, SCHEMA
from kfp_tfjob.supervisor.kernel import memory_left

log = logging.getLogger(__name__)
_PYTHON = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}
# Layers of Keras that contain other code.
_WRAPPERS = {"Lambda", "TFSMLayer", "JaxLayer", "FlaxLayer", "TorchModuleWrapper"}
_SECONDS = 60.0  # for the whole test, so that a slow model delays a run only a little
_MEMORY = 1 << 30  # bytes of a process that imports TensorFlow; a small model needs half of them
_LINES = 3  # at the end of the other process's output: the error, without its traceback


def check_graph(model: Any, dataset: Any, logits: bool) -> None:
    """Write the graph of the SavedModel, as after training.

    Args:
        model: The model, built.
        dataset: The training data.
        logits: Whether a classifier's outputs are logits.

    Raises:
        ConfigurationError: The model cannot be exported, or calls Python.
    """
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef
    from tensorflow.python.saved_model.save import export_meta_graph  # a SavedModel without weights

    from .export import readable_alone, with_signatures
    from .user_errors import where

    try:
        with TemporaryDirectory() as folder:  # tracing a model does not change its variables
            holder, signatures = with_signatures(model, dataset, logits)
            with readable_alone(holder):
                export_meta_graph(holder, f"{folder}/graph", signatures)
            graph = MetaGraphDef.FromString(Path(folder, "graph").read_bytes()).graph_def
    except Exception as error:
        raise ConfigurationError(
            Problem(
                "the model cannot be exported",
                received=where(error),
                expected="a model that TensorFlow can write as a SavedModel",
                fix="create lookup tables and tf.Variables in the layer or model that uses them,"
                " as its attributes: self.table = tf.lookup.StaticHashTable(...)",
                name="model-not-exportable",
            )
        ) from error
    if calls := sorted(
        {f"{node.op} {node.name}" for node in _reachable_nodes(graph) if node.op in _PYTHON}
    ):
        raise ConfigurationError(
            Problem(
                "the exported model would call Python functions, which a SavedModel cannot contain",
                received=listed(calls, 5),
                expected="operations of TensorFlow only",
                fix="replace tf.py_function and tf.numpy_function with operations of tf or"
                " keras.ops, or do this work before the data is prepared",
                name="model-not-exportable",
            )
        )


def check_answer(model: Any, dataset: Any, logits: bool) -> None:
    """Export the model, load it in a new process, and let it predict one row.

    The test takes seconds, so it skips models of Keras's own layers, which are known to work. It
    is also skipped if this container has too little memory left, and stopped with a warning if it
    takes too long.

    Args:
        model: The model, built.
        dataset: The training data.
        logits: Whether a classifier's outputs are logits.

    Raises:
        ConfigurationError: The exported model does not answer.
    """
    import keras
    import tensorflow as tf

    from .export import export

    if tf.config.list_logical_devices("GPU"):
        return  # the other process would need GPU memory
    if not _has_user_code(keras.saving.serialize_keras_object(model).get("config")):
        return
    weights = sum(4 * math.prod(variable.shape) for variable in model.variables)
    if memory_left() < _MEMORY + 3 * weights:
        log.warning("the export is not tested: the container has too little memory left")
        return
    start = time.monotonic()
    with TemporaryDirectory() as folder:
        export(model, dataset, Path(folder), logits)
        remaining_seconds = _SECONDS - (time.monotonic() - start)
        try:
            process = _other_process(Path(folder, MODEL), dataset.folder, remaining_seconds)
        except subprocess.TimeoutExpired:
            log.warning("the test of the export was stopped after %.0f s", _SECONDS)
            return
    if process.returncode == 0:
        return
    output_lines = [line for line in uncolored(process.stdout).splitlines() if line.strip()]
    raise ConfigurationError(
        Problem(
            "the exported model does not work in another process",
            received=" ".join(output_lines[-_LINES:]) or f"exit code {process.returncode}",
            expected="a SavedModel that evaluate and a server can load and ask, without your code",
            fix="use only operations of TensorFlow, and keep what they need in attributes of the"
            " layer or model",
            name="model-not-exportable",
        )
    )


def _other_process(model: Path, dataset: Path, seconds: float) -> subprocess.CompletedProcess[str]:
    import kfp_tfjob

    variables = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    return subprocess.run(
        [sys.executable, "-m", __name__, str(model), str(dataset)],
        cwd=Path(kfp_tfjob.__file__).parents[1],  # -m looks for modules there
        env=variables | {"CUDA_VISIBLE_DEVICES": "-1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=max(seconds, 0.0),
    )


def _reachable_nodes(graph: Any) -> Iterator[Any]:
    """Yield the nodes of a graph, and the nodes of all functions that it calls."""
    functions = {function.signature.name: function.node_def for function in graph.library.function}
    waiting: list[Iterable[Any]] = [graph.node]
    while waiting:
        for node in waiting.pop():
            yield node
            for value in node.attr.values():
                for called in (value.func, *value.list.func):
                    if called.name in functions:
                        waiting.append(functions.pop(called.name))


def _has_user_code(config: Any) -> bool:
    """Return whether the configuration of a model names anything but Keras's own classes."""
    if isinstance(config, list | tuple):
        return any(map(_has_user_code, config))
    if not isinstance(config, dict):
        return False
    if name := config.get("class_name"):
        module = config.get("module")
        is_value = module is None and name.startswith("__") and name != "__lambda__"
        is_of_keras = str(module).split(".")[0] == "keras" and name not in _WRAPPERS
        if not (is_value or is_of_keras):
            return True
    return any(map(_has_user_code, config.values()))


def main(model: str, dataset: str) -> int:
    """Load a model and predict one row; print the problem, if any."""
    load(0)
    try:
        schema = Schema.from_bytes(Path(dataset, SCHEMA).read_bytes())
        served = ServedModel(Path(model), schema, "the model")
        served.predict(served.example(1))
    except StepError as error:
        print(error.received, flush=True)
        return error.code
    return 0


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # the destructors of TensorFlow take seconds
