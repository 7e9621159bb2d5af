"""The folder of a version while it is loaded: a server that is killed leaves none behind."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kfp_tfjob.serving.scratch import scratch

_KILLED = """
import time
from kfp_tfjob.serving.scratch import scratch
with scratch() as folder:
    (folder / "model").write_bytes(b"graph")
    print(folder, flush=True)
    time.sleep(600)
"""


def test_what_a_killed_server_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", _KILLED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as other:
        assert other.stdout is not None
        left = Path(other.stdout.readline().strip())
        with scratch() as folder:  # that of a server that runs stays
            assert (left / "model").is_file() and list(folder.iterdir()) == []
        assert not folder.parent.exists()
        other.send_signal(signal.SIGKILL)
        other.wait()
    assert (left / "model").is_file()
    with scratch():
        assert not left.parent.exists()
    assert list(tmp_path.iterdir()) == []
