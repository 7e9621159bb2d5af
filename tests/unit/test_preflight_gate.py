"""What preflight finds in `gate`: columns of slices, and the code of the evaluator."""

from pathlib import Path

import pytest

from kfp_tfjob.components.preflight import gate as gates
from kfp_tfjob.components.prepare_data.source.resolve import list_source
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.parse import parse
from kfp_tfjob.storage.store import Store


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "a.csv"
    path.write_text("age,city,paid\n1.5,Rome,yes\n2.5,Oslo,no\n")
    return path


@pytest.mark.parametrize(
    ("options", "slices", "wrong"),
    [
        ({}, ["city", {"column": "age", "edges": [2]}, "paid"], {}),
        ({}, ["citty", "town"], {"citty": "city", "town": ""}),
        ({"drop": ["city"]}, ["city"], {"city": ""}),
    ],
)
def test_the_columns_of_slices(table: Path, options: dict, slices: list, wrong: dict) -> None:
    typed = parse(DataOptions, "data_options", options)
    source = list_source(Store("http://127.0.0.1:1", "r"), str(table), typed)
    found = list(gates.check_columns(source, "paid", typed, {"slices": slices}))
    assert {it.what.rpartition(": ")[2].strip("'"): it.suggestion or "" for it in found} == wrong
    assert all(it.path == "gate.slices" and "age" in it.expected for it in found)


def test_the_code_of_the_evaluator(table: Path) -> None:
    code = table.with_name("mine.py")
    code.write_text("def cost(labels, predictions):\n    return {'cost': 1}\n")
    gate = {"mode": "point", "evaluator": f"{code}:cost"}
    digest, problems = gates.check_evaluator(Store("http://127.0.0.1:1", "r"), gate)
    assert len(digest) == 64 and problems == []
    assert gates.place(gate) == {"gate.evaluator": str(code)}
    gate["evaluator"] = f"{code}:coast"
    digest, (problem,) = gates.check_evaluator(Store("http://127.0.0.1:1", "r"), gate)
    assert digest == "" and problem.path == "gate.evaluator" and "coast" in str(problem)
    assert problem.suggestion == f"{code}:cost"
    assert gates.check_evaluator(Store("http://127.0.0.1:1", "r"), {}) == ("", [])
