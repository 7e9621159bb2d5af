"""The `kfp` commands of the documents, on the back end that KF_PIPELINES_ENDPOINT names.

    KF_PIPELINES_ENDPOINT=... BUCKET=... AWS_ENDPOINT_URL=... .venv/bin/python -m pytest -m slow \
        tests/docs/test_docs_kfp.py

BUCKET is a bucket with digits.csv. COMPILED names a folder with YAML whose images the cluster has;
without it, the local commands of a page compile the pipeline with the images of REGISTRY.
On small nodes, set KFP_TFJOB_POD='{"all": {"cpu": "250m", "memory": "1Gi"}}'.
"""

import os
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks_of, pages_with, run

SECONDS = 3600
COMPILED = os.environ.get("COMPILED", "")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not os.environ.get("KF_PIPELINES_ENDPOINT"), reason="KF_PIPELINES_ENDPOINT is not set"
    ),
]


@pytest.mark.parametrize("page", pages_with("kfp"))
def test_page(page: str, tmp_path: Path) -> None:
    if COMPILED:
        (tmp_path / "compiled").symlink_to(Path(COMPILED).absolute())
    tags = {"kfp"} if COMPILED else {"kfp", "local"}
    run([it for it in blocks_of(ROOT / page) if tags & set(it.classes)], tmp_path, SECONDS)
