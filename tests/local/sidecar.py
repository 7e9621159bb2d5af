"""An output folder with what mirrors it: sidecars as processes, and the trainer's questions."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from kfp_tfjob.common.errors import ObjectNotFoundError
from kfp_tfjob.storage.layout import RunLayout
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader.local_files import inventory, scan
from tests.waiting import until

RUN = "run-1"
SECONDS = 240  # until a test gives up waiting


class Pod:
    """One run: its output folder, and the processes that write and mirror it."""

    def __init__(self, folder: Path, run: RunLayout, endpoint: str) -> None:
        self.output, self.run, self.endpoint = folder / "output", run, endpoint
        self.output.mkdir(parents=True)
        self._log = folder / "sidecar.log"
        self._processes: list[subprocess.Popen[bytes]] = []

    def sidecar(self, *options: str, **environment: str) -> subprocess.Popen[bytes]:
        line = [sys.executable, "-m", "kfp_tfjob.uploader", "watch"]
        line += [str(self.output), str(self.run.base), "--interval", "0.05", "--attempt", "1"]
        line += ["--endpoint", self.endpoint] if self.endpoint else []
        return self.start([*line, *options], **environment)

    def start(self, line: list[str], **environment: str) -> subprocess.Popen[bytes]:
        with open(self._log, "ab") as log:
            process = subprocess.Popen(line, stdout=log, stderr=log, env=os.environ | environment)
        self._processes.append(process)
        return process

    def log(self) -> str:
        return self._log.read_text()

    def says(self, text: str, times: int = 1) -> None:
        until(lambda: self.log().count(text) >= times, f"{text!r} in\n{self.log()}")

    def write(self, path: str, data: bytes) -> None:
        target = self.output / path
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f"{target.name}.tmp")
        partial.write_bytes(data)
        partial.replace(target)

    def checkpoint(self, step: int, data: bytes = b"data") -> None:
        temporary = self.output / "checkpoints" / f"{step}.tmp"
        temporary.mkdir(parents=True)
        (temporary / "data").write_bytes(data)
        temporary.rename(temporary.with_suffix(""))

    def complete(self) -> None:
        self.write("completion.json", json.dumps({"run_id": RUN, "attempt": 1}).encode())

    def request(self, name: str, attempt: int = 1, more: int = 0) -> None:
        files, digest = inventory(scan(self.output).files.values())
        body = {"id": name, "attempt": attempt, "files": files + more, "inventory": digest}
        self.write(".uploader/flush-request.json", json.dumps(body).encode())

    def reply(self, name: str) -> dict[str, Any]:
        path = self.output / ".uploader" / "flush-reply.json"
        body = json.loads(path.read_text()) if path.exists() else {}
        return body if body.get("id") == name else {}

    def wait_for(self, name: str, state: str, text: str = "") -> dict[str, Any]:
        """Return the answer to a request once it has a state and a message with a text."""

        def told() -> bool:
            reply = self.reply(name)
            return reply.get("state") == state and text in reply["message"]

        until(told, f"{state} and {text!r} about {name}\n{self.log()}")
        return self.reply(name)

    def steps(self, store: Store) -> list[int]:
        """Return the stored checkpoints that a reader would trust."""
        found = []
        for step in store.numbers(self.run.checkpoints):
            try:
                store.read_manifest(self.run.checkpoints / str(step) / "manifest.json")
            except ObjectNotFoundError:
                continue
            found.append(step)
        return found

    def end(self, process: subprocess.Popen[bytes]) -> int:
        process.send_signal(signal.SIGTERM)
        return process.wait(SECONDS)

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
