"""The list of what can go wrong, as a table: nothing is lost, and nothing missing is called done.

Each line runs on two real servers, with our own connections and with boto3's through a forward
proxy; the short run has each line once. The other half of the list, about processes, is in
test_uploader_sidecar.py.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from storage.address import S3Address
from storage.body import SMALL, FileUnreadableError
from storage.credentials import SecretVolume
from storage.errors import (
    ConfigurationError,
    DataError,
    ObjectExistsError,
    ObjectNotFoundError,
    StepError,
    StoreUnavailableError,
)
from storage.layout import RunLayout
from storage.retry import Patience
from storage.store import PART, FileChangedError, Store
from tests.faults import proxy as faults
from tests.faults.proxy import Fault, FaultProxy
from tests.faults.versitygw import Versitygw, executable
from uploader import pull, push, verify
from uploader.inventory import scan
from uploader.journal import Journal
from uploader.mirror import Mirror

EVER = float("inf")
LARGE = PART + 54321


@dataclass
class World:
    """One server, one client and what lies between them."""

    proxy: FaultProxy
    truth: Store
    secret: Path
    endpoint: str
    base: S3Address
    folder: Path

    def store(self, seconds: float = 30, secret: Path | None = None) -> Store:
        volume = SecretVolume(secret or self.secret)
        return Store(self.endpoint, secret=volume, patience=Patience(seconds, 0.05, 0.4))

    def inject(self, *injected: Fault) -> None:
        self.proxy.faults = list(injected)

    def push(self, store: Store | None = None) -> None:
        push(store or self.store(), self.folder, self.base, "code")

    def assert_whole(self) -> None:
        """Everything that lies in the folder is in the store, byte for byte."""
        self.inject()
        manifest = self.truth.read_manifest(self.base / "manifest.json")
        assert verify(self.truth, self.base, manifest) == []
        copy = self.folder.with_name("copy")
        pull(self.truth, self.base, copy)
        assert content(copy) == content(self.folder)
        assert self.truth.unfinished(self.base) == []

    def assert_refused(self, error: type[StepError], store: Store | None = None) -> StepError:
        """The command fails, and no reader finds anything it would trust."""
        with pytest.raises(error) as raised:
            self.push(store)
        self.inject()
        with pytest.raises(ObjectNotFoundError):
            self.truth.read_manifest(self.base / "manifest.json")
        return raised.value

    def other_secret(self, **values: str) -> Path:
        copy = self.folder.with_name("other")
        shutil.copytree(self.secret, copy)
        for name, value in values.items():
            (copy / name).write_text(value)
        return copy

    def mirror(self) -> None:
        """Mirror until everything is stored, as the sidecar does at its end."""
        run = RunLayout(self.base)
        mirror = Mirror(self.store(), self.folder, run, "r", 1)
        for _ in range(5):
            found = scan(self.folder)
            mirror.store(found, found, everything=True)
            if found.files == scan(self.folder).files and not mirror.missing(found):
                break
        manifest = mirror.publish(scan(self.folder))
        assert verify(self.truth, run.base, manifest) == []
        copy = self.folder.with_name("copy")
        pull(self.truth, run.base, copy)
        assert content(copy / "output") == content(self.folder)


def content(folder: Path) -> dict[str, bytes]:
    return {path: (folder / path).read_bytes() for path in scan(folder).files}


def plant(world: World, files: dict[str, bytes] | None = None, large: bool = False) -> None:
    files = files or {f"s/{i}": os.urandom(1000 + i) for i in range(6)} | {
        "middle": os.urandom(300_000),
        **({"large": os.urandom(LARGE)} if large else {}),
    }
    for path, data in files.items():
        (world.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (world.folder / path).write_bytes(data)


@pytest.fixture(scope="session")
def versitygw(tmp_path_factory: pytest.TempPathFactory):
    program = executable()
    if not program:
        pytest.skip("there is no Go to build versitygw with")
    server = Versitygw(program, tmp_path_factory.mktemp("versitygw"))
    Store(secret=SecretVolume(server.secret)).make_bucket("test")
    yield server
    server.stop()


# On each server with our own connections, and with boto3's through a forward proxy.
WAYS = [("s3", "direct"), ("s3", "proxied"), ("versitygw", "direct"), ("versitygw", "proxied")]


@pytest.fixture
def world(request, tmp_path, base, monkeypatch):
    server, way = request.param
    server = request.getfixturevalue(server)
    secret = {path.name: path.read_text() for path in server.secret.iterdir()}
    with FaultProxy(server.endpoint, secret) as proxy:
        truth = Store(secret=SecretVolume(server.secret))
        if way == "proxied":
            for name in ("no_proxy", "NO_PROXY", "HTTP_PROXY"):
                monkeypatch.delenv(name, raising=False)
            monkeypatch.setenv("http_proxy", proxy.endpoint)
        endpoint = proxy.endpoint if way == "direct" else server.endpoint
        folder = tmp_path / "folder"
        folder.mkdir()
        yield World(proxy, truth, server.secret, endpoint, base, folder)


LINES: dict[str, Callable[[World], None]] = {}


def line(name: str) -> Callable[[Callable[[World], None]], Callable[[World], None]]:
    """Add a line to the table."""

    def add(function: Callable[[World], None]) -> Callable[[World], None]:
        LINES[name] = function
        return function

    return add


def goes_well(name: str, *injected: Callable[[], Fault]) -> None:
    """Add a line where the client gets everything across in spite of faults."""

    def run(world: World) -> None:
        fresh = [make() for make in injected]
        plant(world, large=any(re.search("part|uploadId|large", f.target) for f in fresh))
        world.inject(*fresh)
        world.push()
        assert all(fault.happened for fault in fresh), "every fault happened"
        world.assert_whole()

    LINES[name] = run


goes_well("503 bursts", lambda: Fault(faults.slow_down, "PUT|POST", times=7))
goes_well("429 too many requests", lambda: Fault(faults.refuse(429, "TooManyRequests"), times=3))
goes_well(
    "500 when parts are put together",
    lambda: Fault(faults.refuse(500, "InternalError"), "POST", "uploadId=", 2),
)
goes_well("connection reset after half a body", lambda: Fault(faults.reset_midway, times=5))
goes_well("a part is reset after half its body", lambda: Fault(faults.reset_midway, "PUT", "part"))
goes_well("reply lost after a PUT", lambda: Fault(faults.lose_reply, times=4))
goes_well(
    "reply lost after the parts were put together",
    lambda: Fault(faults.lose_reply, "POST", "uploadId="),
)
goes_well("200 with an error in the body of a PUT", lambda: Fault(faults.error_after_200, times=3))
goes_well(
    "200 with an error in the body of a completion",
    lambda: Fault(faults.error_after_200, "POST", "uploadId=", 2),
)
goes_well(
    "a bit is flipped on the way", lambda: Fault(faults.damage, target="s/|middle|part", times=4)
)
goes_well(
    "a bit is flipped, and the store ignores CRC64NVME",
    lambda: Fault(faults.ignore_checksums, times=EVER),
    lambda: Fault(faults.damage, target="s/|middle|part", times=4),
)
goes_well("a slow store", lambda: Fault(faults.slowly(40e6), target="large", times=EVER))
goes_well(
    "the store's clock is an hour ahead", lambda: Fault(faults.wrong_clock(3600), ".*", "", EVER)
)
goes_well(
    "the store's clock is an hour behind", lambda: Fault(faults.wrong_clock(-3600), ".*", "", EVER)
)
goes_well("the store is away at the start", lambda: Fault(faults.away(0.7), ".*", "", EVER))
goes_well("the store is away in the middle", lambda: Fault(faults.away(0.7), ".*", "", EVER, 5))
goes_well("kept connections are closed", lambda: Fault(faults.hang_up_after, ".*", "", EVER))
goes_well(
    "deleting is denied", lambda: Fault(faults.refuse(403, "AccessDenied"), "DELETE", "", EVER)
)


@line("the store is away for longer than the patience")
def _(world: World) -> None:
    plant(world)
    world.inject(Fault(faults.slow_down, "PUT", "", EVER, after=5))
    assert world.assert_refused(StoreUnavailableError, world.store(1)).code == 145


@line("wrong secret key")
def _(world: World) -> None:
    plant(world)
    wrong = world.other_secret(AWS_SECRET_ACCESS_KEY="wrong-key-nobody-may-see")
    error = world.assert_refused(ConfigurationError, world.store(secret=wrong))
    assert "wrong-key" not in str(error)


@line("unknown access key")
def _(world: World) -> None:
    plant(world)
    wrong = world.other_secret(AWS_ACCESS_KEY_ID="nobody")
    world.assert_refused(ConfigurationError, world.store(secret=wrong))


@line("read-only credentials")
def _(world: World) -> None:
    plant(world)
    world.inject(Fault(faults.refuse(403, "AccessDenied"), "PUT|POST|DELETE", "", EVER))
    world.assert_refused(ConfigurationError)


@line("write permission is lost in the middle")
def _(world: World) -> None:
    plant(world)
    world.inject(Fault(faults.refuse(403, "AccessDenied"), "PUT", "", EVER, after=6))
    world.assert_refused(ConfigurationError)


@line("the session token expires and is rotated")
def _(world: World) -> None:
    plant(world)
    secret = world.other_secret(AWS_SESSION_TOKEN="old")
    check = {token: faults.accepts_token(token) for token in ("old", "new")}
    count = [0]

    def expire(exchange: faults.Exchange) -> bool:
        count[0] += 1
        if count[0] == 6:
            (secret / "AWS_SESSION_TOKEN").write_text("new")
        return check["old" if count[0] < 6 else "new"](exchange)

    world.inject(Fault(expire, ".*", "", EVER))
    world.push(world.store(secret=secret))
    assert [seen.status for seen in world.proxy.seen].count(400) >= 1
    world.assert_whole()


@line("the session token has expired for good")
def _(world: World) -> None:
    plant(world)
    secret = world.other_secret(AWS_SESSION_TOKEN="old")
    world.inject(Fault(faults.accepts_token("new"), ".*", "", EVER))
    error = world.assert_refused(ConfigurationError, world.store(secret=secret))
    assert "the session token has expired" in str(error)


@line("no such bucket")
def _(world: World) -> None:
    plant(world)
    with pytest.raises(ConfigurationError, match="there is no bucket absent"):
        push(world.store(), world.folder, S3Address("absent", "x"), "code")


@line("the bucket is full")
def _(world: World) -> None:
    plant(world)
    world.inject(Fault(faults.refuse(403, "QuotaExceeded"), "PUT", "", EVER, after=5))
    world.assert_refused(StepError)


@line("another region answers")
def _(world: World) -> None:
    plant(world)
    world.inject(Fault(faults.refuse(400, "AuthorizationHeaderMalformed"), "PUT", "", 1))
    try:
        world.push()
    except StepError:  # boto3 alone takes it as final; our way asks boto3 once
        world.inject()
        world.push()
    world.assert_whole()


@line("reply lost after a conditional create")
def _(world: World) -> None:
    store = world.store()
    world.inject(Fault(faults.lose_reply))
    store.create(world.base / "1.json", b"mine")
    with pytest.raises(ObjectExistsError):
        store.create(world.base / "1.json", b"theirs")
    assert world.truth.read(world.base / "1.json") == b"mine"


@line("a manifest cannot be taken away before it is replaced")
def _(world: World) -> None:
    plant(world, {"a": b"1"})
    world.push()
    before = content(world.folder)
    plant(world, {"a": b"2"})
    world.inject(Fault(faults.refuse(403, "AccessDenied"), "DELETE", "manifest", EVER))
    with pytest.raises(ConfigurationError):
        world.push()
    pull(world.truth, world.base, world.folder.with_name("copy"))
    assert content(world.folder.with_name("copy")) == before


def changes(name: str, change: Callable[[Path], object], size: int = PART - 5) -> None:
    """Add lines where the trainer touches a file while it is sent."""

    def pushed(world: World) -> None:
        plant(world, {"a": b"a", "file": os.urandom(size)})
        act = faults.midway(lambda: change(world.folder / "file"))
        world.inject(Fault(act, "PUT", "/file"))
        world.assert_refused(FileChangedError)

    def mirrored(world: World) -> None:
        plant(world, {"a": b"a", "file": os.urandom(size)})
        act = faults.midway(lambda: change(world.folder / "file"))
        world.inject(Fault(act, "PUT", "/file"))
        world.mirror()

    if "deleted" not in name and "replaced" not in name:  # those the sender does not see
        LINES[f"push: a file is {name} while it is sent"] = pushed
    LINES[f"mirror: a file is {name} while it is sent"] = mirrored


def replace(path: Path) -> None:
    path.with_name("new.part").write_bytes(b"new")
    path.with_name("new.part").replace(path)


def append(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b"more")


changes("appended to", append)
changes("truncated", lambda path: os.truncate(path, 1000))
changes("rewritten at the same size", lambda path: path.write_bytes(os.urandom(PART - 5)))
changes("replaced by a rename", replace)
changes("deleted", lambda path: path.unlink())


@line("a file sent in parts is written to")
def _(world: World) -> None:
    plant(world, {"a": b"a", "file": os.urandom(3 * PART)})
    act = faults.midway(lambda: append(world.folder / "file"))
    world.inject(
        Fault(act, "PUT", "partNumber=2"),
        Fault(faults.refuse(403, "AccessDenied"), "DELETE", "uploadId", EVER),
    )
    world.assert_refused(FileChangedError)
    world.mirror()


@line("any name")
def _(world: World) -> None:
    names = ["with space/and more", "ünï/çödé 𝄞", "e\u0301 and é", "a+b%20c#d?e&f=g", "line\nbreak"]
    names += [
        "quote'\"<>",
        "tab\tand\rreturn",
        "~-._!*'()$,;:@[]{}|^`\\",
        "/".join(["d" * 100] * 8),
    ]
    plant(world, {name: name.encode() for name in names})
    world.push()
    world.assert_whole()


@line("any size")
def _(world: World) -> None:
    sizes = [0, 1, SMALL, SMALL + 1, PART, PART + 1]
    plant(world, {str(size): os.urandom(size) for size in sizes})
    world.push()
    world.assert_whole()


@line("links, loops, FIFOs, sockets, unfinished names")
def _(world: World) -> None:
    plant(world, {"real": b"real", "half.part": b"", "x.tmp": b"", ".hidden/x": b""})
    (world.folder / "loop").symlink_to(world.folder)
    (world.folder / "dangling").symlink_to("nowhere")
    (world.folder / "link").symlink_to("real")
    os.link(world.folder / "real", world.folder / "hard")
    os.mkfifo(world.folder / "fifo")
    os.mknod(world.folder / "socket", stat.S_IFSOCK | 0o600)
    world.push()
    found = {item.key for item in world.truth.read_manifest(world.base / "manifest.json").objects}
    assert found == {"real", "hard"}
    world.assert_whole()


@line("a file that cannot be read")
def _(world: World) -> None:
    """Permissions do not bind the administrator; opening a directory fails for everybody."""
    plant(world, {"a": b"a", "file": b"x"})
    real = scan(world.folder)
    (world.folder / "file").unlink()
    (world.folder / "file").mkdir()
    store = world.store()
    with pytest.raises(FileUnreadableError):
        store.send(world.folder / "file", world.base / "file", "file")
    mirror = Mirror(store, world.folder, RunLayout(world.base), "r", 1)
    mirror.store(real, real, everything=True)
    assert mirror.missing(real) == ["file"]
    assert "cannot be read" in mirror.trouble["file"]
    assert world.truth.read(RunLayout(world.base).output / "a") == b"a"


@line("a name that no key can have")
def _(world: World) -> None:
    plant(world, {"a": b"a", os.fsdecode(b"bad\xff"): b"x"})
    world.assert_refused(DataError)


@line("the disk is full: no journal")
def _(world: World) -> None:
    plant(world, {"checkpoints/3/data": b"three"})
    keep = world.folder / ".uploader"
    keep.mkdir()
    (keep / ".journal.jsonl.part").symlink_to("/dev/full")
    journal = Journal(keep, "mine")
    mirror = Mirror(world.store(), world.folder, RunLayout(world.base), "r", 1, journal=journal)
    mirror.store(scan(world.folder), scan(world.folder))
    assert mirror.missing(scan(world.folder)) == []
    world.truth.read_manifest(RunLayout(world.base).checkpoints / "3" / "manifest.json")


@line("a manifest that was damaged in the store")
def _(world: World) -> None:
    plant(world, {"a": b"1"})
    world.push()
    world.truth.write(world.base / "manifest.json", json.dumps({"format": "other"}).encode())
    with pytest.raises(DataError, match="not a manifest"):
        pull(world.store(), world.base, world.folder.with_name("copy"))
    world.push()
    world.assert_whole()


def table() -> Iterator[Any]:
    """Yield every line on every server and way; `make test` takes one of each line, on Swift."""
    for number, name in enumerate(LINES):
        for way in WAYS:
            where = f"{way[0].replace('s3', 'swift')} {way[1]}"
            marks = [pytest.mark.fault(name, where)]
            if way != WAYS[number % 2]:
                marks.append(pytest.mark.slow)
            yield pytest.param(name, way, marks=marks, id=f"{name}, {where}")


@pytest.mark.parametrize(("name", "world"), table(), indirect=["world"])
def test_fault(world: World, name: str) -> None:
    LINES[name](world)
