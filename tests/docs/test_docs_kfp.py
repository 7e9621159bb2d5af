"""The `kfp` commands of the documents, on the back end that KF_PIPELINES_ENDPOINT names.

    KF_PIPELINES_ENDPOINT=... BUCKET=... AWS_ENDPOINT_URL=... .venv/bin/python -m pytest -m slow \
        tests/docs/test_docs_kfp.py

BUCKET is a bucket with digits.csv. COMPILED names a folder with YAML whose images the cluster has;
without it, the local commands of a page compile the pipeline with the images of REGISTRY.
On small nodes, set KFP_TFJOB_POD='{"all": {"cpu": "250m", "memory": "1Gi"}}'.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import DOCUMENTS, ROOT, blocks_of, script

SECONDS = 3600
COMPILED = os.environ.get("COMPILED", "")
PAGES = {
    str(path.relative_to(ROOT)): found
    for path in DOCUMENTS
    if (found := blocks_of(path)) and any("kfp" in it.classes for it in found)
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not os.environ.get("KF_PIPELINES_ENDPOINT"), reason="KF_PIPELINES_ENDPOINT is not set"
    ),
]


@pytest.mark.parametrize("page", PAGES)
def test_page(page: str, tmp_path: Path) -> None:
    for path in ROOT.iterdir():
        if path.name not in (".git", ".kfp-tfjob", "compiled", "digits.csv", "site"):
            (tmp_path / path.name).symlink_to(path)
    if COMPILED:
        (tmp_path / "compiled").symlink_to(Path(COMPILED).absolute())
    tags = {"kfp"} if COMPILED else {"kfp", "local"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script([it for it in PAGES[page] if tags & set(it.classes)])],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    print(done.stdout, done.stderr, sep="\n")
    assert done.returncode == 0
