"""Tests before training that the trained model can be exported, loaded elsewhere and asked.

    python -m kfp_tfjob.trainer.export_test MODEL DATASET

is the process that loads the exported model. As evaluate and a server do, it has none of the user's
code.
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

from kfp_tfjob.features.schema import Schema
from kfp_tfjob.features.served_model import ServedModel
from kfp_tfjob.features.tensorflow_import import load
from kfp_tfjob.storage.errors import ConfigurationError, Problem, StepError
from kfp_tfjob.storage.escaping import uncolored
from kfp_tfjob.storage.formatting import listed
from kfp_tfjob.storage.layout import MODEL, SCHEMA
from kfp_tfjob.supervisor.kernel import memory_left

log = logging.getLogger(__name__)
_PYTHON = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}
# Layers of Keras that contain other code.
_WRAPPERS = {"Lambda", "TFSMLayer", "JaxLayer", "FlaxLayer", "TorchModuleWrapper"}
_SECONDS = 60.0  # for the whole trial
_MEMORY = 1 << 30  # bytes of a process that imports TensorFlow; half of them in a small model
_LINES = 3  # of what the other process prints at its end


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

    from kfp_tfjob.trainer.export import readable_alone, with_signatures
    from kfp_tfjob.trainer.user_errors import where

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
            )
        ) from error
    if calls := sorted(
        {f"{node.op} {node.name}" for node in _reached(graph) if node.op in _PYTHON}
    ):
        raise ConfigurationError(
            Problem(
                "the exported model would call Python functions, which a SavedModel cannot contain",
                received=listed(calls, 5),
                expected="operations of TensorFlow only",
                fix="replace tf.py_function and tf.numpy_function with operations of tf or"
                " keras.ops, or do this work before the data is prepared",
            )
        )


def check_answer(model: Any, dataset: Any, logits: bool) -> None:
    """Export the model, load it in a new process, and let it predict one row.

    It takes seconds, so models of Keras's own layers are left out: those are known to work. It is
    also left out where the memory of this container is short, and stopped with a warning if it
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

    from kfp_tfjob.trainer.export import export

    if tf.config.list_logical_devices("GPU"):
        return  # the other process would need GPU memory
    if not _has_own_code(keras.saving.serialize_keras_object(model).get("config")):
        return
    weights = sum(4 * math.prod(item.shape) for item in model.variables)
    if memory_left() < _MEMORY + 3 * weights:
        log.warning("the export is not tested: the container has too little memory left")
        return
    start = time.monotonic()
    with TemporaryDirectory() as folder:
        export(model, dataset, Path(folder), logits)
        left = _SECONDS - (time.monotonic() - start)
        try:
            done = _other_process(Path(folder, MODEL), dataset.folder, left)
        except subprocess.TimeoutExpired:
            log.warning("the test of the export was stopped after %.0f s", _SECONDS)
            return
    if done.returncode == 0:
        return
    said = [line for line in uncolored(done.stdout).splitlines() if line.strip()]
    raise ConfigurationError(
        Problem(
            "the exported model does not work in another process",
            received=" ".join(said[-_LINES:]) or f"exit code {done.returncode}",
            expected="a SavedModel that evaluate and a server can load and ask, without your code",
            fix="use only operations of TensorFlow, and keep what they need in attributes of the"
            " layer or model",
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


def _reached(graph: Any) -> Iterator[Any]:
    """Yield the nodes of a graph, and those of all functions that it calls."""
    functions = {item.signature.name: item.node_def for item in graph.library.function}
    waiting: list[Iterable[Any]] = [graph.node]
    while waiting:
        for node in waiting.pop():
            yield node
            for value in node.attr.values():
                for called in (value.func, *value.list.func):
                    if called.name in functions:
                        waiting.append(functions.pop(called.name))


def _has_own_code(config: Any) -> bool:
    """Return whether the configuration of a model names anything but Keras's own classes."""
    if isinstance(config, list | tuple):
        return any(map(_has_own_code, config))
    if not isinstance(config, dict):
        return False
    if name := config.get("class_name"):
        module = config.get("module")
        is_value = module is None and name.startswith("__") and name != "__lambda__"
        is_of_keras = str(module).split(".")[0] == "keras" and name not in _WRAPPERS
        if not (is_value or is_of_keras):
            return True
    return any(map(_has_own_code, config.values()))


def main(model: str, dataset: str) -> int:
    """Load a model and predict one row; print what is wrong."""
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
