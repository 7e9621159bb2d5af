"""push, pull and verify on the real server."""

import os
from unittest.mock import Mock

import pytest

from kfp_tfjob.common.errors import DataError, ObjectNotFoundError, StepError
from kfp_tfjob.uploader import pull, push, verify
from tests.faults.world import content, write_files
from tests.problems import problems_of


def test_what_is_there_is_not_sent_again(store, base, tmp_path):
    source = write_files(tmp_path, {"same": b"1", "other": b"22", "gone": b"3"})
    first = push(store, source, base, "code")
    # Whether an object is sent again shows in the object: nothing else writes here.
    store.write(base / "same", b"x")

    assert push(store, source, base, "code") == first
    assert store.read(base / "same") == b"x"

    (source / "other").write_bytes(b"23")
    (source / "gone").unlink()
    second = push(store, source, base, "code")
    assert [item.key for item in second.objects] == ["other", "same"]
    assert store.read(base / "other") == b"23"
    assert store.read(base / "same") == b"x"
    assert store.read_manifest(base / "manifest.json") == second


def test_a_push_that_is_refused_changes_nothing(store, base, tmp_path):
    source = write_files(tmp_path, {"a": b"1", "b": b"2"})
    first = push(store, source, base, "code")
    (source / "a").write_bytes(b"2")
    (source / "c").symlink_to("a")
    (source / os.fsdecode(b"\xff")).write_bytes(b"no key can have this name")

    with pytest.raises(DataError, match="not UTF-8"):
        push(store, source, base, "code")
    assert pull(store, base, tmp_path / "copy") == first


def test_a_push_that_ends_early_leaves_nothing_to_trust(store, base, tmp_path, monkeypatch):
    source = write_files(tmp_path / "source", {"a": b"1", "b": b"2"})
    push(store, source, base, "code")
    (source / "a").write_bytes(b"2")
    monkeypatch.setattr(store, "send", Mock(side_effect=StepError("it was ended")))
    with pytest.raises(StepError, match="ended"):
        push(store, source, base, "code")
    with pytest.raises(ObjectNotFoundError):
        pull(store, base, tmp_path / "copy")


def test_pull_leaves_alone_what_is_right(store, base, tmp_path):
    push(store, write_files(tmp_path / "source", {"a": b"aa", "b": b"bb"}), base, "code")
    copy = write_files(tmp_path / "copy", {"a": b"aa", "b": b"xx", "mine": b"1"})
    before = (copy / "a").stat()

    pull(store, base, copy)

    assert content(copy) == {"a": b"aa", "b": b"bb", "mine": b"1"}
    assert (copy / "a").stat().st_ino == before.st_ino


def test_a_damaged_object_is_refused(store, base, tmp_path):
    files = {"plain.txt": b"plain", "line\nbreak": b"newline", "empty": b"", "a/b": b"b"}
    files |= {"template.tmp": b"of the user's code", "a.part/b": b"too"}
    push(store, write_files(tmp_path / "source", files), base, "code")
    store.write(base / "plain.txt", b"PLAIN")
    store.write(base / "line\nbreak", b"longer than it was")
    store.delete(base / "empty")
    copy = tmp_path / "copy"

    said = [problem.what for problem in problems_of(pull, store, base, copy, kind=DataError)]

    named = ("plain.txt", "line\nbreak", "empty")
    assert len(said) == 3
    assert all(any(what.startswith(f"{base}/{name} ") for what in said) for name in named), said
    assert content(copy) == {"a/b": b"b"}
    assert (copy / "template.tmp").read_bytes() and (copy / "a.part/b").read_bytes()

    problems = verify(store, base, store.read_manifest(base / "manifest.json"))
    assert len(problems) == 3
    assert any(p.what.startswith(f"{base}/empty ") for p in problems)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (None, "cannot be read"),
        ({".hidden": b""}, "no file"),
        ({"manifest.json": b""}, "contains a file manifest.json"),
        ({"/".join(["d" * 200] * 5): b""}, "too long"),
    ],
)
def test_a_folder_that_cannot_be_sent(store, base, tmp_path, files, message):
    folder = tmp_path / "folder"
    if files is not None:
        write_files(folder, files)
    with pytest.raises(DataError, match=message):
        push(store, folder, base, "code")
