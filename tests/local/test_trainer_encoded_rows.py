"""The trainer encodes a table's rows once, and uses nothing that is half-written."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from kfp_tfjob.common.errors import ConfigurationError, DataError
from kfp_tfjob.features.schema import Schema
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import ENCODED_DOCUMENT, MANIFEST, SCHEMA
from kfp_tfjob.storage.store import Store
from kfp_tfjob.trainer import packing
from kfp_tfjob.trainer.dataset import Dataset
from kfp_tfjob.trainer.encoded_rows import EncodedDocument, encode_rows
from kfp_tfjob.trainer.errors import StoppedError
from kfp_tfjob.trainer.staging import stage
from kfp_tfjob.uploader import push
from tests.faults.proxy import FaultProxy
from tests.local import mixed_dataset, tiny_dataset
from tests.problems import problem_of


@pytest.fixture(scope="module")
def prepared(s3, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "people"
    mixed_dataset.prepare(s3.store(), S3Address("test", "encoding"), folder)
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path) -> Path:
    """The dataset, in several shards with several row groups each."""
    folder = tmp_path / "data"
    shutil.copytree(prepared, folder)
    schema = json.loads((folder / SCHEMA).read_text())
    for split, entry in schema["splits"].items():
        table = parquet.read_table(folder / entry["shards"][0])
        entry["shards"] = [f"{split}/{number:05d}.parquet" for number in range(3)]
        for number, name in enumerate(entry["shards"]):
            start, end = (len(table) * at // 3 for at in (number, number + 1))
            part = table.slice(start, end - start)
            parquet.write_table(part, folder / name, row_group_size=170)
    (folder / SCHEMA).write_text(json.dumps(schema))
    return folder


def schema_of(folder: Path) -> Schema:
    return Schema.from_bytes((folder / SCHEMA).read_bytes())


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_files_do_not_depend_on_threads_row_groups_or_slices(
    prepared: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the last digits of moments may differ: sums are merged by row group."""
    expected = files(encode_rows(prepared, tmp_path / "whole", schema_of(prepared)).folder)
    one = encode_rows(folder, tmp_path / "1", schema_of(folder))
    four = encode_rows(folder, tmp_path / "4", schema_of(folder), threads=4)
    assert files(one.folder) == files(four.folder)
    monkeypatch.setattr(packing, "_SLICE", 50)
    monkeypatch.setattr(packing, "_SLICE_BYTES", 64)
    sliced = files(encode_rows(folder, tmp_path / "50", schema_of(folder), threads=2).folder)
    for found in (files(one.folder), sliced):
        moments = [json.loads(it.pop(ENCODED_DOCUMENT)) for it in (found, dict(expected))]
        assert found == {name: expected[name] for name in found}
        assert found.keys() == expected.keys() - {ENCODED_DOCUMENT}
        columns = [{it["name"]: (it["mean"], it["std"]) for it in m["columns"]} for m in moments]
        assert columns[0].keys() == columns[1].keys()
        for name, values in columns[0].items():
            assert values == pytest.approx(columns[1][name], rel=1e-12)


def test_a_second_start_uses_what_the_first_has_written(
    proxy: FaultProxy, folder: Path, base: S3Address, tmp_path: Path
) -> None:
    store, data, encoded = Store(proxy.endpoint), tmp_path / "job/data", tmp_path / "job/encoded"
    push(store, folder, base, "dataset")

    def start(rows: int) -> Dataset:
        manifest = stage(store, base, data, encoded)
        schema = schema_of(data)
        table = encode_rows(data, encoded, schema, manifest.digest, deletes_shards=True)
        dataset = Dataset.load(data, manifest.digest, str(base), lambda _: table)
        assert dataset.rows["train"] == rows
        return dataset

    first = start(mixed_dataset.ROWS["train"])
    assert len(proxy.of("GET", "parquet")) == 6 and not list(data.rglob("*.parquet"))
    before = files(encoded)
    again = start(mixed_dataset.ROWS["train"])
    assert len(proxy.of("GET", "parquet")) == 6 and files(encoded) == before
    assert np.array_equal(first.mean, again.mean) and np.array_equal(first.std, again.std)

    # The same address with other rows: they are fetched and encoded.
    other = tmp_path / "other"
    store.delete(base / MANIFEST)
    push(store, tiny_dataset.write(other), base, "dataset")
    dataset = start(tiny_dataset.ROWS["train"])
    assert dataset.feature_names == tiny_dataset.FEATURES
    assert files(encoded) != before


def test_what_a_stop_leaves_is_not_used(folder: Path, tmp_path: Path) -> None:
    target, groups = tmp_path / "encoded", iter(range(9))
    with pytest.raises(StoppedError):
        encode_rows(folder, target, schema_of(folder), "d", stop=lambda: next(groups) == 3)
    assert not target.exists() and (tmp_path / "encoded.tmp/train.features").stat().st_size
    assert EncodedDocument.read(target) is None
    table = encode_rows(folder, target, schema_of(folder), "d")
    assert table.columns and not (tmp_path / "encoded.tmp").exists()
    assert EncodedDocument.read(target) == EncodedDocument("d", table.columns)


@pytest.mark.parametrize("is_predicted", [True, False])
def test_a_disk_that_is_too_small_is_named(
    folder: Path,
    mount: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    is_predicted: bool,
) -> None:
    disk = mount(40_000)
    if not is_predicted:  # for example because other pods fill the disk
        monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, 1 << 40))
        with pytest.raises(OSError, match="No space left"):
            encode_rows(folder, disk / "encoded", schema_of(folder))
    else:
        problem = problem_of(
            encode_rows, folder, disk / "encoded", schema_of(folder), kind=ConfigurationError
        )
        assert str(disk) in problem.what and "12 packed columns" in str(problem.expected)
        assert "pod.all.ephemeral_storage" in problem.fix
        assert not list(disk.iterdir())
    assert not (disk / "encoded").exists()


def _without_column(path: Path) -> None:
    parquet.write_table(parquet.read_table(path).drop_columns(["job"]), path)


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def _garbled(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4:60] = b"\xff" * 56  # the header of the first page
    path.write_bytes(data)


@pytest.mark.parametrize("harm", [_without_column, _truncated, _garbled])
def test_a_damaged_shard_is_named(
    folder: Path, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    harm(folder / "train/00001.parquet")
    problem = problem_of(
        encode_rows, folder, tmp_path / "encoded", schema_of(folder), kind=DataError
    )
    assert "train/00001.parquet" in problem.what and "prepare_data" in problem.fix
    assert not (tmp_path / "encoded").exists()


def test_a_label_that_is_no_class_is_named(tmp_path: Path) -> None:
    folder = tiny_dataset.write(tmp_path / "data", wrong_label=True)
    problem = problem_of(Dataset.load, folder, kind=DataError)
    assert "1 such label" in str(problem.received) and "'?'" in str(problem.received)
