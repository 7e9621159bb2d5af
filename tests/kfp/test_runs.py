"""Runs to a champion: with pods of steps as the run wants them, by REST, and two at once."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kfp_tfjob.options.container_images import tools_in, trainer_in
from kfp_tfjob.pipelines.compilation import pinned
from tests.kfp import cluster
from tests.kfp.lab import POD, Lab

pytestmark = pytest.mark.kfp

# Preflight returns these to the setters of the pods of steps.
_TOLERATION = {"key": "test-kfp", "operator": "Exists", "effect": "NoSchedule"}
_PLACE = {"node_selector": {"kubernetes.io/os": "linux"}, "tolerations": [_TOLERATION]}
_PODS = {
    "prepare": {"cpu": "60m", "memory": "700Mi", **_PLACE},
    "evaluate": {"cpu": "70m", "memory": "1900Mi", **_PLACE},
}
# The pods of steps that a run sizes: the key of `pod`, and the image.
_SIZED = {
    "prepare-data": ("prepare", tools_in),
    "evaluate": ("evaluate", trainer_in),
    "publish": ("evaluate", trainer_in),
}


def test_champion(lab: Lab, row) -> None:
    run = lab.start("champion", train_workers=1, pod=POD | _PODS)
    assert lab.finished(run) == "SUCCEEDED"
    pods = _specs(run)
    for step, (key, image) in _SIZED.items():
        main = _main(pods[step])
        cpu, memory = _PODS[key]["cpu"], _PODS[key]["memory"]
        requests = {"cpu": cpu, "memory": memory}
        assert main["resources"] == {"requests": requests, "limits": {"memory": memory}}
        assert main["image"] == pinned(image(lab.settings.registry))
        assert pods[step]["nodeSelector"] == _PLACE["node_selector"]
        assert _TOLERATION in pods[step]["tolerations"]
    assert "nodeSelector" not in pods["sync-output"]
    assert lab.bucket.verified(f"runs/{run}")["run_id"] == run
    assert lab.bucket.champions("champion") == [run]
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
    assert lab.bucket.champions("rest") == [run]
    pods, compiled = _specs(run), {"cpu": "50m", "memory": "2Gi"}
    for step in _SIZED:  # the parameters do not mention them
        found = {"requests": compiled, "limits": {"memory": compiled["memory"]}}
        assert _main(pods[step])["resources"] == found
        assert "nodeSelector" not in pods[step]
        assert _TOLERATION not in pods[step]["tolerations"]
    row(run)


def _specs(run_id: str) -> dict[str, dict[str, Any]]:
    return {cluster.node(pod): pod["spec"] for pod in cluster.pods(run_id)}


def _main(spec: dict[str, Any]) -> dict[str, Any]:
    (found,) = (it for it in spec["containers"] if it["name"] == "main")
    return found


def test_two_at_once(lab: Lab, row) -> None:
    runs = [lab.start("twins"), lab.start("twins")]
    assert [lab.finished(run) for run in runs] == ["SUCCEEDED", "SUCCEEDED"]
    for run in runs:
        assert lab.bucket.verified(f"runs/{run}")["run_id"] == run
    (champion,) = lab.bucket.champions("twins")  # the same data and seed give the same weights
    verdicts = {run: lab.client.run(run).verdict for run in runs}
    assert verdicts.pop(champion) == "published"
    assert set(verdicts.values()) <= {"not blessed", "lost the race"}
    for run in runs:
        row(run)
