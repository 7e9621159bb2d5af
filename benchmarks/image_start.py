"""Seconds from the start of a process in an image to the point where it begins its work.

    python -m benchmarks.image_start TOOLS_ROOT TRAINER_ROOT

Each root is the file system of an image, for example of `buildah mount`. Needs root. "cold" reads
every file from the disk: the benchmark drops the files of the image, and no others, from the cache.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

_USER = "1000:0"
_REPEATS = 5
_PATH = "PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ENVIRONMENT = [_PATH, "HOME=/tmp", "PYTHONDONTWRITEBYTECODE=1"]
_EXECUTOR = "import kfp.dsl.executor_main"
_ENTRIES = {
    "tools": {
        "python": "pass",
        "executor of KFP": _EXECUTOR,
        "preflight": f"{_EXECUTOR}; import kfp_tfjob.components.preflight.engine",
        "prepare_data": f"{_EXECUTOR}; import kfp_tfjob.components.prepare_data.engine",
        "launch_tfjob": f"{_EXECUTOR}; import kfp_tfjob.components.launch_tfjob.engine",
        "sync_output": f"{_EXECUTOR}; import kfp_tfjob.components.sync_output.sync",
        "publish": f"{_EXECUTOR}; import kfp_tfjob.components.publish.engine",
        "finish": f"{_EXECUTOR}; import kfp_tfjob.components.finish.engine",
        "setup": "import kfp_tfjob.components.launch_tfjob.setup, kfp_tfjob.storage.store",
        "uploader": "import kfp_tfjob.uploader.watch",
    },
    "trainer": {
        "executor of KFP": _EXECUTOR,
        "evaluate": f"{_EXECUTOR}; import kfp_tfjob.components.evaluate.engine, tensorflow",
        "trainer": "import kfp_tfjob.trainer.loop, tensorflow",
    },
}


def _start(root: Path, program: str) -> tuple[float, float]:
    """Return seconds by the clock, and of the processor."""
    command = ["chroot", f"--userspec={_USER}", root, "env", "-i", *_ENVIRONMENT]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run([*command, "python3", "-c", program], check=True, stderr=subprocess.DEVNULL)
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, used


def _forget(root: Path) -> None:
    """Drop every file below a folder from the cache of the kernel."""
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            if path.is_file() and not path.is_symlink():
                file = os.open(path, os.O_RDONLY)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(file)


def main() -> None:
    """Print a table."""
    print("| image | entry | cold s | warm s | warm CPU s |\n|---|---|---|---|---|")
    for (image, entries), root in zip(_ENTRIES.items(), map(Path, sys.argv[1:]), strict=True):
        for entry, program in entries.items():
            _forget(root)
            cold, _ = _start(root, program)
            warm = [_start(root, program) for _ in range(_REPEATS)]
            seconds, used = (statistics.median(column) for column in zip(*warm, strict=True))
            print(f"| {image} | {entry} | {cold:.1f} | {seconds:.2f} | {used:.2f} |", flush=True)


if __name__ == "__main__":
    main()
