"""What can go wrong with files and disks, as a table; see test_uploader_faults.py."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from kfp_tfjob.storage.body import FileUnreadableError
from kfp_tfjob.storage.layout import RunLayout
from kfp_tfjob.storage.store import PART, FileChangedError
from kfp_tfjob.uploader.local_files import scan
from kfp_tfjob.uploader.mirror import Mirror
from tests.faults import proxy as faults
from tests.faults.proxy import Fault
from tests.faults.world import EVER, Table, World, plant

TABLE = Table()


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
    mirror = Mirror(world.store(), world.folder, RunLayout(world.base), "r", 1)
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
    mirror = Mirror(world.store(), world.folder, RunLayout(world.base), "r", 1)
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
    mirror = Mirror(world.store(), world.folder, RunLayout(world.base), "r", 1)
    mirror.store(scan(world.folder), scan(world.folder))
    (world.folder / "checkpoints").mkdir()
    other.rename(world.folder / "checkpoints" / "5")
    mirror.store(scan(world.folder), scan(world.folder))
    assert mirror.missing(scan(world.folder)) == []
    step = RunLayout(world.base).checkpoints / "5"
    entry = world.truth.read_manifest(step / "manifest.json").objects[0]
    world.truth.prove(step / "data", entry)


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


@TABLE.line("links, loops, FIFOs, sockets, unfinished names")
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


@TABLE.line("a file that cannot be read")
def _(world: World) -> None:
    """Permissions do not bind the administrator; opening a directory fails for every user."""
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
    assert set(mirror.trouble) == {"file"}
    assert world.truth.read(RunLayout(world.base).output / "a") == b"a"


@pytest.mark.parametrize(("name", "world"), TABLE.cases(), indirect=["world"])
def test_fault(world: World, name: str) -> None:
    TABLE.lines[name](world)
