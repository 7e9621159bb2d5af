"""`make test-kfp` lists everything that is missing, with what `kfp-tfjob doctor` finds."""

from pathlib import Path

import pytest

from kfp_tfjob.pipelines.kubeflow.environment import ENDPOINT
from tests.kfp import prerequisites
from tests.kfp.settings import BUCKET, IMAGES, Settings


def test_everything_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no-cluster"))
    monkeypatch.setenv(IMAGES, str(tmp_path / "no-references"))
    for name in (BUCKET, ENDPOINT):
        monkeypatch.delenv(name, raising=False)
    found = prerequisites.missing(Settings.from_environment(), tmp_path / "no-pipeline", "prefix")
    bucket, references, cluster, back_end = found
    assert BUCKET in bucket
    assert "no-references" in references
    assert "KUBECONFIG" in cluster
    assert ENDPOINT in back_end
