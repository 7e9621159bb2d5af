"""One server, one client and what is between them; and the table of what can go wrong there."""

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kfp_tfjob.common.errors import ObjectNotFoundError, StepError
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.credentials import SecretVolume
from kfp_tfjob.storage.layout import RunLayout
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.storage.store import PART, Store
from kfp_tfjob.uploader import pull, push, verify
from kfp_tfjob.uploader.local_files import scan
from kfp_tfjob.uploader.mirror import Mirror
from tests.faults.proxy import Fault, FaultProxy

EVER = float("inf")
LARGE = PART + 54321
# On each server with our own connections, and with boto3's through a forward proxy.
WAYS = [("s3", "direct"), ("s3", "proxied"), ("versitygw", "direct"), ("versitygw", "proxied")]


@dataclass
class World:
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
        """Every file of the folder is in the store, byte for byte."""
        self.inject()
        manifest = self.truth.read_manifest(self.base / "manifest.json")
        assert verify(self.truth, self.base, manifest) == []
        copy = self.folder.with_name("copy")
        pull(self.truth, self.base, copy)
        assert content(copy) == content(self.folder)
        assert unfinished(self.truth, self.base) == []

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

    def new_mirror(self) -> Mirror:
        """Return a mirror of the folder, as a sidecar has it that has just started."""
        return Mirror(self.store(), self.folder, RunLayout(self.base), "r", 1)

    def mirror(self) -> None:
        """Mirror until everything is stored, as the sidecar does at its end."""
        mirror = self.new_mirror()
        for _ in range(5):
            found = scan(self.folder)
            mirror.store(found, found, everything=True)
            if found.files == scan(self.folder).files and not mirror.missing(found):
                break
        manifest = mirror.publish(scan(self.folder))
        assert verify(self.truth, self.base, manifest) == []
        copy = self.folder.with_name("copy")
        pull(self.truth, self.base, copy)
        assert content(copy / "output") == content(self.folder)


def unfinished(store: Store, prefix: S3Address) -> list[str]:
    found = store._client.list_multipart_uploads(Bucket=prefix.bucket, Prefix=f"{prefix.key}/")
    return [upload["Key"] for upload in found.get("Uploads", [])]


def content(folder: Path) -> dict[str, bytes]:
    return {path: (folder / path).read_bytes() for path in scan(folder).files}


def write_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


def plant(world: World, files: dict[str, bytes] | None = None, large: bool = False) -> None:
    files = files or {f"s/{i}": os.urandom(1000 + i) for i in range(6)} | {
        "middle": os.urandom(300_000),
        **({"large": os.urandom(LARGE)} if large else {}),
    }
    write_files(world.folder, files)


@dataclass
class Table:
    """Lines, each a name and what happens; each runs on every server and way."""

    lines: dict[str, Callable[[World], None]] = field(default_factory=dict)

    def line(self, name: str) -> Callable[[Callable[[World], None]], Callable[[World], None]]:
        def add(function: Callable[[World], None]) -> Callable[[World], None]:
            self.lines[name] = function
            return function

        return add

    def goes_well(self, name: str, *injected: Callable[[], Fault]) -> None:
        """Add a line where the client gets everything across in spite of faults."""

        def run(world: World) -> None:
            fresh = [make() for make in injected]
            plant(world, large=any(re.search("part|uploadId|large", f.target) for f in fresh))
            world.inject(*fresh)
            world.push()
            assert all(fault.happened for fault in fresh), "every fault happened"
            world.assert_whole()

        self.lines[name] = run

    def cases(self) -> Iterator[Any]:
        """Yield every line on every server and way; `make test` takes one of each line."""
        for number, name in enumerate(self.lines):
            for way in WAYS:
                where = f"{way[0].replace('s3', 'swift')} {way[1]}"
                marks = [pytest.mark.slow] if way != WAYS[number % 2] else []
                yield pytest.param(name, way, marks=marks, id=f"{name}, {where}")
