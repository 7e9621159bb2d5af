"""The example in each component's README, compiled and run as its reader does."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kfp_tfjob.components import STEPS
from kfp_tfjob.options.parameters import PARAMETERS
from kfp_tfjob.pipelines.compilation import parse
from tests.component_examples import compile_example
from tests.kfp.lab import Lab
from tests.kfp.metadata import artifacts, card

pytestmark = pytest.mark.kfp

_SECRET = str(PARAMETERS["storage_secret"].default)  # the examples do not name the Secret
_WITHOUT_FILE = ("system.Metrics", "system.ClassificationMetrics")


@pytest.mark.parametrize("step", STEPS)
def test_example(lab: Lab, row, step: str, tmp_path: Path) -> None:
    file = compile_example(step, Path(lab.package).parent, tmp_path)
    text = file.read_text().replace(_SECRET, lab.settings.secret)
    file.write_text(text)
    pipeline = parse(text)[0]
    name = step.replace("_", "-")
    model = f"example-{name}"
    values = lab.parameters(model)
    inputs = pipeline["root"]["inputDefinitions"]["parameters"]
    run = lab.start_file(model, file, {key: values[key] for key in inputs})
    assert lab.finished(run) == "SUCCEEDED"
    if step != "prepare_data":
        assert lab.bucket.verified(f"runs/{run}")["run_id"] == run
    if step == "evaluate":
        assert lab.bucket.document(f"runs/{run}/evaluation/verdict.json")["blessed"]
    assert lab.bucket.champions(model) == ([run] if step == "publish" else [])
    if lab.settings.chromium:  # without a browser, the UI may not be there
        _check_artifacts(lab, run, pipeline["components"][f"comp-{name}"]["outputDefinitions"])
    row(run)


def _check_artifacts(lab: Lab, run: str, outputs: Mapping[str, Any]) -> None:
    """Compare the run's artifacts with the declared outputs of a component."""
    made = artifacts(lab.settings.ui, run)
    for name, output in outputs["artifacts"].items():
        artifact = made[name]
        assert artifact.kind == output["artifactType"]["schemaTitle"]
        assert artifact.kind in _WITHOUT_FILE or card(lab.settings.ui, artifact)
        if artifact.kind == "system.Dataset":
            lab.bucket.verified(lab.bucket.key(artifact.metadata["uri"]))
