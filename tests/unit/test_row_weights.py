"""Weights of rows: which values they may have, and what the training makes of them."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_tfjob.components.prepare_data import row_weights
from kfp_tfjob.components.prepare_data.faults import BlockFaults
from kfp_tfjob.components.prepare_data.source.column_names import Header, choose
from kfp_tfjob.components.prepare_data.source.readers.arrow_table import Chunk
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.parse import parse

NULLS = pa.array(["", "NA"])


def read(column: pa.Array) -> tuple[list[float], dict[int, str]]:
    """Return the weights, and the first rule that each bad row breaks."""
    faults = BlockFaults("f.csv", np.arange(1, len(column) + 1))
    found = row_weights.read(Chunk({"w": column}, faults, 0, NULLS), "w")
    assert found.dtype == np.float32
    return found.tolist(), {fault.line: fault.rule for fault in faults.examples}


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["2", "0.5", "0", "", "NA", "-1", "x", "inf", "1e39", "-0"], pa.binary()),
        pa.array(["2", "0.5", "0", "", None, "-1", "x", "inf", "1e39", "-0"]),
        pa.array(["2", "0.5", "0", "", None, "-1", "x", "inf", "1e39", "-0"]).dictionary_encode(),
    ],
    ids=["text of a CSV", "typed text", "dictionary"],
)
def test_a_weight_is_a_number_of_0_or_more(column: pa.Array) -> None:
    found, faults = read(column)
    assert found == [2, 0.5, 0, 0, 0, 0, 0, 0, 0, 0]
    rules = ["missing", "missing", "weight", "text", "not finite", "not finite"]
    assert faults == dict(enumerate(rules, 4))


def test_weights_of_typed_columns() -> None:
    assert read(pa.array([1, 2, None, -3])) == ([1, 2, 0, 0], {3: "missing", 4: "weight"})
    found, faults = read(pa.array([0.25, float("nan"), float("inf"), 1e39]))
    assert found == [0.25, 0, 0, 0]
    assert faults == {2: "missing", 3: "not finite", 4: "not finite"}
    assert read(pa.array([True, False])) == ([1, 0], {})
    assert read(pa.array([[1]])) == ([0], {1: "text"})
    assert read(pa.array([0], pa.timestamp("us"))) == ([0], {1: "text"})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, ""),
        ({"weight": "none"}, "f.csv"),
        ({"weight": "y"}, "data_options.weight"),
        ({"columns": ["a", "w"]}, "data_options.columns"),
        ({"drop": ["w"]}, "data_options.drop"),
        ({"types": {"w": "number"}}, "data_options.types"),
        ({"missing": {"w": "median"}}, "data_options.missing"),
        ({"split": {"group": "w"}}, "data_options.split.group"),
    ],
)
def test_the_column_has_no_other_use(options: dict, said: str) -> None:
    chosen = parse(DataOptions, "data_options", {"weight": "w"} | options)
    columns, problems = choose(Header(["a", "w", "b", "y"]), "y", chosen, "f.csv")
    named = [said in str(problem) and bool(problem.fix) for problem in problems]
    assert named == [True] * bool(said)
    if not said:
        assert columns.features == ("a", "b") and columns.extra == ("w",)
        assert columns.all == ("a", "b", "y", "w")


@settings(max_examples=30)
@given(st.lists(st.floats(0, 2.0**99, width=32), max_size=20), st.integers(0, 20))
def test_sums_of_parts_merge(values: list[float], cut: int) -> None:
    parts = []
    for part in (values[:cut], values[cut:]):
        sums = row_weights.WeightSums()
        sums.add(np.array(part, np.float32), np.arange(len(part)) % 2, 2)
        parts.append(sums)
    first, second = parts
    first.merge(second)
    found = first.of_split()
    assert found.rows == len(values) and found.zero == values.count(0)
    if values:
        assert (found.min, found.max) == (min(values), max(values))
        assert found.mean == pytest.approx(np.mean(values, dtype=float))
        counts = first.of_split(("even", "odd")).label.counts
        assert sum(counts.values()) == pytest.approx(np.sum(values, dtype=float))
