"""The `local` commands of the documents do what they show, one page after the other."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, Block, pages_with, run
from tests.local.local_run import end_run

SECONDS = 1200
ENVIRONMENT = {"REGISTRY": "registry.example.com/team", "BUCKET": "bucket"}
PAGES = pages_with("local")
SLOW = {
    page: blocks for page, blocks in PAGES.items() if any("slow" in it.classes for it in blocks)
}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    # Here it is set up already; `make` in a folder of links would write its path into the programs.
    if (ready := ROOT / ".venv" / ".ready").exists():
        ready.touch()
    yield tmp_path
    end_run(tmp_path / ".kfp-tfjob")


def test_quick_commands(folder: Path) -> None:
    """All pages in one shell, because most of the time is the start of programs."""
    quick = [it for blocks in PAGES.values() for it in blocks if "slow" not in it.classes]
    run(quick, folder, SECONDS, **ENVIRONMENT)


@pytest.mark.slow
@pytest.mark.parametrize("blocks", SLOW.values(), ids=SLOW)
def test_page(blocks: list[Block], folder: Path) -> None:
    """Pages with a `slow` command, from top to bottom."""
    run(blocks, folder, SECONDS, **ENVIRONMENT)
