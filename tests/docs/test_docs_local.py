"""The `local` commands of the documents do what they show, one page after the other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import DOCUMENTS, ROOT, blocks_of, script
from tests.local.local_run import end_run

SECONDS = 1200  # for a page; only what hangs reaches it
PAGES = {
    str(path.relative_to(ROOT)): found
    for path in DOCUMENTS
    if (found := [it for it in blocks_of(path) if "local" in it.classes])
}
SLOW = {
    page: blocks for page, blocks in PAGES.items() if any("slow" in it.classes for it in blocks)
}


@pytest.fixture
def checkout(tmp_path: Path):
    """A folder that looks like the checkout, in which commands may leave files."""
    own = {".git", ".kfp-tfjob", "digits.csv", "people.csv", "site"}
    # Here it is set up already; `make` in a folder of links would write its path into the programs.
    if (ready := ROOT / ".venv" / ".ready").exists():
        ready.touch()
    for path in ROOT.iterdir():
        if path.name not in own:
            (tmp_path / path.name).symlink_to(path)
    yield tmp_path
    end_run(tmp_path / ".kfp-tfjob")


def run(blocks: list, folder: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    names = {"REGISTRY": "registry.example.com/team", "BUCKET": "bucket"}
    done = subprocess.run(
        ["bash", "-c", script(blocks)],
        cwd=folder,
        env=os.environ | names | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-3000:]}"


def test_quick_commands(checkout: Path) -> None:
    """All pages in one shell, because most of the time is the start of programs."""
    run([it for blocks in PAGES.values() for it in blocks if "slow" not in it.classes], checkout)


@pytest.mark.slow
@pytest.mark.parametrize("page", SLOW)
def test_page(page: str, checkout: Path) -> None:
    """Pages with a `slow` command, from top to bottom."""
    run(SLOW[page], checkout)
