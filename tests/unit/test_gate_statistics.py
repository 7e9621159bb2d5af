"""Proof by simulation: the gate rarely passes a model that is no better, in hard situations.

`make test-statistics` runs it; the table is in its log.
"""

import logging
import math
import zlib
from functools import cache
from statistics import NormalDist

import numpy as np
import pytest

from kfp_tfjob.judging.gain_bound import compare, compare_with_baseline
from kfp_tfjob.judging.metrics import Measures
from tests.unit.gate_situations import AGAINST_BASELINE, AGAINST_CHAMPION

pytestmark = pytest.mark.slow
log = logging.getLogger(__name__)

TIMES = 10_000
CLASSES = ["a", "b", "c", "d"]
SITUATIONS = AGAINST_BASELINE | AGAINST_CHAMPION
# With 5,000 rows, a draw takes three times as long.
LARGE = {"mostly_yes": 2_000, "both_mostly_no": 2_000, "smooth": 2_000, "both_smooth": 2_000}
LARGE |= {"groups": 2_000, "both_groups": 2_000}
CELLS = [(name, rows) for name in SITUATIONS for rows in (50, 300)]
CELLS += [(name, 5_000) for name in LARGE]


@cache
def blessed(
    name: str, rows: int, signal: float = 0.0
) -> tuple[dict[str, int], dict[str, int], int]:
    """Return how often a model passes, how often with a contradiction, and the number of draws."""
    make, metrics = SITUATIONS[name]
    rng = np.random.default_rng(zlib.crc32(f"{name} {rows} {signal:g}".encode()))
    passed, contradictions = dict.fromkeys(metrics, 0), dict.fromkeys(metrics, 0)
    times = LARGE[name] if rows == 5_000 else TIMES
    for _ in range(times):
        first, second = make(rng, rows, signal)
        if first.constant:
            continue  # the gate rejects it without a comparison
        model, other = Measures(first, CLASSES), Measures(second, CLASSES)
        for metric in metrics:
            against = compare_with_baseline if name in AGAINST_BASELINE else compare
            comparison = against(model, other, metric)
            if not comparison.low > 0:
                continue
            passed[metric] += 1
            interval = comparison.without_contradiction(model.estimate(metric).interval(0.9))
            if comparison.with_baseline:
                contradictions[metric] += interval[0] <= comparison.reference <= interval[1]
    return passed, contradictions, times


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        pytest.param(name, rows, marks=pytest.mark.xdist_group(f"{name} {rows}"))
        for name, rows in CELLS
    ],
)
def test_a_model_that_is_no_better_rarely_passes(name: str, rows: int) -> None:
    passed, contradictions, times = blessed(name, rows)
    shares = "  ".join(f"{metric} {100 * count / times:.1f}" for metric, count in passed.items())
    log.info("%s, %d rows, percent: %s", name, rows, shares)
    # The 99.9% binomial error of the simulation itself is allowed on top of 1.2 times 5%.
    most = 0.06 + NormalDist().inv_cdf(0.999) * math.sqrt(0.06 * 0.94 / times)
    assert {metric: count for metric, count in passed.items() if count / times > most} == {}
    assert not any(contradictions.values())
