"""What is decided about GPUs, from what TensorFlow and the environment say."""

import re
from collections.abc import Sequence

import pytest

from kfp_tfjob.trainer.gpus import Build, Gpu, has_kernels, share, unusable
from tests.environments import run_python

STOCK = Build("2.21.0", "12.5", ("sm_60", "sm_70", "sm_80", "sm_89", "compute_90"))
OWN = Build("2.21.0", "12.8", ("sm_80", "sm_90a", "compute_120"))  # built for other GPUs
CPU_ONLY = Build("2.21.0", "", ())
H100 = Gpu("NVIDIA H100", (9, 0))
B200 = Gpu("NVIDIA B200", (10, 0))
RTX_5090 = Gpu("NVIDIA GeForce RTX 5090", (12, 0))


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
    ("build", "capability", "known"),
    [
        (STOCK, (5, 2), False),
        (STOCK, (8, 6), True),
        (STOCK, (9, 0), True),
        (STOCK, (10, 0), False),
        (OWN, (9, 0), True),
        (OWN, (10, 0), False),
        (OWN, (12, 0), True),
    ],
)
def test_kernels_serve_their_own_generation(
    build: Build, capability: tuple[int, int], known: bool
) -> None:
    assert has_kernels(capability, build) is known


@pytest.mark.parametrize(
    ("mine", "expected", "build", "words"),
    [
        ([], 1, CPU_ONLY, "0 GPUs; .*built without CUDA.*and-cuda"),
        ([H100], 1, CPU_ONLY, "built without CUDA"),  # of another maker
        ([H100], None, CPU_ONLY, "built without CUDA"),
        ([], 1, STOCK, "0 GPUs; .*CUDA 12.5.*Expected: 1.*device plugin"),
        ([H100], 2, STOCK, "1 GPUs; .*Expected: 2"),
        ([B200], 1, STOCK, "no kernels for NVIDIA B200.*capability 10.0"),
        ([H100, RTX_5090], 2, STOCK, "RTX 5090.*12.0.*compute_90.*CUDA 12.5"),
        ([H100, H100], 2, STOCK, ""),
        ([], None, STOCK, ""),
        ([RTX_5090], 1, OWN, ""),
    ],
)
def test_only_a_replica_with_its_gpus_trains(
    mine: Sequence[Gpu], expected: int | None, build: Build, words: str
) -> None:
    found = [str(problem) for problem in unusable(mine, expected, build)]
    assert len(found) == bool(words)
    assert all(re.search(words, problem, re.DOTALL) for problem in found), found


DRIVER_ON_GKE = "/usr/local/nvidia/lib64"


def test_a_driver_that_is_not_on_the_path_has_a_fix() -> None:
    (problem,) = unusable([], 1, STOCK)
    assert "LD_LIBRARY_PATH" in problem.fix and DRIVER_ON_GKE in problem.fix


def test_evaluate_without_its_gpus_names_the_folder_of_the_driver() -> None:
    """More GPUs than any machine has; in a process of its own, because it sets up TensorFlow."""
    code = "from kfp_tfjob.judging import judge; judge._load_tensorflow(1000)"
    done = run_python("-c", code)
    assert done.returncode == 1 and "cannot see its GPUs" in done.stderr
    assert "LD_LIBRARY_PATH" in done.stderr and DRIVER_ON_GKE in done.stderr
