"""Files and folders that appear complete or not at all."""

import os
from pathlib import Path

import pytest

from kfp_tfjob.common import files
from kfp_tfjob.uploader.local_files import is_output

SOURCES = Path(__file__).parents[2] / "kfp_tfjob"


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "a.json"
    files.write(path, "ä")
    files.write(path, b"new")
    assert path.read_bytes() == b"new" and os.listdir(tmp_path) == ["a.json"]


def test_what_is_not_written_to_the_end_leaves_nothing(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), files.atomic_write(path) as partial:
        partial.write_text("new")
        raise KeyboardInterrupt
    with pytest.raises(ValueError), files.atomic_write(tmp_path / "folder") as partial:
        partial.mkdir()
        (partial / "half").write_text("half")
        raise ValueError
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["a"]


def test_a_folder_appears_with_its_files_and_without_those_of_an_earlier_try(tmp_path):
    path = tmp_path / "7"
    files.partial_of(path).mkdir()
    (files.partial_of(path) / "old").write_text("old")
    with files.atomic_write(path) as partial:
        assert not path.exists()
        partial.mkdir()
        (partial / "new").write_text("new")
    assert os.listdir(path) == ["new"] and os.listdir(tmp_path) == ["7"]
    files.take_away(path)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("name", ["a", "a.json", "7", "ä" * 127, "x" * 255])
def test_an_unfinished_file_is_no_output_and_has_a_name_the_file_system_takes(tmp_path, name):
    partial = files.partial_of(tmp_path / name)
    assert not is_output(partial.name) and partial.parent == tmp_path
    partial.touch()
    files.discard(partial)
    assert not os.listdir(tmp_path)
