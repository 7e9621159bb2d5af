"""A user's own packages with the names of folders of this project."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kfp_tfjob.storage.store import Store
from kfp_tfjob.user_code.model_code import ModelCode


def run(arguments: list[str], folder: Path, *paths: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, "-X", "utf8", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_model_code_in_a_folder_uses_its_own_package(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As preflight reads the folder, setup unpacks it and the trainer imports it."""
    from kfp_tfjob.trainer.user_model import find

    given, unpacked = tmp_path / "given", tmp_path / "unpacked"
    (given / "components").mkdir(parents=True)
    (given / "components" / "__init__.py").touch()
    (given / "components" / "layers.py").write_text("UNITS = 8\n")
    (given / "model.py").write_text(
        "from components import layers\n"
        "from kfp_tfjob.components.step import Step\n"
        "def build_model(dataset):\n"
        "    return layers.UNITS, layers.__file__, Step.__module__\n"
    )
    code = ModelCode(str(given), "build_model").read(Store("http://127.0.0.1:1"))
    assert code.module == "model" and not code.problems("build_model", {})
    for name, data in code.files.items():
        (unpacked / name).parent.mkdir(parents=True, exist_ok=True)
        (unpacked / name).write_bytes(data)
    monkeypatch.setattr(sys, "path", [str(repository), *sys.path])  # has our own of this name
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    own = str(unpacked / "components" / "layers.py")
    assert find("model:build_model", unpacked)(None) == (8, own, "kfp_tfjob.components.step")


def test_a_pipeline_of_the_user_uses_a_step_beside_its_own_components(
    tmp_path: Path, repository: Path
) -> None:
    for package in ("components", "trainer"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("NAME = 'mine'\n")
    (tmp_path / "own.py").write_text(
        """
import components, trainer
from kfp import compiler, dsl
from kfp_tfjob.components.launch_tfjob.component import launch_tfjob

assert components.NAME == trainer.NAME == "mine"


@dsl.pipeline
def own(output_uri: str):
    inputs = launch_tfjob.component_spec.inputs
    values = {"Integer": 1, "Dict": {}, "JsonObject": {}}
    values = {name: values.get(item.type, "x") for name, item in inputs.items()}
    launch_tfjob(**values | {"output_uri": output_uri})


compiler.Compiler().compile(own, "own.yaml")
"""
    )
    done = run(["own.py"], tmp_path, repository)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "own.yaml").read_text()
    assert "kfp_tfjob.components.launch_tfjob" in text
