"""Splits that something else than the hash of a row decides."""

import resource
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_tfjob.common.errors import ConfigurationError, DataError, Problem
from kfp_tfjob.components.prepare_data import row_requirements
from kfp_tfjob.components.prepare_data.hashes import split_of
from kfp_tfjob.components.prepare_data.row_requirements import decide
from kfp_tfjob.components.prepare_data.scan import Scan
from kfp_tfjob.components.prepare_data.source.digest import source_digest
from kfp_tfjob.components.prepare_data.source.resolve import check_header, list_source
from kfp_tfjob.components.prepare_data.split_rules import (
    folder_problems,
    hashes_in,
    ignored_folders,
    time_limits,
)
from kfp_tfjob.storage.store import Store
from tests.problems import problem_of, problems_of
from tests.unit.prepared_files import check, names_of, options, read, rows_of, write_table

STORE = Store("http://127.0.0.1:1")


def scanned(path: Path, **given: object) -> tuple[Scan, list[list[tuple]]]:
    """Read a source; return the scan, and the features of the rows of each split, sorted."""
    found = read(path, 1 << 12, path.parent / "runs", **given)
    splits: list[list[tuple]] = [[], [], []]
    part = rows_of(found)
    numbers = split_of(part["hash"], found.job.fractions)
    for row, number in zip(part["features"].tolist(), numbers.tolist(), strict=True):
        splits[number].append(tuple(row))
    return found, [sorted(rows) for rows in splits]


def write(path: Path, header: str, rows: list[tuple]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(header + "\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))


def test_a_column_names_the_split_and_any_other_word_is_a_fault(tmp_path: Path) -> None:
    words = ["train", "Validation", "TEST", "train", "val"]
    rows = [(i, words[i % 5], i % 2) for i in range(500)]
    rows += [(500, "later", 0), (501, "", 1)]
    write(tmp_path / "f.csv", "a,part,y", rows)
    split = {"column": "part"}
    assert check(tmp_path / "f.csv", split=split) == []
    found, splits = scanned(tmp_path / "f.csv", split=split)
    assert names_of(found) == ["a"] and found.job.split_rules.comparable == {"column": "part"}
    assert splits[0] == [(i,) for i in range(500) if i % 5 in (0, 3)]
    assert splits[1] == [(i,) for i in range(500) if i % 5 in (1, 4)]
    assert splits[2] == [(i,) for i in range(500) if i % 5 == 2]
    assert [(f.line, f.column, f.value, f.rule) for f in found.faults.examples] == [
        (502, "part", "later", "split"),
        (503, "part", "", "missing"),
    ]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_the_rows_of_a_group_stay_together(tmp_path: Path, kind: str) -> None:
    groups = np.arange(3_000) // 10
    columns = {"a": np.arange(3_000), "patient": groups, "y": np.arange(3_000) % 2}
    path = write_table(tmp_path / f"f.{kind}", columns)
    found, splits = scanned(path, split={"group": "patient"})
    assert names_of(found) == ["a"]
    seen = [{int(row[0]) // 10 for row in rows} for rows in splits]
    assert not seen[0] & seen[1] and not seen[0] & seen[2] and not seen[1] & seen[2]
    assert [len(rows) for rows in splits] == [10 * len(found) for found in seen]
    assert np.abs(np.array([len(found) for found in seen]) / 300 - [0.7, 0.15, 0.15]).max() < 0.08
    # A group keeps its split when others are added, and the column may be a feature.
    found, again = scanned(path, split={"group": "patient"}, columns=["a", "patient"])
    assert [[row[:1] for row in rows] for rows in again] == splits


@pytest.mark.parametrize("form", ["number", "date", "text"])
def test_the_newest_rows_are_the_test(tmp_path: Path, form: str) -> None:
    random = np.random.default_rng(1)
    days = random.permutation(np.repeat(np.arange(500), 4))
    when = {
        "number": days,
        "date": (days * 86_400_000_000 - 10**15).astype("M8[us]"),
        "text": pa.array((days * 86_400 - 10**9).astype("M8[s]")).cast(pa.string()),
    }[form]
    columns = {"a": days, "when": when, "y": np.arange(2_000) % 2}
    path = write_table(tmp_path / "f.parquet", columns, row_group_size=300)
    _, splits = scanned(path, split={"time": "when"}, drop=["when"])
    seen = [sorted({int(row[0]) for row in rows}) for rows in splits]
    assert seen == [list(range(350)), list(range(350, 425)), list(range(425, 500))]


def test_a_disk_that_is_full_for_a_moment_loses_no_times(tmp_path: Path, monkeypatch) -> None:
    columns, mapped = {"when": np.arange(10_000), "y": np.arange(10_000) % 2}, np.memmap
    path = write_table(tmp_path / "f.parquet", columns, row_group_size=300)
    wanted = options(split={"time": "when"})
    source = list_source(STORE, str(path), wanted)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def with_space(*arguments: object, **more: object) -> np.memmap:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        return mapped(*arguments, **more)

    monkeypatch.setattr(np, "memmap", with_space)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            time_limits(source, wanted, tmp_path, 1 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_times_of_two_forms_are_refused(tmp_path: Path) -> None:
    """A number would be older than any date."""
    when = [f"{2000 + i}" if i % 2 else f"{2000 + i}-05-01" for i in range(9)]
    write(tmp_path / "f.csv", "a,when,y", [(i, it, "uv"[i % 2]) for i, it in enumerate(when)])
    words = "which contains dates and numbers.*2000-05-01 in f.csv, line 2.*2001 in f.csv, line 3"
    with pytest.raises(DataError, match=words):
        scanned(tmp_path / "f.csv", split={"time": "when"}, drop=["when"])


def test_rows_of_one_time_stay_together_and_bad_times_are_faults(tmp_path: Path) -> None:
    rows = [(i, f"2026-01-{1 + i // 25:02d}", i % 2) for i in range(500)]
    rows[3] = (3, "soon", 1)
    write(tmp_path / "f.csv", "a,when,y", rows)
    found, splits = scanned(tmp_path / "f.csv", split={"time": "when"}, drop=["when"])
    assert [(f.line, f.value, f.rule) for f in found.faults.examples] == [(5, "soon", "date")]
    days = [{int(row[0]) // 25 for row in rows} for rows in splits]
    assert days == [set(range(14)), set(range(14, 17)), set(range(17, 20))]


FOLDERS = ("train", "validation", "test")


def test_folders_are_splits_and_duplicates_are_counted_and_not_moved(tmp_path: Path) -> None:
    for i, name in enumerate(FOLDERS):
        rows = [(100 * i + j, j % 2) for j in range(50)] + [(7, 1)] * i
        write(tmp_path / "data" / name / "f.csv", "a,y", rows)
    found, splits = scanned(tmp_path / "data")
    assert found.job.split_rules.comparable == {"folders": True}
    assert [len(rows) for rows in splits] == [50, 51, 52]
    overlap = found.overlap()
    assert overlap.also_in_train == {"validation": 1, "test": 2}
    assert (overlap.duplicates, overlap.conflicts) == (3, 0)
    _, by_hash = scanned(tmp_path / "data", split={"folders": False})
    assert [len(rows) for rows in by_hash] != [50, 51, 52]
    assert sum(map(len, by_hash)) == 153


def test_without_a_folder_for_validation_rows_of_train_are_taken(tmp_path: Path) -> None:
    write(tmp_path / "data/train/f.csv", "a,y", [(i, i % 2) for i in range(1_000)])
    write(tmp_path / "data/test/f.csv", "a,y", [(i, i % 2) for i in range(2_000, 2_100)])
    _, splits = scanned(tmp_path / "data")
    assert splits[2] == [(i,) for i in range(2_000, 2_100)]
    assert sorted([*splits[0], *splits[1]]) == [(i,) for i in range(1_000)]
    assert 0.1 < len(splits[1]) / 1_000 < 0.25


@pytest.mark.parametrize(
    ("test", "train"),
    [
        ((">50K.", "<=50K."), True),
        (("<=50k", " >50K .".strip()), True),
        (("other", "<=50K"), False),
    ],
)
def test_classes_that_train_lacks_are_shown_beside_those_of_train(tmp_path, test, train) -> None:
    """The salt was named, which cannot matter where folders decide."""
    for folder, names in (("train", ("<=50K", ">50K")), ("test", test)):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "1.csv", "a,y", [(i, names[i % 2]) for i in range(100)])
    problem = problem_of(decide, read(tmp_path), kind=DataError)
    assert "salt" not in problem.fix
    assert ("train has" in problem.received) == train
    if train:
        assert "'<=50K'" in problem.received and "write each class" in problem.fix
        return
    write(tmp_path / "train" / "2.csv", "a,y", [(i, "other") for i in range(100, 200)])
    assert decide(read(tmp_path)).classes == ("<=50K", ">50K", "other"), "as the fix says"


def test_a_row_without_a_group_counts_once(tmp_path: Path) -> None:
    groups = [None if row % 100 == 0 else row // 10 for row in range(3_000)]
    columns = {"a": np.arange(3_000), "patient": groups, "y": np.arange(3_000) % 2}
    path = write_table(tmp_path / "f.csv", columns)
    found, _ = scanned(path, split={"group": "patient"}, on_bad_row="drop")
    assert found.faults.bad == found.faults.cells["patient", "missing"] == 30


@pytest.mark.parametrize(
    ("rule", "matters"), [({}, True), ({"group": "g"}, True), ({"time": "g"}, False)]
)
def test_the_salt_is_named_where_it_matters(tmp_path: Path, rule, matters: bool) -> None:
    """A class with one row is in train or not, as its hash or its group decides."""
    rows = [(i, i, "u") for i in range(100)] + [(i, i, "v") for i in range(200, 300)]
    rows += [(999, 999, "rare")]
    write(tmp_path / "f.csv", "a,g,y", rows)
    salts = [str(i) for i in range(8)]
    lacking = [salt for salt in salts if _problem(tmp_path / "f.csv", {"salt": salt} | rule)]
    assert (0 < len(lacking) < 8) == matters
    problem = _problem(tmp_path / "f.csv", {"salt": lacking[0]} | rule)
    assert problem and ("data_options.split.salt" in problem.fix) == matters


def test_a_folder_of_images_without_labels_in_test_is_named() -> None:
    """Neither data_options.task nor a salt applies to images in folders of splits."""
    counts = np.array([[9, 9, 0], [3, 3, 0], [3, 3, 5]])
    rows = dict(zip(("train", "validation", "test"), counts.sum(1).tolist(), strict=True))
    given = ("class", ("cat", "dog", "unknown"), counts, options(), {"folder": "train"}, "image")
    problem = problem_of(row_requirements.check, rows, *given, kind=DataError)
    assert "'unknown' (5 images)" in problem.received and "no label" in problem.fix
    assert "data_options" not in problem.fix


@pytest.mark.parametrize("values", [["True", "False"], [0, 1], ["a", "b"]])
def test_a_column_of_other_words_than_splits_gets_a_remedy_that_works(tmp_path, values) -> None:
    """Dropping it, or another type, led to the same refusal."""
    part = [values[i % 3 == 0] for i in range(90)]
    rows = [(i, part[i], "uv"[i % 2]) for i in range(90)]
    write(tmp_path / "f.csv", "a,part,y", rows)
    (problem,) = check_header(
        list_source(STORE, str(tmp_path / "f.csv")), "y", options(split={"column": "part"})
    ) or problems_of(decide, read(tmp_path / "f.csv", split={"column": "part"}), kind=DataError)
    assert problem.expected.startswith("train, validation or test")
    assert not any(key in problem.fix for key in ("data_options.drop", "data_options.types"))
    words = ["train", "validation", "test"]
    write(tmp_path / "f.csv", "a,part,y", [(i, words[i % 3], "uv"[i % 2]) for i in range(90)])
    assert len(decide(read(tmp_path / "f.csv", split={"column": "part"})).classes) == 2


def test_a_month_has_no_day_for_split_time(tmp_path: Path) -> None:
    rows = [(i, f"2024-{1 + i % 12:02}", "uv"[i % 2]) for i in range(96)]
    write(tmp_path / "f.csv", "a,day,y", rows)
    given = {"split": {"time": "day"}}
    problem, *_ = problems_of(decide, read(tmp_path / "f.csv", **given), kind=DataError)
    assert "2024-12-31" in problem.expected and "data_options.split.time" in problem.fix
    assert "data_options.drop" not in problem.fix
    write(tmp_path / "f.csv", "a,day,y", [(a, f"{day}-01", y) for a, day, y in rows])
    assert not read(tmp_path / "f.csv", **given).faults.bad


def _problem(path: Path, split: dict[str, str]) -> Problem | None:
    try:
        decide(read(path, split=split))
    except DataError as error:
        (problem,) = error.problems
        return problem if isinstance(problem, Problem) else None
    return None


def test_files_outside_of_these_folders_are_refused(tmp_path: Path) -> None:
    for name in (*FOLDERS, "more"):
        write(tmp_path / "data" / name / "f.csv", "a,y", [(i, i % 2) for i in range(20)])
    with pytest.raises(DataError, match="only some") as caught:
        scanned(tmp_path / "data")
    assert check(tmp_path / "data") == [str(problem) for problem in caught.value.problems]
    assert "more/f.csv" in str(caught.value)


@pytest.mark.parametrize(
    ("names", "uri", "rows"),
    [
        (("train/a", "test/b"), "{0}/train/*.csv,{0}/test/*.csv", {"train", "test"}),
        (("train/a", "test/b"), "{0}/train/a.csv\n{0}/test/b.csv", {"train", "test"}),
        (("1/train/a", "2/train/b", "1/test/c"), "{0}/*/train,{0}/*/test", {"train", "test"}),
        (("train/x/a", "test/x/b"), "{0}/train/**/*.csv,{0}/test/**/b.csv", {"train", "test"}),
        (("train/a", "dev/b"), "{0}", {"train", "validation"}),
        (("Training/a", "Testing/b", "holdout/c"), "{0}", {"train", "test"}),
        (("train/a", "eval/b", "valid/c"), "{0}", {"train", "test", "validation"}),
    ],
)
def test_split_folders_that_users_have(tmp_path: Path, names, uri, rows: set[str]) -> None:
    for name in names:
        write(tmp_path / f"data/{name}.csv", "a,y", [(i, i % 2) for i in range(20)])
    uri = uri.format(tmp_path / "data")
    source = list_source(STORE, uri)
    assert source.splits_by_folder and {file.split for file in source.files} == rows
    assert check(uri) == []


@pytest.mark.parametrize(
    ("names", "uri"),
    [
        (("2024/train/a", "2024/test/b"), "{0}"),
        (("2024/train/a", "2024/test/b"), "{0}/*/*/*.csv"),
        (("train/a", "more/b"), "{0}"),
        (("validation/a", "test/b"), "{0}"),
        (("split=train/a", "split=test/b"), "{0}"),
        (("train", "test"), "{0}"),
        (("train", "test"), "{0}/train.csv,{0}/test.csv"),
        (("Train-00000-of-00002", "Train-00001-of-00002", "Dev-00000-of-00001"), "{0}"),
        (("iris_training", "iris_test"), "{0}"),
        (("train_set/a", "test_set/b"), "{0}"),
        (("train-data/a", "test-data/b"), "{0}/train-data,{0}/test-data"),
        (("TrainSet/a", "TestSet/b"), "{0}"),
    ],
)
def test_names_of_splits_that_divide_nothing_are_refused(tmp_path: Path, names, uri) -> None:
    for name in names:
        write(tmp_path / f"data/{name}.csv", "a,y", [(i, i % 2) for i in range(20)])
    uri = uri.format(tmp_path / "data")
    source = list_source(STORE, uri)
    (problem,) = folder_problems(source, options())
    assert problem.path == "data_uri" and '"folders": false' in problem.fix
    for name in (names[0], names[-1]):
        assert f"{name}.csv" in problem.received
    for split in ({"folders": False}, {"group": "a"}):
        assert folder_problems(source, options(split=split)) == []


def test_a_word_of_a_split_in_some_folders_alone_divides_nothing(tmp_path: Path) -> None:
    for name in ("train_delays/a", "bus_delays/b"):
        write(tmp_path / f"data/{name}.csv", "a,y", [(i, i % 2) for i in range(20)])
    assert folder_problems(list_source(STORE, str(tmp_path / "data")), options()) == []


def test_folders_that_do_not_decide_are_named(tmp_path: Path) -> None:
    """Rows of test/ were trained on without a word, because a group decides."""
    for name in ("train/a", "test/b"):
        write(tmp_path / f"data/{name}.csv", "a,y", [(i, i % 2) for i in range(20)])
    source = list_source(STORE, str(tmp_path / "data"))
    (said,) = ignored_folders(source, options(split={"group": "a"}))
    assert "data_options.split.group" in said and "test, train" in said
    for split in ({}, {"group": "a", "folders": False}):
        assert ignored_folders(source, options(split=split)) == []
    (tmp_path / "data/test/b.csv").rename(tmp_path / "data/train/b.csv")
    source = list_source(STORE, str(tmp_path / "data"))
    assert ignored_folders(source, options(split={"group": "a"})) == []


def test_a_source_with_such_folders_has_another_digest(tmp_path: Path) -> None:
    """The dataset of an earlier version divided the rows by their hash."""
    for name in FOLDERS:
        write(tmp_path / "data" / name / "f.csv", "a,y", [(1, 2)])
    source = list_source(STORE, str(tmp_path / "data"))
    assert source.splits_by_folder
    before = source_digest(source)
    (tmp_path / "data/train").rename(tmp_path / "data/other")
    assert before != source_digest(list_source(STORE, str(tmp_path / "data")))


def test_options_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="group, time"):
        options(split={"group": "a", "time": "b"})
    write(tmp_path / "f.csv", "a,y", [(1, 2)] * 9)
    (said,) = check(tmp_path / "f.csv", split={"group": "gone"})
    assert "data_options.split.group names 'gone'" in said
    (said,) = check(tmp_path / "f.csv", split={"time": "y"})
    assert " label" in said


@settings(max_examples=50, deadline=None)
@given(
    hashes=st.lists(st.integers(0, 2**64 - 1), min_size=1),
    fractions=st.sampled_from([(0.7, 0.15, 0.15), (0.98, 0.01, 0.01), (0.2, 0.3, 0.5)]),
    seed=st.integers(0, 99),
)
def test_a_placed_hash_leads_to_its_split_and_keeps_the_order(hashes, fractions, seed) -> None:
    given_ = dict(zip(("train", "validation", "test"), fractions, strict=True))
    hashes = np.sort(np.array(hashes, np.uint64))
    splits = np.random.default_rng(seed).integers(0, 3, len(hashes)).astype(np.int8)
    placed = hashes_in(hashes, splits, list(fractions), frozenset())
    assert split_of(placed, list(given_.values())).tolist() == splits.tolist()
    for i in range(3):
        assert (np.diff(placed[splits == i].astype(object)) >= 0).all()
