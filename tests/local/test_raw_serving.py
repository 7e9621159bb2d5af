"""Models that take raw columns by name: which signatures fit, and what is said of the others."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from pyarrow import parquet

from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.features import signature_columns
from kfp_tfjob.features.coding import Coding
from kfp_tfjob.features.imputation import Missing
from kfp_tfjob.features.served_model import ServedModel
from kfp_tfjob.features.statistics import StatisticsDocument
from kfp_tfjob.features.types.base import NO_DATE
from kfp_tfjob.features.types.boolean import Boolean
from kfp_tfjob.features.types.category import Category
from kfp_tfjob.features.types.date import Date
from kfp_tfjob.features.types.number import Number
from kfp_tfjob.judging import rows
from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.storage.address import S3Address
from tests.local import mixed_dataset
from tests.problems import problems_of
from tests.typed_schema import keys_of, typed

_FAIL = Missing("fail", None)
_COLUMNS = (
    Number("age", _FAIL),
    Category("city", dictionary=("Rome",), vocabulary=("Rome",)),
    Date("signed up", _FAIL, origin=0),
    Boolean("member", _FAIL),
)
SCHEMA = typed(keys_of(Coding(_COLUMNS)) | {"task": "regression"})
TYPES = {"age": "float64", "city": "string", "signed_up": "int64", "member": "string"}
ROWS = {
    "age": np.array([1.5, 2.5]),
    "city": np.array(["Rome", ""], object),
    "signed up": np.array([3, NO_DATE]),
    "member": np.array(["true", ""], object),
}


def _save(
    folder: Path,
    types: Mapping[str, str],
    shape: tuple[None | int, ...] = (None,),
    name: str = "serve",
) -> Path:
    """Save a model that returns the age, whatever else it takes."""

    def serve(**given: Any) -> dict[str, Any]:
        age = given.get("age", next(iter(given.values())))
        ages = age if age.dtype.is_floating else tf.zeros(tf.shape(age))
        return {"prediction": tf.cast(tf.reshape(ages, [-1]), tf.float32)}

    specs = {key: tf.TensorSpec(shape, kind, key) for key, kind in types.items()}
    function = tf.function(serve, autograph=False).get_concrete_function(**specs)
    tf.saved_model.save(tf.Module(), str(folder), signatures={name: function})
    return folder


@pytest.mark.parametrize(
    ("change", "shape", "name"),
    [({}, (None,), "serve"), ({"age": "float32"}, (None, 1), "serving_default")],
)
def test_a_program_may_take_the_columns_by_name(
    tmp_path: Path, change: dict[str, str], shape: tuple[None | int, ...], name: str
) -> None:
    model = ServedModel(_save(tmp_path, TYPES | change, shape, name), SCHEMA, "the model")
    assert model.predict(ROWS).tolist() == [1.5, 2.5]


def test_columns_json_names_the_inputs(tmp_path: Path) -> None:
    names = dict(zip(SCHEMA.names, ("age", "b", "c", "d"), strict=True))
    _save(tmp_path, dict(zip(names.values(), TYPES.values(), strict=True)))
    with pytest.raises(DataError, match="columns"):
        ServedModel(tmp_path, SCHEMA, "the model")
    path = tmp_path / signature_columns.COLUMNS
    path.parent.mkdir()
    path.write_text(json.dumps([{"column": k, "argument": v} for k, v in names.items()]))
    assert ServedModel(tmp_path, SCHEMA, "the model").predict(ROWS).tolist() == [1.5, 2.5]


def _problems(folder: Path) -> list[Problem]:
    return problems_of(ServedModel, folder, SCHEMA, "the model", kind=DataError)


def test_all_wrong_types_are_named(tmp_path: Path) -> None:
    age, city = _problems(_save(tmp_path, TYPES | {"age": "int64", "city": "int64"}))
    assert age.expected == "age: (batch,) float64 or float32"
    assert city.expected == "city: (batch,) string"
    assert "'age'" in age.what and "int64" in age.received


def test_a_missing_and_a_foreign_column_are_named(tmp_path: Path) -> None:
    types = {name: kind for name, kind in TYPES.items() if name != "member"} | {"size": "float64"}
    (problem,) = _problems(_save(tmp_path, types))
    assert "member" in problem.received
    assert "signed up: int64" in problem.expected


def test_packed_rows_are_no_raw_columns(tmp_path: Path) -> None:
    (problem,) = _problems(_save(tmp_path, {"features": "float32"}, (None, 4), "serve_packed"))
    assert "serve_packed" in problem.received


@pytest.fixture(scope="module")
def folder(s3: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "people"
    mixed_dataset.prepare(s3.store(), S3Address("test", "raw-serving"), folder)
    return folder


def _data(folder: Path, **change: Any) -> rows.TestData:
    schema = json.loads((folder / "schema.json").read_text())
    count = mixed_dataset.ROWS["test"]
    return rows.TestData(**{
        "digest": "d", "schema": typed(schema), "statistics": StatisticsDocument(),
        "shards": (folder / mixed_dataset.RAW,), "rows": count,
    } | change)  # fmt: skip


def test_the_test_rows_are_read_raw(folder: Path) -> None:
    found = list(_data(folder).batches(150))
    assert [len(batch.labels) for batch in found] == [150, 150, 100]
    columns, labels, weights, groups = found[0]
    assert weights is None and groups is None
    assert {name: values.dtype.kind for name, values in columns.items()} == {
        "age": "f", "job": "O", "city": "O", "signed up": "i", "member": "O", "note": "O",
    }  # fmt: skip
    assert np.isnan(columns["age"]).any() and (columns["signed up"] == NO_DATE).any()
    assert "" in columns["job"] and labels.dtype == np.int64


def test_several_raw_files_are_one_split_with_weights(folder: Path, tmp_path: Path) -> None:
    table = parquet.read_table(folder / mixed_dataset.RAW)
    weights = np.arange(table.num_rows) / 8
    table = table.append_column("counts", pa.array(weights))
    paths = tuple(tmp_path / f"test-{number}.parquet" for number in range(2))
    for path, part in zip(paths, (table.slice(0, 130), table.slice(130)), strict=True):
        parquet.write_table(part, path)
    schema = json.loads((folder / "schema.json").read_text()) | {"weight": {"name": "counts"}}
    found = list(_data(folder, shards=paths, schema=typed(schema)).batches(100))
    assert [len(batch.labels) for batch in found] == [100, 30, 100, 100, 70]
    labels = np.concatenate([batch.labels for batch in found])
    assert [mixed_dataset.CLASSES[label] for label in labels] == table["income"].to_pylist()
    assert np.concatenate([batch.weights for batch in found]).tolist() == weights.tolist()
    parquet.write_table(
        table.set_column(table.num_columns - 1, "counts", pa.array(-weights)), paths[0]
    )
    with pytest.raises(DataError, match="the weight -0.125"):
        list(_data(folder, shards=paths, schema=typed(schema)).batches())


@pytest.mark.parametrize("damage", ["no column", "no file of Parquet", "rows"])
def test_a_damaged_raw_split_is_named(folder: Path, tmp_path: Path, damage: str) -> None:
    table = parquet.read_table(folder / mixed_dataset.RAW)
    path = tmp_path / "t.parquet"
    if damage == "no column":
        parquet.write_table(table.drop_columns(["city"]), path)
    elif damage == "rows":
        parquet.write_table(table.slice(1), path)
    else:
        path.write_bytes(b"PAR1 and nothing")
    with pytest.raises(DataError, match="schema"):
        list(_data(folder, shards=(path,)).batches())


def test_only_errors_of_the_model_are_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ServedModel(_save(tmp_path, TYPES), SCHEMA, "the model")
    for kind in (ValueError, TypeError, KeyError, AttributeError, MemoryError):

        def fail(*_: object, kind: type[Exception] = kind) -> None:
            raise kind("planted")

        with monkeypatch.context() as patch, pytest.raises(kind):
            patch.setattr(model, "_feed", fail)
            model.predict(ROWS)

    def full(**_: object) -> None:
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    monkeypatch.setattr(model, "_call", full)
    with pytest.raises(MemoryError, match="OOM"):  # the step names what gives it more
        model.predict(ROWS)
