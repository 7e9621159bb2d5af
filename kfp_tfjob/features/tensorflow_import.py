"""Imports TensorFlow and Keras: quietly, and without unused modules.

Called by the trainer and by evaluate before they first use TensorFlow.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


def load(gpus: int | None) -> None:
    """Import TensorFlow and Keras.

    Args:
        gpus: Number of GPUs of this replica; with 0 it sees none, even if the machine has some.
            None if unknown.
    """
    # A warning says why TensorFlow cannot use a GPU.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1" if gpus else "2")
    os.environ["KERAS_BACKEND"] = "tensorflow"  # the user's shell may name another one
    if gpus == 0:
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    else:
        # Dedicated threads launch kernels, and NCCL logs the reason of a failure.
        os.environ.setdefault("TF_GPU_THREAD_MODE", "gpu_private")
        os.environ.setdefault("NCCL_DEBUG", "WARN")
    with _hidden("sklearn", "IPython"), _without_garbage_collection(), _silent_unless_it_fails():
        import keras  # noqa: F401
        import tensorflow as tf

        if gpus == 0:
            tf.config.list_physical_devices()  # this search prints the warnings about CUDA
    # TensorFlow logs through absl; its lines about every collective are for its developers.
    for name in ("absl", "tensorflow"):
        logging.getLogger(name).setLevel(logging.WARNING)


@contextmanager
def _hidden(*packages: str) -> Iterator[None]:
    """Hide packages that Keras imports for an unused wrapper, and for display in a notebook.

    They take a fifth of the import time.
    """
    absent = [name for name in packages if name not in sys.modules]
    for name in absent:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Collect no garbage, and never look for it among the objects that exist at the end.

    The import creates hundreds of thousands of objects, which stay. Looking at all of them again
    and again takes a fifth of the import time, and later slows the training.
    """
    was_enabled, modules = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
        # A later call imports nothing, and would only keep garbage alive.
        if len(sys.modules) > modules:
            gc.freeze()


@contextmanager
def _silent_unless_it_fails() -> Iterator[None]:
    """Suppress the output of the C++ side until its log level can be set."""
    sys.stderr.flush()
    real = os.dup(2)
    with tempfile.TemporaryFile() as captured:
        os.dup2(captured.fileno(), 2)
        try:
            yield
        except BaseException:
            captured.seek(0)
            os.write(real, captured.read())
            raise
        finally:
            os.dup2(real, 2)
            os.close(real)
