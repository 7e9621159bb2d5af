"""Split, order, labels and statistics of rows."""

import hashlib
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from kfp_tfjob.common.errors import DataError
from kfp_tfjob.components.prepare_data import buckets
from kfp_tfjob.components.prepare_data.bucket_folder import BucketFolder
from kfp_tfjob.components.prepare_data.buckets import (
    BucketFile,
    BucketWriter,
    HashBins,
    Sorted,
    SortedRows,
    Vocabulary,
    joined,
    kind_of,
    order_of,
)
from kfp_tfjob.components.prepare_data.column_warnings import label_warnings
from kfp_tfjob.components.prepare_data.columns_to_rows import Rows
from kfp_tfjob.components.prepare_data.faults import BlockFaults, Faults
from kfp_tfjob.components.prepare_data.fit_encoding import Counted
from kfp_tfjob.components.prepare_data.hashes import (
    bytes_hash,
    number_words,
    row_hashes,
    scaled,
    split_of,
)
from kfp_tfjob.components.prepare_data.kinds import Feature, Kinds
from kfp_tfjob.components.prepare_data.labels import Label, Labels
from kfp_tfjob.components.prepare_data.shards import SHARD_BYTES, cuts_of
from kfp_tfjob.components.prepare_data.statistics import Moments, Statistics, Train, described
from kfp_tfjob.features.coding import Coding
from kfp_tfjob.features.statistics import BadRows, StatisticsDocument
from kfp_tfjob.features.types.number import Number
from kfp_tfjob.options.data import DataOptions

WORD = (1 << 64) - 1
FRACTIONS = [0.7, 0.15, 0.15]
_floats = st.floats(allow_nan=False, allow_infinity=False, width=32)
_matrix = arrays.arrays(np.float32, st.tuples(st.integers(1, 30), st.just(3)), elements=_floats)


def hash_numbers(rows: np.ndarray, salt: str = "0") -> np.ndarray:
    """Return the hashes of float32 rows."""
    return row_hashes(number_words(rows).T, len(rows), salt)


def fmix64(word: int) -> int:
    """The last step of MurmurHash3, as its author wrote it."""
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & WORD
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & WORD
    return word ^ word >> 33


def test_the_hash_is_what_any_language_computes():
    numbers = np.array([1.5, -0.0, np.nan, -np.nan], np.float32)
    number = [0x3FC00000, 0, 0x7FC00000, 0x7FC00000]
    dates = np.array([0, -1, -(2**63), 1], np.int64)
    text = int.from_bytes(hashlib.blake2b("grün".encode(), digest_size=8).digest(), "big")
    strings = np.array([text, 0, text, 0], np.uint64)
    seed = int.from_bytes(hashlib.blake2b(digest_size=8, key=b"salt").digest(), "big")

    expected = [
        fmix64(fmix64(fmix64(seed ^ word) ^ string) ^ date & WORD)
        for word, string, date in zip(number, strings.tolist(), dates.tolist(), strict=True)
    ]

    columns = [number_words(numbers), strings, dates.view(np.uint64)]
    assert row_hashes(columns, 4, "salt").tolist() == expected
    assert bytes_hash("grün".encode()) == text


@given(st.lists(st.integers(0, WORD)), st.integers(0, WORD))
def test_scaled_hashes_are_those_of_whole_numbers(hashes, width):
    expected = [hash_ * width >> 64 for hash_ in hashes]
    assert scaled(np.array(hashes, np.uint64), width).tolist() == expected


@pytest.mark.parametrize("columns", [1, 2, 30])
def test_every_bit_of_a_value_moves_half_of_the_hash(columns):
    """Each bit of the hash is 1 in half of the rows, also for numbers that differ in one bit."""
    rows = np.repeat(np.arange(20_000, dtype=np.float32)[:, None], columns, axis=1)
    hashes = hash_numbers(rows)
    assert len(np.unique(hashes)) == len(rows)
    bits = np.unpackbits(hashes.view(np.uint8).reshape(len(rows), 8), axis=1).mean(axis=0)
    assert np.abs(bits - 0.5).max() < 0.02


@settings(max_examples=60, deadline=None)
@given(old=_matrix, new=_matrix, salt=st.text(min_size=1, max_size=8))
def test_adding_rows_moves_no_old_row(old, new, salt):
    together = np.concatenate([new, old, new])
    before = split_of(hash_numbers(old, salt), FRACTIONS)
    after = split_of(hash_numbers(together, salt), FRACTIONS)
    assert before.tolist() == after[len(new) : len(new) + len(old)].tolist()
    assert after[: len(new)].tolist() == after[-len(new) :].tolist()  # equal rows stay together


def test_the_fractions_are_those_asked_for():
    rows = np.random.default_rng(0).normal(size=(20_000, 2)).astype(np.float32)
    shares = np.bincount(split_of(hash_numbers(rows), FRACTIONS)) / len(rows)
    assert np.abs(shares - FRACTIONS).max() < 0.015


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2)), max_size=60))
def test_equal_hashes_are_in_the_order_of_label_and_place(pairs):
    hashes = np.array([hash_ for hash_, _ in pairs], np.uint64) << np.uint64(60)
    labels = np.array([label for _, label in pairs], np.int32)
    assert order_of(hashes).tolist() == np.argsort(hashes, kind="stable").tolist()
    assert order_of(hashes, labels).tolist() == np.lexsort((labels, hashes)).tolist()


def test_rows_are_joined_in_their_order():
    rows = np.zeros(9, kind_of(3, 2, 1, weighted=True))
    rows["hash"] = np.arange(9)
    assert (joined([rows[:0], rows[5:9], rows[2:]]) == np.append(rows[5:9], rows[2:])).all()


LABELS, STRINGS = ("yes", "no"), ("blue", "red")
CLASSES, CODES_OF_STRINGS = {"yes": 1, "no": 0}, {"red": 7, "blue": 3}


def written(folder: BucketFolder, parts: Iterable[np.ndarray], bins: HashBins) -> list[BucketFile]:
    """Return the bucket files of the rows of each part."""
    files = []
    for part, rows in enumerate(parts):
        writer = BucketWriter(folder, f"part-{part}", rows.dtype, bins)
        writer.add(rows)
        writer.flush(LABELS, [STRINGS] * rows.dtype["codes"].shape[0])
        files += writer.files
    return files


def read(rows: SortedRows, files: list[BucketFile], first: int, last: int) -> list[Sorted]:
    return list(rows.read(rows.range(files, rows.counts(files), first, last)))


@settings(max_examples=40, deadline=None)
@given(
    features=_matrix,
    parts=st.integers(1, 4),
    few=st.sampled_from([0, 64]),
    size=st.sampled_from([1, 10**9, 10**11]),
    data=st.data(),
)
def test_buckets_are_read_in_the_order_of_the_hashes(
    tmp_path_factory, features, parts, few, size, data
):
    folder = BucketFolder(tmp_path_factory.mktemp("buckets"))
    kind, bins, count = kind_of(3, codes=1, dates=1), HashBins.of(size, FRACTIONS), len(features)
    rows = np.zeros(count, kind)
    rows["hash"], rows["features"] = hash_numbers(features), features
    rows["code"], rows["dates"][:, 0] = np.arange(count) % 2, np.arange(count)
    rows["number"] = np.where(rows["hash"] % np.uint64(3) == 0, np.nan, 1)
    rows["codes"][:, 0] = np.arange(count) % 3  # 0 is a missing string
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buckets, "_FEW_STRINGS", few)
        files = written(folder, np.array_split(rows, parts), bins)
    gathered = SortedRows(folder, kind, bins, Vocabulary(CLASSES, (CODES_OF_STRINGS,)))
    middle, last = data.draw(st.integers(0, len(bins.edges))), len(bins.edges)
    groups = [*read(gathered, files, 0, middle), *read(gathered, files, middle, last)]
    labels = np.concatenate([group.labels for group in groups])
    order = np.lexsort((1 - rows["code"], rows["hash"]))
    assert labels.tolist() == (1 - rows["code"])[order].tolist()
    same = np.concatenate([group.rows for group in groups])
    assert (same["hash"] == rows["hash"][order]).all()
    assert (same["features"] == features[order]).all()
    assert (same["dates"] == rows["dates"][order]).all()
    codes = np.array([0, 3, 7])[rows["codes"][order]]
    assert same["codes"].tolist() == codes.tolist()
    numbers = SortedRows(folder, kind, bins, Vocabulary(None, (CODES_OF_STRINGS,)))
    assert numbers.counts(files).sum() == np.isfinite(rows["number"]).sum()
    groups = read(numbers, files, 0, last)
    assert sum(len(group.rows) for group in groups) == numbers.counts(files).sum()
    assert all(np.isfinite(group.labels).all() for group in groups)


@pytest.mark.parametrize("is_class", [True, False])
@pytest.mark.parametrize("size", [10**6, 10**9, 10**11])
def test_groups_do_not_depend_on_buckets_and_their_index_is_small(
    tmp_path, monkeypatch, is_class, size
):
    """Of a large source, thousands of files are in memory, and a regression drops some rows."""
    folder, random = BucketFolder(tmp_path), np.random.default_rng(5)
    bins = HashBins.of(size, FRACTIONS)
    rows = np.zeros(3000, kind_of(1))
    rows["hash"] = random.integers(0, 2**64, len(rows), np.uint64)
    rows["number"][:300] = np.nan
    vocabulary = Vocabulary(CLASSES if is_class else None, ())
    monkeypatch.setattr(buckets, "_GROUP_BYTES", 5 * rows.itemsize)

    def groups(bins: HashBins) -> list[list[int]]:
        files = written(folder, (rows[::2], rows[1::2]), bins)
        for file in files:
            size = file.counts.nbytes + file.streams.starts.nbytes + file.streams.checksums.nbytes
            assert size <= 10 * (len(bins.edges) + 1)
        gathered = SortedRows(folder, rows.dtype, bins, vocabulary)
        return [it.rows["hash"].tolist() for it in read(gathered, files, 3, len(bins.edges) - 3)]

    found, good = groups(bins), rows if is_class else rows[300:]
    within = (good["hash"] >= bins.edges[3]) & (good["hash"] < bins.edges[-3])
    assert len(found) > 100 and sum(found, []) == np.sort(good["hash"][within]).tolist()
    monkeypatch.setattr(buckets, "_READ_BYTES", 3000)
    assert groups(bins) == found
    one = HashBins(bins.edges, np.array([0, len(bins.edges)]))
    as_small = HashBins(bins.edges, np.arange(len(bins.edges) + 1))
    assert groups(one) == groups(as_small) == found


def test_a_bucket_has_only_the_strings_of_its_rows(tmp_path):
    """Else a few rows of a column with 100,000 strings bring all of them along."""
    kind, bins = kind_of(1, codes=1), HashBins.of(10**9, FRACTIONS)
    rows = np.zeros(5000, kind)
    rows["hash"] = np.random.default_rng(5).integers(0, 2**64, len(rows), np.uint64)
    rows["codes"][:, 0] = np.arange(1, 5001)
    strings = [f"a rather long string {i}" for i in range(5000)]
    writer = BucketWriter(BucketFolder(tmp_path), "part", kind, bins)
    writer.add(rows)
    writer.flush(LABELS, [strings])
    (file,) = writer.files
    assert (tmp_path / file.streams.name).stat().st_size < 1_000_000
    codes = {string: 1 + i for i, string in enumerate(strings)}
    gathered = SortedRows(BucketFolder(tmp_path), kind, bins, Vocabulary(CLASSES, (codes,)))
    groups = read(gathered, [file], 0, len(bins.edges))
    same = np.concatenate([group.rows for group in groups])
    assert same["codes"][:, 0].tolist() == rows["codes"][:, 0][np.argsort(rows["hash"])].tolist()


def test_a_damaged_bucket_is_noticed(tmp_path):
    folder, kind, bins = BucketFolder(tmp_path), kind_of(1), HashBins.of(1, FRACTIONS)
    rows = np.zeros(100, kind)
    rows["hash"] = np.arange(100, dtype=np.uint64) << np.uint64(57)
    (file,) = written(folder, [rows], bins)
    path = tmp_path / file.streams.name
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    path.write_bytes(body)
    gathered = SortedRows(folder, kind, bins, Vocabulary(None, ()))
    with pytest.raises(DataError, match=f"{file.streams.name}.*damaged"):
        read(gathered, [file], 0, len(bins.edges))


def test_a_shard_has_whole_bins_and_about_as_many_rows_as_the_others() -> None:
    assert cuts_of(np.zeros(4, np.int64), 100) == [0, 4]  # a split without rows has a shard, too
    assert cuts_of(np.array([2, 0, 3]), 100) == [0, 3]
    counts = np.random.default_rng(1).poisson(1000, 4096)
    cuts = cuts_of(counts, SHARD_BYTES // 1_000_000)
    rows = np.add.reduceat(counts, cuts[:-1])
    assert len(rows) == -(-counts.sum() * (SHARD_BYTES // 1_000_000) // SHARD_BYTES)
    assert rows.sum() == counts.sum() and np.ptp(rows) < 2 * counts.max()
    # One bin with most rows is one shard; bins without rows after the last row are no shard.
    assert cuts_of(np.array([1, 10**9, 0, 1, 0, 0]), 1) == [0, 2, 6]


def _labels(texts: list[str], split: int = 0) -> Labels:
    distinct = list(dict.fromkeys(texts))
    codes = np.array([distinct.index(text) for text in texts], np.int32)
    lines = np.arange(2, len(texts) + 2)
    features = np.zeros((len(texts), 1), np.float32)
    rows = Rows(features, distinct, codes, lines, BlockFaults("f.csv", lines))
    labels = Labels("y")
    labels.add(rows, np.full(len(texts), split))
    return labels


TINY = ("0e999999999999999999999", "1")  # exponents that no arithmetic takes
TINIER = ("1e-999999999999999999999", "1")
CODES = ("01", "1", "1.1", "1.10", "NO", "no")  # beside texts, only 1.0 is 1
LONG = ("9007199254740992", "9007199254740993")  # one number to float64


@pytest.mark.parametrize(
    "texts, task, classes",
    [
        (["b", "a", "B"] * 5, "classification", ("B", "a", "b")),
        (["10", "9", "-1"] * 10, "classification", ("-1", "9", "10")),
        (["1.0", "0", "1", "0.000"] * 10, "classification", ("0", "1")),
        (["0", "1"], "classification", ("0", "1")),
        (["True", "False", "true", "false"] * 9, "classification", ("False", "True")),
        (["Yes", "no", "YES"] * 9, "classification", ("YES", "no")),
        (["true", "false", "0", "1.0", "1"] * 9, "classification", ("0", "1")),
        (["0", "0.0", "1", "2.00", "none"] * 9, "classification", ("0", "1", "2", "none")),
        ([*CODES[::-1]] * 9, "classification", CODES),
        (["0", "1", "2"] * 5, "regression", None),  # five rows for each
        (["0.5", "1.5"] * 50, "regression", None),
        ([str(i) for i in range(21)] * 50, "regression", None),
        ([str(i) for i in range(20)] * 10, "classification", tuple(str(i) for i in range(20))),
        ([*LONG[::-1]] * 9, "classification", LONG),
        ([*TINY] * 9, "classification", TINY),
        ([*TINIER] * 9, "classification", TINIER),
        (["low", "1", "2"] * 20, "classification", ("1", "2", "low")),
        ([str(i / 7) for i in range(100)] + ["oops"], "regression", None),
    ],
)
def test_what_a_label_is_taken_for(texts, task, classes):
    label = _labels(texts).decide("auto")
    assert (label.task, label.classes) == (task, classes)


def test_a_task_that_is_named_is_kept():
    assert _labels(["0", "1", "2"]).decide("classification").classes == ("0", "1", "2")
    assert _labels(["0", "1"] * 50).decide("regression").classes is None


def test_class_indices_and_counts():
    found = _labels(["b", "1", "a", "b"], split=2)
    label = found.decide("auto")
    assert (label.classes, label.class_of.tolist()) == (("1", "a", "b"), [2, 0, 1])
    assert found.class_counts(label).tolist() == [[0] * 3, [0] * 3, [1, 1, 2]]


def test_labels_that_are_no_use():
    with pytest.raises(DataError, match="Received: 'a'"):
        _labels(["a", "a"]).decide("auto")
    with pytest.raises(DataError, match="every row"):
        _labels(["1", "1.0"] * 50).decide("auto")
    with pytest.raises(DataError, match="10,000"):
        _labels([f"id{i}" for i in range(10_001)]).decide("auto")


@settings(max_examples=50, deadline=None)
@given(values=_matrix, gaps=st.data(), cut=st.integers(0, 30))
def test_moments_are_those_of_numpy_without_gaps(values, gaps, cut):
    missing = gaps.draw(arrays.arrays(bool, values.shape))
    values[missing] = np.nan
    moments, later = Moments.empty(3), Moments.empty(3)
    moments.add(values[:cut])
    later.add(values[cut:])
    moments.merge(later)
    for i in range(3):
        present = values[~missing[:, i], i]
        column = moments.column(i)
        assert (column.count, column.zeros) == (len(present), (present == 0).sum())
        if len(present):
            assert (moments.minimum[i], moments.maximum[i]) == (present.min(), present.max())
            exact = present.astype(np.float64)
            scale = np.abs(exact).max() + 1e-30
            assert abs(column.mean - exact.mean()) <= 1e-12 * scale
            assert abs(column.std - exact.std()) <= 1e-7 * scale


def _spilled(hashes: list[int], features: np.ndarray) -> np.ndarray:
    rows = np.zeros(len(hashes), kind_of(features.shape[1]))
    rows["hash"], rows["features"] = hashes, features
    return rows


LABEL = Label("y", "classification", ("a", "b"), np.arange(2))


def _described(
    names: tuple[str, ...],
    blocks: list[tuple[np.ndarray, int, list[int]]],
    rows: dict[str, int],
    faults: Faults | None = None,
) -> StatisticsDocument:
    """Return the statistics of rows, each block with its split and its labels."""
    kinds = Kinds(tuple(Feature(name, "number", None, 0) for name in names), ())
    coding = Coding(tuple(Number(name) for name in names))
    statistics, classes = Statistics.empty(coding, LABEL), np.zeros((3, 2), np.int64)
    for block, split, labels in blocks:
        statistics.add(block, split, np.array(labels), coding)
        classes[split] += np.bincount(labels, minlength=2)
    train = Train(blocks[0][0], np.empty(0), Counted.empty(kinds), classes)
    faults = faults or Faults()
    return described(statistics, train, coding, kinds, LABEL, rows, faults, DataOptions())


def test_a_class_that_may_mean_a_missing_label_is_named():
    counts = np.ones((3, 4), np.int64)
    (said,) = label_warnings(("None", "none of these", "?", "yes"), counts)
    assert "None, ?" in said and "data_options.null_values" in said


def test_duplicates_conflicts_and_warnings():
    features = np.array([[1, 5], [1, 5], [2e8, 5], [3, 5]], np.float32)
    blocks = [
        (_spilled([1, 1, 2], features[:3]), 0, [0, 1, 1]),
        (_spilled([3], features[3:]), 1, [0]),
    ]
    rows = {"train": 3, "validation": 1, "test": 0}
    found = _described(("id", "same"), blocks, rows, Faults(seen=5, rows=Counter(text=1)))
    assert (found.duplicates, found.conflicts) == (1, 1)
    assert found.label.counts["train"] == {"a": 1, "b": 2}
    assert found.bad_rows == BadRows(1, {"text": 1})
    assert found.features["same"].histogram == [3]
    said = "\n".join(found.warnings)
    parts = ("every row of train: same", "not a feature: id", "validation has no row", "label: 1")
    assert all(part in said for part in parts), said


_ROWS = 1200
_RANDOM = np.random.default_rng(5)


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("row", np.arange(_ROWS) + 1, True),
        ("row", _RANDOM.permutation(40)[:28], True),  # train has a part of them
        ("row", np.arange(12), False),  # too few to tell
        ("customer", _RANDOM.choice(10**6, _ROWS, replace=False), True),
        ("salary", _RANDOM.choice(10**6, 300, replace=False), False),  # may differ by nature
        ("customer_id", _RANDOM.choice(10**6, 300, replace=False), True),
        ("customerId", -_RANDOM.choice(10**6, 300, replace=False), True),
        ("paid", _RANDOM.choice(10**6, 300, replace=False), False),
        ("id", np.append(np.arange(_ROWS), 7), False),  # it occurs twice
        ("id", _RANDOM.normal(size=_ROWS), False),
        ("id", np.arange(_ROWS) + 0.5, False),
        ("length", np.arange(_ROWS) / 8, False),
        ("age", _RANDOM.integers(0, 90, _ROWS), False),
    ],
)
def test_a_column_that_names_rows_is_named(name: str, values: np.ndarray, said: bool) -> None:
    rows = len(values)
    features = np.stack([_RANDOM.normal(size=rows), values], 1).astype(np.float32)
    blocks = [(_spilled(list(range(rows)), features), 0, [i % 2 for i in range(rows)])]
    found = _described(("x", name), blocks, {"train": rows, "validation": 0, "test": 0})
    warnings = [text for text in found.warnings if "a different whole number" in text]
    assert bool(warnings) == said
    if said:
        assert f": {name};" in warnings[0] and f'data_options.drop=["{name}"]' in warnings[0]


@pytest.mark.parametrize(
    ("start", "step", "said"),
    [(5_500_000, 0.02, True), (5_500_000, 200.0, False), (2**24, 4e6, True), (5, 0.0, False)],
)
def test_a_feature_that_float32_rounds_is_named(start: float, step: float, said: bool) -> None:
    values = (start + step * _RANDOM.integers(0, 90, _ROWS)).astype(np.float32)
    blocks = [(_spilled(list(range(_ROWS)), values[:, None]), 0, [i % 2 for i in range(_ROWS)])]
    found = _described(("x",), blocks, {"train": _ROWS, "validation": 0, "test": 0})
    assert any("rounded to float32" in text for text in found.warnings) is said
