"""What the header of new data shows of changes since the champion's data."""

import pytest

from kfp_tfjob.components.prepare_data.contracts import of_header
from kfp_tfjob.components.prepare_data.reference import Reference


@pytest.mark.parametrize("column", ["order_id", "hours", "border"])
@pytest.mark.parametrize("model", ["prices", "orders"])
def test_a_missing_column_is_named_whatever_its_name(column: str, model: str) -> None:
    features = [{"name": name, "type": "float32"} for name in ("a", column, "b")]
    label = {"name": "y", "classes": None}
    schema = {"features": features, "label": label, "task": "regression"}
    reference = Reference(model, 3, "r", "d", schema, {})
    (problem,) = of_header(reference, ["b", "a"], "y")
    assert problem.what == f"the column {column!r} of champion 3 of {model} is missing"
    assert of_header(reference, ["b", "a", column], "y") == []  # only values show the order
