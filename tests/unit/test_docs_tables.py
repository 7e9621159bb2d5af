"""The tables of the documents are those of the declarations; WRITE_DOCS=1 writes them."""

import json
import os
from pathlib import Path

from kfp_tfjob.components.preflight.parameters import defaults
from kfp_tfjob.options.pipeline import PARAMETERS
from kfp_tfjob.options.train import TrainerOptions
from kfp_tfjob.pipelines.explanation import explain
from kfp_tfjob.storage.text import row

ABOUT = """\
# Options
Every key of the parameters that are dicts. `kfp-tfjob explain PARAMETER.KEY` prints the same."""


def held(path: Path, start: str, end: str, text: str) -> None:
    """Compare a part of a document, from `start` up to `end`, with what it should be."""
    document = path.read_text() if path.exists() else start
    at = document.index(start)
    stop = document.find(end, at) if end else -1
    stop = len(document) if stop < 0 else stop
    if os.environ.get("WRITE_DOCS"):
        path.write_text(document[:at] + text + document[stop:])
    else:
        assert document[at:stop] == text, f"WRITE_DOCS=1 pytest {Path(__file__).name} writes it"


def test_the_readme_has_the_parameters(repository: Path) -> None:
    rows = ["| parameter | default | meaning |", "|---|---|---|"]
    for name, parameter in PARAMETERS.items():
        value = defaults()[name]
        text = json.dumps(value) if isinstance(value, dict) else str(value)
        shown = "**required**" if parameter.is_required else f"`{text}`" if text else ""
        rows.append(f"| `{name}` | {shown} | {parameter.meaning} |")
    held(repository / "README.md", rows[0], "\n\n", "\n".join(rows))


def test_options_md_has_every_key(repository: Path) -> None:
    parts = [ABOUT]
    for name, parameter in PARAMETERS.items():
        if parameter.group:
            keys = explain(name, parameter.group)
            rows = [row(f"`{path.partition('.')[2]}`", keys[path]) for path in keys]
            parts.append("\n".join([f"## {name}", "| key | meaning |", "|---|---|", *rows]))
    held(repository / "OPTIONS.md", ABOUT.splitlines()[0], "", "\n\n".join(parts) + "\n")


def test_architecture_names_the_options_of_the_trainer(repository: Path) -> None:
    names = ", ".join(f"`{name}`" for name in TrainerOptions.model_fields)
    start = "| `TRAIN_OPTIONS` | JSON object: "
    held(repository / "ARCHITECTURE.md", start, " |\n", f"{start}{names}")
