"""What the header of new data shows of changes since the champion's data."""

import pytest

from kfp_tfjob.components.prepare_data.contracts import changes, of_header
from kfp_tfjob.components.prepare_data.reference import Reference


@pytest.mark.parametrize("column", ["order_id", "hours", "border"])
@pytest.mark.parametrize("model", ["prices", "orders"])
def test_a_missing_column_is_named_whatever_its_name(column: str, model: str) -> None:
    features = [{"name": name, "type": "float32"} for name in ("a", column, "b")]
    label = {"name": "y", "classes": None}
    schema = {"features": features, "label": label, "task": "regression"}
    reference = Reference(model, 3, "r", "d", schema, {})
    (problem,) = of_header(reference, ["b", "a"], "y")
    assert f"{column!r} " in problem.what and f"champion 3 of {model}" in problem.what
    assert of_header(reference, ["b", "a", column], "y") == []  # only values show the order


def test_another_split_is_named_with_the_option_that_brings_the_old_one_back() -> None:
    """The revision of the groups' hashes is no option."""
    rule = {"salt": "0", "fractions": {"train": 0.7, "validation": 0.2, "test": 0.1}, "group": "g"}
    common = {"features": [], "label": {"name": "y", "classes": None}, "task": "regression"}
    before = common | {"split": rule | {"group_revision": 2}, "schema_digest": "a"}
    reference = Reference("orders", 3, "r", "d", before, {})
    now = before | {"split": rule | {"group": "h", "group_revision": 2}, "schema_digest": "b"}
    (problem,) = changes(reference, now)
    assert "group_revision" not in problem.fix and '"group": "g"' in problem.fix
