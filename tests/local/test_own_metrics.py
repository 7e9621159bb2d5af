"""Metrics of the user's own: what the function gets, and how wrong ones are named."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from kfp_tfjob.common.errors import DataError
from kfp_tfjob.features.types import TYPES
from kfp_tfjob.features.types.base import NO_DATE
from kfp_tfjob.judging import own_metrics
from kfp_tfjob.judging.evaluator_code import EvaluatorCode
from kfp_tfjob.judging.metrics import Measures
from kfp_tfjob.judging.own_metrics import Evaluator, of_parquet
from kfp_tfjob.judging.predictions import ClassPredictions
from kfp_tfjob.judging.rows import Batch
from kfp_tfjob.options.gate import parse_gate
from tests.parquet_split import write_split
from tests.problems import problem_of
from tests.typed_schema import typed

LABELS = np.array([0, 1, 1, 0, 1])
SCORES = np.array([0.2, 0.9, 0.4, 0.6, 0.7], np.float32)
FEATURES = np.arange(10, dtype=np.float32).reshape(5, 2)
Made = Callable[..., Evaluator]
EQUAL = ClassPredictions.of(LABELS, np.full((5, 2), 0.5))  # of whom, it does not matter
COST = {"primary_metric": "own/cost", "direction": "minimize"}


@pytest.fixture
def evaluator(tmp_path: Path) -> Made:
    """Makes the evaluator of some code, with the rows of two models."""

    def made(code: str, **gate: Any) -> Evaluator:
        path = tmp_path / "mine.py"
        path.write_text(code)
        features = [{"name": name, "type": "float32"} for name in ("age", "size")]
        label = {"name": "label", "classes": ["no", "yes"]}
        schema = typed({"features": features, "label": label})
        parts = (slice(0, 2), slice(2, 5))
        batches = [
            Batch(
                dict(zip(schema.names, FEATURES[part].T, strict=True)),
                LABELS[part],
                np.ones(len(LABELS[part])),
            )
            for part in parts
        ]
        columns = dict(zip(schema.names, FEATURES.T, strict=True))
        write_split(tmp_path, "test", columns, LABELS, classes=schema.classes)
        shards = (tmp_path / "test" / "00000.parquet",)
        data: Any = SimpleNamespace(shards=shards, schema=schema, batches=lambda: batches)
        name = f"{path}:score"
        options = parse_gate({"mode": "point", "evaluator": name} | gate)
        assert options is not None
        read = EvaluatorCode.read(name, None)
        found = Evaluator(read, data, options)
        for part, batch in zip(parts, batches, strict=True):
            outputs = np.stack([1 - SCORES[part], SCORES[part]], axis=1)
            found.add(batch, outputs)
            found.add_champion(outputs[:, ::-1])
        return found

    return made


def test_the_function_gets_what_it_names(evaluator: Made) -> None:
    own = evaluator(
        "def score(labels, predictions, *, features, weights, classes):\n"
        "    hit = (predictions[:, 1] > 0.5) == labels\n"
        "    return {'hits': hit.sum(), 'age': features['age'].mean(), 'total': weights.sum(),\n"
        "            'none': float('nan'), 'classes': len(classes)}\n"
    )
    _, found = own.model_metrics(EQUAL)
    assert np.isnan(found.pop("own/none"))
    assert found == {"own/hits": 3, "own/age": 4, "own/total": 5, "own/classes": 2}
    assert own.reference_metrics("champion 3", EQUAL)[1]["own/hits"] == 2
    assert own.reference_metrics("the baseline", EQUAL, np.array([0.4, 0.6]))[1]["own/hits"] == 3


def test_the_function_may_change_its_arguments(evaluator: Made) -> None:
    """Only the arrays of the baseline were read-only, so the step failed after training."""
    own = evaluator(
        "def score(labels, predictions, features):\n"
        "    for it in (labels, predictions, *features.values()):\n"
        "        it += 1\n"
        "    return {'first': predictions[0, 1], 'last': predictions[4, 1]}\n"
    )
    assert own.model_metrics(EQUAL)[1] == pytest.approx({"own/first": 1.2, "own/last": 1.7})
    for _ in range(2):
        found = own.reference_metrics("the baseline", EQUAL, np.array([0.4, 0.6]))[1]
        assert found == pytest.approx({"own/first": 1.6, "own/last": 1.6})
    # What the gate computes its own metrics from is the same, and so are the other models.
    found = own.reference_metrics("champion 3", EQUAL)[1]
    assert found == pytest.approx({"own/first": 1.8, "own/last": 1.3})
    assert LABELS.tolist() == [0, 1, 1, 0, 1] and FEATURES.ravel().tolist() == list(range(10))
    assert SCORES.tolist() == pytest.approx([0.2, 0.9, 0.4, 0.6, 0.7])
    assert Measures(EQUAL).estimate("accuracy").value == 0.4


def test_values_by_row(evaluator: Made) -> None:
    own = evaluator(
        "def score(labels, predictions):\n"
        "    right = (predictions[:, 1] > 0.5) == labels\n"
        "    return {'cost': [0, 2.5, 0.5, 1, 0], 'right': right, 'rows': len(labels)}\n",
        **COST,
    )
    scores = np.stack([1 - SCORES, SCORES], axis=1)
    weighted = ClassPredictions.of(LABELS, scores, np.array([1, 2, 1, 1, 0]))
    found, numbers = own.model_metrics(weighted)
    assert numbers == {"own/rows": 5}
    model = Measures(found, numbers=numbers)
    cost, right = model.estimate("own/cost"), model.estimate("own/right")
    assert (cost.value, cost.sign, cost.proportion) == (6.5 / 5, -1, False)
    assert (right.value, right.sign, right.proportion) == (0.6, 1, True)
    assert model.names[-3:] == ("own/cost", "own/right", "own/rows")
    assert model.estimate("own/rows").value == 5


def test_all_that_needs_a_value_for_each_row_gets_one(evaluator: Made) -> None:
    code = "def score(labels, predictions):\n    return {'cost': 1, 'const': labels}\n"
    own = evaluator(code, **COST)
    problem = problem_of(own.model_metrics, EQUAL, kind=DataError)
    assert "own/cost" in problem.received and "own/const" in problem.received
    assert "own/cost" in problem.expected and "'cost'" in problem.fix


def test_every_model_has_the_same_metrics(evaluator: Made) -> None:
    own = evaluator(
        "def score(labels, predictions):\n"
        "    if predictions[0, 1] < 0.5:\n"
        "        return {'a': 1, 'b': labels, 'c': 1}\n"
        "    return {'a': labels, 'b': labels}\n"
    )
    assert own.model_metrics(EQUAL)[1] == {"own/a": 1, "own/c": 1}
    problem = problem_of(own.reference_metrics, "champion 3", EQUAL, kind=DataError)
    assert problem.received.startswith("for champion 3: own/a ") and "own/c" in problem.received
    assert "own/a" in problem.expected


def test_columns_are_read_as_they_are_stored(tmp_path: Path) -> None:
    paths = [tmp_path / f"{part}.parquet" for part in (0, 1)]
    for part, path in enumerate(paths):
        days = pa.array([0, None, 10 * part], pa.timestamp("us", "UTC"))
        rates = [0.1, 0.7, None]
        columns = {"since": days, "city": ["Rome", None, "Rome"], "rate": rates}
        columns["plain"] = pa.array(rates, pa.float32())  # of a table of plain numbers
        parquet.write_table(pa.table(columns), path, store_schema=False)
    since = of_parquet(paths, "since", TYPES["date"])
    rate = of_parquet(paths, "rate", TYPES["number"])
    assert since.dtype == np.int64 and since.tolist() == [0, NO_DATE, 0, 0, NO_DATE, 10]
    assert of_parquet(paths, "city", TYPES["category"]).tolist() == ["Rome", "", "Rome"] * 2
    # A number equals what the table says.
    assert (rate[:2] == [0.1, 0.7]).all() and np.isnan(rate[2])
    plain = of_parquet(paths, "plain", TYPES["number"])
    assert (rate.dtype, plain.dtype) == (np.float64, np.float32)
    assert plain[0] == 0.1 and plain[4] == 0.7 and np.isnan(plain[5])


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return 0.5", "a builtins.float. Expected: a dict of names and numbers"),
        ("return {'a': labels[99]}", "IndexError: .*, in mine.py, line 2"),
        ("raise SystemExit(0)", "SystemExit: 0, in mine.py, line 2"),
    ],
)
def test_a_wrong_function_is_named(evaluator: Made, body: str, said: str) -> None:
    own = evaluator(f"def score(labels, predictions):\n    {body}\n")
    with pytest.raises(DataError, match=f"gate.evaluator mine:score failed.*{said}"):
        own.model_metrics(EQUAL)


@pytest.mark.parametrize(
    ("returned", "received"),
    [
        ({}, "0 metrics"),
        ({"a b": 1}, "a metric named 'a b'"),
        ({1: 1}, "a metric named 1"),
        ({"a": "much"}, "a is a builtins.str"),
        ({"a": True}, "a is a builtins.bool"),
        ({"a": np.zeros(2)}, "a has 2 values"),
        ({"a": np.zeros((3, 1))}, "a has the shape (3, 1)"),
        ({"a": [[1], [1, 2]]}, "a is a builtins.list"),
        ({"a": np.array(["x", "y", "z"])}, "a is a numpy.ndarray of <U1"),
        ({"a": np.array([1, np.nan, np.inf])}, "a is not finite in 2 of 3 rows, first in row 2"),
        ({f"m{at}": 1 for at in range(51)}, "51 metrics"),
    ],
)
def test_a_wrong_result_is_named(returned: Any, received: str) -> None:
    with pytest.raises(own_metrics._RefusedError) as caught:
        own_metrics.checked(returned, 3)
    assert caught.value.args[0] == received


@pytest.mark.parametrize(
    "arguments",
    [
        *("rows", "labels, predictions, rows", "labels, predictions, /", "predictions"),
        pytest.param(f"rows={'-' * 400}1", id="nested"),  # nested too deeply to be printed
    ],
)
def test_wrong_arguments_are_found_before_the_run(evaluator: Made, arguments: str) -> None:
    problem = problem_of(evaluator, f"def score({arguments}):\n    return {{}}\n")
    shown = "..." if len(arguments) > 400 else arguments
    assert problem.path == "gate.evaluator" and problem.received == f"def score({shown})"


def test_only_errors_of_the_function_are_its_own(
    evaluator: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = evaluator("def score(labels, predictions):\n    return {'cost': 1.0}\n")
    for place, name in ((own_metrics, "checked"), (Evaluator, "_arguments")):
        for kind in (ValueError, TypeError, KeyError, AttributeError, MemoryError):

            def fail(*_: object, kind: type[Exception] = kind) -> None:
                raise kind("planted")

            with monkeypatch.context() as patch, pytest.raises(kind):
                patch.setattr(place, name, fail)
                own.model_metrics(EQUAL)
    hungry = evaluator("def score(labels, predictions):\n    raise MemoryError\n")
    with pytest.raises(MemoryError):  # the step names what gives it more
        hungry.model_metrics(EQUAL)
