"""Runs to a champion, one by one and at once, by REST, and with resources of their own."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.kfp import cluster
from tests.kfp.lab import Lab, until
from tests.kfp.parameters import POD

pytestmark = pytest.mark.kfp


def test_champion(lab: Lab, row) -> None:
    run = lab.start("champion", train_workers=1)
    assert lab.finished(run) == "SUCCEEDED"
    assert lab.bucket.verified(f"runs/{run}")["run_id"] == run
    assert [it["run_id"] for it in lab.bucket.champions("champion")] == [run]
    assert lab.client.run(run).verdict == "published"
    row(run)


def test_rest(lab: Lab, row, repository: Path, tmp_path: Path) -> None:
    parameters = tmp_path / "parameters.json"
    parameters.write_text(json.dumps(lab.parameters("rest")))
    script = ["sh", "examples/submit_with_curl.sh", lab.pipeline_id, lab.version_id]
    name = f"{lab.name}-rest"
    done = subprocess.run(
        [*script, str(parameters), name],
        cwd=repository,
        env=os.environ | {"EXPERIMENT_ID": lab.experiment_id},
        capture_output=True,
        text=True,
    )
    run = lab.client.run(name).run_id
    lab.started.append(run)
    assert done.returncode == 0, done.stderr
    assert run in done.stdout
    assert [it["run_id"] for it in lab.bucket.champions("rest")] == [run]
    row(run)


def test_two_at_once(lab: Lab, row) -> None:
    runs = [lab.start("twins"), lab.start("twins")]
    assert [lab.finished(run) for run in runs] == ["SUCCEEDED", "SUCCEEDED"]
    for run in runs:
        assert lab.bucket.verified(f"runs/{run}")["run_id"] == run
    (champion,) = lab.bucket.champions("twins")  # the same data and seed give the same weights
    verdicts = {run: lab.client.run(run).verdict for run in runs}
    assert verdicts.pop(champion["run_id"]) == "published"
    assert set(verdicts.values()) <= {"not blessed", "lost the race"}
    for run in runs:
        row(run)


def test_resources_of_steps(lab: Lab, row) -> None:
    wanted = {"prepare": ("410m", "700Mi"), "evaluate": ("620m", "1700Mi")}
    own = {name: {"cpu": cpu, "memory": memory} for name, (cpu, memory) in wanted.items()}
    data = {"drop": ["pixel_0_0"]}  # a dataset that no other scenario has prepared
    run = lab.start("resources", pod=POD | own, data_options=data)
    seen: set[tuple[str, str]] = set()

    def look() -> bool:
        for pod in [*cluster.pods(run), *cluster.pods(run, cluster.JOB)]:
            for container in pod["spec"]["containers"]:
                requests = (container.get("resources") or {}).get("requests") or {}
                seen.add((requests.get("cpu", ""), requests.get("memory", "")))
        return lab.state(run) in ("SUCCEEDED", "FAILED")

    until("its end", look)
    assert lab.state(run) == "SUCCEEDED"
    assert set(wanted.values()) <= seen
    row(run)
