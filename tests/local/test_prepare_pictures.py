"""prepare_data on folders of images, on the real S3 server."""

import multiprocessing
import os
import random
import signal
from pathlib import Path

import pytest

from kfp_tfjob.common.errors import DataError
from kfp_tfjob.components.prepare_data import engine, scan, shards, tasks
from kfp_tfjob.components.prepare_data.data_validation import Validation
from kfp_tfjob.components.prepare_data.dataset import Prepared
from kfp_tfjob.components.prepare_data.executors.executor import Context
from kfp_tfjob.components.prepare_data.report import render
from kfp_tfjob.components.prepare_data.source.readers.open_table import (
    PART_BYTES,
    Part,
)
from kfp_tfjob.components.prepare_data.source.resolve import check_header, list_source
from kfp_tfjob.components.step import Step
from kfp_tfjob.features.schema import Schema, SchemaFeature, SchemaLabel
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from kfp_tfjob.uploader import verify
from tests.local.prepared import objects
from tests.unit.picture_files import animals, deep, drawn, encoded, png_of_size, tree


def prepared(
    store: Store,
    base: S3Address,
    data: object,
    part: int = PART_BYTES,
    workers: int = 1,
    **options: object,
) -> Prepared:
    step = Step("prepare_data", "r1", Layout(base), store)
    return engine.run(step, str(data), "", options, part=part, workers=workers)


def test_a_dataset_of_pictures(store: Store, base: S3Address, tmp_path: Path) -> None:
    done = prepared(store, base / "out", tree(tmp_path / "p", animals(40)))
    assert sum(done.rows.values()) == 80 and all(done.rows.values()) and not done.reused
    assert done.schema.features == (SchemaFeature("picture", "picture"),)
    assert done.schema.label == SchemaLabel("class", ("cat", "dog"))
    assert done.schema.picture.shape == (24, 24, 3)
    assert b"max_megapixels" not in done.schema.to_bytes(), "older schemas do not have it"
    described = done.statistics.features["picture"]
    train = done.rows["train"]
    assert described.formats == {"JPEG": train} and described.sizes == [(24, 24, train)]
    assert done.metrics["classes"] == 2 and done.statistics.warnings == ()
    address = S3Address.parse(done.dataset_uri)
    manifest = store.read_manifest(address / "manifest.json")
    assert verify(store, address, manifest) == [] and manifest.details["rows"] == done.rows
    page = render(done.schema, done.statistics, False, Validation())
    assert f"24 x 24 ({train})" in page
    assert prepared(store, base / "out", tmp_path / "p").reused
    with pytest.raises(DataError, match="data_uri.*prepare_data"):
        prepared(store, base / "elsewhere", done.dataset_uri)


def test_the_same_bytes_whatever_the_names_the_parts_and_the_place(
    store: Store, base: S3Address, tmp_path: Path
) -> None:
    files = animals(15)
    one = objects(store, prepared(store, base / "one", tree(tmp_path / "one", files)))
    shuffle = random.Random(0)
    for name, part in (("two", 5000), ("three", 1500)):
        # Other names, so another order, in parts of another size.
        numbers = shuffle.sample(range(1000), len(files))
        renamed = {
            f"{old.split('/')[0]}/{number} ü.png": content
            for number, (old, content) in zip(numbers, files.items(), strict=True)
        }
        data = tree(tmp_path / name, renamed)
        assert objects(store, prepared(store, base / name, data, part=part)) == one
    for name, content in files.items():
        store.write(base / "in" / name, content)
    store.write(base / "in" / "bird" / ".keep", b"")
    assert objects(store, prepared(store, base / "four", f"{base}/in", part=20_000)) == one


@pytest.mark.slow  # processes load pyarrow and more
def test_the_same_bytes_from_several_workers(
    store: Store, base: S3Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "SHARD_BYTES", 9_000)
    data = tree(tmp_path / "p", animals(30))
    one = objects(store, prepared(store, base / "one", data))
    assert len([key for key in one if key.startswith("train/")]) >= 3
    for workers in (2, 4):
        done = prepared(store, base / str(workers), data, part=6000, workers=workers)
        assert objects(store, done) == one


def read_once(context: Context, job: tasks.Job, part: Part) -> tasks.RowSummary:
    """Read a part, but kill the process that is the first to do so, after it has written."""
    done, mark = tasks.rows(context, job, part), f"dead/{part.number}"
    if multiprocessing.parent_process() and not (Path(context.place) / mark).exists():
        context.buckets.write(mark, b"")
        os.kill(os.getpid(), signal.SIGKILL)
    return done


@pytest.mark.slow
def test_the_same_bytes_after_kills(
    store: Store, base: S3Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tree(tmp_path / "p", animals(20))
    one = objects(store, prepared(store, base / "one", data))
    monkeypatch.setattr(scan, "_TASK", f"{__name__}:read_once")
    size = sum(path.stat().st_size for path in data.rglob("*.jpg"))
    done = prepared(store, base / "two", data, part=size // 2, workers=2)
    assert objects(store, done) == one


FAULTS = {
    "cat/empty.jpg": (b"", "an empty file"),
    "cat/text.jpg": (b"hello", "neither a JPEG nor a PNG"),
    "cat/short.jpg": (encoded(drawn())[:-30], "truncated"),
    "dog/short.png": (encoded(drawn(), "PNG")[:-30], "truncated"),
    "dog/bomb.png": (png_of_size(30_000, 30_000), "more pixels than"),
    "dog/anim.gif": (encoded(drawn().convert("P"), "GIF"), "neither a JPEG nor a PNG"),
    "dog/bits.jpg": (
        encoded(drawn()).replace(b"\xff\xc0\0\x11\x08", b"\xff\xc1\0\x11\x0c"),
        "a JPEG that is neither baseline",
    ),
    "dog/header.png": (encoded(drawn(), "PNG").replace(b"IHDR\0", b"IHDR\1"), "damaged"),
}


def test_every_bad_file_is_named(store: Store, base: S3Address, tmp_path: Path) -> None:
    bad = {name: content for name, (content, _) in FAULTS.items()}
    tree(tmp_path / "p", animals(40) | bad)
    step = Step("prepare_data", "r1", Layout(base / "out"), store)
    digest = engine.digest_of(list_source(store, str(tmp_path / "p")))  # without the first look
    with pytest.raises(DataError) as caught:
        engine.run(step, str(tmp_path / "p"), "", {}, digest)
    text = str(caught.value)
    assert f"{len(FAULTS)} of {80 + len(FAULTS)} images" in text
    for name, (_, words) in FAULTS.items():
        assert f"{name}: {words}" in text
    assert not list(store.list(base / "out" / "datasets"))
    done = prepared(store, base / "out", tmp_path / "p", on_bad_row="drop")
    assert done.statistics.bad_rows.dropped == len(FAULTS)
    clean = prepared(store, base / "out", tree(tmp_path / "q", animals(40)))
    shards = {
        name: data for name, data in objects(store, clean).items() if name.endswith(".parquet")
    }
    assert shards.items() <= objects(store, done).items()
    with pytest.raises(DataError, match="max_bad_fraction"):
        prepared(store, base / "out", tmp_path / "p", on_bad_row="drop", max_bad_fraction=0.01)


def test_a_class_without_a_valid_image_is_named(
    store: Store, base: S3Address, tmp_path: Path
) -> None:
    tree(tmp_path / "p", animals(40) | {"eel/0.png": b"", "eel/1.png": b""})
    with pytest.raises(DataError) as caught:
        prepared(store, base / "out", tmp_path / "p", on_bad_row="drop")
    (problem,) = caught.value.as_problems
    assert "'eel' (0 images)" in str(problem.received)
    assert "of which none is valid" in problem.fix and "salt" not in problem.fix


def test_the_first_look_at_images_says_that_it_saw_a_sample(store: Store, tmp_path: Path) -> None:
    files = animals(50)
    tree(tmp_path / "p", files | dict.fromkeys(list(files)[::5], b""))
    problem = check_header(list_source(store, str(tmp_path / "p")), "", DataOptions())[0]
    assert "in a sample of 100" in problem.what
    assert "max_bad_fraction=" not in problem.fix
    tree(tmp_path / "q", dict.fromkeys(animals(40), b""))
    problem = check_header(list_source(store, str(tmp_path / "q")), "", DataOptions())[0]
    assert "on_bad_row" not in problem.fix, "no image would be left"


def test_pixels_are_checked_if_asked(store: Store, base: S3Address, tmp_path: Path) -> None:
    damaged = bytearray(encoded(drawn(1, (100, 100)), "PNG"))
    damaged[90] ^= 0xFF
    tree(tmp_path / "p", animals(40) | {"cat/damaged.png": bytes(damaged)})
    assert sum(prepared(store, base, tmp_path / "p").rows.values()) == 81
    limited = prepared(store, base, tmp_path / "p", images={"max_megapixels": 50})
    assert Schema.from_bytes(limited.schema.to_bytes()).megapixel_limit == 50
    with pytest.raises(DataError, match=r"cat/damaged.png: damaged"):
        prepared(store, base, tmp_path / "p", images={"verify": "decode"})


def test_modes_sizes_and_copies_are_reported(store: Store, base: S3Address, tmp_path: Path) -> None:
    files = animals(40)
    other = {
        "cat/large.png": encoded(drawn(3, (60, 50)).convert("RGBA"), "PNG"),
        "cat/deep.png": deep(),
        "dog/cmyk.jpg": encoded(drawn(4).convert("CMYK")),
        "dog/copy.jpg": files["dog/000.jpg"],
        "dog/conflict.jpg": files["cat/001.jpg"],
    }
    done = prepared(store, base, tree(tmp_path / "p", files | other))
    modes = done.statistics.features["picture"].modes
    assert set(modes) <= {"colour", "CMYK", "colour with alpha", "grey, 16 bits"}
    assert sum(modes.values()) == done.rows["train"]
    assert done.schema.picture.height == 128
    assert (done.statistics.duplicates, done.statistics.conflicts) == (2, 1)
    said = "; ".join(done.statistics.warnings)
    for words in ("1 of 85 images: an alpha", "16 bits", "different label", "half as large"):
        assert words in said
    with pytest.raises(DataError, match=r"dog/cmyk.jpg"):
        prepared(store, base, tmp_path / "p", images={"channels": 1})


@pytest.mark.parametrize("alike", [("Cat", "cat"), ("1", "1.0")])
def test_classes_in_two_spellings_are_named_beside_the_verdict(
    store: Store, base: S3Address, tmp_path: Path, alike: tuple[str, str]
) -> None:
    names = {"cat": alike[0], "dog": alike[1], "bird": "bird"}
    files = {**animals(40), **{f"bird/{i}.png": encoded(drawn(i), "PNG") for i in range(40)}}
    files = {f"{names[name.split('/')[0]]}/{name.split('/')[1]}": it for name, it in files.items()}
    done = prepared(store, base, tree(tmp_path / "p", files))
    (said,) = done.statistics.suspicions
    assert said.endswith(f": {', '.join(alike)}") and said in done.statistics.warnings


def test_folders_are_splits(store: Store, base: S3Address, tmp_path: Path) -> None:
    files = {f"train/{name}": content for name, content in animals(30).items()}
    files |= {f"val/{name}": content for name, content in animals(5, 100).items()}
    files |= {f"test/{name}": content for name, content in animals(5, 200).items()}
    files["test/cat/copy.jpg"] = files["train/cat/003.jpg"]
    done = prepared(store, base, tree(tmp_path / "p", files))
    assert done.rows == {"train": 60, "validation": 10, "test": 11}
    assert done.schema.split["folders"] is True
    assert done.statistics.also_in_train == {"validation": 0, "test": 1}
    assert "1 of 11 " in done.statistics.warnings[-1]
    # Equal images count even where folders divide them.
    assert (done.statistics.duplicates, done.statistics.conflicts) == (1, 0)
    tree(tmp_path / "q", files | {"test/dog/conflict.jpg": files["train/cat/004.jpg"]})
    statistics = prepared(store, base, tmp_path / "q").statistics
    assert (statistics.duplicates, statistics.conflicts) == (2, 1)
    assert "1 of 82 images: the same image as an earlier one, with a different label" in (
        statistics.warnings
    )
    # Without a folder for a split, images of train are taken by their hash.
    for name in [name for name in files if name.startswith("val/")]:
        (tmp_path / "p" / name).unlink()
    done = prepared(store, base, tmp_path / "p")
    assert done.rows["test"] == 11 and done.rows["train"] + done.rows["validation"] == 60
    done = prepared(store, base, tmp_path / "p", split={"folders": False})
    assert sum(done.rows.values()) == 71 and done.schema.classes == ("cat", "dog")


def test_a_picture_that_changes_after_the_listing(store: Store, tmp_path: Path) -> None:
    tree(tmp_path / "p", animals(20))
    source = list_source(store, str(tmp_path / "p"))
    path = tmp_path / "p" / "cat" / "003.jpg"
    content = path.read_bytes()
    path.write_bytes(content)
    os.utime(path, (1, 1))
    with pytest.raises(DataError, match="003.jpg"):
        list(source.contents(source.files[3:4]))
