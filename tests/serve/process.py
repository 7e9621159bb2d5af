"""Servers as processes, and their client."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from kfp_tfjob.storage.credentials import MOUNT_VARIABLE
from tests.environments import ROOT
from tests.ports import free_port

START = 180  # seconds; TensorFlow takes 5 to 20 of them, on a busy machine more


@dataclass(frozen=True)
class Reply:
    status: int
    body: Any
    version: str | None


def post(url: str, body: Any, **headers: str) -> Reply:
    """Send a request; `body` is JSON, or bytes as they are."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"} | named)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            version = reply.headers.get("x-model-version")
            return Reply(reply.status, json.loads(reply.read()), version)
    except urllib.error.HTTPError as error:
        return Reply(error.code, json.loads(error.read()), None)


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as reply:
        return reply.read().decode()


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
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.v1 = f"{self.url}/v1/models/{model}:predict"
        self.v2 = f"{self.url}/v2/models/{model}/infer"
        self._log = folder / f"serve-{self.port}.log"
        code = f"{before}\nfrom kfp_tfjob.pipelines.cli import main; main()"
        words = ["-c", code] if before else ["-m", "kfp_tfjob.pipelines"]
        words += ["serve", model, "--output", output]
        words += ["--port", str(self.port), "--poll-seconds", "0.5", *more]
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        with open(self._log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *words],
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

    @property
    def metrics(self) -> str:
        return get(f"{self.url}/metrics")

    def predict(self, rows: Any) -> Reply:
        return post(self.v1, {"instances": rows})

    def ready(self) -> Self:
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
