"""The page of a local run: what it came to, and a link to everything it left."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kfp_tfjob.storage.layout import FAILURE_PAGE, REPORT
from kfp_tfjob.storage.text import html as escape

NAME = "index.html"
_FILES = {
    FAILURE_PAGE: "why it failed, and what to do",
    "summary.md": "what the run came to",
    REPORT: "the model on the test rows, beside the champion",
    "training.html": "the curves of the training",
    "data.html": "the data, by column",
    "model-card.md": "the card of the published model",
    "output.md": "what was proven in the store",
    "finish.md": "how it ended",
    "parameters.md": "every parameter of the run",
    "tfjob.html": "the TFJob it stands for",
    "pipeline.log": "the whole log",
}
_STYLE = """
body { font: 15px/1.6 system-ui, sans-serif; margin: 2em; color: #222; background: #fff }
td { padding: .1em 2em .1em 0 }
code { font-size: 13px }
"""


def write_page(folder: Path, run_id: str, outcome: str, places: Mapping[str, str]) -> Path:
    """Write the page into the folder of a run.

    Args:
        folder: The folder; what is not in it is not linked.
        run_id: The run.
        outcome: In a sentence.
        places: Addresses and paths by what they are, for instance of the model.

    Returns:
        The page.
    """
    rows = [
        f"<tr><td><a href='{name}'>{name}</a></td><td>{what}</td></tr>"
        for name, what in _FILES.items()
        if (folder / name).exists()
    ]
    rows += [
        f"<tr><td>{escape(what)}</td><td><code>{escape(place)}</code></td></tr>"
        for what, place in places.items()
        if place
    ]
    title = f"Run {escape(run_id)}"
    head = f"<meta charset='utf-8'><title>{title}</title><style>{_STYLE}</style>"
    body = f"<h1>{title}</h1><p>{escape(outcome)}</p><table>{''.join(rows)}</table>"
    path = folder / NAME
    path.write_text(
        f"<!doctype html><html lang='en'><head>{head}</head><body>{body}</body></html>\n"
    )
    return path
