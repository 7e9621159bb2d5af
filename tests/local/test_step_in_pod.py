"""The program in the pod of a step's Job as a process, on the real store: the same result."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kfp_tfjob.components.evaluate.engine import Evaluation
from kfp_tfjob.components.evaluate.in_pod import run_or_read
from kfp_tfjob.components.prepare_data import engine as prepare
from kfp_tfjob.components.step import Step
from kfp_tfjob.components.step_job import INPUTS, JOB_UID
from kfp_tfjob.components.step_job_pod import place_of
from kfp_tfjob.options.gate import DEFAULT_GATE
from kfp_tfjob.storage.credentials import MOUNT_VARIABLE
from kfp_tfjob.storage.errors import StepError
from kfp_tfjob.storage.layout import Layout
from tests.local.test_evaluate_publish import MODEL, Bench, packed
from tests.local.test_evaluate_publish import rows as rows  # a fixture

UID = "5f0e"


@pytest.fixture
def pod(s3, repository: Path):
    """Run the program of a step with inputs; return its exit code."""

    def run(step: Step, inputs: dict[str, Any]) -> int:
        place = place_of(step, s3.store().endpoint, "us-east-1", str(step.layout.root))
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(repository),
            MOUNT_VARIABLE: str(s3.secret),
            INPUTS: json.dumps({**place, **inputs}),
            JOB_UID: UID,
        }
        program = f"kfp_tfjob.components.{step.name}.in_pod"
        command = [sys.executable, "-m", program]
        return subprocess.run(command, env=environment, cwd=repository).returncode

    return run


def timeless(done: Evaluation) -> Any:
    """Return an evaluation without what a machine measures each time."""
    metrics = {name: value for name, value in done.metrics.items() if "latency" not in name}
    return json.loads(json.dumps({**vars(done), "metrics": metrics, "html": ""}))


def test_evaluate(store, base, tmp_path, request, pod) -> None:
    bench = Bench(store, base, tmp_path, request.getfixturevalue("rows"))
    bench.train("r1", 0.3, packed)
    step = Step("evaluate", "r1", bench.layout, store)
    inputs = (str(bench.dataset), MODEL, bench.model_uri("r1"), DEFAULT_GATE, "")

    def elsewhere(given: Any) -> str:
        assert pod(step, dict(given)) == 0
        return UID

    there = run_or_read(step, elsewhere, *inputs)
    assert there.html.encode() == store.read(step.run.report)
    here = run_or_read(step, None, *inputs)
    assert there.blessed and there.confusion and "<html" in there.html
    assert timeless(there) == timeless(here)
    with pytest.raises(StepError, match="its result is not in the store"):
        run_or_read(step, lambda _: "another", *inputs)


def test_prepare_data(store, base, pod) -> None:
    lines = "".join(f"{i},{i % 7},{i % 2}\n" for i in range(400))
    source = base / "data.csv"
    store.write(source, f"a,b,y\n{lines}".encode())
    step = Step("prepare_data", "r1", Layout(base / "out"), store)
    asked = []

    def elsewhere(given: Any) -> None:
        asked.append(given)
        assert pod(step, dict(given)) == 0

    first = prepare.run(step, str(source), "y", {}, elsewhere=elsewhere)
    assert not first.reused and sum(first.rows.values()) == 400
    again = prepare.run(step, str(source), "y", {}, elsewhere=elsewhere)
    assert again.reused and again.dataset_uri == first.dataset_uri and len(asked) == 1
    # The pod refuses data that has changed since the step looked at it.
    store.write(source, b"a,b,y\n1,2,0\n")
    assert pod(step, asked[0]) == 3


def test_a_dataset_that_the_pod_has_not_completed_is_a_failure(store, base) -> None:
    source = base / "data.csv"
    store.write(source, b"a,b,y\n1,2,0\n")
    step = Step("prepare_data", "r1", Layout(base / "out"), store)
    with pytest.raises(StepError, match="its dataset is not complete"):
        prepare.run(step, str(source), "y", {}, elsewhere=lambda _: None)
