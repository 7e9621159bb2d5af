"""A user's own packages with the names of folders of this project."""

import sys
from pathlib import Path

import pytest

from kfp_tfjob.storage.store import Store
from kfp_tfjob.user_code.model_code import ModelCode


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
