"""What is decided about GPUs, from what TensorFlow and the environment say."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from kfp_tfjob.trainer.gpus import Build, Gpu, has_kernels, share, unusable

STOCK = Build("2.21.0", "12.5", ("sm_60", "sm_70", "sm_80", "sm_89", "compute_90"))
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
    ("capability", "known"), [((5, 2), False), ((8, 6), True), ((9, 0), True), ((10, 0), False)]
)
def test_kernels_serve_their_own_generation(capability: tuple[int, int], known: bool) -> None:
    assert has_kernels(capability, STOCK) is known


def test_a_tensorflow_built_for_a_gpu_may_use_it() -> None:
    own = Build("2.21.0", "12.8", ("sm_80", "sm_90a", "compute_120"))
    assert has_kernels((12, 0), own) and has_kernels((9, 0), own)
    assert not has_kernels((10, 0), own)
    assert unusable([RTX_5090], 1, own) == []


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
    ],
)
def test_a_replica_without_its_gpus_does_not_train(
    mine: Sequence[Gpu], expected: int | None, build: Build, words: str
) -> None:
    (problem,) = unusable(mine, expected, build)
    assert re.search(words, str(problem), re.DOTALL), str(problem)


@pytest.mark.parametrize(("mine", "expected"), [([H100, H100], 2), ([H100], 1), ([], None)])
def test_a_replica_with_its_gpus_starts(mine: Sequence[Gpu], expected: int | None) -> None:
    assert unusable(mine, expected, STOCK) == []
