"""Files that change while prepare_data reads them, and a store that stops to answer."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kfp_tfjob.components.prepare_data.source.files import Source, SourceFile
from kfp_tfjob.components.step import Step
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.faults.proxy import Fault, FaultProxy, refuse
from tests.local.planted import NUMBERS, planted, refusal, small, table, where, word, write


def append(path: Path) -> None:
    with open(path, "a") as file:
        file.write("7,7,u\n")


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes().replace(b",u", b",v"))
    other.replace(path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "appended to": append,
    "cut": lambda path: os.truncate(path, 50),
    "replaced by one of the same size": replace,
    "written again": lambda path: path.write_bytes(path.read_bytes()),
}


@pytest.fixture
def after_the_first_look(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable]:
    """Let something happen to a file after it was read for the first time."""
    whole, done = Source.raw, []

    def let(happen: Callable[[SourceFile], object]) -> None:
        @contextmanager
        def raw(self: Source, file: SourceFile) -> Iterator:
            with whole(self, file) as stream:
                yield stream
            if not done:
                done.append(happen(file))

        monkeypatch.setattr(Source, "raw", raw)

    yield let
    assert done


@pytest.mark.parametrize("name", CHANGES)
def test_a_file_that_changes_while_it_is_read(step, tmp_path, after_the_first_look, name):
    uri = write(tmp_path, table(word))
    after_the_first_look(lambda file: CHANGES[name](Path(file.location)))
    assert f"{uri} changed" in refusal(step, uri)


def test_an_object_that_changes_while_it_is_read(step, store, base, after_the_first_look):
    # The first MiB is read once, so a smaller object is what it was when it was listed.
    long = table(lambda i: f"{word(i)}" * 5000)
    assert len(long) > 2 << 20
    store.write(base / "f.csv", long)
    after_the_first_look(lambda file: store.write(file.location, long.replace(b"u", b"v")))
    assert f"{base / 'f.csv'} changed" in refusal(step, str(base / "f.csv"))


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("AccessDenied", "the credentials do not allow this"),
        ("ExpiredToken", "the session token has"),
    ],
)
def test_a_store_that_refuses_to_be_read(store, base, proxy: FaultProxy, code, said):
    store.write(base / "f.csv", NUMBERS)
    proxy.faults = [Fault(refuse(403, code), "GET", "/f.csv$", times=99)]
    step = Step("prepare_data", "r1", Layout(base / "out"), Store(proxy.endpoint))
    assert f"cannot open {base / 'f.csv'}: {said}" in refusal(step, str(base / "f.csv"))


def test_names_of_files_as_people_give_them(step, tmp_path):
    (tmp_path / "ü #%?&+").mkdir()
    name = "ä b#%?&+'.csv"
    (tmp_path / "ü #%?&+" / name).write_bytes(table(planted("oops", small)))
    os.mkfifo(tmp_path / "pipe.csv")
    assert where("b", "oops", "text", f"ü #%?&+/{name}") in refusal(step, str(tmp_path))


def test_a_disk_that_fills_up(step, tmp_path, mount, monkeypatch):
    rows = b"a,y\n" + b"".join(b"%d,%d\n" % (i % 9, i % 2) for i in range(30_000))
    uri = write(tmp_path / "in", rows)
    # There seems to be room, but such short values take more of it as numbers.
    monkeypatch.setattr(tempfile, "tempdir", str(mount(7 * len(rows) // 2)))
    said = refusal(step, uri)
    assert "TMPDIR" in said
