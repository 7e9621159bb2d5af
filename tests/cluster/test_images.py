"""`make images PUSH=1` with a real registry on this machine: docker-registry of Debian."""

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from images.build import IMAGES
from images.build import main as make_images
from kfp_tfjob.options.container_images import tools_in, trainer_in
from kfp_tfjob.pipelines.cli import main
from kfp_tfjob.pipelines.compilation import images_of
from tests.cluster.processes import Process
from tests.ports import free_port

pytestmark = pytest.mark.cluster

# In place of the real ones, which are built for the cluster, and take minutes to compress.
_TINY = "ARG BASE=scratch\nFROM ${BASE}\nCOPY backend.txt /\n"
_CONFIG = """version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    port = free_port()
    config = tmp_path / "registry.yml"
    config.write_text(_CONFIG.format(folder=tmp_path / "registry", port=port))
    process = Process("registry", ["docker-registry", "serve", config], tmp_path, tmp_path)
    process.start()
    try:
        process.wait_until(lambda: socket.create_connection(("127.0.0.1", port)).close() is None)
        yield f"127.0.0.1:{port}"
    finally:
        process.stop()


def test_what_is_pushed_is_compiled_in_by_its_digest(
    registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in {image.containerfile for image in IMAGES.values()}:
        (tmp_path / name).write_text(_TINY)
    (tmp_path / "install.sh").touch()
    monkeypatch.setattr("images.build.FILES", tmp_path)
    digests = tmp_path / "digests.json"
    for user in ("images.build", "kfp_tfjob.pipelines.compilation"):
        monkeypatch.setattr(f"{user}.DIGESTS", digests)
    registry += "/team"

    options = ["--registry", registry, "--push", "--base", "scratch"]
    options += ["--builder", _buildah(tmp_path / "a"), "--build-arguments=--tls-verify=false"]
    assert make_images(options) == 0
    pushed = json.loads(digests.read_text())
    assert set(pushed) == {tools_in(registry), trainer_in(registry)}

    done = CliRunner().invoke(
        main, ["compile", "--registry", registry, "--output", str(tmp_path / "compiled")]
    )
    assert done.exit_code == 0, done.output
    compiled = images_of((tmp_path / "compiled" / "tfjob_training.yaml").read_text())
    assert compiled == sorted(f"{image}@{digest}" for image, digest in pushed.items())
    other = _buildah(tmp_path / "b").split()  # what it pulls cannot be there already
    for image in compiled:
        subprocess.run([*other, "pull", "--quiet", "--tls-verify=false", image], check=True)


def _buildah(folder: Path) -> str:
    return f"buildah --root {folder / 'root'} --runroot {folder / 'run'}"
