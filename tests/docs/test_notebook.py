"""examples/notebook.ipynb runs from top to bottom, and is stored without outputs."""

import json
import os
import re
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.docs.blocks import ROOT
from tests.local.local_run import end_run

NOTEBOOK = ROOT / "examples/notebook.ipynb"


def test_it_is_valid_and_has_no_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None), cell.source


def test_its_links_lead_to_files() -> None:
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        for target in re.findall(r"\]\(([^)#]+)", cell.source if cell.cell_type != "code" else ""):
            assert (NOTEBOOK.parent / target).exists(), target


@pytest.mark.slow
def test_it_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = tmp_path / "jupyter/kernels/python3"
    kernels.mkdir(parents=True)
    # The kernel of this environment, and not one that the user has installed under the same name.
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": command, "display_name": "Python 3", "language": "python"}
    (kernels / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", str(ROOT)))
    folder = tmp_path / "work"
    folder.mkdir()
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(notebook, timeout=3000, resources={"metadata": {"path": str(folder)}})
    try:
        client.execute()
    finally:
        end_run(folder / ".kfp-tfjob/notebook/home")
    printed = "".join(
        output.text
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type == "stream"
    )
    assert "beats the baseline" in printed
    right = re.search(r"([\d.]+)% of (\d+) validation rows are right", printed)
    assert right and float(right[1]) > 80 and int(right[2]) > 100, printed
