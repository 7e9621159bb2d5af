"""The folder of a version while it is loaded."""

import tempfile
from pathlib import Path

import pytest

from kfp_tfjob.serving.loaded_model import _temporary_folder


def test_what_a_killed_server_with_the_same_process_id_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with _temporary_folder() as folder:
        (folder / "model").write_bytes(b"graph")
        with _temporary_folder() as after:
            assert after == folder and list(after.iterdir()) == []
    assert list(tmp_path.iterdir()) == []
