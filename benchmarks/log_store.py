"""Measures what storing the log costs the launcher: CPU seconds for 100 MB of log lines.

    python -m benchmarks.log_store [MEGABYTES]

It compares reading, masking and printing the lines, as the launcher does anyway, with the same plus
storing them in a real S3 server, and with compressing the bytes alone. Each way runs in a process
of its own. The last line is one JSON object.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from kfp_tfjob.cluster.follower import Follower
from kfp_tfjob.cluster.log_lines import LogLine, stamp_of
from kfp_tfjob.cluster.log_writer import LogWriter
from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.storage.credentials import MOUNT_VARIABLE
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store

_MEGABYTES = 100
_BUCKET = "benchmark"
_REPLICAS = 4


def lines(megabytes: int) -> Iterator[LogLine]:
    """Yield lines of several replicas as a training prints them, about 100 bytes each."""
    began = time.time()
    for index in range(megabytes * 10_000):
        text = (
            f"14:03:{index % 60:02d} epoch {index // 1000} step {index} loss {1 / (index + 1):.6f}"
            f" accuracy {index % 997 / 997:.4f}"
        )
        where = f"worker-{index % _REPLICAS}"
        yield LogLine(stamp_of(began + index / 1000), where, text)


class _Log:
    """The part of a back end that a follower reads."""

    def __init__(self, megabytes: int) -> None:
        self._megabytes = megabytes

    def logs(self, name: str) -> Iterator[LogLine]:
        """Yield the lines of the job."""
        return lines(self._megabytes)


def follow(megabytes: int, writer: LogWriter | None) -> None:
    """Read all lines as the launcher does."""
    follower = Follower(_Log(megabytes), "job", writer)
    follower.start()
    follower.finish(3600)
    if writer:
        writer.close(60)


def compress(megabytes: int) -> None:
    """Compress the bytes of the lines in large pieces."""
    files = [zlib.compressobj(1, wbits=31) for _ in range(_REPLICAS)]
    held: list[list[str]] = [[] for _ in range(_REPLICAS)]
    for index, line in enumerate(lines(megabytes)):
        held[index % _REPLICAS].append(f"{line.stamp} [{line.where}] {line.text}\n")
        if len(held[index % _REPLICAS]) == 2000:
            files[index % _REPLICAS].compress("".join(held[index % _REPLICAS]).encode())
            held[index % _REPLICAS].clear()


WAYS: dict[str, Callable[[int], None]] = {
    "make the lines": lambda megabytes: [None for _ in lines(megabytes)] and None,
    "gzip -1": compress,
    "print": lambda megabytes: follow(megabytes, None),
    "print and store": lambda megabytes: follow(
        megabytes, LogWriter(Store(), Layout.parse(f"s3://{_BUCKET}/x").run(f"r{os.getpid()}"), 1)
    ),
}


def main() -> None:
    """Run every way, and print what it costs above making the lines."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else _MEGABYTES
    with tempfile.TemporaryDirectory() as folder, Server.start(Path(folder)) as server:
        server.store().make_bucket(_BUCKET)
        environment = os.environ | {MOUNT_VARIABLE: str(server.secret)}
        found = {}
        for way in WAYS:
            command = [sys.executable, "-m", "benchmarks.log_store", "--way", way, str(megabytes)]
            ended = subprocess.run(
                command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
            ended.check_returncode()
            found[way] = json.loads(ended.stderr.splitlines()[-1])
    base = found["make the lines"]["cpu"]
    for way, cost in found.items():
        cost["per_mb_ms"] = round(1000 * (cost["cpu"] - base) / megabytes, 2)
        print(
            f"{way:<16} {cost['cpu'] - base:6.1f} s CPU for {megabytes} MB,"
            f" {cost['wall']:6.1f} s wall, {cost['rss']:5.0f} MB of memory"
        )
    print(json.dumps(found))


def _one(way: str, megabytes: int) -> None:
    wall, cpu = time.perf_counter(), time.process_time()
    WAYS[way](megabytes)
    cost = {
        "cpu": round(time.process_time() - cpu, 2),
        "wall": round(time.perf_counter() - wall, 2),
        "rss": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }
    print(json.dumps(cost), file=sys.stderr)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--way"]:
        _one(sys.argv[2], int(sys.argv[3]))
    else:
        main()
