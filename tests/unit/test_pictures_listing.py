"""Which files are images of which class and split."""

import os
from pathlib import Path

import pytest

from kfp_tfjob.common.errors import ConfigurationError, DataError
from kfp_tfjob.components.prepare_data.images.folders import problems_of
from kfp_tfjob.components.prepare_data.source.digest import source_digest
from kfp_tfjob.components.prepare_data.source.resolve import check_header, list_source
from kfp_tfjob.components.prepare_data.source.unread_files import large_unread_files
from kfp_tfjob.components.prepare_data.split_rules import folder_problems
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.image_options import FORMAT
from kfp_tfjob.storage.store import Store
from tests.problems import problem_of
from tests.unit.picture_files import animals, drawn, encoded, png_of_size, tree
from tests.unit.prepared_files import check, options

STORE = Store("http://127.0.0.1:1")
ONE = encoded(drawn())


def listed(top: Path, **given: object):
    return list_source(STORE, str(top), options(**given))


def problems(top: Path, **given: object) -> str:
    return "\n".join(check(top, "", **given))


def test_the_folder_is_the_class(tmp_path: Path) -> None:
    names = ("cat/1.jpg", "cat/with space ü.PNG", "cat/2024/07/1.jpg")
    names += ("dog/no ending", "日本/1.jpeg")
    source = listed(tree(tmp_path / "p", dict.fromkeys(names, ONE)))
    assert source.pictures.classes == ("cat", "dog", "日本")
    assert [file.name for file in source.files] == sorted(names)
    labels = {file.name: file.label for file in source.files}
    assert labels["cat/2024/07/1.jpg"] == "cat" and labels["日本/1.jpeg"] == "日本"
    assert problems_of(source, DataOptions()) == []
    assert not source.pictures.notes


def test_two_forms_of_one_name_are_one_class(tmp_path: Path) -> None:
    names = ("caf\u00e9/1.jpg", "cafe\u0301/2.jpg", "b/1.jpg")
    source = listed(tree(tmp_path, dict.fromkeys(names, ONE)))
    assert source.pictures.classes == ("b", "caf\u00e9")


@pytest.mark.parametrize(
    ("tops", "depth"),
    [
        (("train", "validation", "test"), 1),
        (("Train", "val"), 1),
        (("train",), 1),
        (("Training", "Testing"), 1),
        (("train", "dev", "holdout"), 1),
        (("train", "car", "test"), 1),  # and the images outside are named
        (("train", "car"), 0),
        (("test", "cat"), 0),
    ],
)
def test_folders_of_splits(tmp_path: Path, tops: tuple[str, ...], depth: int) -> None:
    files = {f"{top}/{name}/1.jpg": ONE for top in tops for name in ("cat", "dog")}
    source = listed(tree(tmp_path, files))
    assert source.pictures.depth == depth
    assert source.pictures.classes == (("cat", "dog") if depth else tuple(sorted(tops)))
    assert source.splits_by_folder == (depth == 1 and len(tops) > 1)
    if tops == ("train", "car", "test"):
        assert "only some" in problems(tmp_path)


@pytest.mark.parametrize(
    "tops",
    [
        ("train", "more"),
        ("test", "cat"),
        ("val", "test"),
        ("2024/train", "2025/test"),
        ("seg_train", "seg_test"),
    ],
)
def test_folders_that_are_no_splits_and_no_classes(tmp_path: Path, tops: tuple[str, ...]) -> None:
    files = {f"{top}/{name}/1.jpg": ONE for top in tops for name in ("cat", "dog")}
    source = listed(tree(tmp_path, files))
    (problem,) = folder_problems(source, DataOptions())
    assert problem.path == "data_uri" and '"folders": false' in problem.fix
    for top in tops:
        assert f"{top}/cat" in problem.received
    assert problem in problems_of(source, DataOptions())
    assert folder_problems(source, DataOptions(split={"folders": False})) == []


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    files = {f"{top}/{i}.jpg": ONE for top in ("car", "train", "bus") for i in range(2)}
    source = listed(tree(tmp_path, files))
    assert source.pictures.classes == ("bus", "car", "train")
    assert problems_of(source, DataOptions()) == []


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    files = {"cat/1.jpg": ONE, "dog/1.jpg": ONE, "LICENSE.txt": b"x", ".git/a.jpg": ONE}
    files |= {"cat/.DS_Store": b"x", "cat/Thumbs.db": b"x", "__MACOSX/cat/._1.jpg": b"x"}
    tree(tmp_path, files)
    (tmp_path / "dog" / "linked.jpg").symlink_to(tmp_path / "cat" / "1.jpg")
    source = listed(tmp_path)
    assert [file.name for file in source.files] == ["cat/1.jpg", "dog/1.jpg", "dog/linked.jpg"]
    notes = "; ".join(source.pictures.notes)
    assert "LICENSE.txt" in notes


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"1.jpg": ONE, "cat/2.jpg": ONE, "dog/1.jpg": ONE}, "Received: 1: 1.jpg"),
        ({"flowers/cat/1.jpg": ONE, "flowers/dog/1.jpg": ONE}, "/flowers"),
        ({"a.jpg": ONE}, "parent folder"),
        ({"cat/1.jpg": ONE}, "two classes"),
        ({"cat/1.jpg": ONE, "dog/1.jpg": b""}, "dog/1.jpg: "),
        ({"cat/1.jpg": ONE, "dog/notes.txt": b"hello"}, "dog/notes.txt: "),
        ({"cat/1.jpg": ONE[:-9], "dog/1.jpg": ONE}, "cat/1.jpg: truncated"),
        ({"cat/1.jpg": ONE, "dog/1.png": png_of_size(20_000, 20_000)}, "max_megapixels"),
    ],
)
def test_what_preflight_names(tmp_path: Path, files: dict[str, bytes], expected: str) -> None:
    assert expected in problems(tree(tmp_path, files))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"columns": ["a"]}, "data_options.columns"),
        ({"types": {"a": "text"}}, "data_options.types"),
        ({"split": {"group": "patient"}}, "data_options.split.group"),
        ({"task": "regression"}, "data_options.task"),
    ],
)
def test_options_of_tables_are_refused(tmp_path: Path, given: dict, expected: str) -> None:
    assert expected in problems(tree(tmp_path, animals(2)), **given)


def test_a_table_among_pictures_is_a_table(tmp_path: Path) -> None:
    tree(tmp_path, {"plots/1.png": ONE, "rows.csv": b"a,b\n1,2\n"})
    assert listed(tmp_path).pictures is None
    assert listed(tmp_path, format="images").pictures.classes == ("plots",)
    assert "data_label" in problems(tmp_path)


def test_images_beside_a_table_are_counted_where_the_label_is_missing(tmp_path: Path) -> None:
    """They were ignored without a word, and format=pictures was not named."""
    files = {f"{name}/{i}.png": ONE for name in ("cat", "dog") for i in range(5)}
    top = tree(tmp_path, files | {"metadata.csv": b"id,age\n1,2\n"})
    source = list_source(Store("http://127.0.0.1:1"), str(top))
    (problem,) = check_header(source, "", DataOptions())
    assert problem.path == "data_label" and "10 images" in problem.received
    assert f"data_options.format={FORMAT}" in problem.fix
    (said,) = large_unread_files(source)
    assert "10 images" in said and "DATA/*" not in said
    assert problems(top, format=FORMAT) == "", "as the fix says"


def test_a_picture_is_no_table(tmp_path: Path) -> None:
    tree(tmp_path, {"cat/1.jpg": ONE, "dog/1.png": encoded(drawn(), "PNG")})
    for address in ("cat/1.jpg", "dog/1.png", "*/*.png"):
        assert "of images" in problems(tmp_path / address)


def test_what_cannot_be_listed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no images"):
        listed(tmp_path, format="images")
    with pytest.raises(DataError, match="no images"):
        listed(tree(tmp_path / "f", {"a.jpg": ONE}) / "a.jpg", format="images")
    tree(tmp_path / "broken", {"cat/1.jpg": ONE})
    (tmp_path / "broken" / "cat" / "2.jpg").symlink_to("nowhere")
    with pytest.raises(DataError, match="links to.*cat/2.jpg"):
        listed(tmp_path / "broken")
    name = os.fsdecode(b"caf\xe9.jpg")
    try:
        tree(tmp_path / "latin", {f"cat/{name}": ONE})
    except OSError:
        return  # this file system has only UTF-8
    with pytest.raises(DataError, match="not UTF-8"):
        listed(tmp_path / "latin")


def test_the_digest_depends_on_names_and_bytes(tmp_path: Path) -> None:
    one = source_digest(listed(tree(tmp_path / "a", {"cat/1.jpg": ONE, "dog/1.jpg": ONE})))
    assert one == source_digest(listed(tree(tmp_path / "b", {"cat/1.jpg": ONE, "dog/1.jpg": ONE})))
    assert one != source_digest(listed(tree(tmp_path / "c", {"cat/2.jpg": ONE, "dog/1.jpg": ONE})))


def test_the_size_of_the_input() -> None:
    for given in ({"height": 32}, {"height": -1, "width": 2}, {"channels": 2}, {"resize": "zoom"}):
        with pytest.raises(ConfigurationError):
            options(images=given)
    plain = DataOptions()
    assert plain.dataset_digest("s", "l") == DataOptions(images={}).dataset_digest("s", "l")
    other = options(images={"channels": 1})
    assert plain.dataset_digest("s", "l") != other.dataset_digest("s", "l")


@pytest.mark.parametrize(
    ("ending", "content"),
    [
        ("webp", encoded(drawn(), "WEBP")),
        ("tiff", encoded(drawn(), "TIFF")),
        ("gif", encoded(drawn(), "GIF")),
        ("bmp", encoded(drawn(), "BMP")),
        ("heic", b"\0\0\0\x18ftypheic\0\0\0\0"),
        ("avif", b"\0\0\0\x1cftypavif\0\0\0\0"),
        ("jxl", b"\0\0\0\x0cJXL \r\n\x87\n"),
        ("img", encoded(drawn(), "WEBP")),
        ("", encoded(drawn(), "WEBP")),
    ],
)
@pytest.mark.parametrize("others", [{}, {"README.md": b"x", "a/labels.json": b"{}"}])
def test_images_in_another_format_are_to_be_converted(tmp_path, ending, content, others) -> None:
    """The message named the endings of tables, and a function that reads the files."""
    files = {f"{name}/{i}.{ending}".rstrip("."): content for name in "ab" for i in range(12)}
    tree(tmp_path, files | others)
    problem = problem_of(listed, tmp_path, kind=DataError)
    assert problem.path == "data_uri" and "JPEG or PNG" in problem.fix
    assert "JPEG" in problem.expected and ".csv" not in str(problem)
    for name in files:  # as the message says
        (tmp_path / name).rename((tmp_path / name).with_suffix(".old"))
        (tmp_path / name).with_suffix(".png").write_bytes(encoded(drawn(), "PNG"))
        (tmp_path / name).with_suffix(".old").unlink()
    assert listed(tmp_path).pictures.classes == ("a", "b")


@pytest.mark.parametrize("ending", ["", ".img", ".data"])
def test_images_whose_names_do_not_say_so_are_read_as_images(tmp_path: Path, ending: str) -> None:
    tree(tmp_path, {name.removesuffix(".jpg") + ending: it for name, it in animals(12).items()})
    problem = problem_of(listed, tmp_path, kind=DataError)
    assert (problem.path, problem.suggestion) == ("data_options.format", "images")
    assert listed(tmp_path, format=problem.suggestion).pictures.classes == ("cat", "dog")


def test_images_in_another_format_among_others_are_to_be_converted(tmp_path: Path) -> None:
    """Also those that are called .jpg."""
    tree(tmp_path, animals(8) | {f"cat/w{i}.jpg": encoded(drawn(i), "WEBP") for i in range(4)})
    said = problems(tmp_path)
    assert "convert images to JPEG or PNG" in said and "a WebP" in said


def test_a_folder_without_tables_and_images_names_what_is_read(tmp_path: Path) -> None:
    tree(tmp_path, {"a/1.txt": b"BMI 20\n", "b/2.xyz": b"hello"})
    problem = problem_of(listed, tmp_path, kind=DataError)
    assert ".csv" in problem.expected and "image" not in problem.what
