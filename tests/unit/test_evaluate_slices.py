"""Slices: which rows they have, and when one fails a model."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kfp_tfjob.common.errors import ConfigurationError
from kfp_tfjob.features.types.base import NO_DATE
from kfp_tfjob.judging.gate import ChampionResult, GateDecision, decide
from kfp_tfjob.judging.gate_columns import check_gate
from kfp_tfjob.judging.metrics import Measures
from kfp_tfjob.judging.predictions import ClassPredictions, ValuePredictions, joined
from kfp_tfjob.judging.rows import Batch
from kfp_tfjob.judging.slice_checks import holm
from kfp_tfjob.judging.slices import MOST_SLICES, Slices
from kfp_tfjob.options.gate import Slice, parse_gate
from tests.baselines import constant_classifier, two_classes
from tests.problems import problems_of
from tests.typed_schema import typed

ROWS = 6000
CLASSES = ["no", "yes"]
DAY = 86_400_000_000
TYPES = {"city": "category", "age": "float32", "member": "boolean", "since": "date"}
SCHEMA = typed({"features": TYPES, "label": {"name": "bought", "classes": CLASSES}})


def rows() -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(3)
    cities = np.array(["Rome", "Bonn", "Oslo", ""], object)
    chosen = rng.choice(4, ROWS, p=[0.6, 0.37, 0.005, 0.025])
    columns = {
        "city": cities[chosen],
        "age": np.where(rng.random(ROWS) < 0.1, np.nan, rng.uniform(10, 90, ROWS)),
        "member": np.array(["true", "false"], object)[rng.integers(0, 2, ROWS)],
        "since": np.where(rng.random(ROWS) < 0.1, NO_DATE, rng.integers(0, 100, ROWS) * DAY),
    }
    return columns, rng.integers(0, 2, ROWS)


COLUMNS, LABELS = rows()
ROME = COLUMNS["city"] == "Rome"


def model(seed: int, flipped: np.ndarray | None = None) -> ClassPredictions:
    """Return a model with an AUC of 0.76, which ignores the `flipped` rows."""
    rng = np.random.default_rng(seed)
    common = np.random.default_rng(0).normal(size=ROWS)
    signal = 1.2 * (LABELS - 0.5) * (1 if flipped is None else ~flipped)
    return two_classes(
        LABELS, 1 / (1 + np.exp(-signal - 0.9 * common - 0.4 * rng.normal(size=ROWS)))
    )


def sliced(*declared: Any) -> Slices:
    gate = parse_gate({"slices": list(declared), "evaluator": "m:f"})
    assert gate is not None
    found = Slices(gate.slices, SCHEMA)
    for at in range(0, ROWS, 700):
        part = slice(at, at + 700)
        found.add(Batch({name: values[part] for name, values in COLUMNS.items()}, LABELS[part]))
    return found


def judge(
    challenger: ClassPredictions, champion: ClassPredictions | None, *declared: Any, **gate: Any
) -> GateDecision:
    options = parse_gate({"slices": list(declared), **gate})
    rival = ChampionResult("champion 3", measures=Measures(champion, CLASSES)) if champion else None
    baseline = Measures(constant_classifier(LABELS, [1, 1]), CLASSES)
    return decide(options, Measures(challenger, CLASSES), baseline, rival, sliced(*declared))


def failed(decision: GateDecision) -> set[str]:
    return {check.name for check in decision.checks if not check.passed}


def test_each_row_is_in_one_slice_of_a_column() -> None:
    parts = {
        one: {part.name: part for part in sliced(one).parts(model(1))}
        for one in COLUMNS | {"bought": 0}
    }
    assert list(parts["city"]) == ["city = Rome", "city = Bonn", "city = Oslo", "city is missing"]
    assert parts["city"]["city = Rome"].rows == ROME.sum()
    assert parts["city"]["city = Oslo"].model is None and parts["city"]["city = Oslo"].rows < 100
    assert set(parts["member"]) == {"member = true", "member = false"}
    assert set(parts["bought"]) == {"bought = no", "bought = yes"}
    assert "since = 1970-01-02" in parts["since"] and "since is missing" in parts["since"]
    for of_one in parts.values():
        assert sum(part.rows for part in of_one.values()) == ROWS
    rome = parts["city"]["city = Rome"].model
    assert (rome.labels == LABELS[ROME]).all()
    assert (rome.scores == model(1).scores[ROME]).all()


def test_a_metric_of_ones_own_in_slices() -> None:
    """With a value for each row, it is divided as the predictions are."""
    cost = np.where(ROME, 3.0, 1.0)
    lower = frozenset({"own/cost"})
    whole = replace(model(1), own={"own/cost": cost, "own/other": cost}, minimize=lower)
    champion = replace(whole, own={"own/cost": np.ones(ROWS), "own/other": cost})
    gate = {"evaluator": "m:f", "primary_metric": "own/cost", "direction": "minimize"}
    limited = {"column": "city", "thresholds": {"own/cost": {"max": 2}}}
    found = judge(whole, champion, limited, **gate)
    (rome, *others) = found.slices
    assert (rome.name, rome.state, rome.value, rome.gain) == ("city = Rome", "fail", 3, -2)
    assert {it.value for it in others if it.state == "pass"} == {1}
    assert {"slices", "slice_threshold"} <= failed(found)
    worse = judge(whole, champion, "city", mode="non_inferior", margin=1.5, **gate)
    assert "slices" in failed(worse)
    (part, *_) = sliced("city").parts(whole)
    assert (part.model.own["own/cost"] == 3).all() and "own/other" in part.model.own


def test_values_in_ranges() -> None:
    ages = sliced({"column": "age", "edges": [30, 50.5]}).parts(model(1))
    age = COLUMNS["age"]
    assert {part.name: part.rows for part in ages} == {
        "age < 30": (age < 30).sum(),
        "30 ≤ age < 50.5": ((age >= 30) & (age < 50.5)).sum(),
        "age ≥ 50.5": (age >= 50.5).sum(),
        "age is missing": np.isnan(age).sum(),
    }
    dates = sliced({"column": "since", "edges": ["1970-02-01"]}).parts(model(1))
    assert {part.name: part.rows for part in dates} == {
        "since < 1970-02-01": ((COLUMNS["since"] != NO_DATE) & (COLUMNS["since"] < 31 * DAY)).sum(),
        "since ≥ 1970-02-01": (COLUMNS["since"] >= 31 * DAY).sum(),
        "since is missing": (COLUMNS["since"] == NO_DATE).sum(),
    }


@pytest.mark.parametrize("raw", [False, True])
def test_a_value_that_equals_an_edge_is_in_the_range_from_it(raw: bool) -> None:
    edges = [0.1, 0.7, 9.99]  # as float32, the last two are smaller
    values = np.repeat(np.float32(edges), 100)
    declared = Slice.model_validate({"column": "x", "edges": edges})
    found = Slices([declared], typed({"features": {"x": "float32"}}))
    labels = np.zeros(300, np.int64)
    found.add(Batch({"x": values.astype(np.float64) if raw else values}, labels))
    equal = ClassPredictions.of(labels, np.full((300, 2), 0.5))
    counts = {"0.1 ≤ x < 0.7": 100, "0.7 ≤ x < 9.99": 100, "x ≥ 9.99": 100}
    assert {part.name: part.rows for part in found.parts(equal)} == counts


def test_many_values_share_a_slice() -> None:
    parts = list(sliced({"column": "age", "min_rows": 10}).parts(model(1)))
    assert len(parts) == MOST_SLICES + 2
    (rest,) = [part for part in parts if part.name == "age: all other values"]
    _, rows = np.unique(np.float32(COLUMNS["age"]), return_counts=True, equal_nan=False)
    assert rest.rows == np.sort(rows)[:-MOST_SLICES].sum() - np.isnan(COLUMNS["age"]).sum()


def test_packed_rows_have_the_same_slices() -> None:
    declared = Slice.model_validate({"column": "age", "edges": [30]})
    found = Slices([declared], typed({"features": {"x": "float32", "age": "float32"}}))
    packed = {"x": np.zeros(ROWS, np.float32), "age": COLUMNS["age"].astype(np.float32)}
    stored, whole = [], model(1)
    for at in range(0, ROWS, 900):
        part = {name: column[at : at + 900] for name, column in packed.items()}
        found.add(Batch(part, LABELS[at : at + 900]))
        stored.append(whole[at : at + 900])
    for one, other in zip(
        found.parts(joined(stored)), sliced(declared.model_dump()).parts(whole), strict=True
    ):
        assert (one.name, one.rows) == (other.name, other.rows)
        assert (one.model.scores[:] == other.model.scores).all()


def test_a_slice_that_is_worse_than_the_champion_fails_the_model() -> None:
    champion = model(1)
    bonn = COLUMNS["city"] == "Bonn"
    other = model(2, bonn).scores[:, 0]
    mixed = two_classes(LABELS, np.where(bonn, other, LABELS * 0.6 + 0.2))
    decision = judge(mixed, champion, "city", "member", primary_metric="accuracy")
    assert not decision.blessed
    assert failed(decision) == {"slices"}
    states = {it.name: it.state for it in decision.slices}
    assert states["city = Bonn"] == "fail" and states["city = Rome"] == "pass"
    assert states["city = Oslo"] == "insufficient"
    # Without the slices, the model passes.
    assert judge(mixed, champion, primary_metric="accuracy").blessed


def test_thresholds_of_slices() -> None:
    declared = {"column": "city", "thresholds": {"auc": {"min": 0.7}}}
    decision = judge(model(1), None, declared)
    assert decision.blessed
    (check,) = [check for check in decision.checks if check.name == "slice_threshold"]
    assert check.passed and "Oslo" in check.explanation
    decision = judge(model(1, ~ROME), None, declared)
    assert not decision.blessed
    assert "slice_threshold" in failed(decision)
    assert next(it for it in decision.slices if it.name == "city = Bonn").state == "fail"
    few = declared | {"min_rows": ROWS}
    assert failed(judge(model(1), None, few)) == {"slice_threshold"}


@pytest.mark.parametrize("in_rome", [True, False])
@pytest.mark.parametrize(
    ("column", "rome", "others"),
    [
        ("city", f"https://shop.example/{'x' * 60}/pans", f"https://shop.example/{'x' * 60}/pots"),
        ("age", 10_000_001.0, 10_000_002.0),  # names have seven digits
    ],
)
def test_a_slice_fails_although_another_has_its_name(
    column: str, rome: Any, others: Any, in_rome: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results were kept by name, so the last slice decided for both."""
    values = np.where(ROME, rome, others)
    monkeypatch.setitem(COLUMNS, column, values.astype(object) if column == "city" else values)
    declared = {"column": column, "thresholds": {"auc": {"min": 0.6}}}
    decision = judge(model(1, ROME == in_rome), None, declared, first_model="accept")
    assert len({part.name for part in decision.slices}) == 1
    (bad,) = [part for part in decision.slices if part.state == "fail"]
    assert bad.rows == (ROME == in_rome).sum()
    (check,) = [check for check in decision.checks if not check.passed]
    assert (check.name, check.value) == ("slice_threshold", bad.thresholds["auc"])
    assert bad.name in check.explanation and not decision.blessed


def test_ranges_with_close_edges_have_different_names() -> None:
    edges = [1_250_000, 1_250_200, 1_250_400]
    column = Slice.model_validate({"column": "x", "edges": edges})
    slices = Slices([column], typed({"features": {"x": "float32"}}))
    slices.add(Batch({"x": np.float32(edges)}, np.zeros(3, np.int64)))
    equal = ClassPredictions.of(np.zeros(3, np.int64), np.full((3, 2), 0.5))
    names = ["1250000 ≤ x < 1250200", "1250200 ≤ x < 1250400", "x ≥ 1250400"]
    assert [part.name for part in slices.parts(equal)] == names


@pytest.mark.parametrize(
    ("column", "edges", "expected"),
    [
        ("since", [2024], "'since': dates: numbers"),
        ("age", ["2026-01-31"], "'age': numbers: dates"),
        ("city", [3], "'city': category"),
        ("member", [1], "'member': boolean"),
        ("bought", [1], "'bought': classes"),
    ],
)
def test_slices_that_do_not_fit_the_data_are_refused_before_the_training(
    column: str, edges: list[Any], expected: str
) -> None:
    declared = {"column": column, "edges": edges, "thresholds": {"auc": {"min": 0.1}}}
    gate = {"slices": [declared, "citty"], "primary_metric": "recall/yess"}
    metric, first, second = map(str, problems_of(check_gate, gate, SCHEMA))
    assert "no class 'yess'" in metric
    assert all(words in first for words in expected.split(": "))
    assert "'citty'" in second and "'city'?" in second
    check_gate({"slices": [{"column": "age", "edges": [3]}]}, SCHEMA)


def test_slices_in_which_the_metric_has_no_value_do_not_pass() -> None:
    """Each slice of the label has one class, and the AUC compares two."""
    equal = {"mode": "non_inferior", "margin": 0.05}
    decision = judge(model(2), model(1), "bought", **equal)
    assert not decision.blessed
    (check,) = [check for check in decision.checks if check.name == "slices"]
    assert not check.passed and "bought" in check.explanation
    assert {it.state for it in decision.slices} == {"insufficient"}
    # Beside others, the column still fails; with thresholds, they judge it.
    assert "slices" in failed(judge(model(2), model(1), "member", "bought", **equal))
    declared = {"column": "bought", "thresholds": {"accuracy": {"min": 0.1}}}
    decision = judge(model(2), model(1), declared, **equal)
    assert decision.blessed
    (check,) = [check for check in decision.checks if check.name == "slices"]
    assert check.passed and "auc" in check.explanation
    assert judge(model(2), model(1), "bought", primary_metric="accuracy", **equal).blessed
    recall = {"column": "bought", "thresholds": {"recall/yes": {"min": 0.1}}}
    (check,) = [it for it in judge(model(1), None, recall).checks if it.name == "slice_threshold"]
    assert "recall/yes" in check.explanation and "bought = no" in check.explanation
    check_gate({"slices": [declared]}, SCHEMA)
    with pytest.raises(ConfigurationError, match="bought.*auc|auc.*bought"):
        check_gate({"slices": ["bought"]}, SCHEMA)


@pytest.mark.parametrize("metric", ["rmse", "mae", "r2"])
def test_a_slice_of_a_regression_whose_rows_have_weight_zero_is_insufficient(metric: str) -> None:
    rng = np.random.default_rng(4)
    truth, weights = rng.normal(size=ROWS), (COLUMNS["city"] != "Bonn").astype(np.float32)
    errors = 0.1 * rng.normal(size=ROWS)
    challenger, baseline = (
        Measures(ValuePredictions.of(truth, values, weights))
        for values in (truth + errors, np.full(ROWS, truth.mean()))
    )
    gate = parse_gate({"slices": ["city"], "primary_metric": metric})
    decision = decide(gate, challenger, baseline, None, sliced("city"))
    states = {it.name: it.state for it in decision.slices}
    assert (states["city = Bonn"], states["city = Rome"]) == ("insufficient", "pass")
    assert decision.blessed
    nothing = Measures(ValuePredictions.of(truth, truth + errors, 0 * weights))
    assert np.isnan(nothing.estimate(metric).value)


def test_ranges_of_a_label_are_those_of_its_values() -> None:
    labels = np.repeat(np.float32([1, 2, 3, 4, 10]), [10, 20, 30, 40, 50])
    label = {"name": "stars"}
    schema = typed({"task": "regression", "features": {"x": "float32"}, "label": label})
    declared = {"column": "stars", "edges": [3, 9.5]}
    found = Slices([Slice.model_validate(declared)], schema)
    found.add(Batch({"x": np.zeros(150, np.float32)}, labels))
    counts = {"stars < 3": 30, "3 ≤ stars < 9.5": 70, "stars ≥ 9.5": 50}
    equal = ValuePredictions.of(labels, labels)
    assert {part.name: part.rows for part in found.parts(equal)} == counts
    with pytest.raises(ConfigurationError, match="'stars' contains numbers, but its edges are"):
        check_gate({"slices": [declared | {"edges": ["2026-01-31"]}]}, schema)


def test_holm_multiplies_the_smallest_by_the_number_of_tests() -> None:
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ([{"colum": "city"}], "'column'"),
        ([{"column": "age", "edges": [3, 3]}], "ascending"),
        ([{"column": "age", "edges": ["soon"]}], "'soon'"),
        ([{"column": "age", "edges": [3, "2026-01-31"]}], "dates"),
        ([{"column": "age", "thresholds": {"acuracy": {"min": 1}}}], "'accuracy'"),
        ([{"column": "age", "thresholds": {"rmse": {"max": 1}}}], "one task"),
        ([{"column": "age", "min_rows": 3}], "10 or more"),
        (["city", "city"], "gate.slices"),
        ("city", "gate.slices"),
    ],
)
def test_a_wrong_slice_is_refused(declared: Any, expected: str) -> None:
    with pytest.raises(ConfigurationError, match="gate") as caught:
        parse_gate({"primary_metric": "auc", "slices": declared})
    assert expected in str(caught.value)
