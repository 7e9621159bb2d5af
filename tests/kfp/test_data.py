"""Data of every type, as pods read it: a table with missing values, and a folder of images."""

from pathlib import Path

import pytest

from examples import people, pictures
from tests.kfp.lab import Lab

pytestmark = pytest.mark.kfp

_TYPES = {"age": "float32", "hours": "float32", "occupation": "category", "city": "category"}
_TYPES |= {"signed_up": "date", "member": "boolean"}


def test_mixed_table(lab: Lab, row, tmp_path: Path) -> None:
    table = tmp_path / "people.csv"
    people.write(table)
    lab.bucket.write(table.name, table.read_bytes())
    run = lab.start("people", data_uri=lab.uri(table.name), data_label=people.LABEL)
    assert lab.finished(run) == "SUCCEEDED"
    assert lab.bucket.champions("people") == [run]
    schema = lab.bucket.document("models/people/versions/1/schema.json")
    assert {it["name"]: it["type"] for it in schema["features"]} == _TYPES
    row(run)


def test_pictures(lab: Lab, row, tmp_path: Path) -> None:
    written = pictures.write(tmp_path)
    for file in tmp_path.glob("*/*"):
        lab.bucket.write(f"tiles/{file.relative_to(tmp_path)}", file.read_bytes())
    run = lab.start("tiles", data_uri=lab.uri("tiles"), data_label="")
    assert lab.finished(run) == "SUCCEEDED"
    assert lab.bucket.champions("tiles") == [run]
    schema = lab.bucket.document("models/tiles/versions/1/schema.json")
    assert set(schema["label"]["classes"]) == set(pictures.PHOTOGRAPHS)
    assert sum(split["rows"] for split in schema["splits"].values()) == written
    row(run)
