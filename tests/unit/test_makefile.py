"""The Python that `make setup` takes: one that this machine has, without a download."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.environments import ROOT

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
BASE = Path(sys.base_prefix, "bin", f"python{VERSION}")
# As pyenv has it for a version that is installed but not active.
INACTIVE = "#!/bin/sh\necho 'pyenv: command not found' >&2\nexit 127\n"
BROKEN = ("python3.11", "python3.12", "python3.13", "python3")


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with the programs that the rule runs, and no Python."""
    uv = shutil.which("uv") or str(ROOT / ".tools/bin/uv")
    programs = {name: shutil.which(name) for name in ("make", "sh", "expand", "grep", "sed")}
    for name, path in (programs | {"uv": uv}).items():
        (tmp_path / name).symlink_to(path)
    return tmp_path


def python(programs: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": str(programs), "HOME": str(programs), "SHELL": "/bin/sh"}
    # Where uv installs Pythons of its own, and where it remembers those that it has seen.
    environment |= {"UV_PYTHON_INSTALL_DIR": str(programs), "UV_CACHE_DIR": str(programs / "cache")}
    return subprocess.run(
        ["make", "--silent", "--no-print-directory", "python", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("name", ["python3", f"python{VERSION}"])
def test_setup_takes_a_python_that_runs(programs: Path, name: str) -> None:
    for other in {*BROKEN} - {name}:
        (programs / other).write_text(INACTIVE)
        (programs / other).chmod(0o755)
    (programs / name).symlink_to(BASE)
    chosen = Path(python(programs).stdout.strip())
    assert chosen.resolve() == BASE.resolve()


def test_a_machine_without_one_is_told_so(programs: Path) -> None:
    done = python(programs)
    assert done.returncode and not done.stdout
    assert "3.11 3.12 3.13" in done.stderr and "PYTHON=3.13" in done.stderr


def test_a_choice_wins(programs: Path) -> None:
    (programs / "python3").symlink_to(BASE)
    assert python(programs, "PYTHON=3.13").stdout.strip() == "3.13"


def test_the_pythons_are_those_of_the_package() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (line,) = [line for line in makefile.splitlines() if line.startswith("PYTHONS = ")]
    minors = [int(version.split(".")[1]) for version in line.split()[2:]]
    assert minors == sorted(minors)
    required = f">=3.{minors[0]},<3.{minors[-1] + 1}"
    assert f'requires-python = "{required}"' in (ROOT / "pyproject.toml").read_text()
    assert sys.version_info[1] in minors
