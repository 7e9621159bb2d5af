"""The logic of `make test-gpu`, with what nvidia-smi and NCCL print; no figure is of a GPU."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kfp_tfjob.storage.address import S3Address
from tests.environments import ROOT
from tests.gpu import __main__ as command
from tests.gpu import bench, cards, plan
from tests.gpu.cards import Card, Samples
from tests.gpu.plan import PLAN, Check, CheckFailed, Session
from tests.unit.test_nccl_log import LOGS

PRINTED = ROOT / "tests" / "data" / "nvidia-smi"
H100 = Card(0, "NVIDIA H100 80GB HBM3", "580.65.06", 81559, 412, 97)


def text(name: str) -> str:
    return (PRINTED / name).read_text()


def session(folder: Path, *found: Card) -> Session:
    return Session([*found], folder, S3Address("test"), folder, lambda: 60.0)


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    """Put a program on the PATH that prints a file, and ends with a code."""

    def install(name: str, code: int) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\ncat '{PRINTED / name}'\nexit {code}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    return install


def test_cards_of_a_machine(nvidia_smi: Callable[[str, int], None]) -> None:
    nvidia_smi("two-h100.csv", 0)
    assert cards.here()[0] == [H100, Card(1, H100.name, H100.driver, 81559, 4, 0)]


def test_a_card_that_does_not_count_utilization() -> None:
    (card,) = cards.read(text("mig.csv"))
    assert (card.name, card.utilization, card.peak) == ("NVIDIA A30", None, 165.0)


def test_a_driver_that_does_not_answer_is_a_reason(
    nvidia_smi: Callable[[str, int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    nvidia_smi("no-driver.txt", 9)
    found, reason = cards.here()
    assert not found and "NVIDIA driver" in reason
    with pytest.raises(ValueError, match="memory.total"):
        cards.read(text("no-driver.txt"))
    assert command.main() == 0
    printed = capsys.readouterr().out
    assert "SKIPPED" in printed and "NVIDIA driver" in printed


def test_without_a_gpu_the_plan_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert command.main() == 0
    printed = capsys.readouterr().out
    assert all(check.name in printed for check in PLAN) and "SKIPPED" in printed


def test_the_plan_stays_below_its_limit() -> None:
    assert sum(check.seconds for check in PLAN) <= command.SECONDS
    assert all(check.run.__doc__ for check in PLAN)


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989.0),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA H200", 989.0),
        ("NVIDIA A100-SXM4-40GB", 312.0),
        ("NVIDIA A10G", 70.0),
        ("NVIDIA L4", 121.0),
        ("NVIDIA L40S", 362.0),
        ("Tesla T4", 65.0),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_the_peak_of_a_card(name: str, peak: float | None) -> None:
    assert Card(0, name, "1", 1, 1, 0).peak == peak


def test_samples_leave_out_idle_moments() -> None:
    samples = Samples()
    assert samples.utilization is None
    for used, percent in ((10, 0), (900, 80), (700, 100), (5, 90)):
        samples.add([Card(0, "x", "1", 1000, used, percent), Card(1, "x", "1", 1000, 1, None)])
    assert (samples.used, samples.utilization) == (900, 90)


def test_figures_name_the_share_of_the_peak() -> None:
    measured = {"ms": 12.34, "tflops": 494.5, "memory_mib": 4000.0}
    line = plan.figures(measured, H100, 5000, 95.0)
    assert "50% of 989" in line and "5000 MiB" in line and "utilization 95%" in line
    unknown = plan.figures(measured, Card(0, "RTX", "1", 1, 1, 0), 5000, None)
    assert "no peak known" in unknown and "utilization not shown" in unknown


def test_the_operations_of_a_step() -> None:
    assert bench.flops("dense", 100, 7) == 6 * 7 * 100 * 100 * 4
    assert bench.flops("conv", 10, 2) == bench.flops("dense", 10, 2) * 9 * 56 * 56


def test_old_cards_train_in_float16(tmp_path: Path) -> None:
    assert session(tmp_path, H100).precision == "mixed_bfloat16"
    assert session(tmp_path, Card(0, "Tesla T4", "1", 1, 1, 0)).precision == "mixed_float16"


def test_the_transports_of_one_pod(tmp_path: Path) -> None:
    folder = tmp_path / "mixed" / "0"
    folder.mkdir(parents=True)
    with pytest.raises(CheckFailed, match="no connection in 0 files"):
        plan.transports_within_a_pod(session(tmp_path, H100, H100))
    (folder / "nccl.7.log").write_text((LOGS / "one-node.log").read_text())
    assert "P2P/CUMEM" in plan.transports_within_a_pod(session(tmp_path, H100, H100))
    (folder / "nccl.8.log").write_text((LOGS / "sockets.log").read_text())
    with pytest.raises(CheckFailed, match="NET/Socket"):
        plan.transports_within_a_pod(session(tmp_path, H100, H100))


def test_the_table_has_a_line_for_every_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(_: Session) -> str:
        raise CheckFailed("a | b")

    checks = [
        Check("first", lambda its: f"{its.seconds():.0f} s left", 30),
        Check("second", failing, 30),
        Check("third", failing, 30, gpus=2),
    ]

    def make(seconds: Callable[[], float]) -> Session:
        return Session([H100], tmp_path, S3Address("test"), tmp_path, seconds)

    assert command.run(checks[:1], 1, make, time.monotonic() + 20) == 0
    assert "| first | passed | 20 s left | 0 |" in capsys.readouterr().out
    assert command.run(checks, 1, make, time.monotonic() + 600) == 1
    printed = capsys.readouterr().out
    assert "| first | passed | 30 s left |" in printed
    assert "| second | FAILED | a / b |" in printed
    assert "| third | skipped | needs 2 GPUs |" in printed
    assert command.run(checks[:1], 1, make, time.monotonic()) == 1
    assert "| first | NOT RUN | no time left |" in capsys.readouterr().out
