"""Selects the GPUs of a replica, and checks them before training.

A replica with GPUs trains on them or not at all. The decisions are pure functions of what
TensorFlow and the environment report. Called by `replicas.py`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from kfp_tfjob.common.errors import ConfigurationError, Problem

from .config import Config

_T = TypeVar("_T")


@dataclass(frozen=True)
class Gpu:
    """A GPU, or a MIG slice of one.

    Attributes:
        name: Product name.
        capability: Compute capability: (major, minor).
    """

    name: str
    capability: tuple[int, int]


@dataclass(frozen=True)
class Build:
    """The TensorFlow of this image.

    Attributes:
        version: Its version.
        cuda: The version of CUDA it was built with; empty if it does not support NVIDIA GPUs.
        kernels: The GPU generations it has kernels for, for example `sm_80` or `compute_90`.
    """

    version: str
    cuda: str
    kernels: tuple[str, ...]

    @classmethod
    def here(cls) -> Build:
        """Return the build of the TensorFlow that can be imported here."""
        import tensorflow as tf

        info = tf.sysconfig.get_build_info()
        return cls(
            tf.__version__,
            str(info.get("cuda_version", "")) if info.get("is_cuda_build") else "",
            tuple(str(name) for name in info.get("cuda_compute_capabilities", ())),
        )

    def __str__(self) -> str:
        """Return the versions of TensorFlow and CUDA, for messages."""
        cuda = f"built with CUDA {self.cuda}" if self.cuda else "built without CUDA"
        return f"TensorFlow {self.version}, {cuda}"


def share(visible: Sequence[_T], expected: int | None, local_index: int) -> list[_T]:
    """Return the GPUs of one replica.

    Args:
        visible: The GPUs that TensorFlow lists.
        expected: Number of GPUs of this replica; None if unknown, in which case it uses all.
        local_index: Index of this replica on this machine, from 0. A pod has one replica; the
            processes of a local run divide the GPUs of the machine.
    """
    if expected is None:
        return list(visible)
    return list(visible[local_index * expected : (local_index + 1) * expected])


def has_kernels(capability: tuple[int, int], build: Build) -> bool:
    """Return whether a TensorFlow can compute on a GPU of this compute capability.

    Kernels also work on later GPUs of the same generation. The compiler in TensorFlow does not
    support generations newer than its build, even if the driver could translate the code.
    """
    return any(
        major == capability[0] and minor <= capability[1]
        for major, minor in map(_capability, build.kernels)
    )


def unusable(gpus: Sequence[Gpu], expected: int | None, build: Build) -> list[Problem]:
    """Return the reasons why a replica must not start with its GPUs.

    Args:
        gpus: This replica's GPUs.
        expected: Number of GPUs of the replica; None if unknown.
        build: The TensorFlow of this image.
    """
    required = len(gpus) if expected is None else expected
    if len(gpus) < required or (gpus and not build.cuda):
        return [
            Problem(
                "this replica cannot see its GPUs",
                received=f"{len(gpus)} GPUs; {build}",
                expected=f"{required} GPUs",
                fix="read TensorFlow's warnings in the log, which say what is missing: a"
                " train_image with tensorflow[and-cuda], a driver on the node for this CUDA"
                " version, the driver's folder in LD_LIBRARY_PATH (on GKE /usr/local/nvidia/lib64,"
                " which your own image gets through pod.all.env), or a device plugin that offers"
                " pod.all.gpu_resource",
                name="gpu-not-usable",
            )
        ]
    return [
        Problem(
            f"this TensorFlow has no kernels for {gpu.name}",
            received=f"compute capability {gpu.capability[0]}.{gpu.capability[1]}",
            expected=f"a GPU of one of these generations: {', '.join(build.kernels)} ({build})",
            fix="choose nodes with another GPU through pod.all.node_selector, or a train_image with"
            " a TensorFlow built for this GPU",
            name="gpu-not-usable",
        )
        for gpu in dict.fromkeys(gpus)
        if build.kernels and not has_kernels(gpu.capability, build)
    ]


def prepare(config: Config) -> tuple[Gpu, ...]:
    """Choose the GPUs of this replica and set them up, before TensorFlow uses any.

    Returns:
        The GPUs of this replica; empty if it trains on the CPU.

    Raises:
        ConfigurationError: There are fewer than expected, or they cannot be used.
    """
    import tensorflow as tf

    if config.options.deterministic_ops:
        tf.config.experimental.enable_op_determinism()
    if config.expected_gpus == 0:
        return ()
    local_index = config.cluster.rank if config.replicas_on_this_machine > 1 else 0
    devices = share(tf.config.list_physical_devices("GPU"), config.expected_gpus, local_index)
    details = [tf.config.experimental.get_device_details(device) for device in devices]
    gpus = tuple(
        Gpu(detail.get("device_name", "a GPU"), detail.get("compute_capability", (0, 0)))
        for detail in details
    )
    ConfigurationError.raise_if(unusable(gpus, config.expected_gpus, Build.here()))
    tf.config.set_visible_devices(devices, "GPU")
    for device in devices:
        tf.config.experimental.set_memory_growth(device, True)
    if gpus:
        tf.config.experimental.enable_tensor_float_32_execution(config.options.tf32)
    return gpus


def _capability(kernel: str) -> tuple[int, int]:
    """Return (major, minor) of a name such as `sm_80`, `sm_90a` or `compute_120`."""
    digits = re.sub(r"\D", "", kernel)
    return int(digits[:-1] or 0), int(digits[-1:] or 0)
