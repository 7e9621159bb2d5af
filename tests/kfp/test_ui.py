"""The UI as a person uses it: upload the YAML, fill in the form, look at what the run has made."""

import json
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

import pytest
import yaml

from tests.kfp.browser import Browser
from tests.kfp.lab import Lab, until
from tests.kfp.metadata import artifacts, card

pytestmark = pytest.mark.kfp

_PROGRAM = "import os; open(os.environ['OUTPUT_DIR'] + '/hello.txt', 'w').write('hello')"
_MANIFEST = "manifest.json"
_ROWS = "document.querySelectorAll('[data-testid=table-row]')"


@pytest.fixture
def ui(browser: Browser | None) -> Browser:
    if browser is None:
        pytest.skip("there is no chromium: install Debian's, or name one in TEST_KFP_CHROMIUM")
    return browser


def test_form(lab: Lab, row, ui: Browser) -> None:
    ui.go("/pipeline_versions/new")
    ui.type("#newPipelineName", f"{lab.name}-ui")
    ui.click("#localPackageBtn")
    ui.choose_file("input[type=file]", lab.package)
    ui.wait("#createNewPipelineOrVersionBtn")
    ui.click("#createNewPipelineOrVersionBtn")
    until("the uploaded pipeline", lambda: "/version/" in ui.route, 60)
    _, _, _, pipeline, _, version = ui.route.split("?")[0].split("/")
    stored = lab.sdk.get_pipeline_version(pipeline, version).pipeline_spec
    with open(lab.package) as file:
        assert stored["pipeline_spec"] == next(yaml.safe_load_all(file))

    run = _start(lab, ui, lab.parameters("ui"), (pipeline, version))
    ui.shoot("form")
    five = _start(lab, ui, lab.parameters("five-replicas", train_workers=4))
    assert [lab.finished(started) for started in (run, five)] == ["SUCCEEDED", "SUCCEEDED"]
    assert lab.bucket.champions("ui") == [run]
    assert lab.bucket.champions("five-replicas") == [five]
    row(run)
    row(five, "five replicas")

    ui.go(f"/runs/details/{run}")
    ui.open("[data-testid=expand-button]", shows="evaluation_report")
    ui.click(".react-flow__controls-fitview")
    ui.shoot("graph")
    ui.open("evaluation_report", "Visualization", shows="iframe")
    page = lab.bucket.read(f"runs/{run}/evaluation/report.html").decode()
    until("the report", lambda: ui.run("document.querySelector('iframe').srcdoc") == page, 60)
    ui.shoot("report")

    _check_lineage(lab, run)
    outputs = artifacts(lab.settings.ui, run)
    ui.go("/artifacts")
    ui.wait("Grouped")
    ui.click("Grouped")
    # The dataset and the models are grouped by their run_id, which other artifacts do not have.
    # The UI asks when each artifact of the back end was made: with thousands, this takes minutes.
    group = f"[data-row-id='{outputs['dataset'].id}']"
    _until_listed(ui, "the artifact list", lambda: ui.has(group))
    ui.type("#tableFilterBox", run)  # not earlier: the list that comes last is shown
    _until_listed(ui, "the run's groups", lambda: ui.run(f"{_ROWS}.length") == 2)
    ui.open(f"{group} button", shows="published_model")
    ui.shoot("artifacts")
    ui.go(f"/artifacts/{outputs['published_model'].id}")
    ui.wait("dataset_digest")
    ui.shoot("model")
    ui.go(f"/compare?runlist={run},{five}")
    ui.wait("train_workers")
    ui.click("Run overview")  # which makes room for metrics
    ui.wait("log_loss")
    ui.shoot("compare")


def test_form_without_data(lab: Lab, row, ui: Browser) -> None:
    """The user's own program needs neither data nor a label: both fields stay as they are."""
    command = {"command": ["python3", "-c", _PROGRAM]}
    parameters = lab.parameters("no-data", train_options=command)
    del parameters["data_uri"], parameters["data_label"]
    run = _start(lab, ui, parameters)
    assert lab.finished(run) == "SUCCEEDED"
    lab.bucket.verified(f"runs/{run}")
    assert lab.bucket.read(f"runs/{run}/output/hello.txt") == b"hello"
    assert lab.bucket.champions("no-data") == []
    outputs = artifacts(lab.settings.ui, run)
    assert "uri" not in outputs["dataset"].metadata
    assert outputs["trained_model"].metadata["saved_model"] == 0
    assert "published_model" not in outputs
    row(run)


def _start(
    lab: Lab, ui: Browser, parameters: Mapping[str, Any], pipeline: tuple[str, str] | None = None
) -> str:
    """Fill in the form of a pipeline's version, start the run, and return its id."""
    of, version = pipeline or (lab.pipeline_id, lab.version_id)
    ui.go(f"/runs/new?pipelineId={of}&pipelineVersionId={version}&experimentId={lab.experiment_id}")
    for name, value in parameters.items():
        ui.type(f"#{name}", value if isinstance(value, str) else json.dumps(value))
    ui.wait("#startNewRunBtn")
    ui.click("#startNewRunBtn")
    until("the started run", lambda: "/runs/details/" in ui.route, 60)
    run = ui.route.split("/")[3]
    lab.started.append(run)
    return run


def _until_listed(ui: Browser, what: str, look: Callable[[], bool]) -> None:
    """Wait for a list, and refresh it as a person does: one failed request leaves it empty."""
    until(what, lambda: look() or (ui.click("Refresh") and look()))


def _check_lineage(lab: Lab, run: str) -> None:
    """Follow a published model to its data by the metadata alone, as docs/runs.md says."""
    outputs = artifacts(lab.settings.ui, run)
    kinds = {name: outputs[name].kind for name in ("dataset", "trained_model", "published_model")}
    assert kinds == {
        "dataset": "system.Dataset",
        "trained_model": "system.Model",
        "published_model": "system.Model",
    }
    dataset, trained, published = (outputs[name].metadata for name in kinds)
    for metadata in (dataset, trained, published):
        assert metadata["run_id"] == run
    for key in ("dataset_digest", "schema_digest"):
        assert dataset[key] == trained[key] == published[key]
    assert published["trained_manifest_sha256"] == trained["manifest_sha256"]
    assert (published["outcome"], published["version"]) == ("published", 1)
    assert published["champion"] == 1  # Kubeflow Pipelines has no booleans here
    champion = lab.bucket.document(lab.bucket.key(published["champion_uri"]))
    assert published["exported_weights_sha256"] == champion["weights_digest"]

    folders = {name: lab.bucket.key(outputs[name].metadata["uri"]) for name in kinds}
    folders["trained_model"] = f"runs/{run}"  # its manifest is about all output
    for name, folder in folders.items():
        manifest = lab.bucket.read(f"{folder}/{_MANIFEST}")
        assert sha256(manifest).hexdigest() == outputs[name].metadata["manifest_sha256"]

    cards = {name: card(lab.settings.ui, outputs[name]) for name in kinds}
    assert cards["dataset"] == lab.bucket.read(f"{folders['dataset']}/schema.json")
    assert cards["published_model"] == lab.bucket.read(f"{folders['published_model']}/README.md")
    assert trained["uri"] in cards["trained_model"].decode()
