"""Processes on this machine: their lines, and the deadline of their pod."""

import sys
from pathlib import Path
from threading import Event

import pytest

from kfp_tfjob.cluster.local import container
from kfp_tfjob.cluster.local.container import LocalContainer
from kfp_tfjob.cluster.local.pod import LocalPod

BAR = """
import sys, time
for step in range(30):
    sys.stdout.write(f"\\rstep {step} of 30")
    sys.stdout.flush()
    time.sleep(0.1)
print("\\nall done", end="")
"""


def test_a_progress_bar_has_lines_before_its_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(container, "_BAR_SECONDS", 0.5)
    lines: list[str] = []
    command = [sys.executable, "-c", BAR]
    made = LocalContainer("c", command, {}, tmp_path, False, lines.append, Event().set)
    assert made.ended.wait(60)
    assert len(lines) >= 4 and lines[0].startswith("step ") and "\r" not in lines[0]
    assert lines[-2].endswith("step 29 of 30") and lines[-1] == "all done"


def test_output_without_lines_needs_no_memory_for_all_of_it(tmp_path: Path) -> None:
    lines: list[str] = []
    command = [sys.executable, "-c", "for _ in range(300): print('x' * 100_000, end='')"]
    made = LocalContainer("c", command, {}, tmp_path, False, lines.append, Event().set)
    assert made.ended.wait(60)
    assert sum(map(len, lines)) == 30_000_000 and max(map(len, lines)) < 2_000_000


def test_a_pod_ends_at_its_deadline(tmp_path: Path) -> None:
    program = {"name": "main", "command": [sys.executable, "-c", "import time; time.sleep(30)"]}
    spec = {"terminationGracePeriodSeconds": 1, "activeDeadlineSeconds": 1, "containers": [program]}
    template = {"metadata": {"labels": {}, "annotations": {}}, "spec": spec}
    folders = (tmp_path / name for name in ("claims", "secrets", "pod"))
    pod = LocalPod("p", {}, template, *folders, {}, lambda *_: None, Event().set)
    pod.start()
    pod.join()
    status = pod.to_dict()["status"]
    assert (status["phase"], status.get("reason")) == ("Failed", "DeadlineExceeded")
