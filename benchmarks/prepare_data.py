"""Compares prepare_data with pyarrow's own parse, a script as people write it, and TFX.

    python -m benchmarks.prepare_data [--quick] [--repeats N] [PART ...]

The parts are tables: `numbers` has 30 columns of numbers; `mixed` has 10 numbers, 10 categories and
5 dates with 5% missing values; `long` is `numbers` with ten times the rows. `pictures` are
JPEGs of 15 kB in folders.

    ours       the whole step, to a store that only counts bytes
    ours, 1    the same on one core
    parse      pyarrow parses the file with the types given, and drops what it finds
    script     pandas and tf.train.Example, one feature for each column
    cp -r      the files as they are, on one core
    TFX        CsvExampleGen and StatisticsGen, if TFX installs

Every run is a new process; the ways take turns, and the results are medians. Wall and CPU time are
those of the work without imports, with the CPU time of all processes. Ours runs without pandas and
with the bytecode of its modules, as in the image of the tools. `script` and TFX get a tenth of the
rows. The last line is a JSON object.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers import cache, environment
from benchmarks.prepare_files import MIXED, NUMBERS, PICTURES, pictures, table
from benchmarks.resources import measured
from benchmarks.servers import sink

ROWS = 1_000_000
PICTURES_SHARE = 50  # of ROWS
PEER_SHARE = 10  # a peer that would take minutes gets a tenth of the rows
MOST_MEMORY = 600  # MiB of all workers together
MOST_CPU = 2.0  # times the CPU time of the parse
COPY_SHARE = 0.9  # of the files per CPU second of cp -r
TWO_CORES = 1.8  # times the rows per second of one core
_NO_PANDAS = """
import sys

class NoPandas:
    def find_spec(self, name, *_):
        if name == "pandas":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, NoPandas())
"""
TFX = "tfx==1.16.0"  # the newest one whose wheels run on Debian 12 and RHEL 9


@dataclass(frozen=True)
class Way:
    """A way to prepare a table.

    Attributes:
        name: In the table.
        work: The function of prepare_peers.py.
        cores: How many it may use; 0 for all.
        share: It gets one row in so many.
    """

    name: str
    work: str
    cores: int = 0
    share: int = 1


OURS, ALONE, PARSE = Way("ours", "ours"), Way("ours, 1", "ours", 1), Way("parse", "parse")
SCRIPT = Way("script", "script", 0, PEER_SHARE)
COPY = Way("cp -r", "copy", 1)
BEAM = Way("TFX", "tfx", 0, PEER_SHARE)


@dataclass(frozen=True)
class Part:
    """What is measured.

    Attributes:
        kind: Of the table.
        times: Its rows, as a multiple of ROWS.
        ways: The ways that are compared.
        goal: Rows per second of the wall clock; 0 for none.
    """

    kind: str
    times: float
    ways: tuple[Way, ...]
    goal: int = 0


PARTS = {
    "numbers": Part(NUMBERS, 1, (OURS, ALONE, PARSE, SCRIPT, BEAM), 500_000),
    "mixed": Part(MIXED, 1, (OURS, ALONE, PARSE, SCRIPT), 200_000),
    "pictures": Part(PICTURES, 1 / PICTURES_SHARE, (OURS, ALONE, COPY)),
    "long": Part(NUMBERS, 10, (OURS,)),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, once")
    parser.add_argument("--repeats", type=int, default=5, help="how often the fast ways run")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    arguments = parser.parse_args()
    rows, repeats = (ROWS // 10, 1) if arguments.quick else (ROWS, arguments.repeats)
    result: dict[str, Any] = {"benchmark": "prepare_data", "rows": rows}
    for name in arguments.parts or [*PARTS]:
        result[name] = compare(PARTS[name], rows, repeats)
        print(shown(name, PARTS[name], result[name]), flush=True)
    print(json.dumps(result))


def compare(part: Part, rows: int, repeats: int) -> dict[str, Any]:
    """Let the ways take turns; return the medians of each."""
    ways = {way: _python(way) for way in part.ways}
    missing = [way.name for way, python in ways.items() if not python]
    runs: dict[Way, list[dict[str, Any]]] = {way: [] for way in ways if ways[way]}
    for turn in range(repeats):
        for way, found in runs.items():
            if turn == 0 or (way.share == 1 and part.times <= 1):
                count = int(rows * part.times) // way.share
                found.append(once(way, ways[way], part.kind, count))
    result: dict[str, Any] = {
        way.name: {key: statistics.median(run[key] for run in found) for key in found[0]}
        for way, found in runs.items()
    }
    return result | {"missing": missing}


def once(way: Way, python: str, kind: str, rows: int) -> dict[str, float]:
    """Run a way once; return rows, wall and CPU seconds, rates, and peaks of memory in MiB."""
    path = pictures(rows) if kind == PICTURES else table(kind, rows)
    with tempfile.TemporaryDirectory(dir=cache()) as name, sink(None) as target:
        if way is BEAM:  # it reads folders
            (Path(name) / "in").mkdir()
            path = Path(shutil.copy(path, Path(name) / "in"))
        line = [python, "-m", "benchmarks.prepare_peers", way.work, str(path), f"{name}/out"]
        keys = dict(target.keys) | {
            "AWS_ENDPOINT_URL": target.endpoint,
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        if way.work == "ours":  # pyarrow would load it
            (Path(name) / "sitecustomize.py").write_text(_NO_PANDAS)
            keys["PYTHONPATH"] = name
            # Otherwise, some processes would compile every module: a shell may forbid to keep it.
            keys |= {
                "PYTHONDONTWRITEBYTECODE": "",
                "PYTHONPYCACHEPREFIX": str(cache() / "bytecode"),
            }
        used = measured(line, environment(keys), way.cores)
    wall, cpu = used.said["wall"], used.cpu - used.said["before"]
    return {
        "rows": rows,
        "wall": wall,
        "cpu": cpu,
        "per_second": rows / wall,
        "per_cpu_second": rows / cpu,
        "memory": sum(used.peaks),
        "processes": len(used.peaks),
    }


def _python(way: Way) -> str:
    """Return the Python that runs a way; empty if its packages do not install."""
    if way is not BEAM:
        return sys.executable
    folder = cache() / TFX.replace("==", "-")
    python = str(folder / "bin" / "python")
    uv = shutil.which("uv") or shutil.which("uv", path=".tools/bin")
    if not (folder / "ready").exists():
        if not uv:  # pip searches for hours
            return ""
        steps = [
            [uv, "venv", "--clear", "--python", sys.executable, str(folder)],
            # Beam no longer needs dill, but this TFX does.
            [uv, "pip", "install", "--python", python, TFX, "dill", "setuptools<81"],
            [python, "-c", "from tfx import v1"],
        ]
        for line in steps:
            if subprocess.run(line, capture_output=True).returncode:
                return ""
        (folder / "ready").touch()
    return python


def shown(name: str, part: Part, found: Mapping[str, Any]) -> str:
    """Return the medians as lines, and whether the goals are reached."""
    lines = [
        f"\n{name}",
        f"{'':10}{'rows':>12}{'rows/s':>12}{'per CPU-s':>12}{'CPU s':>8}{'MiB':>7}",
    ]
    ways = {way: found[way.name] for way in part.ways if way.name in found}
    for way, one in ways.items():
        lines.append(
            f"{way.name:10}{one['rows']:12,.0f}{one['per_second']:12,.0f}"
            f"{one['per_cpu_second']:12,.0f}{one['cpu']:8.2f}{one['memory']:7.0f}"
        )
    for way in found["missing"]:
        lines.append(f"{way} does not install here")
    ours = ways[OURS]
    goals = {f"at most {MOST_MEMORY} MiB in all": ours["memory"] <= MOST_MEMORY}
    if part.goal:
        goals[f"{part.goal:,} rows/s"] = ours["per_second"] >= part.goal
    if PARSE in ways and part.kind == NUMBERS:
        ratio = ours["cpu"] / ways[PARSE]["cpu"]
        goals[f"{MOST_CPU:g} x the CPU time of the parse ({ratio:.2f})"] = ratio <= MOST_CPU
    if ALONE in ways:
        ratio = ours["per_second"] / ways[ALONE]["per_second"]
        goals[f"{TWO_CORES:g} x one core ({ratio:.2f})"] = ratio >= TWO_CORES
    if COPY in ways:
        ratio = ways[ALONE]["per_cpu_second"] / ways[COPY]["per_cpu_second"]
        goals[f"{COPY_SHARE:.0%} of cp -r for each core ({ratio:.0%})"] = ratio >= COPY_SHARE
    for way in (SCRIPT, BEAM):
        if way in ways:
            ratio = ours["per_second"] / ways[way]["per_second"]
            lines.append(f"ours is {ratio:,.0f} x {way.name}")
    lines += [f"{'reached' if done else 'MISSED'}: {goal}" for goal, done in goals.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
