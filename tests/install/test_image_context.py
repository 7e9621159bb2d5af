"""The context of the container images: equal files in any checkout; it builds the wheel twice."""

import os
import subprocess
from pathlib import Path

import pytest

from images.build import ROOT, make_context
from kfp_tfjob.options.container_images import VERSION

pytestmark = pytest.mark.slow


def test_the_context_does_not_depend_on_the_folder_its_times_and_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = make_context(["tools"], tmp_path / "here")
    other = tmp_path / "a clone"
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(command, cwd=ROOT, text=True).splitlines():
        if (ROOT / name).is_file():
            (other / name).parent.mkdir(parents=True, exist_ok=True)
            (other / name).write_bytes((ROOT / name).read_bytes())
            (other / name).chmod(0o600)
            os.utime(other / name, (1e9, 1e9))
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{ROOT / '.tools' / 'bin'}")  # for uv
    monkeypatch.setattr("images.build.ROOT", other)
    there = make_context(["tools"], tmp_path / "there")
    first, second = ({it.name: it.read_bytes() for it in made.iterdir()} for made in (here, there))
    assert first == second
    assert set(first) == {
        "backend.txt",
        "install.sh",
        "tools.txt",
        "tools-sdists.txt",
        f"kfp_tfjob-{VERSION}-py3-none-any.whl",
    }
