"""What changed since the champion's data."""

import pytest

from kfp_tfjob.components.prepare_data.contracts import changes
from kfp_tfjob.components.prepare_data.reference import Reference
from tests.typed_schema import typed


@pytest.mark.parametrize("column", ["order_id", "hours", "border"])
@pytest.mark.parametrize("model", ["prices", "orders"])
def test_a_missing_column_is_named_whatever_its_name(column: str, model: str) -> None:
    features = [{"name": name, "type": "float32"} for name in ("a", column, "b")]
    common = {"label": {"name": "y", "classes": None}, "task": "regression", "split": {}}
    before = common | {"features": features, "schema_digest": "a"}
    reference = Reference(model, 3, "r", "d", typed(before), {})
    now = typed(common | {"features": [features[2], features[0]], "schema_digest": "b"})
    (problem,) = changes(reference, now)
    assert f"{column!r} " in problem.what and f"champion 3 of {model}" in problem.what


def test_another_split_is_named_with_the_option_that_brings_the_old_one_back() -> None:
    """The revision of the groups' hashes is no option."""
    rule = {"salt": "0", "fractions": {"train": 0.7, "validation": 0.2, "test": 0.1}, "group": "g"}
    common = {"features": [], "label": {"name": "y", "classes": None}, "task": "regression"}
    before = common | {"split": rule | {"group_revision": 2}, "schema_digest": "a"}
    reference = Reference("orders", 3, "r", "d", typed(before), {})
    now = before | {"split": rule | {"group": "h", "group_revision": 2}, "schema_digest": "b"}
    (problem,) = changes(reference, typed(now))
    assert "group_revision" not in problem.fix and '"group": "g"' in problem.fix
