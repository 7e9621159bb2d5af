"""Selects the GPUs of a replica, checks them before the training, and samples their use.

A replica with GPUs trains on them or not at all. The decisions are pure functions of the answers of
TensorFlow, the driver and the environment.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import pynvml

from kfp_tfjob.storage.errors import ConfigurationError, Problem
from kfp_tfjob.trainer.config import Config
from kfp_tfjob.trainer.nvidia import Driver, Gpu, Meter, ask_driver

log = logging.getLogger(__name__)
_SAMPLE_SECONDS = 5.0
_T = TypeVar("_T")


@dataclass(frozen=True)
class Build:
    """The TensorFlow of this image.

    Attributes:
        version: Its version.
        cuda: The version of CUDA it was built with; empty if it does not support NVIDIA GPUs.
        kernels: The GPU generations it has kernels for, for instance `sm_80` or `compute_90`.
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
        """Return it for messages."""
        cuda = f"built with CUDA {self.cuda}" if self.cuda else "built without CUDA"
        return f"TensorFlow {self.version}, {cuda}"


def share(visible: Sequence[_T], expected: int | None, place: int) -> list[_T]:
    """Return the GPUs of one replica.

    Args:
        visible: The GPUs that TensorFlow lists.
        expected: Number of GPUs of this replica; None if unknown: it then uses all.
        place: Index of this replica on this machine, from 0. A pod has one replica; the
            processes of a local run divide the GPUs of the machine.
    """
    if expected is None:
        return list(visible)
    return list(visible[place * expected : (place + 1) * expected])


def has_kernels(capability: tuple[int, int], build: Build) -> bool:
    """Tell whether a TensorFlow can compute on a GPU of this compute capability.

    Kernels also work on later GPUs of the same generation. The compiler in TensorFlow does not
    support generations newer than its build, even if the driver could translate the code.
    """
    return any(
        major == capability[0] and minor <= capability[1]
        for major, minor in map(_capability, build.kernels)
    )


def unusable(
    mine: Sequence[int], expected: int | None, driver: Driver, build: Build
) -> list[Problem]:
    """Return the reasons why a replica must not start with its GPUs.

    Args:
        mine: Indexes of this replica's GPUs in the list of TensorFlow.
        expected: Number of GPUs of the replica; None if unknown.
        driver: The answer of the driver.
        build: The TensorFlow of this image.
    """
    wanted = len(driver.gpus) if expected is None else expected
    if len(mine) < wanted or (mine and not build.cuda):
        return [
            Problem(
                "this replica cannot see its GPUs",
                received=f"{len(mine)} GPUs; {driver}; {build}",
                expected=f"{expected} (EXPECTED_GPUS)"
                if expected is not None
                else "those of this machine, or EXPECTED_GPUS=0 to train on the CPU",
                fix="use a train_image with tensorflow[and-cuda], and nodes whose driver supports"
                " its CUDA and whose device plugin offers pod.all.gpu_resource; the trainer does"
                " not fall back to the CPU, which would be slow",
            )
        ]
    return [
        Problem(
            f"this TensorFlow has no kernels for {gpu.name}",
            received=f"compute capability {gpu.capability[0]}.{gpu.capability[1]}",
            expected=f"one of the generations of {', '.join(build.kernels)} ({build})",
            fix="choose nodes with another GPU through pod.all.node_selector, or a train_image with"
            " a TensorFlow built for this GPU",
        )
        for gpu in dict.fromkeys(driver.gpus[at] for at in mine)
        if build.kernels and not has_kernels(gpu.capability, build)
    ]


def prepare(config: Config) -> tuple[Gpu, ...]:
    """Choose the GPUs of this replica and set them up, before TensorFlow uses any.

    Returns:
        The GPUs of this replica; none if it trains on the CPU.

    Raises:
        ConfigurationError: There are fewer than expected, or they cannot be used.
    """
    import tensorflow as tf

    if config.options.deterministic_ops:
        tf.config.experimental.enable_op_determinism()
    visible = tf.config.list_physical_devices("GPU")
    if config.expected_gpus == 0:
        return ()
    driver = ask_driver()
    place = config.cluster.place if config.replicas_on_this_machine > 1 else 0
    mine = share(range(len(visible)), config.expected_gpus, place)
    ConfigurationError.raise_if(unusable(mine, config.expected_gpus, driver, Build.here()))
    tf.config.set_visible_devices([visible[at] for at in mine], "GPU")
    for at in mine:
        tf.config.experimental.set_memory_growth(visible[at], True)
    if mine:
        tf.config.experimental.enable_tensor_float_32_execution(config.options.tf32)
    return tuple(driver.gpus[at] for at in mine)


class GpuSampler:
    """Samples the GPUs of this replica every few seconds in a thread.

    Args:
        meter: Reads the GPUs.
        seconds: Seconds between two samples.
    """

    def __init__(self, meter: Meter, seconds: float = _SAMPLE_SECONDS) -> None:
        self._meter, self._seconds = meter, seconds
        self._latest = meter.read()
        self._looks = self._sum = self._peak = 0
        threading.Thread(target=self._run, name="gpus", daemon=True).start()

    @classmethod
    def start(cls, gpus: tuple[Gpu, ...]) -> GpuSampler | None:
        """Return a sampler, or None without GPUs or if they cannot be read."""
        if not gpus:
            return None
        try:
            return cls(Meter(gpus))
        except pynvml.NVMLError as error:
            log.warning("the GPU utilization is unknown: %s", error)
            return None

    def latest(self) -> dict[str, list[int | None]]:
        """Return `gpu_percent` and `gpu_memory_mib` of the last sample: one number per GPU."""
        return {
            "gpu_percent": [item["percent"] for item in self._latest],
            "gpu_memory_mib": [item["memory_mib"] for item in self._latest],
        }

    def summary(self) -> dict[str, float | int | None]:
        """Return `percent`, the mean over time and GPUs, and `memory_mib`, the most of any GPU.

        They are None until there is a measurement.
        """
        return {
            "percent": round(self._sum / self._looks, 1) if self._looks else None,
            "memory_mib": self._peak or None,
        }

    def _run(self) -> None:
        pause = threading.Event()
        while not pause.wait(self._seconds):
            self._latest = found = self._meter.read()
            told = [item["percent"] for item in found if item["percent"] is not None]
            self._sum, self._looks = self._sum + sum(told), self._looks + len(told)
            self._peak = max(self._peak, *(item["memory_mib"] or 0 for item in found))


def _capability(kernel: str) -> tuple[int, int]:
    """Return the capability of a name such as `sm_80`, `sm_90a` or `compute_120`."""
    digits = re.sub(r"\D", "", kernel)
    return int(digits[:-1] or 0), int(digits[-1:] or 0)
