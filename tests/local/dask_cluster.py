"""A Dask cluster of a user: `dask scheduler` and `dask worker` as processes of this machine."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.waiting import until

_DASK = [sys.executable, "-m", "dask"]


@dataclass
class DaskCluster:
    folder: Path
    options: tuple[str, ...]  # of the scheduler and each worker, for TLS
    scheduler: subprocess.Popen[bytes] = field(init=False)
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        where = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
        line = [*_DASK, "scheduler", *where, "--scheduler-file", str(self._file), *self.options]
        self.scheduler = subprocess.Popen(line, cwd=self.folder)

    @property
    def _file(self) -> Path:
        return self.folder / "scheduler.json"

    @property
    def address(self) -> str:
        # The scheduler does not write it at once.
        until(lambda: self._file.exists() and self._file.read_text().rstrip().endswith("}"))
        return json.loads(self._file.read_text())["address"]

    def add(self, *options: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start a worker with one thread, and more options and variables."""
        given = ["--nthreads", "1", "--no-dashboard", *(options or ("--no-nanny",)), *self.options]
        line = [*_DASK, "worker", self.address, *given, "--local-directory", str(self.folder)]
        path = os.pathsep.join([environment.pop("PYTHONPATH", ""), os.getcwd()])
        variables = os.environ | environment | {"PYTHONPATH": path}
        self.workers.append(subprocess.Popen(line, cwd=self.folder, env=variables))
        return self.workers[-1]


@contextmanager
def dask_cluster(folder: Path, *options: str) -> Iterator[DaskCluster]:
    found = DaskCluster(folder, options)
    try:
        yield found
    finally:
        for process in (*found.workers, found.scheduler):
            process.terminate()
        for process in (*found.workers, found.scheduler):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
