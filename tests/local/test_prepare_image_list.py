"""prepare_data on tables that list images, on the real S3 server."""

import csv
import io
import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest

from kfp_tfjob.common.errors import DataError
from kfp_tfjob.components.prepare_data import engine, shards
from kfp_tfjob.components.prepare_data.data_validation import Validation
from kfp_tfjob.components.prepare_data.dataset import Prepared
from kfp_tfjob.components.prepare_data.images.image_list import with_images
from kfp_tfjob.components.prepare_data.report import render
from kfp_tfjob.components.prepare_data.source.digest import source_digest
from kfp_tfjob.components.prepare_data.source.readers.open_table import PART_BYTES
from kfp_tfjob.components.prepare_data.source.resolve import list_source
from kfp_tfjob.components.step import Step
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.local.prepared import objects
from tests.problems import problem_of, problems_of
from tests.unit.picture_files import animals, drawn, encoded, tree
from tests.unit.prepared_files import options

OPTIONS = {"types": {"path": "image"}}


def prepared(
    store: Store,
    base: S3Address,
    data: object,
    label: str = "class",
    digest: str = "",
    part: int = PART_BYTES,
    workers: int = 1,
    **given: object,
) -> Prepared:
    step = Step("prepare_data", "r1", Layout(base), store)
    return engine.run(step, str(data), label, given, digest, part=part, workers=workers)


def digest_of(store: Store, data: object, **given: object) -> str:
    """Return the digest that preflight passes on."""
    typed = options(**given)
    return source_digest(with_images(list_source(store, str(data), typed), "class", typed))


def list_of(names: dict[str, str]) -> bytes:
    """Return a table that lists images: the class of each by its path."""
    stream = io.StringIO()
    csv.writer(stream).writerows([("path", "class"), *names.items()])
    return stream.getvalue().encode()


def flat(files: dict[str, bytes]) -> tuple[dict[str, bytes], dict[str, str]]:
    """Return the images of classes in one folder, in another order, and the class of each."""
    names = list(files)
    random.Random(0).shuffle(names)
    flat_names = {name: f"img/{number:03d} ü.png" for number, name in enumerate(names)}
    classes = {flat_names[name]: name.split("/")[-2] for name in names}
    return {flat_names[name]: files[name] for name in names}, classes


def test_a_list_gives_the_dataset_of_the_folder(
    store: Store, base: S3Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "SHARD_BYTES", 9_000)
    files = animals(30)
    by_folder = prepared(store, base / "folder", tree(tmp_path / "folder", files))
    expected = objects(store, by_folder)
    assert len([key for key in expected if key.startswith("train/")]) >= 2
    images, classes = flat(files)
    tree(tmp_path / "list", images | {"list.csv": list_of(classes)})
    for name, part in (("one", PART_BYTES), ("two", 5000), ("three", 1500)):
        done = prepared(store, base / name, tmp_path / "list" / "list.csv", part=part, **OPTIONS)
        assert objects(store, done) == expected
    # The table may also be named by its folder, or be beside the classes' folders.
    done = prepared(store, base / "four", tmp_path / "list", **OPTIONS)
    assert objects(store, done) == expected
    beside = {name: name.split("/")[0] for name in files}
    (tmp_path / "folder" / "list.csv").write_bytes(list_of(beside))
    done = prepared(store, base / "five", tmp_path / "folder" / "list.csv", **OPTIONS)
    assert objects(store, done) == expected
    page = render(done.schema, done.statistics, False, Validation())
    assert "24 x 24" in page
    assert prepared(store, base / "five", tmp_path / "folder" / "list.csv", **OPTIONS).reused


@pytest.mark.parametrize("below", ["in/deep/er", ""])
def test_a_list_in_the_store(store: Store, base: S3Address, tmp_path: Path, below: str) -> None:
    files = animals(15)
    expected = objects(store, prepared(store, base / "folder", tree(tmp_path / "folder", files)))
    images, classes = flat(files)
    place = base / f"in/{below}" if below else base / "in"
    for name, content in images.items():
        store.write(place / name, content)
    store.write(place / "img" / "not listed.png", b"x")
    store.write(place / "list.csv", list_of(classes))
    digest = digest_of(store, place / "list.csv", **OPTIONS)
    address = f"{base}/in/list.csv" if not below else f"{base}/in/{below}/list.csv"
    for data in (address, f"{base}/in/"):
        done = prepared(store, base / "list", data, part=20_000, **OPTIONS)
        assert objects(store, done) == expected
    # An image that changes makes another dataset, and ends a run that preflight has checked.
    name = next(iter(images))
    store.write(place / name, encoded(drawn(7, (24, 24))))
    with pytest.raises(DataError, match="changed since preflight"):
        prepared(store, base / "list", address, digest=digest, **OPTIONS)
    again = prepared(store, base / "list", address, **OPTIONS)
    assert again.dataset_digest != done.dataset_digest
    assert objects(store, again) != expected
    rows = classes | {"img/absent.png": "cat", "../list.csv": "dog"}
    store.write(place / "bad.csv", list_of(rows))
    address = address.replace("list.csv", "bad.csv")
    summary, *examples = problems_of(
        prepared, store, base / "bad", address, kind=DataError, **OPTIONS
    )
    assert "2 of " in summary.what and len(examples) == 2
    assert "bad.csv, line 32, column 'path'" in examples[0].what
    assert examples[0].received == "'img/absent.png'"
    done = prepared(store, base / "bad", address, on_bad_row="drop", **OPTIONS)
    assert done.statistics.bad_rows.dropped == 2
    again = {key: data for key, data in objects(store, again).items() if key.endswith(".parquet")}
    assert again.items() <= objects(store, done).items()


def test_a_list_at_the_top_of_a_bucket(store: Store, base: S3Address, tmp_path: Path) -> None:
    """Its folder has no key."""
    files = animals(15)
    images, classes = flat(files)
    top = S3Address(base.bucket)
    prefix = base.key.replace("/", "-")
    for name, content in images.items():
        store.write(top / f"{prefix}/{name}", content)
    rows = {f"{prefix}/{name}": label for name, label in classes.items()}
    store.write(top / f"{prefix}.csv", list_of(rows))
    done = prepared(store, base / "list", f"{top}/{prefix}.csv", **OPTIONS)
    folder = prepared(store, base / "folder", tree(tmp_path / "folder", files))
    assert objects(store, done) == objects(store, folder)


def test_a_list_of_folders_that_are_splits(store: Store, base: S3Address, tmp_path: Path) -> None:
    files = {f"train/{name}": content for name, content in animals(20).items()}
    files |= {f"val/{name}": content for name, content in animals(5, 100).items()}
    files |= {f"test/{name}": content for name, content in animals(5, 200).items()}
    files["test/cat/copy.jpg"] = files["train/cat/003.jpg"]
    folder = prepared(store, base / "folder", tree(tmp_path / "p", files))
    rows = {name: name.split("/")[1] for name in files}
    (tmp_path / "p" / "list.csv").write_bytes(list_of(rows))
    done = prepared(store, base / "list", tmp_path / "p" / "list.csv", **OPTIONS)
    assert objects(store, done) == objects(store, folder)
    assert done.rows == {"train": 40, "validation": 10, "test": 11}
    # A table in the folder of each split lists the images next to it.
    (tmp_path / "p" / "list.csv").unlink()
    for part in ("train", "val", "test"):
        rows = {
            name.partition("/")[2]: name.split("/")[1] for name in files if name.startswith(part)
        }
        (tmp_path / "p" / part / "list.csv").write_bytes(list_of(rows))
    done = prepared(store, base / "lists", tmp_path / "p", **OPTIONS)
    assert objects(store, done) == objects(store, folder)


def test_columns_split_the_images(store: Store, base: S3Address, tmp_path: Path) -> None:
    files = animals(40)
    tree(tmp_path, files)
    lines = ["path,class,part,patient"]
    for i, name in enumerate(files):
        part = ("train", "validation", "test")[max(0, i % 10 - 7)]
        lines.append(f"{name},{name.split('/')[0]},{part},{i // 2 % 20}")
    (tmp_path / "list.csv").write_text("\n".join(lines) + "\n")
    given: dict[str, Any] = OPTIONS | {"columns": ["path"]}
    table = tmp_path / "list.csv"
    done = prepared(store, base, table, split={"column": "part"}, **given)
    assert done.rows == {"train": 64, "validation": 8, "test": 8}
    assert done.schema.split["column"] == "part"
    done = prepared(store, base, table, split={"group": "patient"}, workers=2, part=9000, **given)
    assert sum(done.rows.values()) == 80 and done.schema.group
    groups: dict[str, set[bytes]] = {}
    contents = {content: lines[1 + i].split(",")[3] for i, content in enumerate(files.values())}
    for key, data in objects(store, done).items():
        if key.endswith(".parquet"):
            rows = parquet.read_table(io.BytesIO(data))
            split = key.partition("/")[0]
            groups.setdefault(split, set()).update(map(contents.get, rows["picture"].to_pylist()))
            assert (done.schema.group in rows.column_names) == (split == "test")
    assert sum(map(len, groups.values())) == 20, "no group is in two splits"
    problem = problem_of(
        prepared, store, base, table, kind=DataError, split={"column": "no"}, **given
    )
    assert problem.path == "data_options.split.column"


def test_invalid_images_and_rows_are_counted_together(
    store: Store, base: S3Address, tmp_path: Path
) -> None:
    files = animals(40)
    images, classes = flat(files)
    bad = {"img/text.png": b"hello", "img/cut.png": encoded(drawn(), "PNG")[:-30]}
    rows = classes | dict.fromkeys(bad, "cat") | {"img/none.png": "dog", "./img/000 ü.png": "cat"}
    table = tree(tmp_path, images | bad | {"list.csv": list_of(rows)}) / "list.csv"
    digest = digest_of(store, table, **OPTIONS)  # without the first look at the images
    summary, *examples = problems_of(
        prepared, store, base, table, digest=digest, kind=DataError, **OPTIONS
    )
    assert "4 of 84 images" in summary.what and len(examples) == 4
    lines = [f"list.csv, line {line}, column 'path': " for line in (82, 83, 84, 85)]
    assert all(it.what.startswith(line) for it, line in zip(examples, lines, strict=True))
    done = prepared(store, base, table, on_bad_row="drop", **OPTIONS)
    assert done.statistics.bad_rows.rules == {
        "picture": 1,
        "truncated": 1,
        "absent": 1,
        "repeated": 1,
    }
    with pytest.raises(DataError, match="max_bad_fraction"):
        prepared(store, base, table, on_bad_row="drop", max_bad_fraction=0.01, **OPTIONS)
    clean = prepared(store, base / "clean", tree(tmp_path / "folder", files))
    clean = {key: data for key, data in objects(store, clean).items() if key.endswith(".parquet")}
    assert clean.items() <= objects(store, done).items()


@pytest.mark.slow
def test_a_list_with_several_workers(store: Store, base: S3Address, tmp_path: Path) -> None:
    files = animals(30)
    images, classes = flat(files)
    table = tree(tmp_path, images | {"list.csv": list_of(classes)}) / "list.csv"
    one = objects(store, prepared(store, base / "one", table, **OPTIONS))
    done = prepared(store, base / "two", table, workers=2, part=6000, **OPTIONS)
    assert objects(store, done) == one
