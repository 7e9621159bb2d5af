"""What can go wrong with a store, with files and with disks, as a table: nothing is lost.

Each line runs on two real servers, with our own connections and with boto3's through a forward
proxy; the short run has each line once. test_uploader_sidecar.py has what is about processes.
"""

import itertools
import json
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kfp_tfjob.common.errors import (
    ConfigurationError,
    DataError,
    ObjectExistsError,
    StepError,
    StoreUnavailableError,
)
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.body import FileUnreadableError
from kfp_tfjob.storage.layout import RunLayout
from kfp_tfjob.storage.store import PART, FileChangedError
from kfp_tfjob.uploader import pull, push
from kfp_tfjob.uploader.local_files import scan
from tests.faults import proxy as faults
from tests.faults.proxy import Fault
from tests.faults.world import EVER, Table, World, content, plant

TABLE = Table()

TABLE.goes_well("503 bursts", lambda: Fault(faults.slow_down, "PUT|POST", times=7))
TABLE.goes_well(
    "429 too many requests", lambda: Fault(faults.refuse(429, "TooManyRequests"), times=3)
)
TABLE.goes_well(
    "500 when parts are put together",
    lambda: Fault(faults.refuse(500, "InternalError"), "POST", "uploadId=", 2),
)
TABLE.goes_well("connection reset after half a body", lambda: Fault(faults.reset_midway, times=5))
TABLE.goes_well(
    "a part is reset after half its body", lambda: Fault(faults.reset_midway, "PUT", "part")
)
TABLE.goes_well("reply lost after a PUT", lambda: Fault(faults.lose_reply, times=4))
TABLE.goes_well(
    "reply lost after the parts were put together",
    lambda: Fault(faults.lose_reply, "POST", "uploadId="),
)
TABLE.goes_well(
    "200 with an error in the body of a PUT", lambda: Fault(faults.error_after_200, times=3)
)
TABLE.goes_well(
    "200 with an error in the body of a completion",
    lambda: Fault(faults.error_after_200, "POST", "uploadId=", 2),
)
TABLE.goes_well(
    "a bit is flipped on the way", lambda: Fault(faults.damage, target="s/|middle|part", times=4)
)
TABLE.goes_well(
    "a bit is flipped, and the store ignores CRC64NVME",
    lambda: Fault(faults.ignore_checksums, times=EVER),
    lambda: Fault(faults.damage, target="s/|middle|part", times=4),
)
TABLE.goes_well(
    "a bit is flipped, and the store checks nothing at all",
    lambda: Fault(faults.check_nothing, times=EVER),
    lambda: Fault(faults.damage, target="s/|middle|part", times=4),
)
TABLE.goes_well(
    "entity tags that are no checksums", lambda: Fault(faults.opaque_tags, "PUT", "^[^?]*$", EVER)
)
TABLE.goes_well(
    "entity tags that are no checksums, and CRC64NVME is ignored",
    lambda: Fault(faults.ignore_checksums, times=EVER),
    lambda: Fault(faults.opaque_tags, "PUT", "^[^?]*$", EVER),
)
TABLE.goes_well("a slow store", lambda: Fault(faults.slowly(40e6), target="large", times=EVER))
TABLE.goes_well(
    "the store is unreachable at the start", lambda: Fault(faults.away(0.7), ".*", "", EVER)
)
TABLE.goes_well(
    "the store is unreachable in the middle", lambda: Fault(faults.away(0.7), ".*", "", EVER, 5)
)
TABLE.goes_well("kept connections are closed", lambda: Fault(faults.hang_up_after, ".*", "", EVER))
TABLE.goes_well(
    "deleting is denied", lambda: Fault(faults.refuse(403, "AccessDenied"), "DELETE", "", EVER)
)


@TABLE.line("replies that trickle in")
def _(world: World) -> None:
    plant(world)
    world.inject(Fault(faults.trickle, ".*", times=EVER))
    world.push()
    copy = world.folder.with_name("trickled")
    pull(world.store(), world.base, copy)
    assert content(copy) == content(world.folder)
    world.assert_whole()


@TABLE.line("the store is unreachable for longer than the patience")
def _(world: World) -> None:
    plant(world)
    world.inject(Fault(faults.slow_down, "PUT", "", EVER, after=5))
    assert world.assert_refused(StoreUnavailableError, world.store(1)).code == 145


@TABLE.line("wrong secret key")
def _(world: World) -> None:
    plant(world)
    wrong = world.other_secret(AWS_SECRET_ACCESS_KEY="wrong-key-nobody-may-see")
    error = world.assert_refused(ConfigurationError, world.store(secret=wrong))
    assert "wrong-key" not in str(error)


@TABLE.line("write permission is lost in the middle")
def _(world: World) -> None:
    plant(world)
    world.inject(Fault(faults.refuse(403, "AccessDenied"), "PUT", "", EVER, after=6))
    world.assert_refused(ConfigurationError)


@TABLE.line("the session token expires and is rotated")
def _(world: World) -> None:
    plant(world)
    secret = world.other_secret(AWS_SESSION_TOKEN="old")
    check = {token: faults.accepts_token(token) for token in ("old", "new")}
    numbers, one_by_one = itertools.count(1), threading.Lock()

    def expire(exchange: faults.Exchange) -> bool:
        with one_by_one:  # no request is refused before the new token is there
            number = next(numbers)
            if number == 6:
                # As Kubernetes does it: no reader meets half a value.
                (secret / ".new").write_text("new")
                (secret / ".new").replace(secret / "AWS_SESSION_TOKEN")
        return check["old" if number < 6 else "new"](exchange)

    world.inject(Fault(expire, ".*", "", EVER))
    world.push(world.store(secret=secret))
    assert [seen.status for seen in world.proxy.seen].count(400) >= 1
    world.assert_whole()


@TABLE.line("the session token has expired for good")
def _(world: World) -> None:
    plant(world)
    secret = world.other_secret(AWS_SESSION_TOKEN="old")
    world.inject(Fault(faults.accepts_token("new"), ".*", "", EVER))
    error = world.assert_refused(ConfigurationError, world.store(secret=secret))
    assert "session token" in str(error)


@TABLE.line("no such bucket")
def _(world: World) -> None:
    plant(world)
    with pytest.raises(ConfigurationError, match="bucket absent"):
        push(world.store(), world.folder, S3Address("absent", "x"), "code")


@TABLE.line("the bucket is full")
def _(world: World) -> None:
    plant(world)
    world.inject(Fault(faults.refuse(403, "QuotaExceeded"), "PUT", "", EVER, after=5))
    world.assert_refused(StepError)


@TABLE.line("another region answers")
def _(world: World) -> None:
    plant(world)
    world.inject(Fault(faults.refuse(400, "AuthorizationHeaderMalformed"), "PUT", "", 1))
    try:
        world.push()
    except StepError:  # boto3 alone takes it as final; our way asks boto3 once
        world.inject()
        world.push()
    world.assert_whole()


@TABLE.line("reply lost after a conditional create")
def _(world: World) -> None:
    store = world.store()
    world.inject(Fault(faults.lose_reply))
    store.create(world.base / "1.json", b"mine")
    with pytest.raises(ObjectExistsError):
        store.create(world.base / "1.json", b"theirs")
    assert world.truth.read(world.base / "1.json") == b"mine"


@TABLE.line("a manifest cannot be taken away before it is replaced")
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


@TABLE.line("a manifest that was damaged in the store")
def _(world: World) -> None:
    plant(world, {"a": b"1"})
    world.push()
    world.truth.write(world.base / "manifest.json", json.dumps({"format": "other"}).encode())
    with pytest.raises(DataError, match="manifest"):
        pull(world.store(), world.base, world.folder.with_name("copy"))
    world.push()
    world.assert_whole()


def changes(name: str, change: Callable[[Path], object]) -> None:
    """Add lines where the trainer touches a file while it is sent."""

    def begin(world: World) -> None:
        plant(world, {"a": b"a", "file": os.urandom(PART - 5)})
        act = faults.midway(lambda: change(world.folder / "file"))
        world.inject(Fault(act, "PUT", "/file"))

    def pushed(world: World) -> None:
        begin(world)
        world.assert_refused(FileChangedError)

    def mirrored(world: World) -> None:
        begin(world)
        world.mirror()

    if "deleted" not in name and "replaced" not in name:  # those the sender does not see
        TABLE.lines[f"push: a file is {name} while it is sent"] = pushed
    TABLE.lines[f"mirror: a file is {name} while it is sent"] = mirrored


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


@TABLE.line("a file is rewritten at the same size and time")
def _(world: World) -> None:
    plant(world, {"file": b"old"})
    mirror = world.new_mirror()
    mirror.store(scan(world.folder), scan(world.folder))
    before = (world.folder / "file").stat()
    plant(world, {"file": b"new"})
    os.utime(world.folder / "file", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert mirror.missing(scan(world.folder)) == ["file"]
    mirror.store(scan(world.folder), scan(world.folder))
    assert world.truth.read(RunLayout(world.base).output / "file") == b"new"


@TABLE.line("a file is gone, or something else, when it is opened")
def _(world: World) -> None:
    """It was a file when the folder was scanned; a FIFO would hang the process that opens it."""
    plant(world, {"a": b"a", "gone": b"x", "link": b"x", "fifo": b"x"})
    found = scan(world.folder)
    for name in ("gone", "link", "fifo"):
        (world.folder / name).unlink()
    (world.folder / "link").symlink_to("a")
    os.mkfifo(world.folder / "fifo")
    mirror = world.new_mirror()
    mirror.store(found, found, everything=True)
    assert mirror.missing(found) == ["fifo", "gone", "link"]
    assert set(mirror.trouble) == {"fifo", "link"}, "what is gone is no trouble"
    output = RunLayout(world.base).output
    assert [item.address for item in world.truth.list(output)] == [output / "a"]
    world.mirror()


@TABLE.line("a checkpoint is moved in, with files of last year")
def _(world: World) -> None:
    other = world.folder.with_name("elsewhere")
    other.mkdir()
    (other / "data").write_bytes(b"old but new here")
    os.utime(other / "data", (1e9, 1e9))
    plant(world, {"a": b"a"})
    mirror = world.new_mirror()
    mirror.store(scan(world.folder), scan(world.folder))
    (world.folder / "checkpoints").mkdir()
    other.rename(world.folder / "checkpoints" / "5")
    mirror.store(scan(world.folder), scan(world.folder))
    assert mirror.missing(scan(world.folder)) == []
    step = RunLayout(world.base).checkpoints / "5"
    entry = world.truth.read_manifest(step / "manifest.json").objects[0]
    world.truth.verify(step / "data", entry)


@TABLE.line("a file sent in parts is written to")
def _(world: World) -> None:
    plant(world, {"a": b"a", "file": os.urandom(3 * PART)})
    act = faults.midway(lambda: append(world.folder / "file"))
    world.inject(
        Fault(act, "PUT", "partNumber=2"),
        Fault(faults.refuse(403, "AccessDenied"), "DELETE", "uploadId", EVER),
    )
    world.assert_refused(FileChangedError)
    world.mirror()


@TABLE.line("links, loops, FIFOs, sockets, hidden names")
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
    assert found == {"real", "hard", "half.part", "x.tmp"}  # only training leaves unfinished files
    world.assert_whole()


@TABLE.line("a file that cannot be read")
def _(world: World) -> None:
    """Permissions do not bind the administrator; opening a directory fails for every user."""
    plant(world, {"a": b"a", "file": b"x"})
    real = scan(world.folder)
    (world.folder / "file").unlink()
    (world.folder / "file").mkdir()
    with pytest.raises(FileUnreadableError):
        world.store().send(world.folder / "file", world.base / "file", "file")
    mirror = world.new_mirror()
    mirror.store(real, real, everything=True)
    assert mirror.missing(real) == ["file"]
    assert set(mirror.trouble) == {"file"}
    assert world.truth.read(RunLayout(world.base).output / "a") == b"a"


@pytest.mark.parametrize(("name", "world"), TABLE.cases(), indirect=["world"])
def test_fault(world: World, name: str) -> None:
    TABLE.lines[name](world)
