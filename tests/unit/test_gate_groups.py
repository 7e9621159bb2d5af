"""The gate where rows of one group are alike: groups count, and not their rows.

`test_gate_statistics.py` has the proof by simulation, with many more draws.
"""

from dataclasses import replace

import numpy as np
import pytest

from kfp_tfjob.features.statistics import StatisticsDocument
from kfp_tfjob.judging.gain_bound import Comparison, compare, compare_with_baseline
from kfp_tfjob.judging.judge import _group_column
from kfp_tfjob.judging.metrics import Measures
from kfp_tfjob.judging.predictions import Predictions
from kfp_tfjob.judging.rows import TestData as Split
from tests.typed_schema import typed
from tests.unit.gate_situations import BINARY, both_groups, both_smooth, groups, smooth

METRICS = [name for name in BINARY if name not in ("precision/b", "recall/b", "f1/b")]
CLASSES = ["a", "b"]


def comparison(pair: tuple[Predictions, Predictions], metric: str) -> Comparison:
    one, other = (Measures(model, CLASSES) for model in pair)
    against = compare_with_baseline if other.predictions.constant else compare
    return against(one, other, metric)


def copied(model: Predictions, times: int) -> Predictions:
    """Return each row so many times, as a group."""
    rows = np.repeat(np.arange(model.rows), times)
    return replace(model[rows], groups=rows.astype(np.uint64))


@pytest.mark.parametrize("situation", [both_smooth, smooth])
@pytest.mark.parametrize("metric", METRICS)
def test_copies_of_a_row_in_its_group_are_one_row(situation, metric: str) -> None:
    pair = situation(np.random.default_rng(3), 400, 0.2)
    once = comparison(pair, metric)
    copies = (copied(pair[0], 7), copied(pair[1], 7))
    several = comparison(copies, metric)
    assert several.gain == pytest.approx(once.gain, rel=1e-9)
    # A bound of 400 independent rows; Student's t and the shares of copies make small differences.
    width, width_once = several.gain - several.low, once.gain - once.low
    assert width > 0.94 * width_once
    if not once.with_baseline:  # where groups have a bound of their own, which is wider
        assert width == pytest.approx(width_once, rel=0.06)
    without = tuple(replace(model, groups=None) for model in copies)
    independent = comparison((without[0], without[1]), metric)
    assert independent.gain - independent.low < 0.7 * width


@pytest.mark.parametrize("metric", METRICS)
def test_groups_of_one_row_change_nothing_much(metric: str) -> None:
    pair = both_smooth(np.random.default_rng(4), 300, 0.1)
    alone = tuple(copied(model, 1) for model in pair)
    once, grouped = comparison(pair, metric), comparison((alone[0], alone[1]), metric)
    assert grouped.gain == once.gain
    assert grouped.low == pytest.approx(once.low, abs=0.05 * (once.gain - once.low))


@pytest.mark.parametrize("situation", [both_groups, groups])
def test_alike_rows_are_rarely_taken_for_a_gain(situation) -> None:
    rng, passed = np.random.default_rng(5), {"grouped": 0, "independent": 0}
    draws = 150
    for _ in range(draws):
        pair = situation(rng, 300, 0.0)
        without = tuple(replace(model, groups=None) for model in pair)
        passed["grouped"] += comparison(pair, "auc").low > 0
        passed["independent"] += comparison((without[0], without[1]), "auc").low > 0
    assert passed["grouped"] <= 0.11 * draws  # 5%, and three standard errors of the simulation
    assert passed["independent"] > passed["grouped"] + 0.05 * draws


def test_too_few_groups_have_no_bound() -> None:
    pair = both_smooth(np.random.default_rng(6), 900, 2.0)
    few = tuple(replace(model, groups=np.arange(900) // 100) for model in pair)
    result = comparison((few[0], few[1]), "auc")
    assert (result.has_bound, result.effective_sample_size, result.unit) == (False, 9, "group")


@pytest.mark.parametrize(("stored", "warnings"), [("group_hash", 0), ("", 1)])
def test_only_a_dataset_that_does_not_store_its_groups_has_independent_rows(
    stored: str, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    schema = typed({"split": {"group": "patient"}, "group": stored})
    data = Split("d", schema, StatisticsDocument(), (), 0)
    assert _group_column(data) == "patient"
    assert len(caplog.records) == warnings
