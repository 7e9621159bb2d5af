"""Queries NVIDIA's libraries about the GPUs, without TensorFlow and without a new process.

libcuda lists the GPUs that a program gets, in order. NVML reports their utilization. Both belong to
the driver; the container runtime mounts them from the node.
"""

from __future__ import annotations

import ctypes
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pynvml

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_...
_NO_DEVICE = 100
# Without a version, `used` includes some 480 MiB that the driver reserves.
_memory_info = partial(pynvml.nvmlDeviceGetMemoryInfo, version=pynvml.nvmlMemory_v2)


@dataclass(frozen=True)
class Gpu:
    """A GPU, or a MIG slice of one.

    Attributes:
        name: Product name.
        uuid: Unique among all GPUs and slices.
        capability: Compute capability: (major, minor).
    """

    name: str
    uuid: str
    capability: tuple[int, int]


@dataclass(frozen=True)
class Driver:
    """The answer of the driver.

    Attributes:
        gpus: The GPUs of this environment, in order; CUDA_VISIBLE_DEVICES applies.
        cuda: The newest version of CUDA it supports, for instance `12.8`; empty without a driver.
        error: Why the GPUs are unknown; empty if they are known.
    """

    gpus: tuple[Gpu, ...] = ()
    cuda: str = ""
    error: str = ""

    def __str__(self) -> str:
        """Return it for messages."""
        names = ", ".join(gpu.name for gpu in self.gpus)
        return self.error or f"the driver supports CUDA {self.cuda} and shows {names or 'no GPU'}"


def ask_driver() -> Driver:
    """Ask libcuda; this uses no GPU memory."""
    try:
        return _ask(ctypes.CDLL("libcuda.so.1"))
    except OSError as error:
        return Driver(error=f"no driver: {error}")
    except AttributeError as error:  # some images have a different library
        return Driver(error=f"libcuda.so.1 does not belong to a driver: {error}")


def _ask(cuda: Any) -> Driver:
    version, count = ctypes.c_int(), ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    supported = f"{version.value // 1000}.{version.value % 1000 // 10}"
    if code := cuda.cuInit(0):
        if code == _NO_DEVICE:
            return Driver(cuda=supported)
        return Driver(cuda=supported, error=f"cuInit of the driver returned error {code}")
    cuda.cuDeviceGetCount(ctypes.byref(count))
    return Driver(tuple(_describe(cuda, at) for at in range(count.value)), supported)


def _describe(cuda: Any, ordinal: int) -> Gpu:
    device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    identity = (ctypes.c_ubyte * 16)()
    cuda.cuDeviceGet(ctypes.byref(device), ordinal)
    cuda.cuDeviceGetName(name, len(name), device)
    # The second version gives a MIG slice its own identity; drivers before 11.4 lack it.
    get_uuid = getattr(cuda, "cuDeviceGetUuid_v2", None) or cuda.cuDeviceGetUuid
    get_uuid(ctypes.byref(identity), device)
    capability = _attribute(cuda, _MAJOR, device), _attribute(cuda, _MINOR, device)
    return Gpu(
        name.value.decode(errors="replace"), str(uuid.UUID(bytes=bytes(identity))), capability
    )


def _attribute(cuda: Any, number: int, device: ctypes.c_int) -> int:
    value = ctypes.c_int()
    cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device)
    return value.value


class Meter:
    """Reads the utilization of GPUs.

    Args:
        gpus: The GPUs to read.

    Raises:
        pynvml.NVMLError: This container has no NVML, or it does not know one of the GPUs.
    """

    def __init__(self, gpus: tuple[Gpu, ...]) -> None:
        pynvml.nvmlInit()
        self._handles = [_handle(gpu.uuid) for gpu in gpus]

    def read(self) -> list[Mapping[str, int | None]]:
        """Return `percent` and `memory_mib` of each GPU; None if unknown.

        NVML does not report the utilization of a MIG slice.
        """
        found = []
        for handle in self._handles:
            rates = _known(pynvml.nvmlDeviceGetUtilizationRates, handle)
            memory = _known(_memory_info, handle)
            used = memory and memory.used >> 20
            found.append({"percent": rates and rates.gpu, "memory_mib": used})
        return found


def _handle(identity: str) -> Any:
    try:
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{identity}")
    except pynvml.NVMLError:
        return pynvml.nvmlDeviceGetHandleByUUID(f"MIG-{identity}")


def _known(read: Callable[[Any], Any], handle: Any) -> Any:
    try:
        return read(handle)
    except pynvml.NVMLError:
        return None
