"""Which files count, and that the supervisor counts the same ones."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_tfjob.supervisor import output_files as supervisor
from kfp_tfjob.uploader.local_files import inventory, scan

NAMES = st.sampled_from(
    ["a", "b", "a b", "ä", "e\u0301", "𝄞", "+%#?&", "line\nbreak", ".hidden", "x.tmp", "x.part"]
    + ["tmp", "part", "x.tmp.txt", "progress.jsonl", ".uploader", "checkpoints", "10"]
)
TREES = st.dictionaries(st.lists(NAMES, min_size=1, max_size=3).map(tuple), st.binary(max_size=5))


def plant(root: Path, tree: dict[tuple[str, ...], bytes]) -> None:
    for parts, content in tree.items():
        path = root.joinpath(*parts)
        if any(parent.is_file() for parent in path.parents) or path.is_dir():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@settings(max_examples=60, deadline=None)
@given(TREES)
def test_the_supervisor_counts_the_same(tmp_path_factory, tree):
    root = tmp_path_factory.mktemp("tree")
    plant(root, tree)
    assert inventory(scan(root).files.values()) == supervisor.inventory(root)


def test_every_kind_of_entry(tmp_path):
    plant(tmp_path, {("b",): b"12", ("a", "x y"): b"", ("a.tmp", "in"): b"", (".h", "in"): b""})
    plant(tmp_path, {("a", ".h"): b"1", ("a", "z.part"): b"1", ("a-", "q"): b"1"})
    (tmp_path / os.fsdecode(b"\xff")).write_bytes(b"1")
    (tmp_path / "link").symlink_to("b")
    (tmp_path / "links").symlink_to("a")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to(".")
    os.mkfifo(tmp_path / "fifo")

    found = scan(tmp_path)

    assert set(found.files) == {"b", "a/x y", "a-/q", "\udcff"}
    assert dict(found.skipped) == {
        "link": "link",
        "links": "link",
        "dangling": "link",
        "loop": "link",
        "fifo": "special file",
    }
    # "a-/q" before "a/x y": the whole path is compared, and "-" comes before "/".
    lines = b"1 a-/q\n0 a/x y\n2 b\n1 \xff\n"
    expected = 4, hashlib.sha256(lines).hexdigest()
    assert inventory(found.files.values()) == expected == supervisor.inventory(tmp_path)


def test_a_folder_that_is_gone_is_an_error_and_not_empty(tmp_path):
    assert scan(tmp_path / "absent").errors
    assert not scan(tmp_path).errors


# Makes and removes files in a folder until it is ended.
CHURN = """
import os, sys
while True:
    for act in (lambda name: open(name, "w").close(), os.unlink):
        for i in range(50):
            act(f"{sys.argv[1]}/come-and-go-{i}")
"""


def test_a_file_that_vanishes_hides_no_other(tmp_path):
    steady = {("folder", f"steady-{i}"): b"" for i in range(300)}
    plant(tmp_path, steady)
    churn = subprocess.Popen([sys.executable, "-c", CHURN, tmp_path / "folder"])
    try:
        for _ in range(300):
            found = scan(tmp_path)
            assert {"/".join(parts) for parts in steady} <= found.files.keys()
            assert not found.errors
    finally:
        churn.kill()
        churn.wait()
