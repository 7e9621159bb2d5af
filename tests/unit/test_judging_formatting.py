"""How numbers of the verdict and the report are written."""

import math

import pytest

from kfp_tfjob.judging.formatting import difference, number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.97304, "0.9730"),
        (1.0, "1.0000"),
        (0.0, "0.0000"),
        (0.00123456, "0.001235"),
        (-42.123456, "-42.1235"),
        (1411.0, "1,411"),
        (1411.26, "1,411.3"),
        (-250.0, "-250"),
        (56789.4, "56,789"),
        (3.2e12, "3.2e+12"),
        (None, "–"),
        (math.nan, "–"),
    ],
)
def test_a_metric_as_a_person_reads_it(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(-1e-17, "0.0000"), (1e-17, "0.0000"), (0.0, "0.0000"), (-0.01, "-0.0100"), (0.01, "+0.0100")],
)
def test_a_difference_that_rounds_to_zero_has_no_sign(value: float, text: str) -> None:
    assert difference(value, 0.6078) == text
