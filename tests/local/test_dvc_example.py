"""examples/dvc with DVC from PyPI: a run reads the version of the data that the commit names."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.store import Store
from tests.environments import ROOT, with_packages
from tests.local.fake_pipelines import FakePipelines

pytestmark = pytest.mark.slow


@pytest.mark.usefixtures("ci_job")
def test_a_run_reads_the_data_of_its_commit(
    fake: FakePipelines,
    s3: Server,
    store: Store,
    base: S3Address,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dvc = with_packages("dvc[s3]==3.67.1")
    monkeypatch.setenv("PATH", f"{dvc.parent}:{os.environ['PATH']}")
    project = tmp_path / "project"
    shutil.copytree(ROOT / "examples/dvc", project)
    parameters = {"data_label": "y", "model_name": "m", "output_uri": f"{base}/out"}
    (project / "train.yaml").write_text(yaml.safe_dump(parameters))

    def run(*command: str) -> None:
        subprocess.run(command, cwd=project, check=True, timeout=300)

    def succeed(*_: object) -> None:
        for submitted in fake.runs.values():
            submitted.state = "SUCCEEDED"

    fake.broken = succeed
    run("git", "init", "--quiet")
    run("dvc", "init", "--quiet")
    run("dvc", "remote", "add", "--default", "store", f"{base}/dvc")
    run("dvc", "remote", "modify", "store", "endpointurl", s3.endpoint)
    versions = ["a,y\n" + "".join(f"{row},{row % 2}\n" for row in range(rows)) for rows in (60, 80)]
    for text in versions:
        (project / "data.csv").write_text(text)
        run("dvc", "add", "data.csv")
        run("dvc", "push")
        run("dvc", "repro")
        run("dvc", "repro")  # nothing has changed
    configs = [submitted.to_dict()["runtime_config"] for submitted in fake.runs.values()]
    addresses = [config["parameters"]["data_uri"] for config in configs]
    read = [store.read(S3Address.parse(address, "data_uri")).decode() for address in addresses]
    assert read == versions
    # The object's name is a hash without an ending, which the steps read as well.
    where = ("--endpoint", s3.endpoint, "--output", f"{base}/out", "--workers", "0")
    run("kfp-tfjob", "run", "--data", addresses[-1], "--label", "y", *where, "--epochs", "1")
