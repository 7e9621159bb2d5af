"""Tries of prepare_data that are killed, and what they leave in the store."""

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import psutil

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.store import Store

Words = Mapping[str, Any]
# Forks a process for each try, so that the libraries are loaded once.
PROGRAM = """
import json, os, sys
import boto3.session
import pyarrow.csv, pyarrow.parquet
from kfp_tfjob.components.prepare_data import dataset, engine, scan
from kfp_tfjob.components.step import Step
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store

def attempt(out, uri, options, how):
    engine._LARGE = 0  # rows go through the store
    step = Step("prepare_data", "r1", Layout(S3Address.parse(out)), Store())
    engine.run(step, uri, "y", options, **how)

for line in sys.stdin:
    pid = os.fork()
    if not pid:
        code = 1
        try:
            attempt(*json.loads(line))
            code = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        os._exit(code)
    print(pid, flush=True)
    print(os.waitpid(pid, 0)[1], flush=True)
"""


@dataclass
class Attempts:
    """Starts tries of the step, one after the other.

    Attributes:
        killed: What was killed so far, for the log: `step` or `worker`, which is a process.
        share: Of the time in which to kill: less after a try that ended before its moment.
        workers: The nanny of the workers on Dask; None for the processes of the step.
    """

    process: subprocess.Popen[str]
    random: random.Random
    killed: list[str]
    share: float = 1.0
    workers: psutil.Process | None = None

    def finish(self, out: S3Address, uri: str, options: Words, how: Words) -> float:
        begin = time.monotonic()
        self._start(out, uri, options, how)
        self._end()
        return time.monotonic() - begin

    def kill(self, out: S3Address, uri: str, options: Words, how: Words, within: float) -> None:
        """Run the step, and kill it or one of its workers at some moment.

        Args:
            within: Seconds; if it has ended before the moment, nothing is killed.
        """
        step = self._start(out, uri, options, how)
        moment = self.random.uniform(0, within * self.share)
        if select.select([self.process.stdout], [], [], moment)[0]:
            self._end()
            self.share *= 0.8
            return
        self.share = min(self.share / 0.8, 1.0)
        try:
            workers = (self.workers or psutil.Process(step)).children(recursive=True)
        except psutil.NoSuchProcess:
            workers = []
        victim, name = step, "step"
        if workers and self.random.random() < 0.5:
            victim, name = self.random.choice(workers).pid, "worker"
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            name = ""
        status = self._end(signal.SIGKILL)
        if name and not (name == "step" and status == 0):
            self.killed.append(name)

    def _end(self, *others: int) -> int:
        """Return how the step ended: well, or as one of the others."""
        status = int(self.process.stdout.readline())
        assert status in (0, *others), f"the step ended with {status}"
        return status

    def _start(self, out: S3Address, uri: str, *more: Words) -> int:
        self.process.stdin.write(json.dumps([str(out), uri, *more]) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@contextmanager
def attempts(scratch: Path, seed: int) -> Iterator[Attempts]:
    """Start the process that forks the tries; it finds the store in its environment."""
    scratch.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"TMPDIR": str(scratch)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Attempts(process, random.Random(seed), [])
    finally:
        process.kill()
        process.wait()


def digests(store: Store, out: S3Address) -> dict[str, str]:
    """Return the SHA-256 of every object below an address, without probes and records of use."""
    skipped = len(out.key) + 1
    return {
        item.address.key[skipped:]: sha256(store.read(item.address, item.size)).hexdigest()
        for item in store.list(out)
        if not item.address.name.startswith(".probe") and "/datasets/used/" not in item.address.key
    }
