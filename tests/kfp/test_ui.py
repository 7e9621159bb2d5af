"""The UI as a person uses it: upload the YAML, fill in the form, look at the graph and report."""

import json

import pytest
import yaml

from tests.kfp.browser import Browser
from tests.kfp.lab import Lab, until

pytestmark = pytest.mark.kfp


def test_form(lab: Lab, row, browser: Browser | None) -> None:
    if browser is None:
        pytest.skip("there is no chromium: install Debian's, or name one in TEST_KFP_CHROMIUM")
    browser.go("/pipeline_versions/new")
    browser.type("#newPipelineName", f"{lab.name}-ui")
    browser.click("#localPackageBtn")
    browser.choose_file("input[type=file]", lab.package)
    browser.wait("#createNewPipelineOrVersionBtn")
    browser.click("#createNewPipelineOrVersionBtn")
    until("the uploaded pipeline", lambda: "/version/" in browser.route, 60)
    _, _, _, pipeline, _, version = browser.route.split("?")[0].split("/")
    stored = lab.sdk.get_pipeline_version(pipeline, version).pipeline_spec
    with open(lab.package) as file:
        assert stored["pipeline_spec"] == next(yaml.safe_load_all(file))

    browser.go(
        f"/runs/new?pipelineId={pipeline}&pipelineVersionId={version}"
        f"&experimentId={lab.experiment_id}"
    )
    for name, value in lab.parameters("ui").items():
        browser.type(f"#{name}", value if isinstance(value, str) else json.dumps(value))
    browser.shoot("form")
    browser.wait("#startNewRunBtn")
    browser.click("#startNewRunBtn")
    until("the started run", lambda: "/runs/details/" in browser.route, 60)
    run = browser.route.split("/")[3]
    lab.started.append(run)
    assert lab.finished(run) == "SUCCEEDED"
    assert lab.bucket.champions("ui") == [run]
    row(run)

    browser.go(f"/runs/details/{run}")
    browser.open("[data-testid=expand-button]", shows="evaluation_report")
    browser.shoot("graph")
    browser.open("evaluation_report", "Visualization", shows="iframe")
    page = lab.bucket.read(f"runs/{run}/evaluation/report.html").decode()
    until("the report", lambda: browser.run("document.querySelector('iframe').srcdoc") == page, 60)
    browser.shoot("report")
