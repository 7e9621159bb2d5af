"""The type checker, with the project's configuration: it sees every folder, and each once."""

import subprocess
import sys
from pathlib import Path


def test_the_project_has_no_type_errors(repository: Path) -> None:
    program = str(Path(sys.executable).with_name("basedpyright"))
    done = subprocess.run(
        [program, "--level", "error"], cwd=repository, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
