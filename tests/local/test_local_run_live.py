"""The same run on a pseudo-terminal and through a pipe."""

import re
import sys
from pathlib import Path

import pytest

from examples import people
from kfp_tfjob.components import STEPS
from tests.local.local_run import Run, end_run
from tests.terminal import environment, run_on_terminal, screen

COMMAND = [sys.executable, "-m", "kfp_tfjob.pipelines", "run"]


def shapes(lines: list[str], step: str) -> set[str]:
    """The distinct lines of a step without numbers, which differ between runs."""
    of_step = [line for line in lines if line.startswith(f"{step} ")]
    random = r"\b\d{8}-\d{6}-[0-9a-f]{4}\b|\b[0-9a-f]{32}\b"  # the id of a run, and a digest
    return {re.sub(rf"{random}|[\d.,:]+", "N", line) for line in of_step}


@pytest.mark.slow
def test_a_run_on_a_terminal_and_through_a_pipe(tmp_path: Path) -> None:
    table = tmp_path / "people.csv"
    people.write(table, 2000)
    words = ["--data", str(table), "--label", people.LABEL, "--workers", "0", "--epochs", "30"]
    home = tmp_path / "terminal"
    try:
        code, output = run_on_terminal(
            [*COMMAND, *words, "--home", str(home)], environment(), columns=150
        )
    finally:
        end_run(home)
    assert code == 0, output
    lines = screen(output)
    for step in STEPS:
        assert [line for line in lines if line.startswith(f"✓ {step} ")], (step, lines)
    (log,) = (home / "runs").glob("*/run.log")
    assert f"log        {log}" in lines
    assert not any("... working for" in line or "step 1 of" in line for line in lines)
    assert re.search(r"\d+%, .*training epoch \d+, [\d,]+ rows/s, step", output)
    verdict = next(index for index, line in enumerate(lines) if line.startswith("verdict "))
    logged = log.read_text().splitlines()
    assert "\n".join(lines[verdict:]).strip() in "\n".join(logged)

    run = Run(tmp_path / "pipe", *words)
    try:
        assert run.wait() == 0, run.text
    finally:
        end_run(run.home)
    assert "\x1b" not in run.text and not list(run.home.glob("runs/*/run.log"))
    piped = [line for line in run.lines if "... working for" not in line]
    for step in ("prepare_data", "sync_output", "evaluate", "publish"):
        assert shapes(logged, step) == shapes(piped, step) != set()
    assert {line.split()[0] for line in logged if line.strip()} >= {
        line.split()[0] for line in piped if line.strip()
    }
