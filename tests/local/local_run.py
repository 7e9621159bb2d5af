"""`kfp-tfjob run` as a process that a test reads, signals and waits for."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
import pytest

from kfp_tfjob.pipelines.local import processes
from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.waiting import until


class Run:
    def __init__(self, home: Path, *arguments: str, nohup: bool = False) -> None:
        self.home = home
        self.lines: list[str] = []
        command = [sys.executable, "-m", "kfp_tfjob.pipelines", "run"]
        self._process = subprocess.Popen(
            [*(["nohup"] if nohup else []), *command, "--home", str(home), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # The shell of the user names another store: a run with the embedded one ignores it.
            env=os.environ | {"PYTHONUNBUFFERED": "1", "AWS_ENDPOINT_URL": "http://127.0.0.1:9"},
        )

    def read_until(self, text: str) -> None:
        if not self._read(text):
            pytest.fail(f"{text!r} was never printed:\n{self.text}")

    def wait(self) -> int:
        self._read()
        return self._process.wait()

    def _read(self, text: str | None = None) -> bool:
        """Read to a line with this text, or to the end, which a process left behind holds open."""
        found: list[str] = []

        def read() -> None:
            for line in self._process.stdout:
                self.lines.append(line.rstrip())
                if text is not None and text in line:
                    found.append(line)
                    return

        reader = Thread(target=read, daemon=True)
        reader.start()
        try:
            reader.join()
        except pytest.fail.Exception as error:  # the test's time limit
            pytest.fail(f"{error}; the output did not end:\n{self.text}")
        return bool(found)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def run_id(self) -> str:
        (line,) = [line for line in self.lines if line.startswith("run ")]
        return line.split()[1].rstrip(";")

    @property
    def weights(self) -> set[str]:
        """The hashes of the final weights, of any replica."""
        return {line.split()[-1] for line in self.lines if "weights sha256" in line}

    def find(self, wanted: Callable[[psutil.Process], bool]) -> psutil.Process:
        """Return the one process of the run, or its server, that is wanted, once there is one."""
        token, found = token_of(self.home), []

        def look() -> bool:
            for process in [*processes.carriers(token), *servers(self.home / "s3")]:
                with suppress(psutil.NoSuchProcess):  # it has just ended
                    if wanted(process):
                        found.append(process)
            return bool(found)

        until(look)
        return found[0]

    def assert_nothing_left(self) -> None:
        token = token_of(self.home)
        until(lambda: not [*processes.carriers(token), *servers(self.home / "s3")])


def servers(folder: Path) -> list[psutil.Process]:
    wanted = {"kfp_tfjob.pipelines.local.s3_server", str(folder)}
    known = psutil.process_iter(["cmdline"])
    return [process for process in known if wanted <= set(process.info["cmdline"] or ())]


def token_of(home: Path) -> str:
    """Return the token that the processes of the newest run carry."""
    return (home / "token").read_text().split()[0]


def end_run(home: Path) -> None:
    if (home / "token").exists():
        processes.end(token_of(home), 0)


def stored(home: Path, read: Callable[[Layout, Store], Any]) -> Any:
    """Look into the store of a run that has ended."""
    with Server.start(home / "s3") as server:
        return read(Layout(S3Address("kfp-tfjob")), server.store())
