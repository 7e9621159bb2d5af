"""Servers as processes, in the environment that has kserve."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from kfp_tfjob.storage.credentials import MOUNT_VARIABLE
from tests.environments import ROOT, for_server
from tests.ports import free_port

START = 180  # seconds; TensorFlow takes 5 to 20 of them, on a busy machine more


class ServerProcess:
    """`kfp-tfjob serve` as a process, with the folder of the keys of the store."""

    def __init__(
        self,
        model: str,
        output: str,
        secret: Path,
        folder: Path,
        *more: str,
        port: int = 0,
        before: str = "",
    ) -> None:
        self.model, self.port = model, port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = folder / f"serve-{self.port}.log"
        code = f"{before}\nfrom kfp_tfjob.pipelines.cli import main; main()"
        words = ["-c", code] if before else ["-m", "kfp_tfjob.pipelines"]
        words += ["serve", model, "--output", output]
        words += ["--port", str(self.port), "--poll-seconds", "0.5", *more]
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        with open(self._log, "ab") as log:
            self.process = subprocess.Popen(
                [for_server(), *words],
                stdout=log,
                stderr=log,
                env=kept | {"PYTHONPATH": str(ROOT), MOUNT_VARIABLE: str(secret)},
            )

    @property
    def memory(self) -> int:
        """The most bytes that it has had in memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1000

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def ready(self) -> ServerProcess:
        self.until(self.is_ready)
        return self

    def until(self, condition: Callable[[], object]) -> None:
        """Wait until a condition is true; the server must not end before."""
        deadline = time.monotonic() + START
        while not condition():
            assert self.process.poll() is None and time.monotonic() < deadline, self.log
            time.sleep(0.05)

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/v2/health/ready", timeout=5) as reply:
                return reply.status == 200
        except (OSError, urllib.error.URLError):
            return False

    def wait(self) -> int:
        return self.process.wait(START)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
