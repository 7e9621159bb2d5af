"""A signal that comes while a program is still being loaded: it is neither lost nor a traceback."""

import fcntl
import mmap
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from kfp_tfjob.jobs.pod_template import SUPERVISOR

ROOT = Path(__file__).parents[2]
SECONDS = 300  # only what hangs reaches it
# Makes Python say on stderr which module it has loaded.
LOUD = ("-X", "importtime")


def can_unshare() -> bool:
    unshare = shutil.which("unshare")
    return bool(unshare) and subprocess.run([unshare, "-pf", "true"]).returncode == 0


first_process = pytest.mark.skipif(not can_unshare(), reason="root and Linux make pid namespaces")


def signalled_at(
    module: str, number: signal.Signals, *words: str, first: bool = False, **extra: str
) -> tuple[int, str]:
    """Send a signal to a program in Python once it has loaded `module`.

    Args:
        first: Whether the program is the first process of a pid namespace.

    Returns:
        Its exit code, and the lines that do not tell what was loaded.
    """
    process = subprocess.Popen(
        [*(("unshare", "-pf") if first else ()), sys.executable, *LOUD, *words],
        cwd=ROOT,
        env=os.environ | extra,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    # The command gets only so far ahead of this process, which may have to wait for a core.
    fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, mmap.PAGESIZE)
    said = []
    for line in process.stdout:
        if not line.startswith("import time:"):
            said.append(line)
        elif line.split("|")[-1].strip() == module:
            break
    else:
        raise AssertionError(f"{module} was never loaded: {''.join(said)}")
    target = psutil.Process(process.pid)
    (target.children()[0] if first else target).send_signal(number)
    try:
        rest, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        for left in (*target.children(recursive=True), target):
            left.kill()
        raise
    said += [line for line in rest.splitlines(True) if not line.startswith("import time:")]
    return process.returncode, "".join(said)


@pytest.mark.parametrize(
    ("module", "number"), [("click", signal.SIGTERM), ("kfp_tfjob.storage.store", signal.SIGINT)]
)
def test_the_command_line_ends_with_the_number_of_the_signal(
    module: str, number: signal.Signals, tmp_path: Path
) -> None:
    options = ["--home", str(tmp_path / "home"), "--data", "x.csv", "--label", "y"]
    code, said = signalled_at(module, number, "-m", "kfp_tfjob.pipelines", "run", *options)
    assert code == 128 + number, said
    assert said.strip().endswith(number.name)


@first_process
def test_the_supervisor_as_first_process_does_not_lose_a_signal(
    supervisor: Path, tmp_path: Path
) -> None:
    program, *flags, packed = SUPERVISOR
    assert (program, packed) == ("python3", f"$(JOB_DIR)/{supervisor.name}")
    command = [*flags, str(supervisor), "--", "sleep", "1000"]
    log = str(tmp_path / "words")
    for module in ("kfp_tfjob.supervisor.exit_codes", "ctypes", "json"):
        code, said = signalled_at(module, signal.SIGTERM, *command, first=True, TERMINATION_LOG=log)
        assert (code, " signal" in said) == (143, True), said


@first_process
def test_setup_as_first_process_ends_at_once() -> None:
    module = "kfp_tfjob.components.launch_tfjob.setup"
    code, said = signalled_at("logging", signal.SIGTERM, "-m", module, first=True)
    assert code == 143, said


@first_process
def test_the_sidecar_as_first_process_ends_when_it_is_told_to(tmp_path: Path, s3, base) -> None:
    output = tmp_path / "output"
    output.mkdir()
    watch = ["-m", "kfp_tfjob.uploader", "watch", str(output), f"{base}/runs/r", "--attempt", "1"]
    secret = str(s3.secret)
    code, said = signalled_at(
        "argparse", signal.SIGTERM, *watch, first=True, STORAGE_SECRET_DIR=secret
    )
    assert code == 0, said
