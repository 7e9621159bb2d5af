"""The signature of a release's files, by cosign with a key of the test; `make release-tools`."""

import shutil
import subprocess
from pathlib import Path

import pytest

from release.assets import SUMS
from release.sign import BUNDLE, Signer, sign_assets
from tests.environments import ROOT

pytestmark = pytest.mark.slow
OWN = ROOT / ".tools" / "bin" / "cosign"
COSIGN = str(OWN) if OWN.exists() else shutil.which("cosign")


def cosign(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(COSIGN), *arguments], cwd=folder, capture_output=True, text=True, timeout=300
    )


@pytest.mark.skipif(not COSIGN, reason="there is no cosign; Fix: make release-tools")
def test_a_changed_file_does_not_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSIGN_PASSWORD", "of the test")
    assert cosign(tmp_path, "generate-key-pair").returncode == 0
    (tmp_path / SUMS).write_text("0123  kfp_tfjob-1.0.0-py3-none-any.whl\n")
    assert sign_assets(Signer(str(tmp_path / "cosign.key")), tmp_path) == [tmp_path / BUNDLE]
    options = ["--key", "cosign.pub", "--insecure-ignore-tlog", "--bundle", BUNDLE, SUMS]
    done = cosign(tmp_path, "verify-blob", *options)
    assert done.returncode == 0, done.stderr
    (tmp_path / SUMS).write_text("4567  kfp_tfjob-1.0.0-py3-none-any.whl\n")
    assert cosign(tmp_path, "verify-blob", *options).returncode != 0
