"""The snippets of docs/dataset.md read the table; tests/torch runs that of PyTorch."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import parquet

from kfp_tfjob.features.schema import Schema
from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.storage.address import S3Address
from tests.docs.dataset_page import execute, prepare, prepare_source
from tests.unit.picture_files import animals, tree


@pytest.fixture(scope="module")
def data(s3: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(s3.store(), S3Address("test", "page"), tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def train(data: Path) -> pa.Table:
    return parquet.read_table(data / "train")


@pytest.fixture(scope="module")
def schema(data: Path) -> Schema:
    return Schema.from_bytes((data / "schema.json").read_bytes())


def rich(train: pa.Table) -> int:
    return pc.sum(pc.equal(train["income"], ">50K")).as_py()


def test_pandas(data: Path, train: pa.Table, schema: Schema) -> None:
    names, rows, ones = execute(
        "pandas", "[list(features), len(features), int(classes.sum())]", data
    )
    assert names == schema.names
    assert (rows, ones) == (schema.rows["train"], rich(train))
    assert schema.classes.index(">50K") == 1


def test_tensorflow(data: Path, train: pa.Table, schema: Schema) -> None:
    expression = """[
        [[int(labels.numpy().sum()), len(labels)] for _, labels in batches],
        {name: str(spec.dtype.name) for name, spec in batches.element_spec[0].items()},
        sorted({job.decode() for columns, _ in batches for job in columns["occupation"].numpy()}),
    ]"""
    counts, types, jobs = execute("tensorflow", expression, data)
    assert [*map(sum, zip(*counts, strict=True))] == [rich(train), schema.rows["train"]]
    assert types == {"age": "float64", "occupation": "string", "member": "bool"}
    assert jobs == sorted(pc.unique(train["occupation"].fill_null("")).to_pylist())


def test_duckdb(data: Path, train: pa.Table) -> None:
    groups = train.group_by("income").aggregate([([], "count_all"), ("age", "mean")])
    expected = sorted(tuple(row.values()) for row in groups.to_pylist())
    incomes = sorted(execute("duckdb", "incomes.fetchall()", data))
    for (label, count, age), row in zip(expected, incomes, strict=True):
        assert row == [label, count, pytest.approx(age)]


def test_batches(data: Path, schema: Schema) -> None:
    assert execute("batches", "rows", data) == schema.rows["train"]


@pytest.fixture(scope="module")
def images(s3: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    source = tree(folder / "animals", animals(40))
    return prepare_source(s3.store(), S3Address("test", "images"), folder, source)


def test_images_with_pillow(images: Path) -> None:
    table = parquet.read_table(images / "train")
    expression = "[len(pixels), sorted({image.size for image in pixels}), sorted(rows)]"
    count, sizes, columns = execute("pillow", expression, images)
    assert (count, sizes, columns) == (len(table), [[24, 24]], ["class", "picture"])


def test_images_with_tensorflow(images: Path) -> None:
    table = parquet.read_table(images / "train")
    expression = """[
        [[len(labels), int(labels.numpy().sum())] for _, labels in batches],
        list(batches.element_spec[0].shape),
    ]"""
    counts, shape = execute("decoded", expression, images)
    dogs = pc.sum(pc.equal(table["class"], "dog")).as_py()
    assert [*map(sum, zip(*counts, strict=True))] == [len(table), dogs]
    assert shape == [None, 24, 24, 3]
