"""What is decided about GPUs, from what TensorFlow, the driver and the environment say.

No test here has a GPU: the driver is a library of ours with the same functions.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kfp_tfjob.trainer.gpus import Build, has_kernels, share, unusable
from kfp_tfjob.trainer.nvidia import Driver, Gpu

STOCK = Build("2.21.0", "12.5", ("sm_60", "sm_70", "sm_80", "sm_89", "compute_90"))
CPU_ONLY = Build("2.21.0", "", ())
H100 = Gpu("NVIDIA H100", "a", (9, 0))
B200 = Gpu("NVIDIA B200", "b", (10, 0))
OLD = Gpu("NVIDIA GeForce GT 710", "d", (3, 5))
RTX_5090 = Gpu("NVIDIA GeForce RTX 5090", "c", (12, 0))
NEW = "12.8"


@pytest.mark.parametrize(
    ("expected", "place", "mine"),
    [
        (None, 0, ["a", "b", "c", "d"]),
        (4, 0, ["a", "b", "c", "d"]),
        (2, 0, ["a", "b"]),  # of an image that shows a pod all GPUs of its node
        (3, 1, ["d"]),
        (1, 4, []),
        (0, 0, []),
    ],
)
def test_a_replica_takes_its_share(expected: int | None, place: int, mine: list[str]) -> None:
    assert share(["a", "b", "c", "d"], expected, place) == mine


@pytest.mark.parametrize(
    ("capability", "known"), [((5, 2), False), ((8, 6), True), ((9, 0), True), ((10, 0), False)]
)
def test_kernels_serve_their_own_generation(capability: tuple[int, int], known: bool) -> None:
    assert has_kernels(capability, STOCK) is known


def test_a_tensorflow_built_for_a_gpu_may_use_it() -> None:
    own = Build("2.21.0", "12.8", ("sm_80", "sm_90a", "compute_120"))
    assert has_kernels((12, 0), own) and has_kernels((9, 0), own)
    assert not has_kernels((10, 0), own)
    assert unusable([0], 1, Driver((RTX_5090,), NEW), own) == []
    # Only those it uses count: this machine has an old one beside.
    assert unusable([0], 1, Driver((H100, OLD), NEW), STOCK) == []


@pytest.mark.parametrize(
    ("mine", "expected", "driver", "build", "words"),
    [
        (0, 1, Driver((H100,), NEW), CPU_ONLY, "0 GPUs; .*built without CUDA.*and-cuda"),
        (1, 1, Driver((H100,), NEW), CPU_ONLY, "built without CUDA"),  # of another maker
        (1, None, Driver(error="no driver"), CPU_ONLY, "built without CUDA"),
        (0, 1, Driver(error="no driver: libcuda.so.1"), STOCK, "libcuda.so.1; .*device plugin"),
        (0, 1, Driver((H100,), "11.8"), STOCK, "CUDA 11.8 and shows NVIDIA H100; .*CUDA 12.5"),
        (1, 2, Driver((H100,), NEW), STOCK, "1 GPUs; the driver .*NVIDIA H100.*Expected: 2"),
        (0, 1, Driver((), NEW), STOCK, "shows no GPU"),
        # No number was set, and there are some.
        (0, None, Driver((H100,), NEW), STOCK, "EXPECTED_GPUS=0 to train on the CPU"),
        (1, 1, Driver((B200,), NEW), STOCK, "no kernels for NVIDIA B200.*capability 10.0"),
        (2, 2, Driver((H100, RTX_5090), NEW), STOCK, "RTX 5090.*12.0.*compute_90.*CUDA 12.5"),
    ],
)
def test_a_replica_without_its_gpus_does_not_train(
    mine: int, expected: int | None, driver: Driver, build: Build, words: str
) -> None:
    (problem,) = unusable(range(mine), expected, driver, build)
    assert re.search(words, str(problem), re.DOTALL), str(problem)


@pytest.mark.parametrize(
    ("mine", "expected", "driver"),
    [
        (2, 2, Driver((H100, H100), NEW)),
        (1, 1, Driver((H100,), "12.2")),  # an older driver of the same major version
        (0, None, Driver(error="no driver")),  # a laptop
        (0, None, Driver((), NEW)),  # CUDA_VISIBLE_DEVICES=-1
    ],
)
def test_a_replica_with_its_gpus_starts(mine: int, expected: int | None, driver: Driver) -> None:
    assert unusable(range(mine), expected, driver, STOCK) == []


LIBRARY = """
#include <stdlib.h>
#include <string.h>
static int of(const char *name, int otherwise) {
    return getenv(name) ? atoi(getenv(name)) : otherwise;
}
int cuDriverGetVersion(int *version) { *version = 12080; return 0; }
int cuInit(unsigned flags) { return of("CU_INIT", 0); }
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal + 40; return 0; }
int cuDeviceGetName(char *name, int length, int device) {
    strncpy(name, device == 40 ? "NVIDIA H100" : "NVIDIA A100 MIG 3g.20gb", length); return 0;
}
int cuDeviceGetUuid_v2(unsigned char *identity, int device) {
    for (int i = 0; i < 16; i++) identity[i] = i + device;
    return 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 76 ? 0 : device == 40 ? 9 : 8; return 0;
}
static int devices[2];
int nvmlInitWithFlags(unsigned flags) { return of("NVML_INIT", 0); }
const char *nvmlErrorString(int code) { return "an error"; }
int nvmlDeviceGetHandleByUUID(const char *name, void **handle) {
    int gpu = !strcmp(name, "GPU-28292a2b-2c2d-2e2f-3031-323334353637");
    int slice = !strcmp(name, "MIG-292a2b2c-2d2e-2f30-3132-333435363738");
    *handle = devices + slice;
    return gpu || slice ? 0 : 6;
}
int nvmlDeviceGetUtilizationRates(void *handle, unsigned *rates) {
    rates[0] = 73; return handle == devices ? 0 : 3;
}
int nvmlDeviceGetMemoryInfo_v2(void *handle, unsigned long long *memory) {
    memory[4] = (handle == devices ? 40000ull : 900ull) << 20; return 0;
}
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a libcuda and an NVML of two devices."""
    if not (compiler := shutil.which("cc")):
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.c").write_text(LIBRARY)
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        command = [compiler, "-shared", "-fPIC", "-o", str(folder / name), str(folder / "driver.c")]
        subprocess.run(command, check=True)
    return folder


def _ask(program: str, libraries: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", "from kfp_tfjob.trainer.nvidia import *\n" + program],
        env={"LD_LIBRARY_PATH": str(libraries), "PYTHONPATH": os.pathsep.join(sys.path)}
        | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_driver_is_asked_for_what_a_program_gets(libraries: Path) -> None:
    first = Gpu("NVIDIA H100", "28292a2b-2c2d-2e2f-3031-323334353637", (9, 0))
    slice_ = Gpu("NVIDIA A100 MIG 3g.20gb", "292a2b2c-2d2e-2f30-3132-333435363738", (8, 0))
    ask = "print(repr(ask_driver()))"
    assert _ask(ask, libraries) == repr(Driver((first, slice_), "12.8"))
    assert _ask(ask, libraries, CU_INIT="100") == repr(Driver((), "12.8"))
    assert "error 999" in _ask(ask, libraries, CU_INIT="999")
    assert "no driver" in _ask(ask, libraries.parent)


def test_the_use_of_gpus_is_read(libraries: Path) -> None:
    program = (
        "import json, time\nfrom kfp_tfjob.trainer.gpus import GpuSampler\n"
        "sampler = GpuSampler(Meter(ask_driver().gpus), seconds=60)\n"
        "assert set(sampler.summary().values()) == {None}, sampler.summary()\n"
        "sampler = GpuSampler(Meter(ask_driver().gpus), seconds=0.01)\n"
        "while sampler.summary()['percent'] is None: time.sleep(0.01)\n"
        "print(json.dumps([sampler.latest(), sampler.summary()]))"
    )
    assert json.loads(_ask(program, libraries)) == [
        {"gpu_percent": [73, None], "gpu_memory_mib": [40000, 900]},
        {"percent": 73.0, "memory_mib": 40000},
    ]
    failing = (
        "from kfp_tfjob.trainer.gpus import GpuSampler\nprint(GpuSampler.start(ask_driver().gpus))"
    )
    assert _ask(failing, libraries, NVML_INIT="999") == "None"
