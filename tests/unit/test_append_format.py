"""What an appended dataset keeps of a group has the form that its FORMAT means."""

from typing import Any

import numpy as np

from kfp_tfjob.components.prepare_data.appending.groups import FORMAT
from kfp_tfjob.components.prepare_data.appending.kept import digest_of
from kfp_tfjob.components.prepare_data.appending.summary import Summary
from kfp_tfjob.components.prepare_data.files import Source
from kfp_tfjob.components.prepare_data.job import Job
from kfp_tfjob.components.prepare_data.kinds import Feature, Kinds
from kfp_tfjob.components.prepare_data.rows import Columns
from kfp_tfjob.components.prepare_data.scanned import Scan
from kfp_tfjob.components.prepare_data.seen import Seen
from kfp_tfjob.components.prepare_data.sorted_rows import Sorted
from kfp_tfjob.components.prepare_data.vocabulary import Label
from kfp_tfjob.options.data import DataOptions

# Of the form of what is kept. If it changes, raise FORMAT: then earlier groups are read again.
FORMS = {2: "93c227943c7661d1506730286b3a16d8"}


def form(value: Any) -> Any:
    """Return the names and types in JSON values."""
    if isinstance(value, dict):
        return {key: form(item) for key, item in sorted(value.items())}
    if isinstance(value, list | tuple):
        return [form(item) for item in value]
    return type(value).__name__


def test_another_form_needs_another_format() -> None:
    options = DataOptions(weight="w", append=True)
    names = ("number", "flag", "city", "day", "note")
    kinds = zip(names, ("number", "boolean", "category", "date", "text"), strict=True)
    features = tuple(Feature(name, kind, options.gaps(name, kind), 0) for name, kind in kinds)
    source = Source("", (), None)
    job = Job(source, "y", options, Columns(names, "y"), Kinds(features, ()))
    summary = Summary(job, Label("y", "regression", None, np.empty(0, np.int32)))
    rows = np.zeros(30, job.row_kind)
    rows["hash"], rows["features"] = np.arange(30), np.arange(60).reshape(30, 2)
    for split in range(3):
        summary.add(split, Sorted(rows, rows["number"]))
    scan = Scan.empty(job, None)
    kept = [
        summary.to_plain(),
        scan.faults.to_plain(),
        scan.vocabulary.to_plain(),
        [counted.to_plain() for counted in scan.counted],
        [texts.to_plain() for texts in scan.dictionaries.values()],
        Seen("city").to_plain(),
    ]
    assert FORMS.get(FORMAT) == digest_of(form(kept))
