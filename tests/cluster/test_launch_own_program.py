"""A program of a user's own in the shape of a tutorial, in the trainer image."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kfp_tfjob.features.served_model import ServedModel, Task
from kfp_tfjob.jobs.record import read_ends
from kfp_tfjob.uploader import pull, push
from tests.cluster.launches import ROOT
from tests.local import tiny_dataset

pytestmark = pytest.mark.cluster
PROGRAM = ROOT / "examples" / "tutorial_train.py"
LARGE = {"cpu": "200m", "memory": "1500Mi", "ephemeral_storage": "500Mi", "shared_memory": "64Mi"}
_SECONDS = 900.0  # of a training on a machine that is busy


def test_a_tutorial_with_keras_2(launch, row, tmp_path: Path) -> None:
    step = launch.step
    data = step.layout.dataset("tiny")
    tiny_dataset.send(step.store, tiny_dataset.write(tmp_path / "data"), data)
    code = tmp_path / "code"
    code.mkdir()
    (code / PROGRAM.name).write_bytes(PROGRAM.read_bytes())
    push(step.store, code, step.run.code, "code", run_id=step.run_id)
    options = {
        "command": ["python3", f"$(JOB_DIR)/code/{PROGRAM.name}"],
        "stage_data": True,
        "stall_timeout_seconds": 600,
        "deadline_seconds": 900,
    }
    spec = launch.spec(workers=1, pod={"all": LARGE}, batch=64, **options)
    spec = replace(spec, dataset_uri=str(data), code_uri=str(step.run.code))
    launch.start(spec).join(_SECONDS)
    row(launch, "succeeded", 0, jobs=1)
    (end,) = read_ends(step.store, step.run).values()
    assert [pod.replica for pod in end.pods] == ["chief-0", "worker-0"]
    for replica in ("chief-0", "worker-0"):
        assert launch.said("the program gets Keras 2", replica)
    pull(step.store, step.run.base, tmp_path, lambda key: key.startswith("output/model/"))
    task = Task(
        "classification",
        tiny_dataset.FEATURES,
        tiny_dataset.CLASSES,
        ("number",) * len(tiny_dataset.FEATURES),
        is_packed=True,
    )
    model = ServedModel(tmp_path / "output" / "model", task, "the model")
    assert model.predict(task.example(5)).shape == (5, len(tiny_dataset.CLASSES))
