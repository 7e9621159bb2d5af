"""The reader of `kfp-tfjob run` in tests: what holds its pipe open does not hang a test."""

import subprocess

import psutil
import pytest

from tests.local import local_run


def test_a_process_that_is_left_behind_fails_the_test(monkeypatch):
    monkeypatch.setattr(local_run, "PATIENCE", 1)
    run = local_run.Run.__new__(local_run.Run)
    run.lines = []
    command = ["sh", "-c", "echo begun; sleep 600 & echo $!"]
    run._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    run.read_until("begun")
    with pytest.raises(pytest.fail.Exception, match="begun"):
        run.wait()
    psutil.Process(int(run.lines[1])).kill()
    assert run._process.wait(300) == 0
