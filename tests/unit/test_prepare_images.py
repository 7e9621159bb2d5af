"""Rows of images: their form in the buckets, and what is counted of them."""

import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_tfjob.common.errors import DataError
from kfp_tfjob.components.prepare_data.bucket_folder import BucketFolder
from kfp_tfjob.components.prepare_data.buckets import (
    BucketWriter,
    HashBins,
    SortedRows,
    Vocabulary,
    kind_of,
)
from kfp_tfjob.components.prepare_data.source.digest import source_digest
from kfp_tfjob.components.prepare_data.source.files import Folders, Source, SourceFile
from kfp_tfjob.features.types import image
from kfp_tfjob.features.types.image import FORMATS, MODES, PROPERTIES, ImageProfile

KIND = kind_of(0, with_contents=True)
BINS = HashBins.of(10**8, [0.8, 0.1, 0.1], is_fine=True)
VOCABULARY = Vocabulary({}, ())


def written(folder: BucketFolder, rows: np.ndarray, images: list[bytes], parts: int) -> list:
    files = []
    for number, places in enumerate(np.array_split(np.arange(len(rows)), parts)):
        writer = BucketWriter(folder, f"part-{number}", KIND, BINS)
        writer.add(rows[places], images=[images[place] for place in places])
        writer.flush([], [])
        files += writer.files
    return files


def rows_of(hashes: np.ndarray, images: list[bytes]) -> np.ndarray:
    rows = np.zeros(len(hashes), KIND)
    rows["hash"], rows["code"], rows["size"] = hashes, np.arange(len(rows)) % 3, [*map(len, images)]
    return rows


@pytest.mark.parametrize("parts", [1, 4])
def test_images_are_read_in_the_order_of_the_hashes(tmp_path: Path, parts: int) -> None:
    random = np.random.default_rng(1)
    images = [random.bytes(size) for size in random.integers(1, 5000, 700).tolist()]
    hashes = random.integers(0, 2**64, len(images), np.uint64)
    hashes[5] = hashes[90]  # the label decides
    rows, folder = rows_of(hashes, images), BucketFolder(tmp_path)
    files = written(folder, rows, images, parts)
    content_bytes = np.zeros(len(BINS.edges), np.int64)
    np.add.at(content_bytes, np.searchsorted(BINS.edges, hashes, "right") - 1, rows["size"])
    gathered = SortedRows(folder, KIND, BINS, VOCABULARY, content_bytes)
    groups = [*gathered.read(gathered.range(files, gathered.counts(files), 0, len(BINS.edges)))]
    order = np.lexsort((rows["code"], rows["hash"]))
    assert [label for group in groups for label in group.labels] == rows["code"][order].tolist()
    contents = [value for group in groups for value in group.images.to_pylist()]
    assert contents == [images[place] for place in order]


def test_damage_of_an_image_is_noticed(tmp_path: Path) -> None:
    images, folder = [b"a" * 100, b"b" * 100], BucketFolder(tmp_path)
    rows = rows_of(np.array([1, 2**63], np.uint64), images)
    (file,) = written(folder, rows, images, 1)
    path = tmp_path / file.streams.name
    body = path.read_bytes()
    path.write_bytes(body[:-1] + b"c")
    gathered = SortedRows(folder, KIND, BINS, VOCABULARY)
    with pytest.raises(DataError, match=f"{file.streams.name}.*damaged"):
        list(gathered.read(gathered.range([file], gathered.counts([file]), 0, len(BINS.edges))))


SIZES = st.integers(1, 4)
IMAGES = st.lists(
    st.tuples(SIZES, SIZES, SIZES, st.integers(0, 1), st.integers(0, 9), st.booleans()), min_size=1
)


@given(IMAGES, st.data())
def test_a_profile_counts_the_images_of_all_parts(
    images: list[tuple[int, int, int, int, int, bool]], data: st.DataObject
) -> None:
    is_train = [True, *(data.draw(st.booleans()) for _ in images[1:])]
    profile = ImageProfile()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image, "_FEW_SIZES", data.draw(st.sampled_from([0, 3])))
        for places in np.array_split(np.arange(len(images)), data.draw(st.integers(1, 4))):
            part = ImageProfile()
            properties = np.array([images[place] for place in places], PROPERTIES)
            part.add(properties, np.array([is_train[place] for place in places], bool))
            profile.merge(pickle.loads(pickle.dumps(part)))
    train = [it for it, in_train in zip(images, is_train, strict=True) if in_train]
    described = profile.described()
    assert described.count == len(train)
    assert described.formats == Counter(FORMATS[it[3]] for it in train)
    assert described.modes == Counter(MODES[it[4]] for it in train)
    assert described.turned == sum(it[5] for it in train)
    for span, column in ((described.bytes, 0), (described.width, 1), (described.height, 2)):
        values = [it[column] for it in train]
        assert (span.min, span.max) == (min(values), max(values))
        assert span.mean == sum(values) / len(values)
    sizes = Counter((it[1], it[2]) for it in train)
    ranked = sorted(sizes.items(), key=lambda size: (-size[1], size[0]))
    assert described.sizes == [(*size, count) for size, count in ranked[:10]]
    assert described.distinct_sizes == len(sizes)
    assert profile.all_modes == Counter(MODES[it[4]] for it in images)
    assert profile.smaller_than(3, 2) == sum(it[2] < 3 or it[1] < 2 for it in images)
    common = {(it[2], it[1]) for it in images}
    assert profile.common_size == (common.pop() if len(common) == 1 else None)


def source_of(files: int) -> Source:
    images = [SourceFile(f"{i % 2}/{i:07d}.jpg", 7, f"/d/{i}", f"{i}") for i in range(files)]
    return Source("d", images, None, pictures=Folders(("0", "1")))  # type: ignore[arg-type]


def test_a_task_does_not_get_all_files() -> None:
    source = source_of(20_000)
    data = pickle.dumps(source)
    copy = pickle.loads(data)
    assert len(data) < 1000 and copy.files == ()
    assert (copy.size, copy.first) == (source.size, source.files[0])
    assert pickle.loads(pickle.dumps(copy)).size == source.size


def test_images_that_became_parquet_files_are_another_dataset(tmp_path: Path) -> None:
    (tmp_path / "0.jpg").write_bytes(b"0")
    files = [SourceFile("0.jpg", 1, str(tmp_path / "0.jpg"), "0")]
    table = Source("d", files, None)  # type: ignore[arg-type]
    images = Source("d", files, None, pictures=Folders(("0",)))  # type: ignore[arg-type]
    assert source_digest(table) != source_digest(images)
