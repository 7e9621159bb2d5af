"""Selects the GPUs of a replica, checks them before the training, and samples their use.

A replica with GPUs trains on them or not at all. The decisions are pure functions of the answers of
TensorFlow, the driver and the environment.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import pynvml

from kfp_tfjob.storage.errors import ConfigurationError, Problem
from kfp_tfjob.trainer.config import Config
from kfp_tfjob.trainer.nvidia import Driver, Gpu, Meter, ask_driver, device_nodes

log = logging.getLogger(__name__)
_SAMPLE_SECONDS = 5.0
_EXCHANGE_SECONDS = 60  # every replica has started before this begins
_T = TypeVar("_T")


@dataclass(frozen=True)
class Build:
    """The TensorFlow of this image.

    Attributes:
        version: Its version.
        with_cuda: Whether it supports NVIDIA GPUs.
        cuda: The version of CUDA it was built with: (major, minor).
        kernels: The GPU generations it has kernels for, for instance `sm_80` or `compute_90`.
    """

    version: str
    with_cuda: bool
    cuda: tuple[int, int]
    kernels: tuple[str, ...]

    @classmethod
    def here(cls) -> Build:
        """Return the build of the TensorFlow that can be imported here."""
        import tensorflow as tf

        info = tf.sysconfig.get_build_info()
        version = re.findall(r"\d+", str(info.get("cuda_version", "")))[:2]
        return cls(
            tf.__version__,
            bool(info.get("is_cuda_build")),
            (int(version[0]), int(version[1])) if len(version) == 2 else (0, 0),
            tuple(str(name) for name in info.get("cuda_compute_capabilities", ())),
        )


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
    mine: Sequence[int],
    listed: int,
    expected: int | None,
    driver: Driver,
    build: Build,
    nodes: Sequence[str],
) -> list[Problem]:
    """Return the reasons why a replica must not start with its GPUs.

    Args:
        mine: Indexes of this replica's GPUs in the list of TensorFlow.
        listed: Number of GPUs that TensorFlow lists.
        expected: Number of GPUs of the replica; None if unknown.
        driver: The answer of the driver.
        build: The TensorFlow of this image.
        nodes: The GPUs with device nodes in this container.
    """
    if expected == 0:
        return []
    there = max(len(driver.gpus), len(nodes) if driver.error else 0)
    wanted = there if expected is None else expected
    if len(mine) < wanted or (mine and not build.with_cuda):
        return [_not_seen(len(mine), listed, expected, driver, build, nodes)]
    return [
        Problem(
            f"this TensorFlow has no kernels for {gpu.name}",
            received=f"compute capability {gpu.capability[0]}.{gpu.capability[1]}",
            expected=f"one of the generations of {', '.join(build.kernels)}"
            f" (TensorFlow {build.version}, CUDA {_dotted(build.cuda)})",
            fix="choose nodes with a different GPU by pod.all.node_selector, or a train_image with"
            " a TensorFlow built for this GPU",
        )
        for gpu in dict.fromkeys(driver.gpus[at] for at in mine)
        if build.kernels and not has_kernels(gpu.capability, build)
    ]


def _not_seen(
    mine: int,
    listed: int,
    expected: int | None,
    driver: Driver,
    build: Build,
    nodes: Sequence[str],
) -> Problem:
    """Explain why TensorFlow does not see the GPUs, from the image to the node."""
    names = ", ".join(gpu.name for gpu in driver.gpus)
    if not build.with_cuda:
        why = f"TensorFlow {build.version} of this image is built without CUDA"
        fix = f"install tensorflow[and-cuda]=={build.version} in train_image"
    elif driver.cuda == (0, 0) and nodes:
        why = f"{driver.error}, but {', '.join(nodes)} exists"
        fix = (
            "the container runtime of the node did not mount the driver's libraries: check the"
            " NVIDIA container toolkit; NVIDIA_DRIVER_CAPABILITIES must contain compute,utility"
        )
    elif driver.cuda == (0, 0):
        why = "this container has no driver and no device node"
        fix = "check the device plugin of the node, and that it offers pod.all.gpu_resource"
    elif driver.error:
        why = driver.error
        fix = "repair the node, or place the pod on a different one"
    elif driver.cuda[0] < build.cuda[0]:
        why = f"the driver of the node supports CUDA up to {_dotted(driver.cuda)}"
        fix = f"use nodes with a driver for CUDA {build.cuda[0]}, preferably {_dotted(build.cuda)}"
    elif listed < len(driver.gpus):
        why = f"the driver shows {names}, but TensorFlow cannot load the CUDA libraries"
        fix = f"install tensorflow[and-cuda]=={build.version} in train_image"
    else:
        why = f"the driver shows {names or 'no GPU'}"
        fix = (
            "check train_gpus, the free GPUs of the node, and CUDA_VISIBLE_DEVICES; on one"
            " machine all replicas share its GPUs"
        )
    return Problem(
        "this replica does not see its GPUs",
        received=f"{mine} GPUs; {why}",
        expected=f"{expected} (EXPECTED_GPUS)"
        if expected is not None
        else "those of this machine, or EXPECTED_GPUS=0 to train on the CPU",
        fix=f"{fix}; the trainer does not fall back to the CPU, which would be slow",
    )


def collisions(replicas: Sequence[Mapping[str, Any]]) -> list[Problem]:
    """Return the conflicts between the GPUs of different replicas.

    Args:
        replicas: `name` and `gpus`, a list of UUIDs, of every process.
    """
    counts = {str(replica["name"]): len(replica["gpus"]) for replica in replicas}
    if len(set(counts.values())) > 1:
        return [
            Problem(
                "the replicas have different numbers of GPUs",
                received=", ".join(f"{name}: {count}" for name, count in counts.items()),
                expected="the same number everywhere",
                fix="give every replica the same number, train_gpus",
            )
        ]
    owners: dict[str, list[str]] = {}
    for replica in replicas:
        for identity in replica["gpus"]:
            owners.setdefault(str(identity), []).append(str(replica["name"]))
    return [
        Problem(
            "several replicas use the same GPU",
            received=f"GPU {identity}: {' and '.join(names)}",
            expected="a separate GPU for each replica: NCCL requires it, and sharing saves no time",
            fix="turn off time slicing in the device plugin for these nodes, or use MIG slices;"
            " on one machine, lower train_workers or train_gpus",
        )
        for identity, names in owners.items()
        if len(names) > 1
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
    driver, build = ask_driver(), Build.here()
    place = config.cluster.place if config.replicas_on_this_machine > 1 else 0
    mine = share(range(len(visible)), config.expected_gpus, place)
    ConfigurationError.raise_if(
        unusable(mine, len(visible), config.expected_gpus, driver, build, device_nodes())
    )
    tf.config.set_visible_devices([visible[at] for at in mine], "GPU")
    for at in mine:
        tf.config.experimental.set_memory_growth(visible[at], True)
    if mine:
        tf.config.experimental.enable_tensor_float_32_execution(config.options.tf32)
        if driver.cuda < build.cuda:
            log.warning(
                "the driver supports CUDA up to %s and TensorFlow is built with %s: kernels"
                " that are compiled at the start may fail",
                _dotted(driver.cuda),
                _dotted(build.cuda),
            )
    return tuple(driver.gpus[at] for at in mine)


def refuse_collisions(gpus: Sequence[Gpu], name: str, index: int, processes: int) -> None:
    """Tell the other replicas which GPUs this one uses; stop all replicas if GPUs conflict.

    Every replica must call this right after the strategy is built.

    Args:
        gpus: The GPUs of this replica.
        name: The name of this replica.
        index: The index of this process.
        processes: The number of processes.

    Raises:
        ConfigurationError: A GPU is used twice, or their numbers differ.
    """
    from tensorflow.python.eager import context
    from tensorflow.python.framework.errors import OpError

    # Through the coordination service, because a collective of NCCL would fail here.
    service: Any = context.context()
    content = json.dumps({"name": name, "gpus": [gpu.uuid for gpu in gpus]})
    service.delete_config_key_value(f"kfp_tfjob_gpus/{index}")  # left from before a restart
    service.set_config_key_value(f"kfp_tfjob_gpus/{index}", content)
    wait = _EXCHANGE_SECONDS * 1000
    everyone = [
        json.loads(service.get_config_key_value(f"kfp_tfjob_gpus/{at}", wait))
        for at in range(processes)
    ]
    if problems := collisions(everyone):
        # The service ends with its process, so that process must wait for the last request.
        with suppress(OpError):
            service.wait_at_barrier("kfp_tfjob_gpus", wait)
        raise ConfigurationError(*problems)


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

    def latest(self) -> dict[str, Any]:
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


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
