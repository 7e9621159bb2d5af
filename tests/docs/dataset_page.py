"""The Python snippets of docs/dataset.md, and the dataset that they read."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from examples import people
from kfp_tfjob.components.prepare_data.engine import run
from kfp_tfjob.components.step import Step
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader import pull
from tests.docs.blocks import ROOT, blocks_of

PEOPLE = 600
NAMES = ("pandas", "tensorflow", "torch", "duckdb", "pillow", "decoded", "batches")
BLOCKS = [block for block in blocks_of(ROOT / "docs/dataset.md") if block.language == "python"]
SNIPPETS = dict(zip(NAMES, (block.text for block in BLOCKS), strict=True))


def prepare(store: Store, base: S3Address, folder: Path) -> Path:
    """Prepare the table of the page; return the folder that a program gets as DATA_DIR."""
    table = folder / "people.csv"
    people.write(table, PEOPLE)
    return prepare_source(store, base, folder, table, people.LABEL)


def prepare_source(
    store: Store, base: S3Address, folder: Path, source: Path, label: str = ""
) -> Path:
    """Prepare a table or images; return the folder that a program gets as DATA_DIR."""
    dataset = run(Step("prepare_data", "r1", Layout(base), store), str(source), label, {})
    address = S3Address.parse(dataset.dataset_uri)
    pull(store, address, folder / "data", only=lambda key: not key.startswith("test/"))
    return folder / "data"


def execute(name: str, expression: str, data: Path, python: str = sys.executable) -> Any:
    """Run a snippet as a program; return the value of an expression over its variables."""
    process = subprocess.run(
        [python, "-c", f"{SNIPPETS[name]}\nimport json\nprint(json.dumps({expression}))"],
        env=os.environ | {"DATA_DIR": str(data)},
        cwd=data.parent,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])
