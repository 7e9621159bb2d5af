"""The embedded S3 server keeps its data over a restart and lets nobody share its folder."""

import subprocess
import sys
from pathlib import Path

from pipelines.local.s3_server import Server
from storage.address import S3Address


def test_data_survives_a_killed_server(tmp_path: Path) -> None:
    address = S3Address("bucket", "folder/object")
    with Server.start(tmp_path) as server:
        server.store().make_bucket("bucket")
        server.store().write(address, b"content")
        server.process.kill()
    with Server.start(tmp_path) as server:
        assert server.store().read(address) == b"content"


def test_a_second_server_on_the_folder_is_refused(tmp_path: Path) -> None:
    with Server.start(tmp_path):
        command = [sys.executable, "-m", "pipelines.local.s3_server", str(tmp_path)]
        second = subprocess.run(command, capture_output=True, text=True)
    assert second.returncode == 2
    assert "another S3 server has" in second.stderr
