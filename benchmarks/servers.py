"""Starts the servers of the upload benchmark: a sink with almost no cost, and real stores.

Each runs in its own process. The sink is a Go program, built at first use. Without Go, a Python
sink replaces it; it is slower than the clients and only good for a trial.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers import cache

SOURCE = Path(__file__).parent / "sink"
_KEYS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_REGION": "us-east-1"}


@dataclass(frozen=True)
class Target:
    """A running server.

    Attributes:
        name: Name in the report.
        endpoint: Its URL.
        keys: The keys, as in a mounted Secret.
        pid: ID of its process.
        counts: Whether it counts its requests.
    """

    name: str
    endpoint: str
    keys: Mapping[str, str]
    pid: int
    counts: bool = False

    def cpu(self) -> float:
        """Return the CPU seconds it has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def requests(self) -> int:
        """Return the number of requests; 0 if it does not count them."""
        if not self.counts:
            return 0
        with urllib.request.urlopen(f"{self.endpoint}/-/stats") as reply:
            body = json.load(reply)
        return sum(value for name, value in body.items() if name.isupper())


def pinned(core: int | None) -> list[str]:
    """Return the start of a command line that keeps a process on one core."""
    return ["taskset", "-c", str(core)] if core is not None and shutil.which("taskset") else []


@contextmanager
def sink(core: int | None, delay_ms: int = 0, tls: Path | None = None) -> Iterator[Target]:
    """Run the sink.

    Args:
        core: The core it runs on; None for any.
        delay_ms: Delay before each reply.
        tls: A folder for its certificate; None for plain HTTP. Only the Go sink supports TLS.
    """
    keys, scheme = dict(_KEYS), "https" if tls else "http"
    if shutil.which("go"):
        line = [_built(), f"-delay={delay_ms}ms"]
        name = "sink (Go)" + (f", {delay_ms} ms away" if delay_ms else "")
        if tls:
            certificate = str(_certificate(tls))
            line.append(f"-cert={certificate}")
            name += ", TLS"
            keys |= {"AWS_CA_BUNDLE": certificate, "SSL_CERT_FILE": certificate}
    else:
        line = [sys.executable, "-m", "benchmarks.python_sink"]
        name = "sink (Python, slow: there is no Go)"
    process = subprocess.Popen([*pinned(core), *line], stdout=subprocess.PIPE, text=True)
    try:
        port = int(process.stdout.readline())
        yield Target(name, f"{scheme}://127.0.0.1:{port}", keys, process.pid, counts=not tls)
    finally:
        process.kill()
        process.wait()


def _certificate(folder: Path) -> Path:
    """Create a certificate for 127.0.0.1; return the file with it and its key."""
    path = folder / "sink.pem"
    line = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    line += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*line, "-keyout", path, "-out", path], check=True, capture_output=True)
    return path


def _built() -> str:
    source = b"".join(path.read_bytes() for path in sorted(SOURCE.iterdir()))
    program = cache() / f"sink-{hashlib.sha256(source).hexdigest()[:12]}"
    if not program.exists():
        build = ["go", "build", "-o", str(program), "."]
        settings = {"GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}
        subprocess.run(build, cwd=SOURCE, env=os.environ | settings, check=True)
    return str(program)


# Starts a real server of the test suite, creates the bucket, prints its Secret, and waits.
_REAL = """
import json, signal, sys, tempfile
from pathlib import Path
folder = Path(sys.argv[2])
if sys.argv[1] == "swift":
    from kfp_tfjob.pipelines.local.s3_server import Server
    server = Server.start(folder)
else:
    from tests.faults.versitygw import Versitygw, executable
    server = Versitygw(executable(), folder)
    server.start()
server.store().make_bucket("bench")
secret = {path.name: path.read_text() for path in server.secret.iterdir()}
print(json.dumps([secret, server.process.pid]), flush=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
try:
    sys.stdin.read()
finally:
    server.stop()
"""


@contextmanager
def real(kind: str, folder: Path, core: int | None) -> Iterator[Target]:
    """Run a real store: `swift` or `versitygw`."""
    line = [*pinned(core), sys.executable, "-c", _REAL, kind, str(folder)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(line, stdin=pipe, stdout=pipe, text=True)
    try:
        secret, pid = json.loads(process.stdout.readline())
        endpoint = secret.pop("AWS_ENDPOINT_URL")
        yield Target(kind, endpoint, secret, pid)
    finally:
        process.stdin.close()
        deadline = time.monotonic() + 10
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)
