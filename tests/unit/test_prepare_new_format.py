"""A new format is one module and one line in FORMATS: Avro, which the project does not read."""

from pathlib import Path

import fastavro
import pytest

from kfp_tfjob.common.errors import DataError
from kfp_tfjob.options import table_formats
from tests.unit.prepared_files import check, header_of, read

AVRO = table_formats.Format("avro", (".avro",), "Avro", "tests.unit.avro_reader:AvroTable")
TYPES = {"size": ["null", "double"], "city": "string", "y": "long"}
FIELDS = [{"name": name, "type": type} for name, type in TYPES.items()]
SCHEMA = {"type": "record", "name": "Row", "fields": FIELDS}


def write(path: Path, rows: int, start: int = 0) -> None:
    records = [
        {"size": None if i == 7 else i / 3, "city": ("Rome", "Oslo")[i % 2], "y": i % 3}
        for i in range(start, start + rows)
    ]
    with open(path, "wb") as file:
        fastavro.writer(file, SCHEMA, records)


def test_a_format_is_one_module_and_one_line(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(table_formats, "FORMATS", (*table_formats.FORMATS, AVRO))
    write(tmp_path / "a.avro", 100)
    write(tmp_path / "b.avro", 60, 100)
    assert header_of(tmp_path) == ["size", "city", "y"]
    assert check(tmp_path) == []
    found = read(tmp_path)
    assert {item.name: item.kind for item in found.kinds.features} == {
        "size": "number",
        "city": "category",
    }
    assert found.faults.seen == 160 and not found.faults.bad
    strict = read(tmp_path, missing={"size": "fail"}, on_bad_row="drop")
    assert [(item.file, item.line, item.column) for item in strict.faults.examples] == [
        ("a.avro", 8, "size")
    ]
    path = tmp_path / "b.avro"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="b.avro"):
        read(tmp_path)
