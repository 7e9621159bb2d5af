"""By default, `data_options.null_values` is for CSV: a string of a typed file stays what it is."""

import json
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from kfp_tfjob.common.errors import DataError
from kfp_tfjob.components.prepare_data.row_requirements import decide
from kfp_tfjob.components.prepare_data.scan import Scan
from kfp_tfjob.features.types.base import NO_DATE
from kfp_tfjob.options.data import NULL_VALUES
from tests.problems import problems_of
from tests.unit.prepared_files import data_of, faults_of, read, rows_of, write_table

COUNTRIES = ["NA", "DE", "n/a", "FR", "", "null"]


def texts_of(found: Scan) -> list[str]:
    return sorted(found.dictionaries["c"].texts)


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_na_is_namibia_in_a_typed_file(tmp_path: Path, ending: str) -> None:
    columns = {"a": list(range(60)), "c": COUNTRIES * 10, "y": ["NA", "b"] * 30}
    found = read(write_table(tmp_path / f"f.{ending}", columns))
    assert texts_of(found) == ["DE", "FR", "NA", "n/a", "null"]
    assert found.faults.bad == 0 and sorted(found.labels.codes) == ["NA", "b"]


def test_na_is_a_missing_value_in_csv(tmp_path: Path) -> None:
    columns = {"a": list(range(60)), "c": COUNTRIES * 10, "y": ["u", "v"] * 30}
    assert texts_of(read(write_table(tmp_path / "f.csv", columns))) == ["DE", "FR"]
    assert "n/a" in NULL_VALUES


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "csv"])
def test_a_list_of_your_own_applies_to_every_format(tmp_path: Path, ending: str) -> None:
    """In typed files, the option had no effect: -999 was a number, and "?" made a category."""
    columns = {
        "t": [-999.0, 1.5, 2.5] * 20,
        "n": [-999, 1, 2] * 20,
        "s": ["?", "1.5", "2.5"] * 20,
        "d": ["-999.00", "1.5", "-9.99e+02"] * 20,
        "c": ["a", "NA", "b"] * 20,
        "y": ["u", "v"] * 30,
    }
    path = write_table(tmp_path / f"f.{ending}", columns)
    found = read(path, null_values=["", "?", "-999"])
    missing = {it.name: it.missing for it in found.kinds.features}
    assert missing == {"t": 20, "n": 20, "s": 20, "d": 40, "c": 0}
    kinds = {it.name: it.kind for it in found.kinds.features}
    assert kinds == dict.fromkeys("tnsd", "number") | {"c": "category"}
    codes = write_table(
        tmp_path / f"h.{ending}", {"a": ["000", "0", "0.0"] * 20, "y": ["u", "v"] * 30}
    )
    (code,) = read(codes, null_values=["0"], types={"a": "category"}).kinds.features
    assert code.missing == 40, "000 may be a code"
    labelled = write_table(tmp_path / f"g.{ending}", {"a": range(60), "y": [-999, 1, 2] * 20})
    assert read(labelled, null_values=["-999"]).faults.counts() == {"missing": 20}


@pytest.mark.parametrize(
    ("kind", "values", "nulls", "missing"),
    [
        ("float32", [-999.9, 1e20, 9.96921e36, 20.5], ["-999.9", "1e20", "9.96921e36"], 3),
        ("float16", [-999.9, 20.5], ["-999.9", "1e20"], 1),
        ("float64", [-999.9, float(np.float32(-999.9))], ["-999.9"], 1),
        ("float32", [0.0, 1.0], ["1e-50"], 0),
    ],
)
def test_a_missing_number_is_rounded_as_its_column_is(
    tmp_path: Path, kind: str, values: list[float], nulls: list[str], missing: int
) -> None:
    """-999.9 as float32 is -999.9000244140625, which was a value like any other."""
    columns = {"t": np.array(values * 20, kind), "y": ["u", "v"] * (10 * len(values))}
    found = read(write_table(tmp_path / "f.parquet", columns), null_values=nulls)
    (feature,) = found.kinds.features
    assert feature.missing == 20 * missing


def test_a_missing_number_beyond_float32_is_not_infinity(tmp_path: Path) -> None:
    columns = {"t": np.array([np.inf, 1, 2] * 20, np.float32), "y": ["u", "v"] * 30}
    path = write_table(tmp_path / "f.parquet", columns)
    assert read(path, null_values=["1e39"]).faults.counts() == {"not finite": 20}


@pytest.mark.parametrize(
    ("kind", "values", "texts"),
    [
        ("float32", [0.1, 1e20, 1e-5, 1700000.4], ["0.1", "1e+20", "1e-05", "1700000.4"]),
        ("float32", [3, 16777218, -0.0], ["3", "16777218", "0"]),
        ("float16", [0.1, 65504], ["0.1", "65504"]),
    ],
)
def test_a_float_that_becomes_a_string_has_the_digits_of_its_type(
    tmp_path: Path, kind: str, values: list[float], texts: list[str]
) -> None:
    """A float32 0.1 was the category 0.10000000149011612, so a request's 0.1 was unknown."""
    rows = 60 * len(values)
    for name, dtype in (("1", kind), ("2", "float64")):
        columns = {"a": range(rows), "c": np.array(values * 60, dtype)}
        write_table(tmp_path / f"{name}.parquet", columns | {"y": columns["c"]})
    found = read(tmp_path, types={"c": "category"}, task="classification")
    assert texts_of(found) == sorted(found.labels.codes) == sorted(texts)


def test_the_usual_strings_stay_out_of_the_option_for_a_typed_file(tmp_path: Path) -> None:
    """They do not mean a missing value there: "NA" may be Namibia."""
    columns = {"a": ["NA" if i % 20 == 3 else str(i) for i in range(100)], "y": ["u", "v"] * 50}
    path = write_table(tmp_path / "f.parquet", columns)
    problem, *_ = problems_of(decide, read(path), kind=DataError)
    option = json.loads(problem.fix.partition("null_values=")[2].partition(" if ")[0])
    assert option == ["", "NA"]
    assert not read(path, null_values=option).faults.bad


def test_files_of_a_folder_have_their_own_missing_values(tmp_path: Path) -> None:
    columns = {"a": list(range(60)), "c": ["NA", "DE"] * 30, "y": ["u", "v"] * 30}
    for name in ("1.csv", "2.parquet"):
        write_table(tmp_path / name, columns)
    assert read(tmp_path).dictionaries["c"].rows == 30 + 60


def test_a_group_and_a_weight_of_a_typed_file(tmp_path: Path) -> None:
    groups, weights = ["NA", "DE", ""] * 20, ["1", "2", "NA"] * 20
    columns = {"a": list(range(60)), "g": groups, "w": weights, "y": ["u", "v"] * 30}
    given = {"split": {"group": "g"}, "on_bad_row": "drop", "max_bad_fraction": 1}
    found = read(write_table(tmp_path / "f.parquet", columns), **given, drop=["w"])
    assert found.faults.counts() == {"missing": 20}
    found = read(
        write_table(tmp_path / "f.parquet", columns), weight="w", drop=["g"], on_bad_row="drop"
    )
    assert found.faults.counts() == {"text": 20}


@pytest.mark.parametrize("others", ['{"a": 2.5, "y": 1}', '{"a": "3", "y": 1}'])
def test_nan_of_json_is_missing(tmp_path: Path, others: str) -> None:
    """Python writes it for a missing number."""
    (tmp_path / "f.jsonl").write_text(f'{{"a": NaN, "y": 0}}\n{{"a": null, "y": 0}}\n{others}\n')
    _, _, faults = data_of(tmp_path / "f.jsonl")
    assert faults_of(faults) == [(1, "a", "", "missing"), (2, "a", "", "missing")]


@pytest.mark.parametrize(
    ("kind", "empty"),
    [
        ("date", pa.float64()),
        ("date", pa.int32()),
        ("number", pa.date32()),
        ("boolean", pa.date32()),
    ],
)
def test_a_file_without_a_value_may_have_another_type(
    tmp_path: Path, kind: str, empty: pa.DataType
) -> None:
    """pandas writes a column without a value as float64; its dates were days of 1970."""
    days = [datetime(2024, 1, 1 + i % 30) for i in range(60)]
    columns = {"date": days, "number": [1.5 + i for i in range(60)], "boolean": [True] * 60}
    rows = {"c": ["x", "z"] * 30, "v": columns[kind], "y": ["u", "v"] * 30}
    write_table(tmp_path / "in" / "1.parquet", rows)
    write_table(tmp_path / "in" / "2.parquet", rows | {"v": pa.nulls(60, empty)})
    found = read(tmp_path / "in", runs=tmp_path / "runs")
    (feature,) = (item for item in found.kinds.features if item.name == "v")
    assert (feature.kind, feature.missing, found.faults.bad) == (kind, 60, 0)
    rows = rows_of(found)
    gaps = rows["dates"] == NO_DATE if kind == "date" else np.isnan(rows["features"])
    assert gaps.sum() == 60
