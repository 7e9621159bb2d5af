"""Measures the upload of training output: ours, aws-cli, s5cmd and boto3's TransferManager.

    python -m benchmarks.upload [--quick]

Every run is a new process, and its start counts. Files are in the page cache, and each run has its
own prefix. The tools take turns in random order, and the results are medians. The client and the
server have one core each, so that neither waits for the other. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import servers
from benchmarks.peers import Tool, environment, tools
from benchmarks.servers import Target

MIB = 1 << 20
ROOT = Path(__file__).parents[1]
# Workload, tool: how many times faster than the tool ours should be.
GOALS = {
    ("small", "aws"): 4.0,
    ("small", "s5cmd"): 2.5,
    ("warm", "aws"): 12.0,
    ("warm", "s5cmd"): 8.0,
    ("large", "aws"): 1.6,
    ("large", "s5cmd"): 1.4,
    ("mixed", "aws"): 1.3,
    ("mixed", "s5cmd"): 1.1,
    ("far", "aws"): 3.5,
    ("far", "s5cmd"): 1.0,
    ("tls", "aws"): 1.1,
    ("tls", "s5cmd"): 1.1,
}
FAR_MS = 20
FEWER = 3  # turns for slow runs with similar results
NO_OP_SECONDS, RSS_MIB = 0.030, 96


@dataclass(frozen=True)
class Measurement:
    """One run of one tool: seconds, and peak memory in MiB."""

    wall: float
    cpu: float
    rss: float
    server_cpu: float
    requests: int


def workloads(folder: Path, quick: bool) -> dict[str, Path]:
    """Write the files before the measurement."""
    scale = 4 if quick else 1
    small, one, many = 2000 // scale, 1024 // scale, 200 // scale
    plans = {
        "small": [16 << 10] * small,
        "large": [one * MIB],
        "mixed": [many * MIB] * 3 + [16 << 10] * 50,
        "real-small": [16 << 10] * (200 // scale),
        "real-large": [(128 // scale) * MIB],
    }
    pattern = os.urandom(MIB + 4096)
    for name, sizes in plans.items():
        for number, size in enumerate(sizes):
            path = folder / name / f"{number // 100:03d}" / f"file-{number:05d}"
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb") as file:
                for start in range(0, size, MIB):
                    shift = (number + start // MIB) % 4096
                    file.write(pattern[shift : shift + min(MIB, size - start)])
    return {name: folder / name for name in plans}


def measure(line: list[str], target: Target, core: int | None) -> Measurement | str:
    """Run a command to its end; if it fails, return the end of its output instead."""
    cpu, requests = target.cpu(), target.requests()
    began = time.perf_counter()
    process = subprocess.Popen(
        [*servers.pinned(core), *line],
        env=environment(target.keys),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
    )
    words = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        return words.decode(errors="replace").strip()[-200:] or f"exit {process.returncode}"
    return Measurement(
        wall,
        usage.ru_utime + usage.ru_stime,
        usage.ru_maxrss / 1024,
        target.cpu() - cpu,
        target.requests() - requests,
    )


def measure_warm(folder: Path, target: Target, prefix: str, core: int | None) -> tuple[dict, int]:
    """Measure the resident sidecar; return its figures and the requests of idle passes."""
    line = [sys.executable, "-m", "benchmarks.warm", str(folder), f"s3://bench/{prefix}"]
    process = subprocess.Popen(
        [*servers.pinned(core), *line, target.endpoint],
        env=environment(target.keys),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    found = json.loads(process.stdout.readline())
    assert not found["missing"], found
    before = target.requests()
    process.stdin.write("\n")
    process.stdin.flush()
    found |= json.loads(process.stdout.readline())
    requests = target.requests() - before
    process.wait()
    return found, requests


def medians(runs: list[Measurement]) -> Measurement:
    """Return the median of each figure."""
    columns = zip(*(asdict(run).values() for run in runs), strict=True)
    return Measurement(*(statistics.median(column) for column in columns))


def compare(
    target: Target,
    loads: dict[str, Path],
    all_tools: dict[str, Tool],
    repeats: int,
    core: int | None,
    chance: random.Random,
) -> dict[tuple[str, str], list[Measurement]]:
    """Let the tools take turns on every workload."""
    runs: dict[tuple[str, str], list[Measurement]] = {}
    for repeat in range(repeats):
        for load, folder in loads.items():
            for name in chance.sample(sorted(all_tools), len(all_tools)):
                prefix = f"{load}-{name}-{repeat}"
                line = all_tools[name].command(folder, target.endpoint, prefix)
                found = measure(line, target, core)
                if isinstance(found, Measurement):
                    runs.setdefault((load, name), []).append(found)
                elif name.startswith("ours"):
                    raise SystemExit(f"{' '.join(line)} failed: {found}")
                else:
                    print(f"FAILED: {all_tools[name].name}, {load}: {found}")
    return runs


def table(
    target: Target, runs: dict[tuple[str, str], list[Measurement]], all_tools: dict
) -> list[str]:
    """Return the figures as a Markdown table."""
    lines = [
        "",
        f"## {target.name}",
        "",
        "| workload | tool | wall s (min-max) | CPU s | peak RSS MiB | server CPU s | requests"
        " | ours is faster by |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (load, name), found in sorted(runs.items(), key=lambda item: item[0]):
        m, walls = medians(found), [run.wall for run in found]
        ratio = m.wall / medians(runs[load, "ours"]).wall
        lines.append(
            f"| {load} | {all_tools[name].name} | {m.wall:.2f} ({min(walls):.2f}-{max(walls):.2f})"
            f" | {m.cpu:.2f} | {m.rss:.0f} | {m.server_cpu:.2f} | {m.requests:.0f} | {ratio:.2f} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a quarter of the size, one turn")
    parser.add_argument("--repeats", type=int, default=0, help="turns; default 5, quick 1")
    parser.add_argument("--no-pin", action="store_true", help="let client and server use all cores")
    parser.add_argument("--no-real", action="store_true", help="use only the sink")
    parser.add_argument("--no-naive", action="store_true", help="skip the naive upload loop")
    arguments = parser.parse_args()
    repeats = arguments.repeats or (1 if arguments.quick else 5)
    cores = sorted(os.sched_getaffinity(0))
    pin = not arguments.no_pin and len(cores) > 1
    client, server = (cores[0], cores[1]) if pin else (None, None)
    all_tools = tools()
    chance = random.Random(0)
    shared = Path("/dev/shm")
    place = shared if shared.is_dir() and shutil.disk_usage(shared).free > 8 << 30 else None
    result: dict[str, object] = {"quick": arguments.quick, "repeats": repeats, "pinned": pin}
    with tempfile.TemporaryDirectory(dir=place) as name:
        loads = workloads(Path(name), arguments.quick)

        def less(
            target: Target, chosen: dict[str, Path]
        ) -> dict[tuple[str, str], list[Measurement]]:
            found = compare(target, chosen, all_tools, min(repeats, FEWER), client, chance)
            print("\n".join(table(target, found, all_tools)), flush=True)
            return found

        sinking = {load: loads[load] for load in ("small", "large", "mixed")}
        with servers.sink(server) as target:
            runs = compare(target, sinking, all_tools, repeats, client, chance)
            warm = [
                measure_warm(loads["small"], target, f"warm-{repeat}", client)
                for repeat in range(repeats)
            ]
            print("\n".join(table(target, runs, all_tools)), flush=True)
        with servers.sink(server, FAR_MS) as target:
            runs |= less(target, {"far": loads["small"]})
        if shutil.which("go"):
            with servers.sink(server, tls=Path(name)) as target:
                runs |= less(target, {"tls": loads["large"]})
        stored = statistics.median(found["stored"] for found, _ in warm)
        warm_cpu = statistics.median(found["cpu"] for found, _ in warm)
        idle = statistics.median(second for found, _ in warm for second in found["passes"])
        requests = sum(count for _, count in warm)
        files = sum(path.is_file() for path in loads["small"].rglob("*"))
        print(f"\nWarm: {files} files stored in {stored:.3f} s by the resident sidecar.")
        print(f"No change: {idle * 1000:.1f} ms a pass over {files} files, {requests} requests.\n")
        claims, cpus = [], {}
        for (load, peer), goal in GOALS.items():
            if load != "warm" and (load, "ours") not in runs:
                continue
            ours = stored if load == "warm" else medians(runs[load, "ours"]).wall
            theirs = medians(runs["small" if load == "warm" else load, peer])
            claims.append((f"{load}: times faster than {peer}", theirs.wall / ours, goal, True))
            # On a busy machine, CPU seconds are more reliable than wall time.
            cpu = warm_cpu if load == "warm" else medians(runs[load, "ours"]).cpu
            cpus[f"{load}: times less CPU than {peer}"] = round(theirs.cpu / cpu, 2)
        rss = max(medians(runs[load, "ours"]).rss for load in sinking)
        claims.append(("peak RSS MiB", rss, RSS_MIB, False))
        claims.append(("no-op pass, seconds", idle, NO_OP_SECONDS, False))
        claims.append(("no-op pass, requests", requests, 0, False))
        for text, value, goal, at_least in claims:
            good = value >= goal if at_least else value <= goal
            sign = ">=" if at_least else "<="
            print(f"{'reached' if good else 'MISSED '}  {text}: {value:.3g} (goal {sign} {goal:g})")
        print("".join(f"\n         {text}: {value}" for text, value in cpus.items()))
        result["cpu"] = cpus
        result["goals"] = {text: round(value, 4) for text, value, _, _ in claims}
        result["runs"] = {
            f"{load}/{tool}": asdict(medians(found)) for (load, tool), found in runs.items()
        }
        if not arguments.no_real:
            turns = min(repeats, FEWER)
            result["real"] = real_stores(loads, all_tools, turns, client, server, chance, name)
    if not arguments.no_naive:
        line = [sys.executable, "-m", "benchmarks.naive"]
        done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT, check=True)
        *text, last = done.stdout.strip().splitlines()
        print("\n".join(text))
        result["naive"] = json.loads(last)
    print(json.dumps(result))


def real_stores(
    loads: dict[str, Path],
    all_tools: dict[str, Tool],
    repeats: int,
    client: int | None,
    server: int | None,
    chance: random.Random,
    folder: str,
) -> dict[str, dict]:
    """Measure on Swift, and on versitygw where there is Go; return the medians."""
    found = {}
    for kind in ["swift", *(["versitygw"] if shutil.which("go") else [])]:
        names = ("small", "real-large") if kind == "versitygw" else ("real-small", "real-large")
        chosen = {load: loads[load] for load in names}
        with servers.real(kind, Path(folder) / kind, server) as target:
            runs = compare(target, chosen, all_tools, repeats, client, chance)
            print("\n".join(table(target, runs, all_tools)), flush=True)
        found[kind] = {f"{load}/{tool}": asdict(medians(r)) for (load, tool), r in runs.items()}
    return found


if __name__ == "__main__":
    main()
