"""The files of data_uri on this machine; tests/local/test_prepare_source.py has those in S3."""

import os
import pickle
from pathlib import Path

import pytest

from kfp_tfjob.common.errors import ConfigurationError, DataError, StepError
from kfp_tfjob.components.prepare_data.source.digest import copies
from kfp_tfjob.components.prepare_data.source.listing import addresses_of
from kfp_tfjob.components.prepare_data.source.resolve import list_source
from kfp_tfjob.components.prepare_data.source.unread_files import large_unread_files
from kfp_tfjob.storage.store import Store
from tests.problems import problem_of

TREE = (
    "a.csv",
    "b.parquet",
    "notes.txt",
    "_SUCCESS",
    ".hidden.csv",
    "2026-01/part-0.csv",
    "2026-01/part-1.csv",
    "2026-02/part-0.csv",
    "2026-02/_temporary/part-9.csv",
    "2026-02/deep/part-2.jsonl.zst",
    "with, comma.csv",
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in TREE:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a,y\n1,2\n")
    return tmp_path


def found(uri: str) -> list[str]:
    return [file.name for file in list_source(Store("http://127.0.0.1:1"), uri).files]


@pytest.mark.parametrize(
    ("uri", "names"),
    [
        ("a.csv", ["a.csv"]),
        ("notes.txt", ["notes.txt"]),
        ("*.csv", ["a.csv", "with, comma.csv"]),
        ("?.*", ["a.csv", "b.parquet"]),
        ("[!a].*", ["b.parquet"]),
        ("2026-*/part-0.csv", ["2026-01/part-0.csv", "2026-02/part-0.csv"]),
        ("2026-02*", ["2026-02/deep/part-2.jsonl.zst", "2026-02/part-0.csv"]),
        ("2026-0[12]/*.csv", ["2026-01/part-0.csv", "2026-01/part-1.csv", "2026-02/part-0.csv"]),
        ("2026-02/**/*.zst", ["deep/part-2.jsonl.zst"]),
        ("**/part-0.csv", ["2026-01/part-0.csv", "2026-02/part-0.csv"]),
        ("2026-01/", ["part-0.csv", "part-1.csv"]),
        ("with, comma.csv", ["with, comma.csv"]),
    ],
)
def test_a_file_a_folder_and_a_pattern(tree: Path, uri: str, names: list[str]) -> None:
    expected = [name.removeprefix("2026-02/") if "/**/" in uri else name for name in names]
    assert found(f"{tree}/{uri}") == expected


@pytest.mark.parametrize("between", ["\n", ",", ", ", "\n\n"])
def test_several_addresses(tree: Path, between: str) -> None:
    uri = between.join(f"{tree}/{name}" for name in ("2026-02", "a.csv", "2026-01/*-1.csv"))
    assert found(uri) == [
        f"{tree}/2026-01/part-1.csv",
        f"{tree}/2026-02/deep/part-2.jsonl.zst",
        f"{tree}/2026-02/part-0.csv",
        f"{tree}/a.csv",
    ]


def test_addresses_in_s3_are_separated_where_the_next_one_begins() -> None:
    found = addresses_of("s3://b/x,y.csv, s3://c/z,s3://c/{date}/\n s3://d/q ")
    assert found == ["s3://b/x,y.csv", "s3://c/z", "s3://c/{date}/", "s3://d/q"]


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("nothing-*.csv", "pattern"),
        ("a.csv,gone.csv", "gone.csv"),
        ("a.csv,*.csv", "more than once"),
        ("[z-a]", "pattern"),
    ],
)
def test_what_is_wrong_with_an_address(tree: Path, uri: str, words: str) -> None:
    with pytest.raises(StepError, match=words) as caught:
        found(",".join(f"{tree}/{part}" for part in uri.split(",")))
    assert isinstance(caught.value, DataError | ConfigurationError)
    assert "Fix:" in str(caught.value)


def test_a_folder_of_other_files_names_them(tmp_path: Path) -> None:
    (tmp_path / "sales.ods").write_bytes(b"PK\x03\x04")
    problem = problem_of(found, str(tmp_path), kind=DataError)
    assert "sales.ods" in problem.received
    assert "CSV" in problem.fix and "data_options.reader" in problem.fix


def test_files_of_a_folder_that_are_not_read_are_known(tmp_path: Path) -> None:
    """A table with another ending was dropped without a word."""
    for name in ("a.csv", "b.sav", "c/d.ods", "c/e.csv.gz", "_SUCCESS", "_old/f.sav", ".g.sav"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("a,y\n1,2\n")
    found = list_source(Store("http://127.0.0.1:1"), str(tmp_path))
    assert [file.name for file in found.files] == ["a.csv", "c/e.csv.gz"]
    assert [file.name for file in found.unread] == ["b.sav", "c/d.ods"]
    assert not list_source(Store("http://127.0.0.1:1"), str(tmp_path / "b.sav")).unread
    assert not pickle.loads(pickle.dumps(found)).unread, "tasks do not need them"


def test_large_files_that_are_not_read_may_be_parts_of_the_table(tmp_path: Path) -> None:
    """Three of four years were dropped with a line of the log."""
    (tmp_path / "a.csv").write_text("a,y\n" + "1,2\n" * 100)
    (tmp_path / "README.md").write_text("two columns")
    source = list_source(Store("http://127.0.0.1:1"), str(tmp_path))
    assert source.unread and large_unread_files(source) == []
    (tmp_path / "b.sav").write_text("a\ty\n" + "1\t2\n" * 100)
    (said,) = large_unread_files(list_source(Store("http://127.0.0.1:1"), str(tmp_path)))
    assert "README.md, b.sav" in said
    whole = list_source(Store("http://127.0.0.1:1"), f"{tmp_path}/*")
    assert large_unread_files(whole) == [], "a pattern names any file"


def test_copies_of_a_file_are_found_by_their_content(tmp_path: Path) -> None:
    for name, text in {
        "data (1).csv": "a",
        "data.csv": "a",
        "other.csv": "b",
        "z.csv": "a",
    }.items():
        (tmp_path / name).write_text(f"{text},y\n1,2\n")
    source = list_source(Store("http://127.0.0.1:1"), str(tmp_path))
    assert copies(source) == {"data.csv": "data (1).csv", "z.csv": "data (1).csv"}


def test_a_link_to_a_file_is_the_file(tree: Path, tmp_path_factory) -> None:
    other = tmp_path_factory.mktemp("other") / "c"
    other.write_text("a,y\n1,2\n")
    (tree / "c.csv").symlink_to(other)
    assert "c.csv" in found(str(tree))


def test_a_link_to_another_file_would_double_its_rows(tree: Path) -> None:
    (tree / "latest.csv").symlink_to("a.csv")
    with pytest.raises(DataError, match="once"):
        found(str(tree))
    assert found(f"{tree}/latest.csv") == ["latest.csv"]


def test_a_folder_with_brackets_in_its_name_is_no_pattern(tree: Path) -> None:
    for name in ("data [1]", "data 1"):
        (tree / name).mkdir()
        (tree / name / f"{name}.csv").write_text("a,y\n1,2\n")
    assert found(f"{tree}/data [1]") == found(f"{tree}/data [1]/*.csv") == ["data [1].csv"]
    assert found(f"{tree}/data [12]/*.csv") == ["data 1/data 1.csv"]


def test_links_to_folders_and_to_no_file_are_named(tree: Path) -> None:
    (tree / "gone.csv").symlink_to(tree / "nothing.csv")
    (tree / "self.csv").symlink_to(tree / "self.csv")
    (tree / "2026-01" / "february").symlink_to("../2026-02")
    (tree / "2026-01" / "up").symlink_to(tree)  # would never end
    problem = problem_of(found, str(tree), kind=DataError)
    assert problem.path == "data_uri"
    for name in ("gone.csv", "self.csv", "2026-01/february", "2026-01/up"):
        assert name in problem.received
    assert problem_of(found, f"{tree}/self.csv", kind=DataError).path == "data_uri"
    assert found(f"{tree}/2026-01/february/*.csv") == ["part-0.csv"]


def test_a_folder_that_cannot_be_read_is_named(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = os.scandir

    def refuse(path: Path) -> object:
        if str(path).rstrip("/").endswith("2026-01"):  # root may read everything
            raise PermissionError(13, "Permission denied", path)
        return read(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match="2026-01.*Permission denied"):
        found(str(tree))


def test_what_a_pattern_does_not_match_is_not_refused(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("lake/_delta_log/0.json", "lake/part-0.parquet", "private/part-0.csv"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).touch()
    (tree / "2026-02" / "latest").symlink_to(tree / "2026-01")
    (tree / "gone.parquet").symlink_to(tree / "nothing")
    (tree / os.fsdecode(b"\xff.parquet")).touch()
    read = os.scandir

    def refuse(path: Path) -> object:
        if str(path).endswith("private"):  # root may read everything
            raise PermissionError(13, "Permission denied", path)
        return read(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert found(f"{tree}/2026-01/part-*.csv") == ["part-0.csv", "part-1.csv"]
    assert found(f"{tree}/*-01/part-*.csv") == ["2026-01/part-0.csv", "2026-01/part-1.csv"]
    assert found(f"{tree}/*.csv") == ["a.csv", "with, comma.csv"]
    for address in (f"{tree}/*.parquet", f"{tree}/**/*.csv", f"{tree}/l*/*.parquet"):
        with pytest.raises(DataError):
            found(address)


@pytest.mark.parametrize("shard", ["train/00000.parquet", "train-00000.tfrecord"])
def test_shards_of_a_dataset_are_not_rows(tmp_path: Path, shard: str) -> None:
    (tmp_path / "train").mkdir()
    for name in (shard, "statistics.json", "schema.json"):
        (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(DataError, match="data_uri.*prepare_data"):
        found(str(tmp_path))
    (tmp_path / "schema.json").unlink()
    assert found(str(tmp_path)) == [shard]


def test_the_files_of_a_lake_are_not_its_rows(tmp_path: Path) -> None:
    """They have deleted and replaced rows, too."""
    for log in ("_delta_log/00000000000000000000.json", "metadata/00001-a.metadata.json"):
        folder = tmp_path / log.partition("/")[0]
        (folder / "data").mkdir(parents=True)
        (folder / "data" / "part-0.parquet").touch()
        (folder / log).parent.mkdir()
        (folder / log).touch()
        for address in (folder, folder / "data*" / "*.parquet"):
            with pytest.raises(DataError, match="Delta"):
                found(str(address))
        assert found(str(folder / "data")) == ["part-0.parquet"]


def test_partitions_are_columns_that_files_lack(tmp_path: Path) -> None:
    for region in ("eu", "us"):
        folder = tmp_path / f"region={region}" / "year=2026"
        folder.mkdir(parents=True)
        (folder / "part-0.parquet").touch()
    with pytest.raises(DataError, match="region, year"):
        found(str(tmp_path))
    files = [f"region={region}/year=2026/part-0.parquet" for region in ("eu", "us")]
    assert found(f"{tmp_path}/**/*.parquet") == files
    assert found(str(tmp_path / "region=eu" / "year=2026")) == ["part-0.parquet"]
