"""Compares evaluate with keras' model.evaluate and TensorFlow Model Analysis on the same rows.

    python -m benchmarks.evaluate [--quick] [--repeats N] [PART ...]

The parts:

    numbers    30 columns of numbers, scored through `serve_packed`
    mixed      10 numbers, 10 categories and 5 dates, 5% missing values, scored from raw columns
    memory     the metrics of 100 million predictions of a model and its champion

In the tables, an MLP of two layers of 64 predicts two classes. Each way does the whole work after
its imports and the load of the model, on two cores:

    ours            score, every metric with its interval, the gate, the report
    ours, champion  the same with a second model
    keras, 4096     parse, model.evaluate in batches of 4096: accuracy and an AUC of 200 thresholds
    keras, 32       the same in batches of 32, the default of Keras
    TFMA            the same metrics by TensorFlow Model Analysis, if it installs

Every run is a new process; the ways take turns, and the results are medians. CPU seconds are those
of all threads; the last column has the seconds of the entire process, with its imports and the load
of the model. Keras and TFMA get a part of the rows. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.peers import cache
from benchmarks.resources import measured

ROWS = 1_000_000
MEMORY_ROWS = 100_000_000
GOAL = 400_000  # rows per second on two cores
MOST_MEMORY = 1200  # MB
TFMA = "tensorflow-model-analysis==0.52.0"
# Name: the function of evaluate_ways.py, and the share of the rows that it gets.
WAYS = {
    "ours": ("ours", 1),
    "ours, champion": ("champion", 1),
    "keras, 4096": ("keras_4096", 1),
    "keras, 32": ("keras_32", 10),
    "TFMA": ("tfma", 20),
}
ONLY_NUMBERS = ("keras, 4096", "keras, 32", "TFMA")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=["numbers", "mixed", "memory"])
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, once")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    repeats, less = (1, 10) if arguments.quick else (arguments.repeats, 1)
    result: dict[str, Any] = {"benchmark": "evaluate", "goal": GOAL, "most_memory": MOST_MEMORY}
    with tempfile.TemporaryDirectory() as name:
        for part in arguments.parts:
            if part == "memory":
                result[part] = memory(MEMORY_ROWS // less)
                print(f"memory: {MEMORY_ROWS // less:,} rows: {result[part]}", flush=True)
                continue
            result[part] = compare(part, Path(name), ROWS // less, repeats)
            print(table(part, result[part]), flush=True)
    print(json.dumps(result))


def compare(part: str, folder: Path, rows: int, repeats: int) -> dict[str, Any]:
    """Let the ways take turns; return the medians by way."""
    runs: dict[str, list[dict[str, float]]] = {}
    for _ in range(repeats):
        for name, (way, share) in WAYS.items():
            if part != "numbers" and name in ONLY_NUMBERS:
                continue
            python = sys.executable if way != "tfma" else tfma_python()
            if not python:
                continue
            data = folder / f"{part}-{rows // share}"
            if not data.exists():
                write = [sys.executable, "-m", "benchmarks.evaluate_ways", "write"]
                measured([*write, part, str(data), str(rows // share)])
            line = [python, "-m", "benchmarks.evaluate_ways", way, part, str(data)]
            found = measured(line, _with_bytecode(), cores=2)
            said = found.said | {"memory": found.peaks[0], "process": found.wall}
            runs.setdefault(name, []).append(said)
    return {
        name: {key: statistics.median(run[key] for run in of) for key in of[0]}
        for name, of in runs.items()
    }


def _with_bytecode() -> dict[str, str]:
    """Return the environment of a way: as in an image, no module is compiled, but by the first."""
    kept = {
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(cache() / "bytecode"),
    }
    return os.environ | kept


def memory(rows: int) -> dict[str, float]:
    """Return what the metrics of this many rows take: seconds, and MB of memory."""
    found = measured([sys.executable, "-m", "benchmarks.evaluate_ways", "memory", str(rows)])
    return found.said | {"memory": found.peaks[0]}


def tfma_python() -> str:
    """Return the Python of an environment with TFMA; empty if it does not install."""
    folder = cache() / TFMA.replace("==", "-")
    python = folder / "bin" / "python"
    uv = shutil.which("uv") or shutil.which("uv", path=".tools/bin")
    if not (folder / "ready").exists():
        if not uv:  # pip searches for hours
            return ""
        steps = [
            [uv, "venv", "--clear", "--python", sys.executable, str(folder)],
            [uv, "pip", "install", "--python", str(python), TFMA],
        ]
        for line in steps:
            if subprocess.run(line, capture_output=True).returncode:
                return ""
        (folder / "ready").touch()
    return str(python)


def table(part: str, found: dict[str, Any]) -> str:
    """Return the result of a part for people."""
    columns = "thousand rows/s, CPU seconds, those after scoring, MiB, seconds of the process"
    lines = [f"{part}: way, {columns}"]
    for name, one in found.items():
        rate = one["rows"] / one["seconds"] / 1000
        after = one["cpu"] - one.get("score_cpu", one["cpu"])
        cpu, memory, process = (one[key] for key in ("cpu", "memory", "process"))
        lines.append(
            f"  {name:16} {rate:8.0f} {cpu:8.2f} {after:8.2f} {memory:8.0f} {process:8.1f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
