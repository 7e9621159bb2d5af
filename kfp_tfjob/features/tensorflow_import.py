"""Imports TensorFlow and Keras: quietly, and without unused modules.

Called by the trainer and by evaluate before they first use TensorFlow.
"""

from __future__ import annotations

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
    # Keras imports scikit-learn for an unused wrapper, a fifth of the import time.
    hidden = "sklearn" not in sys.modules
    if hidden:
        sys.modules["sklearn"] = None  # type: ignore[assignment]
    try:
        with _silent_unless_it_fails():
            import keras  # noqa: F401
            import tensorflow as tf

            if gpus == 0:
                tf.config.list_physical_devices()  # this search prints the warnings about CUDA
    finally:
        if hidden:
            del sys.modules["sklearn"]
    # TensorFlow logs through absl; its lines about every collective are for its developers.
    for name in ("absl", "tensorflow"):
        logging.getLogger(name).setLevel(logging.WARNING)


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
