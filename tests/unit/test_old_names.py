"""Names from before the import path kfp_tfjob, and a user's own packages of these names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kfp_tfjob import old_names
from kfp_tfjob.storage.store import Store
from kfp_tfjob.trainer.model_code import ModelCode

SHIMS = str(old_names.SHIMS)


def run(arguments: list[str], folder: Path, *paths: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, "-X", "utf8", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("program", ["trainer", "uploader"])
@pytest.mark.parametrize("where", ["a checkout", "an image"])
def test_an_old_program_starts_with_one_warning(
    program: str, where: str, repository: Path, tmp_path: Path
) -> None:
    places = {"a checkout": (repository, []), "an image": (tmp_path, [SHIMS, repository])}
    folder, paths = places[where]
    done = run(["-m", program, "--help"], folder, *paths)
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: python -m kfp_tfjob.{program} ")
    assert done.stderr == (
        f"warning: python -m {program} is an old name. Fix: write python -m kfp_tfjob.{program}\n"
    )


@pytest.mark.parametrize("regular", [True, False])
def test_a_program_of_the_user_comes_first(regular: bool, tmp_path: Path) -> None:
    package = tmp_path / "own" / "trainer"
    package.mkdir(parents=True)
    (package / "__main__.py").write_text("print('mine')")
    (package / "task.py").write_text("print('my task')")
    if regular:
        (package / "__init__.py").touch()
    # A package without __init__.py has its place in the path and no more.
    paths = [SHIMS, package.parent] if regular else [package.parent, SHIMS]
    # -S: the environment of a checkout has its root, and so our room `trainer`, on the path.
    assert run(["-S", "-m", "trainer"], tmp_path, *paths).stdout == "mine\n"
    assert run(["-S", "-m", "trainer.task"], tmp_path, SHIMS, package.parent).stdout == "my task\n"


def test_the_old_module_of_models_is_ours_unless_the_user_has_one(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert old_names.model_module("kfp_tfjob.trainer.models") == "kfp_tfjob.trainer.models"
    assert old_names.model_module("trainer.task") == "trainer.task"
    assert old_names.model_module("trainer.models") == "kfp_tfjob.trainer.models"
    monkeypatch.syspath_prepend(repository)
    assert old_names.model_module("trainer.models") == "kfp_tfjob.trainer.models"
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "__init__.py").touch()
    assert old_names.model_module("trainer.models") == "kfp_tfjob.trainer.models"
    (tmp_path / "trainer" / "models.py").touch()
    assert old_names.model_module("trainer.models") == "trainer.models"
    assert "trainer" not in sys.modules


def test_model_code_in_a_folder_uses_its_own_package(tmp_path: Path, repository: Path) -> None:
    """As preflight reads the folder, setup unpacks it and the trainer imports it."""
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
    program = (
        "from pathlib import Path\n"
        "from kfp_tfjob.trainer.user_code import find\n"
        "print(*find('model:build_model', Path('unpacked').resolve())(None))"
    )
    done = run(["-c", program], tmp_path, repository)  # where our own room has this name
    own = unpacked / "components" / "layers.py"
    assert done.stdout == f"8 {own} kfp_tfjob.components.step\n", done.stderr


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
