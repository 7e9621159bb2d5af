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
from tests.local.fake_pipelines import FakePipelines

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def dvc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, in an environment of its own."""
    uv = shutil.which("uv") or ROOT / ".tools/bin/uv"
    folder = tmp_path_factory.mktemp("dvc")
    subprocess.run([uv, "venv", "--quiet", folder], check=True)
    python = folder / "bin/python"
    subprocess.run([uv, "pip", "install", "--quiet", "--python", python, "dvc[s3]"], check=True)
    return folder / "bin/dvc"


@pytest.mark.usefixtures("ci_job")
def test_a_run_reads_the_data_of_its_commit(
    dvc: Path,
    fake: FakePipelines,
    s3: Server,
    store: Store,
    base: S3Address,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", f"{dvc.parent}:{os.environ['PATH']}")
    project = tmp_path / "project"
    shutil.copytree(ROOT / "examples/dvc", project)
    parameters = {"data_label": "y", "model_name": "m", "output_uri": f"{base}/out"}
    (project / "train.yaml").write_text(yaml.safe_dump(parameters))

    def run(*command: str) -> None:
        subprocess.run(command, cwd=project, check=True, timeout=300)

    def ended(*_: object) -> None:
        for each in fake.runs.values():
            each.state = "SUCCEEDED"

    fake.broken = ended
    run("git", "init", "--quiet")
    run("dvc", "init", "--quiet")
    run("dvc", "remote", "add", "--default", "store", f"{base}/dvc")
    run("dvc", "remote", "modify", "store", "endpointurl", s3.endpoint)
    versions = ["a,y\n1,0\n2,1\n", "a,y\n1,0\n2,1\n3,0\n"]
    for text in versions:
        (project / "data.csv").write_text(text)
        run("dvc", "add", "data.csv")
        run("dvc", "push")
        run("dvc", "repro")
        run("dvc", "repro")  # nothing has changed
    given = [each.runtime_config.parameters for each in fake.runs.values()]
    read = [store.read(S3Address.parse(it["data_uri"], "data_uri")).decode() for it in given]
    assert read == versions
    assert [it["data_options"]["format"] for it in given] == ["csv", "csv"]
