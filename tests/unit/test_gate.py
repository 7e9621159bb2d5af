"""The gate, case by case: what is missing, not a number or not comparable never passes."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfp_tfjob.common.errors import ConfigurationError
from kfp_tfjob.common.names import check_model_name
from kfp_tfjob.components.preflight.engine import check_evaluator
from kfp_tfjob.judging.evaluator_code import EvaluatorCode
from kfp_tfjob.judging.gate import ChampionResult, GateDecision, decide
from kfp_tfjob.judging.metrics import Measures
from kfp_tfjob.judging.predictions import ClassPredictions, Predictions, ValuePredictions
from kfp_tfjob.options.gate import DEFAULT_GATE, GateOptions, check_metrics, parse_gate
from kfp_tfjob.pipelines.hints import with_hints
from kfp_tfjob.storage.store import Store
from kfp_tfjob.user_code.own_code import code_address_of
from tests.baselines import constant_classifier, constant_regression, two_classes

ROWS = 1000
CLASSES = ["no", "yes", "maybe"]
LABELS = np.arange(ROWS) % 3
BASELINE = constant_classifier(LABELS, [40, 30, 30])


def model(wrong: int, shift: int = 0) -> ClassPredictions:
    """Return a model that errs on `wrong` rows, beginning with row `shift`."""
    guesses = LABELS.copy()
    rows = np.arange(shift, shift + wrong)
    guesses[rows] = (guesses[rows] + 1) % 3
    return ClassPredictions.of(LABELS, 0.9 * np.eye(3)[guesses] + 0.1 / 3)


def broken() -> ClassPredictions:
    scores = model(0).scores.copy()
    scores[5] = np.nan
    return ClassPredictions.of(LABELS, scores)


def rival(predictions: Predictions | None = None, **more: Any) -> ChampionResult:
    measures = predictions and Measures(predictions, CLASSES)
    return ChampionResult("champion 3", measures=measures, **more)


def decided(
    options: GateOptions | None,
    challenger: Predictions,
    baseline: Predictions,
    champion: ChampionResult | None,
    classes: list[str] | None = None,
) -> GateDecision:
    return decide(options, Measures(challenger, classes), Measures(baseline, classes), champion)


@dataclass
class Case:
    challenger: Predictions
    champion: ChampionResult | None
    blessed: bool
    reason: str
    gate: dict[str, Any] = field(default_factory=lambda: dict(DEFAULT_GATE))


GOOD = model(20)
OTHER_SCHEMA = {"obstacle": "its data had another schema"}
ACCEPT = {"first_model": "accept"}
AS_FIRST = {"incompatible_champion": "treat_as_first"}
BY_CLASS = DEFAULT_GATE | {"primary_metric": "precision/yes"}
NEVER_YES = ClassPredictions.of(LABELS, np.tile([0.6, 0.0, 0.4], (ROWS, 1)))
WITHIN = {"mode": "non_inferior", "margin": 0.02}
KEPT = {"thresholds": {"accuracy": {"min": 0.98}, "recall/no": {"min": 0.9}}}
MISSED = {"thresholds": {"log_loss": {"max": 0.1}}}
CASES = {
    "first model": Case(GOOD, None, True, "accuracy 0.9800 beats the baseline 0.3340 (95% bound"),
    "first model, by the precision of a class that the baseline never predicts": Case(
        GOOD, None, True, "precision/yes", BY_CLASS
    ),
    "challenger that no longer predicts a class": Case(
        NEVER_YES, rival(GOOD), False, "precision/yes", BY_CLASS
    ),
    "first model no better than the baseline": Case(
        model(660), None, False, "accuracy 0.3400 does not beat the baseline"
    ),
    "first model accepted": Case(model(660), None, True, "without comparison", ACCEPT),
    "first model accepted, but not a number": Case(broken(), None, False, "not finite", ACCEPT),
    "empty gate": Case(GOOD, None, False, "an empty gate blesses nothing", {}),
    "same model": Case(GOOD, rival(same=True), False, "same model as champion 3"),
    "better": Case(GOOD, rival(model(50)), True, "accuracy 0.9800 beats champion 3 0.9500"),
    "worse": Case(model(50), rival(GOOD), False, "accuracy 0.9500 does not beat champion 3"),
    "equal predictions": Case(GOOD, rival(model(20)), False, "does not beat champion 3"),
    "better by luck": Case(model(20), rival(model(23, 200)), False, "not enough test data"),
    "better by luck, by the point": Case(
        model(20), rival(model(23, 200)), True, "by its value alone", {"mode": "point"}
    ),
    "equal, by the point": Case(GOOD, rival(model(20, 200)), False, "not beat", {"mode": "point"}),
    "equal predictions, not inferior": Case(
        GOOD, rival(model(20)), True, "is not worse than", {"mode": "non_inferior"}
    ),
    "a little worse within the margin": Case(
        model(25), rival(GOOD), True, "by more than 0.02", WITHIN
    ),
    "within the margin, but its bound is not": Case(
        model(38), rival(GOOD), False, "may be worse than", WITHIN
    ),
    "worse than the margin": Case(model(60), rival(GOOD), False, "may be worse than", WITHIN),
    "incompatible champion": Case(GOOD, rival(**OTHER_SCHEMA), False, "another schema"),
    "incompatible champion counts as none": Case(
        GOOD, rival(**OTHER_SCHEMA), True, "beats the baseline", AS_FIRST
    ),
    "champion that cannot be loaded": Case(
        GOOD, rival(obstacle="champion 3 cannot be loaded"), False, "treat_as_first"
    ),
    "predictions that are not numbers": Case(broken(), rival(GOOD), False, "not finite"),
    "threshold kept": Case(GOOD, None, True, "beats", KEPT),
    "threshold missed": Case(GOOD, None, False, "log_loss 0.1356 is not at most 0.1", MISSED),
    "another primary metric": Case(
        GOOD, rival(model(50)), True, "macro_f1 0.98", {"primary_metric": "macro_f1"}
    ),
    "lower is better": Case(
        GOOD,
        rival(model(50)),
        True,
        "log_loss 0.1356 beats champion 3 0.2356",
        {"primary_metric": "log_loss"},
    ),
}


def judge(case: Case) -> GateDecision:
    return decided(parse_gate(case.gate), case.challenger, BASELINE, case.champion, CLASSES)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_case(case: Case) -> None:
    decision = judge(case)
    assert decision.blessed is case.blessed, decision.line
    assert case.reason in decision.line
    assert decision.blessed is all(check.passed for check in decision.checks)
    prefix = "blessed: " if case.blessed else "not blessed: "
    assert decision.line.startswith(prefix)


def test_all_that_fails_is_said() -> None:
    thresholds = {"accuracy": {"min": 0.99}, "log_loss": {"max": 0.01}}
    decision = judge(Case(GOOD, rival(model(10)), False, "", {"thresholds": thresholds}))
    assert len(decision.reasons) == 3


def test_the_primary_metric_follows_the_task() -> None:
    scores = np.linspace(0.01, 0.99, 100)
    binary = two_classes(scores > 0.4, scores)
    decision = decided(GateOptions(), binary, constant_classifier(binary.labels, [1, 1]), None)
    assert (decision.primary_metric, decision.blessed) == ("auc", True)
    truth = np.linspace(0, 9, 100)
    values = ValuePredictions.of(truth, truth + 0.1 * np.sin(np.arange(100)))
    decision = decided(GateOptions(), values, constant_regression(truth, 4.5), None)
    assert (decision.primary_metric, decision.blessed) == ("rmse", True)
    assert decision.comparison is not None and decision.comparison.gain > 2


def test_a_test_split_of_one_class_blesses_nothing() -> None:
    one_class = ClassPredictions.of([1] * 50, [[0.1, 0.9]] * 50)
    decision = decided(GateOptions(), one_class, constant_classifier([1] * 50, [5, 5]), None)
    assert not decision.blessed
    assert "class number 1" in decision.line


@pytest.mark.parametrize("metric", ["accuracy", "log_loss"])
def test_rows_of_one_class_are_the_reason_why_no_gain_shows(metric: str) -> None:
    labels = np.ones(60, np.int64)
    model = Measures(two_classes(labels, np.linspace(0.4, 0.9, 60)), ["bad", "good"])
    baseline = Measures(two_classes(labels, np.full(60, 0.4)), ["bad", "good"])
    decision = decide(parse_gate({"primary_metric": metric}), model, baseline, None)
    (reason,) = decision.reasons
    assert "of class good" in reason and "8 times in 10" not in reason


@pytest.mark.parametrize("metric", ["rmse", "mae", "r2"])
def test_equal_labels_are_the_reason_why_no_gain_shows(metric: str) -> None:
    """A row with another label does not count if its weight is 0."""
    labels, values = np.full(60, 7.5), 7.5 + 0.1 * np.sin(np.arange(60))
    labels[0], weights = 3, np.arange(60) > 0
    model, baseline = (
        ValuePredictions.of(labels, predicted, weights) for predicted in (values, np.full(60, 9))
    )
    decision = decided(parse_gate({"primary_metric": metric}), model, baseline, None)
    (reason,) = decision.reasons
    assert "the label 7.5" in reason and "8 times in 10" not in reason


@pytest.mark.parametrize("metric", ["rmse", "mae", "r2"])
def test_a_regression_without_an_error_is_blessed(metric: str) -> None:
    truth = np.arange(300) % 50.0
    baseline = constant_regression(truth, truth.mean())
    options = parse_gate({"primary_metric": metric})
    decision = decided(options, ValuePredictions.of(truth, truth), baseline, None)
    assert decision.blessed, decision.line


@pytest.mark.parametrize(
    ("limit", "wrong", "shown"),
    [(1, 1, "0.99995 is not at least 1"), (0.9999999, 1, "not at least 0.9999999")],
)
def test_a_threshold_that_rounding_would_meet_has_more_digits(
    limit: float, wrong: int, shown: str
) -> None:
    labels = np.arange(20_000) % 2
    classifier = two_classes(labels, np.where(np.arange(20_000) < wrong, 1 - labels, labels))
    options = parse_gate({"thresholds": {"accuracy": {"min": limit}}})
    decision = decided(options, classifier, constant_classifier(labels, [1, 1]), None)
    (check,) = [check for check in decision.checks if not check.passed]
    assert (check.name, check.value) == ("threshold", 0.99995) and shown in check.explanation


def test_a_user_number_that_is_not_finite_does_not_pass() -> None:
    options = parse_gate({"evaluator": "m:f", "thresholds": {"own/ratio": {"min": 1}}})
    model = Measures(GOOD, CLASSES, numbers={"own/ratio": np.nan, "own/cost": 3.0})
    decision = decide(options, model, Measures(BASELINE, CLASSES), None)
    (reason,) = decision.reasons
    assert "own/ratio" in reason and "not finite" in reason and "own/cost" not in reason


def test_a_constant_model_is_never_blessed() -> None:
    scores = np.tile([0.3, 0.7], (60, 1))
    labels = np.arange(60) % 3 > 0
    worse = np.arange(60) % 2
    champion = rival(ClassPredictions.of(labels, np.eye(2)[worse]))
    baseline = constant_classifier(labels, [5, 5])
    for gate, other in (({"mode": "point"}, champion), ({"first_model": "accept"}, None)):
        options = parse_gate({"primary_metric": "accuracy"} | gate)
        decision = decided(options, ClassPredictions.of(labels, scores), baseline, other)
        assert "all 60 test rows" in decision.reasons[0]
    values = ValuePredictions.of(np.arange(9.0), np.full(9, 2.0))
    assert values.constant and not ValuePredictions.of(np.arange(9.0), np.arange(9.0)).constant
    many = np.full((9, 40), 1 / 40)
    assert ClassPredictions.of(np.arange(9), many).constant
    many[3, 2] += 0.01
    assert not ClassPredictions.of(np.arange(9), many).constant


@pytest.mark.parametrize(
    ("gate", "expected"),
    [
        ({"mod": "point"}, "'mode'"),
        ({"mode": "better"}, '"superior", "non_inferior" or "point"'),
        ({"confidence": 1.5}, "gate.confidence"),
        ({"margin": -1}, "gate.margin"),
        ({"primary_metric": "acuracy"}, "'accuracy'"),
        ({"thresholds": {"aux": {"min": 0.5}}}, "'auc'"),
        ({"thresholds": {"own/cost": {"max": 1}}}, "'cost'"),
        ({"evaluator": "m:f", "primary_metric": "own/cost"}, "direction for own/cost"),
        ({"evaluator": "m:f", "direction": "minimize"}, "primary metric of"),
        ({"evaluator": "m:f", "primary_metric": "auc", "direction": "minimize"}, "auc already"),
        ({"evaluator": "m:f", "direction": "down"}, '"maximize" or "minimize"'),
        ({"thresholds": {"top_1_accuracy": {"min": 0.5}}}, "'top_<k>_accuracy'"),
        ({"primary_metric": "ece"}, "a threshold"),
        ({"margin": 0.1}, '"mode": "non_inferior"'),
        ({"thresholds": {"auc": {"min": 1.5}}}, "can meet"),
        ({"thresholds": {"rmse": {"max": -1}}}, "0 to inf"),
        ({"thresholds": {"rmse": {"min": 0}}}, "can miss"),
        ({"thresholds": {"auc": {"min": 0, "max": 1}}}, "can miss"),
        ({"thresholds": {"auc": {"min": 0.5}, "rmse": {"max": 9}}}, "classification and rmse"),
        ({"thresholds": {"f1": {"min": 1}}}, "precision/<class>"),
        ({"thresholds": {"auc": {}}}, '{"min": number}'),
        ({"thresholds": {"auc": {"min": 0.9, "max": 0.8}}}, "at most max"),
        ({"thresholds": {"auc": {"mim": 0.9}}}, "'min'"),
    ],
)
def test_a_wrong_gate_is_answered_with_the_right_one(gate: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigurationError, match="gate") as caught:
        parse_gate(gate)
    assert expected in str(caught.value)


def test_the_default_gate_is_what_nothing_set_means() -> None:
    assert parse_gate(DEFAULT_GATE) == GateOptions()
    assert parse_gate({}) is None


@pytest.mark.parametrize("name", ["", "a/b", ".hidden", "a b", "ä", "x" * 101, "../up", "a\n"])
def test_a_wrong_model_name_is_refused(name: str) -> None:
    (problem,) = check_model_name(name)
    assert repr(name) in str(problem)


@pytest.mark.parametrize(
    ("gate", "task", "typed"),
    [
        ({"primary_metric": "recall/Yes"}, "classification", "gate.primary_metric=recall/yes"),
        (
            {"thresholds": {"recall/yess": {"min": 0.5}}},
            "classification",
            "gate.thresholds.recall/yes=VALUE",
        ),
        ({"primary_metric": "top_2_accuracy"}, "classification", "gate.primary_metric=accuracy"),
        ({"primary_metric": "auc"}, "regression", ""),
        ({"slices": [{"column": "age", "thresholds": {"rmse": {"max": 9}}}]}, "classification", ""),
    ],
)
def test_metrics_of_another_label_are_answered_with_those_of_it(
    gate: dict, task: str, typed: str
) -> None:
    classes = ["no", "yes"] if task == "classification" else []
    with pytest.raises(ConfigurationError) as caught:
        check_metrics(parse_gate(gate), task, classes)
    said = with_hints(caught.value)
    assert typed in said and "Fix: " in said
    good = {"primary_metric": "recall/yes", "thresholds": {"f1/no": {"min": 0.1}}}
    check_metrics(parse_gate(good), "classification", ["no", "yes"])
    check_metrics(None, "regression", [])


@pytest.mark.parametrize("mode", ["superior", "non_inferior", "point"])
def test_a_metric_of_one_of_two_classes_names_it(mode: str) -> None:
    """Of `bad` and `good`, the average precision of `good` passed where nothing was called bad."""
    options = parse_gate(
        {"mode": mode, "primary_metric": "average_precision"}
        | {"thresholds": {"average_precision": {"min": 0.5}, "auc": {"min": 0.5}}}
        | ({"margin": 0.1} if mode == "non_inferior" else {})
    )
    labels = np.arange(200) % 2
    classes = ["bad", "good"]
    better = ClassPredictions.of(labels, np.stack([1 - labels * 0.8, labels * 0.8], axis=1))
    worse = ClassPredictions.of(labels, np.full((200, 2), 0.5))
    champion = ChampionResult("champion 3", measures=Measures(worse, classes))
    decision = decided(options, better, worse, champion, classes)
    texts = {(it.name, it.metric): it.explanation for it in decision.checks}
    named = {key for key, text in texts.items() if "average_precision of good" in text}
    assert named == {key for key in texts if key[1] == "average_precision"} and len(named) == 3
    assert decided(options, better, worse, None, classes).reasons[0].count("of good") == 1
    assert Measures(model(0), ["a", "b", "c"]).label("average_precision") == "average_precision"


def test_an_undeclared_mode_blesses_nothing() -> None:
    options = GateOptions().model_copy(update={"mode": "best"})
    baseline = constant_classifier([0, 1] * 30, [5, 5])
    with pytest.raises(AssertionError, match="best"):
        decided(options, model(wrong=3), baseline, rival(model(wrong=4)))


def test_the_code_of_the_evaluator(tmp_path: Path) -> None:
    code = tmp_path / "mine.py"
    code.write_text("def cost(labels, predictions):\n    return {'cost': 1}\n")
    gate = parse_gate({"mode": "point", "evaluator": f"{code}:cost"})
    digest, problems = check_evaluator(Store("http://127.0.0.1:1", "r"), gate)
    assert len(digest) == 64 and problems == []
    assert gate and code_address_of("gate.evaluator", gate.evaluator) == {
        "gate.evaluator": str(code)
    }
    gate = parse_gate({"mode": "point", "evaluator": f"{code}:coast"})
    digest, (problem,) = check_evaluator(Store("http://127.0.0.1:1", "r"), gate)
    assert digest == "" and problem.path == "gate.evaluator" and "coast" in str(problem)
    assert problem.suggestion == f"{code}:cost"
    assert check_evaluator(Store("http://127.0.0.1:1", "r"), None) == ("", [])


def test_the_code_of_the_evaluator_includes_what_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another helper.py was another metric with the same digest, so the run was skipped."""
    monkeypatch.chdir(tmp_path)
    Path("helper.py").write_text("COST = 10\n")
    text = "from helper import COST\ndef cost(labels, predictions):\n    return {'cost': COST}\n"
    Path("mine.py").write_text(text)
    store = Store("http://127.0.0.1:1", "r")
    gate = parse_gate({"mode": "point", "evaluator": "mine.py:cost"})
    digest, (problem,) = check_evaluator(store, gate)
    assert (digest, problem.path, problem.suggestion) == ("", "gate.evaluator", ".:cost")

    def read() -> tuple[str, dict[str, int]]:
        digest, problems = check_evaluator(
            store, parse_gate({"mode": "point", "evaluator": problem.suggestion})
        )
        assert not problems
        return digest, EvaluatorCode.read(problem.suggestion, store).load()((), ())

    first, same = read(), read()
    Path("helper.py").write_text("COST = 100\n")
    other = read()
    assert first == same and first[0] != other[0]
    assert [costs["cost"] for _, costs in (first, same, other)] == [10, 10, 100]
