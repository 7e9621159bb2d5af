"""The embedded S3 server keeps its data and its doors closed, and lets one creator win."""

import http.client
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import psutil
import pytest

from kfp_tfjob.common.errors import ObjectExistsError
from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.storage.store import PART


def test_a_clock_that_is_set_back_loses_no_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Swift acknowledges a write that is older than the object, and does not store it."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, time\n"
        "ahead, real = float(os.environ['AHEAD']), time.time\n"
        "time.time = lambda: real() + ahead\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    kept, replaced, created = (S3Address("test", name) for name in ("kept", "replaced", "created"))
    for ahead in ("600", "0", "-600"):
        monkeypatch.setenv("AHEAD", ahead)
        server = Server.start(tmp_path / "s3 #1\n%(here)s")  # no part of the configuration
        store = server.store()
        if ahead == "600":
            store.make_bucket("test")
            store.write(kept, b"kept", "text/plain")
        store.write(replaced, ahead.encode(), "text/plain")
        assert store.read(replaced) == ahead.encode()
        store.create(created, ahead.encode(), "text/plain")
        assert store.read(created) == ahead.encode()
        store.delete(created)
        assert [item.address for item in store.list(S3Address("test"))] == [kept, replaced]
        assert server.process is not None
        server.process.kill()
        server.stop()


def test_a_file_in_parts_is_stored_soon_after_a_restart(tmp_path: Path) -> None:
    """A restarted server gives later times than all before it, so its clock is ahead."""
    large = tmp_path / "large"
    large.write_bytes(bytes(PART + 1))
    for number in range(2):
        with Server.start(tmp_path / "s3") as server:
            store = server.store(Patience(10))
            if not number:
                store.make_bucket("test")
            store.send(str(large), S3Address("test", f"large-{number}"), "large")
            assert store.has(S3Address("test", f"large-{number}"))


def test_neither_the_folder_nor_the_proxy_of_a_shell_is_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "calendar.py").write_text("raise SystemExit('not of Python')")
    monkeypatch.chdir(tmp_path)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "example.org")
    with Server.start(tmp_path / "s3") as server:
        store = server.store(Patience(10))
        store.make_bucket("bucket")
        store.write(S3Address("bucket", "key"), b"content", "text/plain")
        assert store.read(S3Address("bucket", "key")) == b"content"
    assert os.environ["no_proxy"].startswith("example.org")


def test_of_many_that_create_an_object_at_once_one_wins(s3: Server, base: S3Address) -> None:
    stores = [s3.store() for _ in range(6)]
    together = Barrier(len(stores))

    def create(number: int, turn: int) -> bool:
        together.wait()
        try:
            stores[number].create(base / f"{turn}", f"of {number}".encode())
        except ObjectExistsError:
            return False
        return True

    with ThreadPoolExecutor(len(stores)) as pool:
        for turn in range(20):
            won = list(pool.map(create, range(len(stores)), [turn] * len(stores)))
            assert won.count(True) == 1
            winner = stores[0].read(base / f"{turn}").decode()
            assert winner == f"of {won.index(True)}"


def status(port: int, method: str, path: str, body: bytes = b"", **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request(method, path, body or None, headers)
    code = connection.getresponse().status
    connection.close()
    return code


def test_a_signal_to_all_processes_of_a_service_leaves_the_store_to_the_trainers(
    tmp_path: Path,
) -> None:
    with Server.start(tmp_path) as server:
        assert server.process
        for number in (signal.SIGTERM, signal.SIGHUP):
            server.process.send_signal(number)
        server.store().make_bucket("bucket")
        assert server.process.poll() is None
    assert server.process.poll() is not None


def test_nobody_else_reads_or_writes_without_the_keys(tmp_path: Path) -> None:
    home = tmp_path / "s3"
    address = S3Address("bucket", "champion")
    with Server.start(home) as server:
        server.store().make_bucket("bucket")
        server.store().write(address, b"ours")
        files = [path for path in home.rglob("*") if path.is_file()]
        assert not [path for path in (home, *files) if path.stat().st_mode & 0o077]
        (port,) = (
            socket.laddr.port
            for socket in psutil.net_connections("inet")
            if socket.pid == server.process.pid and socket.status == psutil.CONN_LISTEN
        )
        assert port == int(server.endpoint.rpartition(":")[2])
        # As Swift's inner servers name it, in either partition, and as its own and S3's API do.
        names = [f"/d1/{part}/AUTH_local/bucket/champion" for part in (0, 1)]
        names += ["/v1/AUTH_local/bucket/champion", "/bucket/champion", "/bucket", "/"]
        inner = {"X-Timestamp": "9999999999.0", "Content-Type": "x", "Content-Length": "6"}
        for name in names:
            for method, body in (("GET", b""), ("PUT", b"theirs"), ("DELETE", b"")):
                sent = inner if body else {"X-Timestamp": "9999999999.0"}
                assert status(port, method, name, body, **sent) >= 400, (method, name)
        assert server.store().read(address) == b"ours"
