"""The lines of the README that serve the model of a local run, in the same environment."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from examples import digits
from tests.environments import ROOT
from tests.local.local_run import Run
from tests.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.slow


def test_the_model_of_a_local_run_answers(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (serve,) = re.findall(r"^(kfp-tfjob serve digits) &", readme, re.MULTILINE)
    (ask,) = re.findall(r"^(curl localhost:8080/.*)$", readme, re.MULTILINE)
    digits.write(tmp_path / "digits.csv")
    data = ("--data", str(tmp_path / "digits.csv"), "--label", "digit", "--name", "digits")
    run = Run(tmp_path / ".kfp-tfjob", *data, "--workers", "0", "--epochs", "3")
    assert run.wait() == 0, run.text

    port = free_port()
    environment = os.environ | {"PATH": f"{ROOT / '.venv/bin'}:{os.environ['PATH']}"}
    with open(tmp_path / "log", "w") as log:
        server = subprocess.Popen(
            [*serve.split(), "--port", str(port)], cwd=tmp_path, env=environment, stderr=log
        )
    try:
        command = ask.replace("8080", str(port)).replace("curl", "curl --silent --fail")
        until(lambda: _prediction(command, tmp_path), "an answer of the server", 180)
        (prediction,) = json.loads(_prediction(command, tmp_path))["predictions"]
        assert prediction["class"] in set("0123456789")
        assert sum(prediction["probabilities"]) == pytest.approx(1, abs=1e-5)
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(60)


def _prediction(command: str, folder: Path) -> bytes:
    return subprocess.run(["bash", "-c", command], cwd=folder, stdout=subprocess.PIPE).stdout
