"""Addresses of data in a real S3 server: patterns, prefixes, several of them."""

import pytest

from kfp_tfjob.components.prepare_data.data_validation import Validation
from kfp_tfjob.components.prepare_data.engine import run
from kfp_tfjob.components.prepare_data.report import render
from kfp_tfjob.components.prepare_data.source.resolve import list_source
from kfp_tfjob.components.step import Step
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import DataError
from kfp_tfjob.storage.store import Store


def rows(start: int, count: int = 60) -> bytes:
    lines = [f"{i},{i / 7},{'uv'[i % 2]}\n" for i in range(start, start + count)]
    return ("a,b,y\n" + "".join(lines)).encode()


@pytest.fixture
def data(store: Store, base: S3Address) -> S3Address:
    for i, name in enumerate(
        ("2026-01/a.csv", "2026-01/_SUCCESS", "2026-02/a.csv", "2026-02/b.csv", "other/c, d.csv")
    ):
        store.write(base / "in" / name, rows(100 * i))
    return base / "in"


@pytest.mark.parametrize(
    ("uri", "names"),
    [
        ("{0}/2026-*", ["2026-01/a.csv", "2026-02/a.csv", "2026-02/b.csv"]),
        ("{0}/2026-0?/a.*", ["2026-01/a.csv", "2026-02/a.csv"]),
        ("{0}/**/a.csv", ["2026-01/a.csv", "2026-02/a.csv"]),
        ("{0}/2026-02/", ["a.csv", "b.csv"]),
        ("{0}/other/c, d.csv", ["c, d.csv"]),
        ("{0}/2026-01, {0}/other/*", ["{0}/2026-01/a.csv", "{0}/other/c, d.csv"]),
        ("{0}/2026-01\n{0}/2026-02/b.csv\n", ["{0}/2026-01/a.csv", "{0}/2026-02/b.csv"]),
    ],
)
def test_the_files_of_an_address(store: Store, data: S3Address, uri: str, names: list[str]) -> None:
    found = list_source(store, uri.format(data))
    assert [file.name for file in found.files] == [name.format(data) for name in names]


def test_several_addresses_make_one_dataset(store: Store, data: S3Address, step: Step) -> None:
    """The rows are those of one folder, and so are the bytes of the shards."""
    several = run(step, f"{data}/2026-02/a.csv, {data}/2026-02/b.csv", "y", {})
    folder = run(step, f"{data}/2026-02", "y", {})
    assert several.rows == folder.rows and sum(folder.rows.values()) == 120
    assert several.dataset_digest != folder.dataset_digest  # it follows the names
    first, second = (
        {
            item.address.name: item.etag
            for item in store.list(S3Address.parse(done.dataset_uri))
            if item.address.name != "manifest.json"
        }
        for done in (several, folder)
    )
    assert first == second


def test_an_address_without_a_file_is_named(store: Store, data: S3Address, step: Step) -> None:
    with pytest.raises(DataError, match="pattern.*2027") as caught:
        run(step, f"{data}/2026-01, {data}/2027-*", "y", {})
    assert "2026-01" not in str(caught.value)


def test_folders_in_s3_are_splits(store: Store, base: S3Address, step: Step) -> None:
    """Rows of test that are also in train stay, and the report says how many they are."""
    for i, name in enumerate(("train", "validation", "test")):
        store.write(base / "in" / name / "part.csv", rows(1_000 * i) + rows(0, i)[6:])
    done = run(step, f"{base}/in/", "y", {})
    assert done.rows == {"train": 60, "validation": 61, "test": 62}
    assert done.schema.split["folders"] is True
    assert done.statistics.also_in_train == {"validation": 1, "test": 2}
    assert "2 of 62 " in str(done.statistics.warnings)
    assert "2 of 62 " in render(done.schema, done.statistics, False, Validation())
    for names in (
        ("train", "validation", "test"),
        ("train/*", "validation/p*.csv", "test/part.csv"),
    ):
        again = run(step, ", ".join(f"{base}/in/{name}" for name in names), "y", {})
        assert again.rows == done.rows
        assert again.schema.schema_digest == done.schema.schema_digest
