"""The column type from the way its values are written."""

import numpy as np
import pyarrow as pa
import pytest

from kfp_tfjob.components.prepare_data.column_profile import ColumnProfile, profile
from kfp_tfjob.components.prepare_data.faults import BlockFaults
from kfp_tfjob.components.prepare_data.kinds import Feature, decide
from kfp_tfjob.components.prepare_data.source.readers.arrow_table import Chunk
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.storage.errors import Problem

NULLS = pa.array(["", "NA"])


def kind_of(texts: list[str], rows: int = 60) -> str | Problem:
    """Return the column type with these texts in turn."""
    column = pa.array([texts[i % len(texts)] for i in range(rows)]).cast(pa.binary())
    seen = {"b": ColumnProfile("b")}
    profile(seen, Chunk({"b": column}, BlockFaults("f", np.arange(rows)), 0, NULLS))
    kinds, problems = decide(seen.values(), DataOptions())
    (found,) = [*kinds.features, *problems]
    return found.kind if isinstance(found, Feature) else found


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", "-2.5", "+3", ".5", "6.", "1e3", ""], "number"),
        (["0", "1"], "number"),
        (["yes", "No", "1"], "boolean"),
        (["2024-12-31", "1969-01-01T10", "9999-12-31 23:59:59.999999"], "date"),
        (["2024-12-31T10:00Z", "2024-12-31T10:00+0530"], "date"),
        (["2024-12-31T23:59:59.5Z", "2024-12-31T23:59:59.5+01:00"], "date"),
        (["31.12.2024", "1.2.2024 08:30", "2024-12-31"], "date"),
        (["1.234,50", "7", "1,5"], "number"),
        (["1,234.50", "7", "1,500"], "number"),
        (["red", "green", "1"], "category"),
        (["01.02", "v1.2.3", "10/12", "5 kg", "12:30"], "category"),
        (["May 2024", "Jan 5", "March", "Dec", "Sunday", "Mr. May 12"], "category"),
        (["(a)", "(1", "−", "1−2"], "category"),
    ],
)
def test_kinds(texts, kind):
    assert kind_of(texts) == kind


@pytest.mark.parametrize(
    "text",
    ["1,234", "1'000", "1’000", "1 000,5", "1\u202f000", "1\u2009000", "1\xa0000"]
    + ["−5", "-$5", "(1,234.50)", "($5)", "5 €", "5\xa0€", "50%", "50 %", "CHF 5", "12 USD", "1,5"],
)
def test_numbers_of_several_readings_are_refused_by_name(text):
    found = kind_of([text, "7"])
    assert isinstance(found, Problem) and found.what.startswith("column 'b' ")
    assert repr(text) in found.received and "(f, line " in found.what


@pytest.mark.parametrize(
    "text",
    ["31.13.2024", "12/31/2024", "12/31/24", "2024/12/31", "2024-1-2", "31-12-2024 10:00"]
    + ["2024-12-31 10:00 PM", "2024-12-31T10:00 Europe/Berlin", "2024-12-31T10:00:00 UTC"]
    + ["31 Dec 2024", "31-Dec-24", "31. December 2024", "1st Feb 2024", "Dec 31, 2024"]
    + ["December 31st, 2024 10:00", "Tue, 31 Dec 2024 10:00:00 GMT", "Tue Dec 31 10:00:00 2024"]
    + ["Sept. 5, 2024", "2024-02-30"],
)
@pytest.mark.parametrize("others", [[], ["2024-12-31"]], ids=["alone", "among others"])
def test_dates_of_another_form_are_refused_by_name(text, others):
    found = kind_of([text, *others])
    assert isinstance(found, Problem) and "'b'" in found.what
    assert ("several formats" in found.what) == bool(others)
    assert repr(text) in found.received and "2024-12-31T23:59:59+01:00" in found.expected
