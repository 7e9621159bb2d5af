"""A step as any user in group 0, without a home and without a name: as clusters start pods."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kfp_tfjob.pipelines.compilation import FOLDER
from kfp_tfjob.storage.credentials import MOUNT_VARIABLE

# A user namespace of one user: no root is needed, and files of this user are still readable.
AS_ANY_USER = ["unshare", "--user", "--map-user=12345", "--map-group=0"]
NO_HOME = {"HOME": "/proc", "PATH": f"{Path(sys.executable).parent}:{os.defpath}"}


@pytest.fixture(autouse=True)
def user_namespaces() -> None:
    allowed = shutil.which("unshare") and not subprocess.run([*AS_ANY_USER, "true"]).returncode
    if not allowed:
        pytest.skip("this machine has no user namespaces")


def run(command: list[str], repository: Path, **environment: str) -> str:
    done = subprocess.run(
        [*AS_ANY_USER, *command],
        env=NO_HOME | {"PYTHONPATH": str(repository)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_it_has_neither_a_name_nor_a_home(repository: Path) -> None:
    said = run(["sh", "-c", "id -u; id -g; id -un 2>&1 || touch ~/x || echo alone"], repository)
    assert said.split()[:2] == ["12345", "0"] and said.split()[-1] == "alone"


def test_a_compiled_step_runs(s3, store, base, tmp_path: Path, repository: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n" + "".join(f"{i},{i % 2}\n" for i in range(60)))
    compiled = next(yaml.safe_load_all((FOLDER / "prepare_data.yaml").read_text()))
    container = compiled["deploymentSpec"]["executors"]["exec-prepare-data"]["container"]
    outputs = compiled["components"]["comp-prepare-data"]["outputDefinitions"]
    told = {
        "inputs": {
            "parameterValues": {
                "run_id": "r1",
                "output_uri": str(base),
                "storage_endpoint": "",
                "storage_region": "",
                "data_uri": str(tmp_path / "a.csv"),
                "data_label": "y",
                "data_options": {},
                "source_digest": "",
            }
        },
        "outputs": {
            "parameters": {
                name: {"outputFile": str(tmp_path / name)} for name in outputs["parameters"]
            },
            "artifacts": {
                name: {
                    "artifacts": [
                        {
                            "name": name,
                            "type": item["artifactType"],
                            "uri": str(tmp_path / name),
                            "metadata": {},
                        }
                    ]
                }
                for name, item in outputs["artifacts"].items()
            },
            "outputFile": str(tmp_path / "executor_output.json"),
        },
    }
    arguments = [json.dumps(told) if text == "{{$}}" else text for text in container["args"]]
    command = [*container["command"], *arguments]
    said = run(command, repository, **{MOUNT_VARIABLE: str(s3.secret)})
    assert " rows: " in said
    assert (tmp_path / "data_report").read_text().startswith("<!doctype html>")
    done = json.loads((tmp_path / "executor_output.json").read_text())
    (page,) = done["artifacts"]["data_report"]["artifacts"]
    address = done["parameterValues"]["dataset_uri"]
    assert page["metadata"] == {"dataset_uri": address, "reused": False}


@pytest.mark.slow
def test_tensorflow_and_keras_start(repository: Path) -> None:
    program = (
        "from kfp_tfjob.features.tensorflow_import import load; load(gpus=0)\n"
        "import keras; print(keras.__version__)"
    )
    run([sys.executable, "-c", program], repository)
