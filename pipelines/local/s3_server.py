"""Runs a real S3 server in one process: OpenStack Swift with its S3 API, from PyPI.

    python -m kfp_tfjob.pipelines.local.s3_server FOLDER PORT LOCK

Unlike the usual mocks, it checks signatures and checksums, and only one of several conditional
creates succeeds. It is for one machine: one copy of the data, loopback only. FOLDER stores the
data. When the server is ready, FOLDER/secret has its address and keys in the form of the Secret
that pods mount, so every program of the project finds it there.

Several programs may use one folder at once, and any of them may be killed. The first program
starts the server, and each program holds a shared lock of `FOLDER/users`; the server ends when the
last of these locks is released. The server holds a lock of `FOLDER/lock`, which contains its
address. The program that starts the server takes this lock before, and the server inherits it. So
there is only one server, and the kernel always knows whether it is running.

Other users of the machine cannot connect without the keys: FOLDER is private, and Swift's inner
servers, which do not check keys, listen on no address.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from time import monotonic
from typing import IO, Any
from weakref import WeakValueDictionary
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from kfp_tfjob.common import files
from kfp_tfjob.common.errors import ConfigurationError, Problem, StepError
from kfp_tfjob.storage.credentials import SecretVolume
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.storage.store import Store

_START_SECONDS = 120  # even a busy machine needs less, so a server that takes longer hangs
_USER = "local:kfp"
_SERVERS = ("account", "container", "object")
_HOSTS = ("127.0.0.1", "localhost")

# There is only one device, so Swift must wait for it even if a busy machine makes it slow. With
# Swift's default of half a second, a stored object may be missing from every listing, and after
# ten such errors Swift drops the only device for a minute, which shows as NoSuchBucket. A write is
# acknowledged when it is listed, as S3 promises; by default, Swift waits a second for that.
_PATIENCE = """
conn_timeout = 60
node_timeout = 60
error_suppression_limit = 1000000
"""
_PROXY = """
[DEFAULT]
swift_dir = {etc}
{patience}
[pipeline:main]
pipeline = catch_errors gatekeeper s3api tempauth bulk slo dlo proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
allow_account_management = true
[filter:tempauth]
use = egg:swift#tempauth
user_local_kfp = {key} .admin
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
[filter:bulk]
use = egg:swift#bulk
[filter:slo]
use = egg:swift#slo
[filter:dlo]
use = egg:swift#dlo
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:gatekeeper]
use = egg:swift#gatekeeper
"""
_BACKEND = """
[DEFAULT]
mount_check = false
devices = {devices}
swift_dir = {etc}
{patience}
fallocate_reserve = 0
disable_fallocate = true
[pipeline:main]
pipeline = {name}-server
[app:{name}-server]
use = egg:swift#{name}
log_requests = false
container_update_timeout = 60
"""
_SWIFT = """
[swift-hash]
swift_hash_path_suffix = kfp-tfjob
[storage-policy:0]
name = gold
default = yes
"""


@dataclass(frozen=True)
class Server:
    """A server in a separate process, which others may use too.

    Attributes:
        folder: The folder of its data.
        endpoint: Its URL.
        users: The lock that keeps it running, even in a child process that inherits it.
        process: The process; None if another program started it.
    """

    folder: Path
    endpoint: str
    users: IO[str]
    process: subprocess.Popen[bytes] | None

    @classmethod
    def start(cls, folder: Path) -> Server:
        """Return the running server of `folder`, after starting it if necessary.

        It gets its previous port, so that programs that have its address can reach it again.

        Raises:
            StepError: It ended, or did not respond in time; the message contains its last output.
        """
        _make_private(folder)
        pass_no_proxy()
        users = _lock_file(folder / "users")  # held until `stop`
        fcntl.flock(users, fcntl.LOCK_SH)  # waits while a server without users ends
        process = None
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            with _lock_file(folder / "lock") as lock:
                if _take_lock(lock):
                    if process:
                        break  # the process has ended, and released the lock
                    process = _spawn(folder, lock)
                elif endpoint := (folder / "lock").read_text():
                    return cls(folder, endpoint, users, process)
            time.sleep(0.05)  # a command waits for the server, which writes its address when ready
        users.close()
        if process:
            process.kill()
            process.wait()
        log = folder / "server.log"
        raise StepError(
            Problem(
                "the embedded S3 server did not start",
                received=log.read_text(errors="replace")[-500:].strip(),
                expected="a server on a free port of this machine",
                fix=f"read {log}, or use another store with --endpoint",
            )
        )

    @property
    def secret(self) -> Path:
        """The folder with the address and keys, in the form of a mounted Secret."""
        return self.folder / "secret"

    @property
    def is_gone(self) -> bool:
        """Whether the server has died."""
        with _lock_file(self.folder / "lock") as lock:
            return _take_lock(lock)

    def store(self, patience: Patience | None = None) -> Store:
        """Return a store of this server, regardless of the environment."""
        return Store(self.endpoint, secret=SecretVolume(self.secret), patience=patience)

    def stop(self) -> None:
        """End the server unless other programs use it; every acknowledged object is on disk."""
        with self.users:
            if not (self.process and try_exclusive_lock(self.users)):
                return
            self.process.kill()  # it writes nothing at its end
            self.process.wait()

    def __enter__(self) -> Server:
        """Return the server."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the server unless other programs use it."""
        self.stop()


def pass_no_proxy() -> None:
    """Make this process and its children send requests to this machine directly.

    A proxy in the user's environment could not reach this machine, and would see keys and data.
    """
    direct_hosts = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if direct_hosts != "*":
        hosts = dict.fromkeys([*filter(None, direct_hosts.split(",")), *_HOSTS])
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(hosts)


def _spawn(folder: Path, lock: IO[str]) -> subprocess.Popen[bytes]:
    """Start the server's process, which inherits the lock."""
    if find_spec("swift") is None:
        raise ConfigurationError(
            Problem(
                "the models of local runs are in an embedded store, which is not installed",
                received="no package swift",
                expected="the extra `local` or, with the extra `serve`, pip install swift",
                fix="install it, or name the store with --output s3://BUCKET/PREFIX",
            )
        )
    old_port = SecretVolume(folder / "secret").get("AWS_ENDPOINT_URL").rpartition(":")[2]
    command = [sys.executable, "-Pm", "kfp_tfjob.pipelines.local.s3_server", str(folder)]
    log = folder / "server.log"
    log.touch(mode=0o600)
    with open(log, "wb") as output:
        return subprocess.Popen(
            [*command, old_port or "0", str(lock.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for the commands; it ends after the last of them
            pass_fds=[lock.fileno()],
        )


def _lock_file(path: Path) -> IO[str]:
    """Open a file to lock, readable only by its owner; its content is kept."""
    return open(path, "a", opener=lambda name, flags: os.open(name, flags, 0o600))


def _take_lock(lock: IO[str]) -> bool:
    """Try to take the lock of a folder, and return whether it was free; then no server runs."""
    if try_exclusive_lock(lock):
        lock.truncate(0)  # the address of the server that has ended
        return True
    return False


def try_exclusive_lock(file: IO[str]) -> bool:
    """Try to lock a file for this process alone, and return whether it was free."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False  # another process has the lock
    return True


def serve(folder: Path, port: int, lock: int) -> None:
    """Serve S3 from `folder` on the loopback interface until no program uses it.

    Args:
        folder: The folder of the data; it exists.
        port: The port; 0 for a free one. If it is in use, the server takes a free one.
        lock: The descriptor of the folder's lock, inherited from the program that took it.
    """
    # A service manager that stops a run signals all of its processes. The trainers still save then.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Swift is written for eventlet, which must replace the sockets before anything uses them.
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", "Zero threads in tpool")
    os.environ["EVENTLET_NO_GREENDNS"] = "yes"  # its own resolver is a third of the start
    os.environ["EVENTLET_THREADPOOL_SIZE"] = "0"  # threads for a local disk are a quarter of a PUT
    import eventlet

    eventlet.monkey_patch()
    os.umask(0o077)
    os.chdir(folder)  # so the configuration has relative paths only: FOLDER may hold any character
    etc, devices = Path("etc"), Path("data")
    for path in (etc, devices / "d1"):
        path.mkdir(parents=True, exist_ok=True)
    key = _secret_key(folder)
    (etc / "swift.conf").write_text(_SWIFT)

    from eventlet import wsgi
    from swift.common import utils

    utils.set_swift_dir(str(etc))
    utils.validate_configuration()
    from swift.common.ring import RingBuilder
    from swift.common.storage_policy import reload_storage_policies
    from swift.common.utils import NullLogger
    from swift.common.wsgi import ConfigString, SwiftHttpProtocol, loadapp

    reload_storage_policies()
    # A power cut loses only the data of the last seconds; syncing every object costs 10 ms.
    os.fsync = os.fdatasync = lambda fd: None

    def run(listener, application) -> None:
        wsgi.server(
            listener,
            application,
            NullLogger(),
            protocol=SwiftHttpProtocol,
            log_output=False,
            capitalize_response_headers=False,
        )

    _use_clock(_Clock(folder / "clock"))
    listeners = {name: _InnerListener() for name in _SERVERS}
    _connect_inside(dict(enumerate(listeners.values(), 1)))
    for number, name in enumerate(_SERVERS, 1):
        ring = RingBuilder(1, 1, 0)
        address = {"ip": "127.0.0.1", "port": number}
        ring.add_dev(
            address
            | {"replication_" + field: part for field, part in address.items()}
            | {"region": 1, "zone": 1, "device": "d1", "weight": 1}
        )
        ring.rebalance()
        ring.get_ring().save(str(etc / f"{name}.ring.gz"))
        (etc / f"{name}.ring.gz").chmod(0o600)
    for name, listener in listeners.items():
        conf = _BACKEND.format(name=name, etc=etc, devices=devices, patience=_PATIENCE)
        eventlet.spawn(run, listener, loadapp(ConfigString(conf), global_conf={"log_name": name}))
    try:
        # Otherwise the servers of two folders could share a port, and get each other's requests.
        front = eventlet.listen(("127.0.0.1", port), reuse_port=False)
    except OSError:
        front = eventlet.listen(("127.0.0.1", 0))  # another program has taken the port
    conf = _PROXY.format(etc=etc, key=key, patience=_PATIENCE)
    proxy = loadapp(ConfigString(conf), global_conf={"log_name": "proxy"})
    endpoint = f"http://127.0.0.1:{front.getsockname()[1]}"
    for name, content in {
        "AWS_ACCESS_KEY_ID": _USER,
        "AWS_SECRET_ACCESS_KEY": key,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
    }.items():
        _write_private(folder / "secret" / name, content)
    os.write(lock, endpoint.encode())  # means ready
    eventlet.spawn(_exit_when_unused, folder)
    run(front, _serialize_creates(_with_cache(proxy)))


class _Clock:
    """Gives each write a later time than the write before, even if the machine's clock is set back.

    Of two writes of an object, Swift keeps the write with the later time. It acknowledges the other
    write, but does not store it.

    Args:
        path: A file with a time that no write has reached. If this server is killed, the next one
            continues from this time.
    """

    _AHEAD = 60.0  # seconds by which the file is ahead, so that it is written once a minute

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last = self._limit = float(path.read_text()) if path.exists() else 0.0

    def now(self) -> float:
        """Return the time of a new write, in seconds since 1970."""
        self._last = max(time.time(), self._last + 1e-5)  # the precision of Swift
        if self._last >= self._limit:
            with suppress(OSError):  # a full disk must not stop reads; the next request tries again
                _write_private(self._path, repr(self._last + self._AHEAD))
                self._limit = self._last + self._AHEAD
        return self._last


def _use_clock(clock: _Clock) -> None:
    """Make Swift take the times of writes from `clock`, but check signatures by the real time."""
    from swift.common.middleware.s3api.utils import S3Timestamp
    from swift.common.utils import Timestamp
    from swift.common.utils.timestamp import NormalTimestamp

    def now(cls: Any, **shift: int) -> Any:
        return cls(clock.now(), **shift)

    writes: Any = Timestamp
    S3Timestamp.now = writes.__dict__["now"]
    writes.now = classmethod(now)
    # An upload in parts is completed only if it began before the time of this other class.
    completions: Any = NormalTimestamp
    completions.now = classmethod(now)


class _InnerListener:
    """The listening socket of an inner server, to which only this process can connect."""

    family = socket.AF_UNIX

    def __init__(self) -> None:
        from eventlet.queue import Queue

        self._waiting: Queue = Queue()
        self._numbers = count()

    def connect(self) -> socket.socket:
        """Return the client's end of a new connection."""
        client_end, server_end = socket.socketpair()
        self._waiting.put(server_end)
        return client_end

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        """Return the server's end of the next connection, and a name for its client."""
        return self._waiting.get(), ("inside", next(self._numbers))

    def getsockname(self) -> str:
        """Return an empty string, because the socket is not bound to an address."""
        return ""

    def close(self) -> None:
        """Do nothing; the listener ends with the process."""


def _connect_inside(listeners: Mapping[int, _InnerListener]) -> None:
    """Make Swift's servers connect to each other through `listeners`, by the port in the rings."""
    from swift.common.bufferedhttp import BufferedHTTPConnection

    def connect(self: BufferedHTTPConnection) -> None:
        self._connected_time = time.time()  # like the method that it replaces
        self.sock = listeners[self.port].connect()

    BufferedHTTPConnection.connect = connect


def _serialize_creates(application: WSGIApplication) -> WSGIApplication:
    """Make conditional creates of one object wait for each other.

    Swift looks for the object when a request begins, not when it ends, so two requests at the same
    time would both succeed.
    """
    from eventlet.semaphore import Semaphore

    locks: WeakValueDictionary[str, Semaphore] = WeakValueDictionary()

    def call(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if "HTTP_IF_NONE_MATCH" not in environ:
            return application(environ, start_response)
        with locks.setdefault(environ["PATH_INFO"], Semaphore()):
            return application(environ, start_response)

    return call


class _Cache:
    """A replacement for memcached, with the methods that Swift calls.

    A dict suffices, because only this process changes accounts and buckets. Without a cache, Swift
    looks up the account and the bucket for every request, which doubles its work.
    """

    def __init__(self) -> None:
        self._entries: dict[str, tuple[Mapping[str, Any], float]] = {}

    def get(self, key: str, **_: Any) -> Mapping[str, Any] | None:
        """Return the cached state of an account or bucket; None if it is missing or has expired."""
        value, expiry = self._entries.get(key, (None, 0.0))
        return value if monotonic() < expiry else None

    def set(self, key: str, value: Mapping[str, Any], time: float = 0, **_: Any) -> None:
        """Cache the state of an account or bucket for `time` seconds.

        One that does not exist is not cached, because another request may be creating it.
        """
        if value.get("status") != 404:
            self._entries[key] = value, monotonic() + time

    def delete(self, key: str) -> None:
        """Remove an account or bucket that has changed."""
        self._entries.pop(key, None)


def _with_cache(application: WSGIApplication) -> WSGIApplication:
    """Make all requests to Swift share a cache."""
    cache = _Cache()

    def call(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return application({**environ, "swift.cache": cache}, start_response)

    return call


def _exit_when_unused(folder: Path) -> None:
    """End this process once no program holds the shared lock of `users`.

    From then on, a new program waits for that lock until this process has ended.
    """
    from eventlet import sleep

    with _lock_file(folder / "users") as users:
        while not try_exclusive_lock(users):
            sleep(0.3)  # pyright: ignore[reportArgumentType]  # eventlet takes fractions
        # The address is removed first, because a program may take `users` at any time.
        os.truncate(folder / "lock", 0)
        os._exit(0)


def _make_private(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)


def _secret_key(folder: Path) -> str:
    """Return the secret key of this folder, which is created at its first use."""
    path = folder / "secret" / "AWS_SECRET_ACCESS_KEY"
    if not path.exists():
        _write_private(path, secrets.token_urlsafe(24))
    return path.read_text()


def _write_private(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with files.atomic_write(path) as partial:
        partial.touch(mode=0o600)
        partial.write_text(text)


if __name__ == "__main__":
    serve(Path(sys.argv[1]).absolute(), int(sys.argv[2]), int(sys.argv[3]))
