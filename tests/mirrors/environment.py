"""The environment of the mirrors: their clients and MLflow's server, outside the repository."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from tests.cluster.binaries import cache

ROOT = Path(__file__).parents[2]


def python() -> Path:
    """Return the interpreter of the environment; it is made once for each state of the lock.

    Raises:
        RuntimeError: There is no uv, or it failed.
    """
    digest = hashlib.sha256((ROOT / "uv.lock").read_bytes()).hexdigest()[:12]
    folder = cache() / f"mirrors-{digest}"
    ready = folder / ".ready"
    cache().mkdir(parents=True, exist_ok=True)
    with open(cache() / "mirrors.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():
            own = ROOT / ".tools" / "bin" / "uv"
            uv = shutil.which("uv") or (str(own) if own.exists() else None)
            if not uv:
                raise RuntimeError("no uv to install MLflow with; Fix: make setup")
            words = ["sync", "--locked", "--extra", "mlflow", "--extra", "model-registry"]
            words += ["--group", "mlflow-server", "--no-default-groups"]
            words += ["--no-install-project", "--python", "3.11"]
            made = subprocess.run(
                [uv, *words],
                cwd=ROOT,
                env=os.environ | {"UV_PROJECT_ENVIRONMENT": str(folder)},
                capture_output=True,
                text=True,
            )
            if made.returncode:
                raise RuntimeError(f"uv could not install MLflow: {made.stderr[-2000:]}")
            ready.touch()
    return folder / "bin" / "python"
