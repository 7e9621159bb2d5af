"""The embedded S3 server keeps its data, lets one creator win, and nobody share its folder."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from pipelines.local.s3_server import Server
from storage.address import S3Address
from storage.errors import ObjectExistsError


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


def test_of_many_that_create_an_object_at_once_one_wins(tmp_path: Path) -> None:
    with Server.start(tmp_path) as server:
        stores = [server.store() for _ in range(6)]
        stores[0].make_bucket("bucket")
        together = Barrier(len(stores))

        def create(number: int, turn: int) -> bool:
            together.wait()
            try:
                stores[number].create(S3Address("bucket", f"{turn}"), f"of {number}".encode())
            except ObjectExistsError:
                return False
            return True

        with ThreadPoolExecutor(len(stores)) as pool:
            for turn in range(20):
                won = list(pool.map(create, range(len(stores)), [turn] * len(stores)))
                assert won.count(True) == 1
                winner = stores[0].read(S3Address("bucket", f"{turn}")).decode()
                assert winner == f"of {won.index(True)}"
