"""Metrics of the user's own: what the function gets, and how wrong ones are named."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kfp_tfjob.judging import own_metrics_process
from kfp_tfjob.judging.evaluator_code import EvaluatorCode
from kfp_tfjob.judging.own_metrics import Evaluator
from kfp_tfjob.judging.rows import Batch
from kfp_tfjob.storage.errors import ConfigurationError, DataError
from kfp_tfjob.trainer.serving import Task

LABELS = np.array([0, 1, 1, 0, 1])
SCORES = np.array([0.2, 0.9, 0.4, 0.6, 0.7], np.float32)
FEATURES = np.arange(10, dtype=np.float32).reshape(5, 2)
Made = Callable[[str], Evaluator]


@pytest.fixture
def evaluator(tmp_path: Path) -> Made:
    """Makes the evaluator of some code, with the rows of two models."""

    def made(code: str) -> Evaluator:
        path = tmp_path / "mine.py"
        path.write_text(code)
        task = Task("classification", ("age", "size"), ("no", "yes"))
        data: Any = SimpleNamespace(raw=(), schema={})
        found = Evaluator(EvaluatorCode.read(f"{path}:score", None), tmp_path / "own", data, task)
        for part in (slice(0, 2), slice(2, 5)):
            outputs = np.stack([1 - SCORES[part], SCORES[part]], axis=1)
            batch = Batch(FEATURES[part], LABELS[part], np.ones(len(LABELS[part])))
            found.add(batch, None, outputs)  # type: ignore[arg-type]
            found.add_champion(outputs[:, ::-1])
        return found

    return made


def test_the_function_gets_what_it_names(evaluator: Made, monkeypatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    own = evaluator(
        "import os, subprocess\n"
        "subprocess.Popen(['sleep', '60'])\n"  # it keeps the output open, and ends with the call
        "def score(labels, predictions, *, features, weights, classes):\n"
        "    hit = (predictions[:, 1] > 0.5) == labels\n"
        "    return {'hits': hit.sum(), 'age': features['age'].mean(), 'total': weights.sum(),\n"
        "            'none': float('nan'), 'classes': len(classes), 'keys': 'AWS_SECRET_ACCESS_KEY'"
        " in os.environ and 1 or 0}\n"
    )
    found = own.metrics(of_model=True)
    assert np.isnan(found.pop("own/none"))
    assert found == {
        "own/hits": 3,
        "own/age": 4,
        "own/total": 5,
        "own/classes": 2,
        "own/keys": 0,
    }
    assert own.metrics(of_model=False)["own/hits"] == 2
    own.close()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return 0.5", "a builtins.float. Expected: a dict of names and numbers"),
        ("return {'a': labels[99]}", "IndexError: .*, in mine.py, line 2"),
        ("raise SystemExit(0)", "SystemExit: 0, in mine.py, line 2"),
        ("__import__('os')._exit(5)", "its process ended with the exit code 5"),
    ],
)
def test_a_wrong_function_is_named(evaluator: Made, body: str, said: str) -> None:
    own = evaluator(f"def score(labels, predictions):\n    {body}\n")
    with pytest.raises(DataError, match=f"gate.evaluator mine:score failed.*{said}"):
        own.metrics(of_model=True)
    own.close()


@pytest.mark.parametrize(
    ("returned", "received"),
    [
        ({}, "0 metrics"),
        ({"a b": 1}, "a metric named 'a b'"),
        ({1: 1}, "a metric named 1"),
        ({"a": "much"}, "a is a builtins.str"),
        ({"a": True}, "a is a builtins.bool"),
        ({"a": np.zeros(2)}, "a is a numpy.ndarray"),
        ({f"m{at}": 1 for at in range(51)}, "51 metrics"),
    ],
)
def test_a_wrong_result_is_named(returned: Any, received: str) -> None:
    with pytest.raises(own_metrics_process._RefusedError) as caught:
        own_metrics_process._checked(returned)
    assert caught.value.args[0] == received


@pytest.mark.parametrize(
    "arguments", ["rows", "labels, predictions, rows", "labels, predictions, /", "predictions"]
)
def test_wrong_arguments_are_found_before_the_run(evaluator: Made, arguments: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        evaluator(f"def score({arguments}):\n    return {{}}\n")
    (problem,) = caught.value.problems
    assert "score does not take labels and predictions" in problem.what
    assert problem.path == "gate.evaluator" and problem.received == f"def score({arguments})"


def test_its_digest_is_that_of_its_code(tmp_path: Path) -> None:
    code = "def score(labels, predictions):\n    return {'a': 1}\n"
    digests = set()
    for name, text in {"one": code, "two": code, "three": f"{code}# changed\n"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text(text)
        digests.add(EvaluatorCode.read(f"{tmp_path / name}/mine.py:score", None).digest)
    assert len(digests) == 2
    plain = EvaluatorCode.read(f"{tmp_path}/one/mine.py:score", None)
    assert EvaluatorCode.from_plain(json.loads(json.dumps(plain.to_plain()))) == plain
