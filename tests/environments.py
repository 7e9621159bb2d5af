"""Python as tests run it: of `make setup`, and in environments that the lock keeps apart from it.

MLflow's server and `tools` need different versions of pyarrow, so one environment cannot have both.
The others are outside the repository. Each has the Python of `make setup`, which is there already.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.cluster.binaries import cache

ROOT = Path(__file__).parents[1]
_TORCH = "2.15.0"
_PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"


def run_python(
    *arguments: object,
    cwd: Path | None = None,
    stdin: str = "",
    timeout: float | None = None,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Run Python, with more in its environment; it finds the modules of the checkout."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        input=stdin,
        timeout=timeout,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
    )


def for_mirrors() -> Path:
    """Return the interpreter of an environment with MLflow's server and the mirrors' clients."""
    extras = ("--extra", "mlflow", "--extra", "model-registry")
    return _python("mirrors", *extras, "--group", "mlflow-server")


def for_torch() -> Path:
    """Return the interpreter of an environment with torch, which no extra has, and pyarrow.

    From PyPI these are 3 GB of downloads, because the wheels for Linux are those with CUDA. With
    UV_TORCH_BACKEND=cpu, uv takes the 200 MB from PyTorch's own index.
    """
    return _made(
        f"torch-{_TORCH}-pyarrow",
        lambda folder: [
            ["venv", "--clear", "--python", sys.executable, str(folder)],
            ["pip", "install", "--python", str(folder), f"torch=={_TORCH}", "numpy", "pyarrow"],
        ],
    )


def with_packages(*packages: str) -> Path:
    """Return the interpreter of an environment with packages that the documents name."""
    digest = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:12]
    return _made(
        f"packages-{digest}",
        lambda folder: [
            ["venv", "--clear", "--python", sys.executable, str(folder)],
            ["pip", "install", "--python", str(folder), *packages],
        ],
    )


def _python(name: str, *what: str) -> Path:
    """Return the interpreter of an environment; it is made once for each state of the lock."""
    digest = hashlib.sha256((ROOT / "uv.lock").read_bytes()).hexdigest()[:12]
    options = ["--no-default-groups", "--no-install-project", "--python", sys.executable]
    return _made(f"{name}-{digest}", lambda _: [["sync", "--locked", *what, *options]])


def _made(name: str, commands: Callable[[Path], list[list[str]]]) -> Path:
    """Return the interpreter of an environment, after making it with uv if it does not exist."""
    folder = cache() / f"{name}-{_PYTHON}"
    ready = folder / ".ready"
    cache().mkdir(parents=True, exist_ok=True)
    with open(cache() / f"{name.partition('-')[0]}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():
            own = ROOT / ".tools" / "bin" / "uv"
            uv = shutil.which("uv") or (str(own) if own.exists() else None)
            if not uv:
                raise RuntimeError(f"no uv to install the environment {name} with; Fix: make setup")
            for command in commands(folder):
                made = subprocess.run(
                    [uv, *command],
                    cwd=ROOT,
                    env=os.environ | {"UV_PROJECT_ENVIRONMENT": str(folder)},
                    capture_output=True,
                    text=True,
                )
                if made.returncode:
                    raise RuntimeError(f"uv could not install {name}: {made.stderr[-2000:]}")
            ready.touch()
    return folder / "bin" / "python"
