"""examples/sweep.py, killed twice, with a fake back end whose runs end after a few looks."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.environments import ROOT, run_python
from tests.local.fake_pipelines import FakePipelines

pytestmark = pytest.mark.slow
LOOKS = 6  # requests for a run until it has ended


def test_a_sweep_that_is_killed_twice_trains_nothing_twice(
    ci_job: None, fake: FakePipelines, store: Store, base: S3Address, package: Path, tmp_path: Path
) -> None:
    store.write(base / "rows.csv", b"a,y\n1,0\n2,1\n")
    parameters = {"data_uri": f"{base}/rows.csv", "data_label": "y", "model_name": "m"}
    parameters |= {"output_uri": str(base), "train_image": "registry.example/trainer:1"}
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(parameters))
    looks: Counter[str] = Counter()
    most = [0]

    def train(method: str, path: str) -> None:
        """Let the run that is asked for train, and end it after some looks."""
        in_flight = [run for run in fake.runs.values() if run.state != "SUCCEEDED"]
        most[0] = max(most[0], len(in_flight))
        run = fake.runs.get(path.rpartition("/")[2])
        if not run or run.state == "SUCCEEDED":
            return
        looks[run.run_id] += 1
        if looks[run.run_id] < LOOKS:
            return
        rate = run.runtime_config.parameters["model_hyperparameters"]["learning_rate"]
        event = {"event": "final", "time": 1, "epoch": 1, "step": 1, "steps": 1}
        event |= {"metrics": {"val_accuracy": 1 - abs(rate - 3e-3)}}
        store.write(Layout(base).run(run.run_id).progress, json.dumps(event).encode())
        fake.task(run, "launch_tfjob", "SUCCEEDED")
        run.state = "SUCCEEDED"

    fake.broken = train
    command = ["-m", "examples.sweep", "train.yaml", "pets-sweep", "--pipeline", str(package)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    for lines in (2, 3):  # the second and the third process know of trials in flight
        with subprocess.Popen(
            [sys.executable, *command],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout
            for _ in range(lines):
                assert process.stdout.readline().startswith("trial ")
            process.send_signal(signal.SIGKILL)
    done = run_python(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    created = [path for method, path in fake.requests if (method, path[-5:]) == ("POST", "/runs")]
    names = sorted(run.display_name for run in fake.runs.values())
    assert names == sorted(f"pets-sweep-{it}" for it in [*range(12), "best"])
    assert len(created) == 13
    assert most[0] <= 2
    trials = [run for run in fake.runs.values() if not run.display_name.endswith("best")]
    assert all(not it.runtime_config.parameters["train_options"]["evaluate"] for it in trials)
    (best,) = (run for run in fake.runs.values() if run.display_name == "pets-sweep-best")
    given = best.runtime_config.parameters
    rates = [it.runtime_config.parameters["model_hyperparameters"] for it in trials]
    assert given["model_hyperparameters"] == min(
        rates, key=lambda it: abs(it["learning_rate"] - 3e-3)
    )
    assert given["train_options"].get("evaluate", True) and given["gate"]
