"""Where NCCL logs in a trainer, and what of it the trainer's log shows."""

import logging
import os
from pathlib import Path

import pytest

from kfp_tfjob.trainer import nccl
from tests.unit.test_nccl_log import LOGS

WARNING = "chief:1:2 [0] transport/net_ib.cc:99 NCCL WARN NET/IB: lost its peer"


@pytest.mark.parametrize(("gpus", "writes"), [(0, False), (1, True), (8, True), (None, True)])
def test_a_replica_with_gpus_logs_to_a_file(tmp_path: Path, gpus: int, writes: bool) -> None:
    environment: dict[str, str] = {}
    nccl.prepare(tmp_path / "50%", gpus, environment)
    file = f"{tmp_path}/50%%/nccl.%p.log"
    assert environment == ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": file} if writes else {})


@pytest.mark.parametrize("name", ["NCCL_DEBUG", "NCCL_DEBUG_FILE"])
def test_the_settings_of_a_job_stay(tmp_path: Path, name: str) -> None:
    environment = {name: "x"}
    nccl.prepare(tmp_path, 2, environment)
    assert environment == {name: "x"}


def test_warnings_of_a_process_that_crashed_are_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "nccl.1.log"
    path.write_text(f"chief:1:2 [0] NCCL INFO Using network IB\n\n{WARNING}\n")
    nccl.prepare(tmp_path, 2, {})
    assert [record.getMessage() for record in caplog.records] == [WARNING]
    assert not path.exists()


def test_warnings_of_this_process_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nccl.log_warnings(tmp_path)  # without a second GPU, NCCL writes no file
    (tmp_path / f"nccl.{os.getpid()}.log").write_text(f"{WARNING}\n" * 50)
    nccl.log_warnings(tmp_path)
    assert {record.getMessage() for record in caplog.records} == {WARNING}
    assert 0 < len(caplog.records) < 20


@pytest.mark.parametrize(("name", "warns"), [("one-node", False), ("sockets", True)])
def test_transports_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, warns: bool
) -> None:
    caplog.set_level(logging.INFO)
    nccl.report(tmp_path)
    assert not caplog.records
    (tmp_path / f"nccl.{os.getpid()}.log").write_text((LOGS / f"{name}.log").read_text())
    nccl.report(tmp_path)
    levels = [record.levelname for record in caplog.records]
    assert levels == ["INFO", "WARNING"][: 1 + warns]
