"""Writes the page of a local run: its result, and links to all its files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kfp_tfjob.pages.template import render
from kfp_tfjob.storage.layout import FAILURE_PAGE, REPORT

NAME = "index.html"
_FILES = {
    FAILURE_PAGE: "why it failed, and what to do",
    "summary.md": "the run's result",
    REPORT: "the model on the test rows, compared with the champion",
    "training.html": "the curves of the training",
    "data.html": "the data, by column",
    "model-card.md": "the card of the published model",
    "output.md": "what was verified in the store",
    "finish.md": "how it ended",
    "parameters.md": "every run parameter",
    "tfjob.html": "the same training as a TFJob",
    "pipeline.log": "the whole log",
}


def write_page(folder: Path, run_id: str, outcome: str, places: Mapping[str, str]) -> Path:
    """Write the page into the folder of a run, and link the files that are in it."""
    path = folder / NAME
    page = render(
        "pipelines/local/page.html.j2",
        title=f"Run {run_id}",
        outcome=outcome,
        files={name: what for name, what in _FILES.items() if (folder / name).exists()},
        places=places,
    )
    path.write_text(page)
    return path
