"""Tables that list images: what their rows mean, and which are invalid."""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from kfp_tfjob.common.errors import ConfigurationError, DataError, Problem
from kfp_tfjob.components.prepare_data.images.image_list import with_images
from kfp_tfjob.components.prepare_data.source.digest import source_digest
from kfp_tfjob.components.prepare_data.source.files import Source
from kfp_tfjob.components.prepare_data.source.resolve import check_header, list_source
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.storage.store import Store
from tests.problems import problem_of, problems_of
from tests.unit.picture_files import drawn, encoded, tree
from tests.unit.prepared_files import options, write_table

STORE = Store("http://127.0.0.1:1")
ONE, OTHER = encoded(drawn()), encoded(drawn(1))
TYPES = {"path": "image"}


def listed(table: Path | str, label: str = "y", **given: Any) -> Source:
    """Return the images that a table lists."""
    typed = options(**{"types": TYPES} | given)
    return with_images(list_source(STORE, str(table), typed), label, typed)


def problems(table: Path, label: str = "y", **given: Any) -> list[Problem]:
    """Return what preflight says of a table."""
    typed = options(**{"types": TYPES} | given)
    return check_header(listed(table, label, **given), label, typed)


def table(folder: Path, rows: dict[str, str], name: str = "list.csv") -> Path:
    return write_table(folder / name, {"path": list(rows), "y": list(rows.values())})


def pets(folder: Path, **more: bytes) -> Path:
    """Write the images a.jpg to d.jpg."""
    return tree(folder, {f"{name}.jpg": ONE for name in "abcd"} | more)


PETS = {"a.jpg": "dog", "b.jpg": "cat", "c.jpg": "dog", "d.jpg": "cat"}


def test_the_rows_of_a_table_are_images(tmp_path: Path) -> None:
    tree(tmp_path, {"p/ü 1.jpg": ONE, "p/2.jpg": ONE, "3": ONE, "not/listed.jpg": ONE})
    rows = {"./p//ü 1.jpg": "dog", " p/2.jpg ": "10", "p/../3": "cafe\u0301"}
    source = listed(table(tmp_path, rows))
    assert [file.name for file in source.files] == ["3", "p/2.jpg", "p/ü 1.jpg"]
    assert [file.label for file in source.files] == ["caf\u00e9", "10", "dog"]
    assert [file.row.line for file in source.files if file.row] == [4, 3, 2]
    assert source.pictures and source.pictures.classes == ("10", "caf\u00e9", "dog")
    assert [file.size for file in source.files] == [len(ONE)] * 3
    assert source.pictures.faults and not source.pictures.faults.bad and not source.unread
    assert problems(tmp_path / "list.csv") == []


def test_every_format_of_a_table_may_list_images(tmp_path: Path) -> None:
    pets(tmp_path)
    names = [file.label for file in listed(table(tmp_path, PETS)).files]
    columns = {"path": list(PETS), "y": list(PETS.values())}
    for ending in ("parquet", "jsonl"):
        source = listed(write_table(tmp_path / f"list.{ending}", columns))
        assert [file.label for file in source.files] == names
    write_table(tmp_path / "list.tsv", columns, ";")
    assert [file.label for file in listed(tmp_path / "list.tsv").files] == names
    (tmp_path / "rows.csv").write_text("".join(f"{key},{label}\n" for key, label in PETS.items()))
    source = listed(tmp_path / "rows.csv", names=["path", "y"])
    assert [file.label for file in source.files] == names
    assert [file.row.line for file in source.files if file.row] == [1, 2, 3, 4]


def test_numbers_are_classes_in_the_order_of_strings(tmp_path: Path) -> None:
    pets(tmp_path)
    columns = {"path": ["a.jpg", "b.jpg", "c.jpg"], "y": pa.array([10.0, 9.0, 1.0])}
    source = listed(write_table(tmp_path / "list.parquet", columns))
    assert source.pictures and source.pictures.classes == ("1", "10", "9")


@pytest.mark.parametrize(
    ("files", "splits"),
    [
        (("train/a.jpg", "train/b.jpg", "val/c.jpg", "test/d.jpg"), "train validation test"),
        (("train/a.jpg", "train/b.jpg"), "train"),
        (("train/a.jpg", "car/b.jpg"), ""),
        (("train.jpg", "test.jpg"), ""),
    ],
)
def test_top_folders_are_splits_as_those_of_classes(
    tmp_path: Path, files: tuple[str, ...], splits: str
) -> None:
    tree(tmp_path, dict.fromkeys(files, ONE))
    source = listed(table(tmp_path, {name: str(i % 2) for i, name in enumerate(files)}))
    assert {file.split for file in source.files} == set(splits.split(" "))


def test_a_table_in_each_folder(tmp_path: Path) -> None:
    for part in ("train", "validation", "test"):
        table(pets(tmp_path / part), PETS)
    source = listed(tmp_path)
    assert len(source.files) == 12 and source.splits_by_folder
    assert {file.name.split("/")[0]: file.split for file in source.files} == {
        "train": "train",
        "validation": "validation",
        "test": "test",
    }
    addresses = ", ".join(str(tmp_path / part / "list.csv") for part in ("train", "test"))
    source = listed(addresses)
    assert len(source.files) == 8 and source.folder_splits == {"train", "test"}
    assert problems(Path(addresses)) == []


def test_folders_that_look_like_splits_are_refused_as_those_of_classes(tmp_path: Path) -> None:
    names = ("img/train/a.jpg", "img/train/b.jpg", "img/test/c.jpg", "img/test/d.jpg")
    tree(tmp_path, dict.fromkeys(names, ONE))
    path = table(tmp_path, {name: str(i % 2) for i, name in enumerate(names)})
    (problem,) = problems(path)
    assert '"folders": false' in problem.fix and "img/train/" in str(problem.received)
    assert problems(path, split={"folders": False}) == []


BAD_ROWS = {
    "no/file.jpg": ("cat", "absent", "no/file.jpg"),
    "win\\a.jpg": ("cat", "absent", "win\\a.jpg: write / between folders"),
    "folder": ("cat", "absent", "folder"),
    "../out.jpg": ("cat", "outside", "../out.jpg"),
    "/etc/hostname": ("cat", "outside", "/etc/hostname"),
    "C:/data/a.jpg": ("cat", "outside", "C:/data/a.jpg"),
    "\\\\server\\a.jpg": ("cat", "outside", "\\\\server\\a.jpg"),
    "s3://bucket/a.jpg": ("cat", "outside", "s3://bucket/a.jpg"),
    "http://host/a.jpg": ("cat", "outside", "http://host/a.jpg"),
    "folder/..": ("cat", "outside", "folder/.."),
    "./a.jpg": ("cat", "repeated", "a.jpg: list.csv, line 2"),
    "": ("cat", "missing", ""),
    "e.jpg": ("", "missing", ""),
    "f.jpg": ("x" * 1001, "long", "x" * 200),
}


def test_a_row_without_an_image_is_invalid(tmp_path: Path) -> None:
    tree(tmp_path, {"out.jpg": ONE, "d/folder/x.jpg": ONE, "d/e.jpg": ONE, "d/f.jpg": ONE})
    folder = pets(tmp_path / "d")
    rows = PETS | {path: label for path, (label, _, _) in BAD_ROWS.items()}
    for few in (list(rows)[:9], [*PETS, *list(rows)[9:]]):  # a message shows ten rows
        path = table(folder, {name: rows[name] for name in few})
        source = listed(path)
        assert [file.name for file in source.files] == sorted(PETS)
        assert source.pictures and source.pictures.faults
        faults = source.pictures.faults
        assert faults.bad == faults.seen == len(few) - len(PETS)
        expected = []
        for line, name in enumerate(few, 2):
            if name in BAD_ROWS:
                label, rule, value = BAD_ROWS[name]
                column = "y" if rule == "long" or not label else "path"
                expected.append(("list.csv", line, column, value, rule))
        shown = [(it.file, it.line, it.column, it.value, it.rule) for it in faults.examples]
        assert shown == expected
        summary, *examples = problems(path)
        assert f"{len(expected):,} of " in summary.what and "on_bad_row" in summary.fix
        assert len(examples) == len(expected)
        for (_, line, column, _, _), example in zip(expected, examples, strict=True):
            assert example.what.startswith(f"list.csv, line {line}, column {column!r}: ")
        assert problems(path, on_bad_row="drop") == []


def test_a_row_that_is_no_row_is_invalid_too(tmp_path: Path) -> None:
    path = table(pets(tmp_path), PETS)
    with path.open("a") as stream:
        stream.write('x,y,z\n"open\n')
    source = listed(path)
    assert source.pictures and source.pictures.faults
    assert dict(source.pictures.faults.rows) == {"columns": 1, "quotes": 1}
    assert {fault.line for fault in source.pictures.faults.examples} == {6, 7}


def test_a_listed_file_that_is_no_image_is_named_with_its_line(tmp_path: Path) -> None:
    tree(tmp_path, {"a.jpg": ONE, "p/b.jpg": ONE[:-9], "c.jpg": OTHER})
    _, example = problems(table(tmp_path, {"a.jpg": "x", "p/b.jpg": "x", "c.jpg": "y"}))
    assert example.what.startswith("list.csv, line 3, column 'path': truncated")
    assert "p/b.jpg: " in example.received


def test_a_table_without_a_usable_row(tmp_path: Path) -> None:
    summary, example = problems_of(listed, table(tmp_path, {"a": "x"}), kind=DataError)
    assert "1 of 1 images" in summary.what and "images/1.jpg" in summary.expected
    assert example.what.startswith("list.csv, line 2, column 'path'")
    (tmp_path / "none.csv").write_text("path,y\n")
    assert problem_of(listed, tmp_path / "none.csv", kind=DataError).name == "no-rows"


def test_one_bad_row_is_counted_among_all(tmp_path: Path) -> None:
    names = [f"{number}.jpg" for number in range(200)]
    tree(tmp_path, dict.fromkeys(names, ONE))
    path = table(tmp_path, {name: str(at % 2) for at, name in enumerate([*names, "none.jpg"])})
    summary, _ = problems(path)
    assert summary.what.startswith("1 of 201 images")
    assert "data_options.on_bad_row=drop" in summary.fix and "fraction" not in summary.fix
    assert problems(path, on_bad_row="drop") == []


def test_other_features_are_refused_with_one_message(tmp_path: Path) -> None:
    pets(tmp_path)
    columns = {"id": [1, 2, 3, 4], "path": list(PETS), "y": list(PETS.values()), "age": [1] * 4}
    path = write_table(tmp_path / "list.csv", columns)
    problem = problem_of(listed, path, kind=DataError)
    assert (problem.path, problem.suggestion) == ("data_options.columns", '["path"]')
    assert "'id', 'age'" in problem.received
    assert problems(path, columns=["path"]) == problems(path, drop=["id", "age"]) == []
    assert len(listed(path, columns=["path"]).files) == 4
    for given in ({"columns": ["age"]}, {"drop": ["path", "id"]}, {"columns": ["id", "path"]}):
        assert problems_of(listed, path, kind=DataError, **given)
    problem = problem_of(listed, path, kind=DataError, drop=["id", "path", "age"])
    assert "no feature" in problem.what
    problem = problem_of(
        listed, path, kind=DataError, columns=["path"], types=TYPES | {"id": "category"}
    )
    assert 'data_options.types={"path": "image"}' in problem.fix


def test_the_index_of_pandas_is_no_feature(tmp_path: Path) -> None:
    pets(tmp_path)
    lines = [f"{i},{path},{label}\n" for i, (path, label) in enumerate(PETS.items())]
    (tmp_path / "list.csv").write_text("".join([",path,y\n", *lines]))
    assert len(listed(tmp_path / "list.csv").files) == 4


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"weight": "w"}, "data_options.weight"),
        ({"missing": {"path": "drop"}}, "data_options.missing"),
        ({"missing": {"*": "drop"}}, "data_options.missing"),
        ({"task": "regression"}, "data_options.task"),
        ({"split": {"time": "t"}}, "data_options.split.time"),
        ({"hash_bins": 8}, "data_options.hash_bins"),
    ],
)
def test_options_of_features_are_refused(tmp_path: Path, given: dict, path: str) -> None:
    problem = problem_of(listed, table(pets(tmp_path), PETS), kind=DataError, **given)
    assert problem.path == path


def test_columns_that_a_table_lacks(tmp_path: Path) -> None:
    path = table(pets(tmp_path), PETS)
    assert problem_of(listed, path, "class", kind=DataError).path == "data_label"
    assert problem_of(listed, path, "", kind=DataError).path == "data_label"
    problem = problem_of(listed, path, kind=DataError, types={"pth": "image"})
    assert (problem.path, problem.suggestion) == ("data_options.types.pth", "path")
    assert problem_of(listed, path, kind=DataError, types={"y": "image"}).path
    problem = problem_of(options, types={"a": "image", "b": "image"}, kind=ConfigurationError)
    assert problem.path == "data_options.types" or "'a', 'b'" in str(problem)


def test_labels_that_are_no_classes(tmp_path: Path) -> None:
    (problem,) = problems(table(pets(tmp_path), dict.fromkeys(PETS, "cat")))
    assert problem.path == "data_label" and "'cat'" in problem.received
    tree(tmp_path, {f"n/{i}.jpg": b"" for i in range(10_001)})
    path = table(tmp_path, {f"n/{i}.jpg": f"{i}.5" for i in range(10_001)})
    (problem,) = problems(path)
    assert problem.path == "data_label" and "10,001" in problem.received
    columns = {"path": list(PETS), "picture": list(PETS.values())}
    (problem,) = problems(write_table(tmp_path / "named.csv", columns), "picture")
    assert problem.path == "data_label" and "rename" in problem.fix


def test_splits_and_groups_are_columns(tmp_path: Path) -> None:
    words = ["train", "Val", "test", "other"]
    columns = {"path": list(PETS), "y": list(PETS.values()), "part": words}
    path = write_table(pets(tmp_path) / "list.csv", columns)
    source = listed(path, split={"column": "part"})
    assert [file.row.split_value for file in source.files if file.row] == ["train", "Val", "test"]
    assert source.pictures and source.pictures.faults
    (fault,) = source.pictures.faults.examples
    assert (fault.line, fault.column, fault.value, fault.rule) == (5, "part", "other", "split")
    source = listed(path, split={"group": "part"})
    assert [file.row.split_value for file in source.files if file.row] == words


def test_the_digest_depends_on_the_table_and_the_images(tmp_path: Path) -> None:
    path = table(pets(tmp_path), PETS)
    first = source_digest(listed(path))
    assert first == source_digest(listed(path))
    (tmp_path / "c.jpg").write_bytes(OTHER)
    second = source_digest(listed(path))
    table(tmp_path, PETS | {"c.jpg": "cat"})
    third = source_digest(listed(path))
    tree(tmp_path, {"unlisted.jpg": ONE})
    assert len({first, second, third}) == 3 and source_digest(listed(path)) == third


def test_a_link_to_an_image_is_an_image(tmp_path: Path) -> None:
    pets(tmp_path)
    os.symlink("a.jpg", tmp_path / "link.jpg")
    os.symlink("nowhere", tmp_path / "broken.jpg")
    source = listed(table(tmp_path, PETS | {"link.jpg": "cat", "broken.jpg": "cat"}))
    assert [file.name for file in source.files] == [*sorted(PETS), "link.jpg"]
    assert source.pictures and source.pictures.faults
    assert source.pictures.faults.rows["absent"] == 1


def test_a_folder_of_images_has_no_column_of_paths(tmp_path: Path) -> None:
    tree(tmp_path, {"cat/1.jpg": ONE, "dog/1.jpg": OTHER})
    (problem,) = problems(tmp_path, "")
    assert problem.path == "data_options.types"
    plain = DataOptions()
    assert check_header(with_images(list_source(STORE, str(tmp_path)), "", plain), "", plain) == []
