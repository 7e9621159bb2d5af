"""The type checker, with the project's configuration: it sees every folder, and each once."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

WRONG = 'number: int = "text"\n'
TOO_NEW = "match 1:\n    case _:\n        pass\n"  # Python 3.10
FOLDERS = ("components", "examples", "images", "pipelines", "trainer", "uploader")


@pytest.mark.timeout(1800)  # one minute of a core alone, and far more on a busy machine
def test_the_project_has_no_type_errors(repository: Path) -> None:
    program = str(Path(sys.executable).with_name("basedpyright"))
    done = subprocess.run(
        [program, "--level", "error"], cwd=repository, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_an_error_in_any_folder_is_found_once(repository: Path, tmp_path: Path) -> None:
    package = repository / "kfp_tfjob"
    own = [path.name for path in package.iterdir() if path.is_dir() and path.name[0] not in "._"]
    planted = {f"kfp_tfjob/{name}" for name in own if not (package / name).is_symlink()}
    for folder in (*FOLDERS, *planted):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "wrong.py").write_text(WRONG)
    for link in (name for name in own if (package / name).is_symlink()):
        (tmp_path / "kfp_tfjob" / link).symlink_to(os.readlink(package / link))
    (tmp_path / "kfp_tfjob/supervisor/new.py").write_text(TOO_NEW)
    (tmp_path / "trainer/new.py").write_text(TOO_NEW)
    (tmp_path / "pyproject.toml").write_bytes((repository / "pyproject.toml").read_bytes())
    (tmp_path / ".venv").symlink_to(sys.prefix)

    program = str(Path(sys.executable).with_name("basedpyright"))
    command = [program, "--project", str(tmp_path / "pyproject.toml"), "--outputjson"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    found = Counter(
        Path(item["file"]).relative_to(tmp_path).as_posix()
        for item in json.loads(done.stdout)["generalDiagnostics"]
        if item["severity"] == "error"
    )
    wrong = {f"{folder}/wrong.py" for folder in (*FOLDERS, *planted)}
    assert done.returncode == 1
    assert found == dict.fromkeys(wrong | {"kfp_tfjob/supervisor/new.py"}, 1)
