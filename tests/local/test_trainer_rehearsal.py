"""The model is built before rows are read: what is refused then, and what is left to training."""

import dataclasses
import itertools
import logging
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from kfp_tfjob.cluster.choice import CHOICE
from kfp_tfjob.components.preflight import engine as preflight
from kfp_tfjob.components.preflight.parameters import job_spec
from kfp_tfjob.components.preflight.rehearsal import beside
from kfp_tfjob.components.step import FailureReport, Step
from kfp_tfjob.options.train import TrainerOptions
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import ConfigurationError
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from kfp_tfjob.trainer.config import Config

FEATURES = dict.fromkeys("abcdef", "number")
HEAD = "import keras\nfrom keras import layers\n"
MODEL = """
def build_model(dataset, units=8):
    x = inputs = keras.Input((dataset.num_features,))
    x = layers.Normalization(mean=dataset.mean, variance=dataset.std**2)(x)
    {middle}
    x = layers.Dense({out})(x)
    model = keras.Model(inputs, x)
    model.compile({compile})
    return model
"""
SPARSE = "'adam', 'sparse_categorical_crossentropy', metrics=['accuracy']"


def model(middle: str = "", out: str = "dataset.num_classes", compile: str = SPARSE) -> str:
    return HEAD + MODEL.format(middle=middle or "pass", out=out, compile=compile)


_numbers = itertools.count()


@pytest.fixture
def rehearse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    from kfp_tfjob.trainer.rehearsal import rehearse

    monkeypatch.setattr(sys, "path", list(sys.path))

    def ask(
        code: str,
        task: str = "classification",
        replicas: int = 1,
        features: Mapping[str, str] = FEATURES,
        **given: object,
    ) -> str:
        name = f"own_{next(_numbers)}"
        (tmp_path / "code").mkdir(exist_ok=True)
        (tmp_path / "code" / f"{name}.py").write_text(code)
        hyperparameters = {"units": 8} | given
        config = Config(
            S3Address("b"),
            f"{name}:build_model",
            1,
            1,
            tmp_path,
            tmp_path,
            options=TrainerOptions(),
        )
        config = dataclasses.replace(config, hyperparameters=hyperparameters)
        return "\n".join(map(str, rehearse(config, features, "y", task, replicas)))

    return ask


CERTAIN = {
    "an import": ("import torchh\n" + model(), "No module named 'torchh'"),
    "a name": (model("x = layers.Dens(units)(x)"), "has no attribute 'Dens'"),
    "a variable": (model("x = layer.Dense(units)(x)"), "name 'layer' is not defined"),
    "an attribute": (model(out="dataset.n_classes"), "has no attribute 'n_classes'"),
    "an argument": (model("x = layers.Dense(unit=3)(x)"), "missing 1 required positional"),
    "a shape": (model("x = layers.Reshape((4, 4, 1))(x)"), "total size"),
    "the labels": (
        model(compile="'adam', 'categorical_crossentropy'"),
        "use a sparse_ loss",
    ),
    "no model": (HEAD + "def build_model(dataset, units): ...\n", "not return a compiled model"),
    "no compile": (model().replace(f"model.compile({SPARSE})", "pass"), "not compiled"),
    "a value": (model("x = layers.Dense(units)(x)"), "build_model failed.*units"),
}


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classification", "auto"])
@pytest.mark.parametrize(("code", "words"), CERTAIN.values(), ids=CERTAIN)
def test_what_no_row_could_change_is_refused(
    rehearse: Callable[..., str], code: str, words: str, task: str
) -> None:
    given = {"units": "many"} if words.startswith("build_model") else {}
    assert re.search(words, rehearse(code, task, **given))


LEFT = {
    "a good model": model(),
    "numbers of classes": model("assert dataset.num_classes == 7"),
    "as many outputs as classes": model(out="7"),
    "a shape of the classes": model(
        "x = layers.Reshape((dataset.num_classes, 5))(layers.Dense(35)(x))\n"
        "    x = layers.Flatten()(x)"
    ),
    "a class": model("dataset.class_names.index('yes')"),
    "a count": model("1 // dataset.statistics['label']['counts']['yes']"),
    "a mistake that depends on classes": model(
        "head = None if dataset.class_names[0] == 'no' else layers.Dens(1)"
    ),
    "a branch": model(
        "if dataset.num_classes == 7: head = layers.Dense(3)\n    x = head(x)",
    ),
    "a loss with weights of the classes": HEAD
    + "def loss(y, p):\n"
    + "    return keras.ops.sum(p * keras.ops.ones((7,)), -1)\n"
    + model(compile="'adam', loss").removeprefix(HEAD),
    "the environment": model("import os; os.environ['NOT_HERE']"),
    "a file": model("open('not-here')"),
    "the device": model("raise RuntimeError('no GPU')"),
    "a value of the rows": model("if dataset.mean.max() < 500: raise ValueError('too small')"),
}


@pytest.mark.slow
@pytest.mark.parametrize("code", LEFT.values(), ids=LEFT)
def test_what_rows_may_change_is_left_to_the_training(
    rehearse: Callable[..., str], code: str
) -> None:
    assert rehearse(code) == ""


# One of each kind for every change; all of them in `make test-trainer`.
def test_a_typing_error_is_refused_and_a_number_of_classes_is_not(
    rehearse: Callable[..., str],
) -> None:
    code, words = CERTAIN["a name"]
    assert re.search(words, rehearse(code))
    assert rehearse(LEFT["numbers of classes"]) == ""


@pytest.mark.slow
def test_a_regression_is_known_to_have_one_output(rehearse: Callable[..., str]) -> None:
    assert rehearse(model(out="1", compile="'adam', 'mse'"), "regression") == ""
    said = rehearse(model(out="2", compile="'adam', 'mse'"), "regression")
    assert "the output does not fit the labels" in said
    # Where only the rows tell the task, what suits one of them is left to the training.
    assert rehearse(model(out="1", compile="'adam', 'mse'"), "auto") == ""
    assert rehearse(model(), "auto") == ""


@pytest.mark.slow
def test_the_models_of_the_project_can_be_built(tmp_path: Path) -> None:
    from kfp_tfjob.trainer.rehearsal import rehearse

    config = Config(S3Address("b"), "kfp_tfjob.trainer.models:mlp", 1, 1, tmp_path, tmp_path)
    for task in ("classification", "regression", "auto"):
        assert rehearse(config, FEATURES, "y", task, 2) == []
    cnn = dataclasses.replace(config, model_code="kfp_tfjob.trainer.models:cnn")
    (problem,) = rehearse(cnn, FEATURES, "y", "auto", 2)
    assert "do not form an image of this size" in str(problem)
    assert rehearse(cnn, {f"p{i}": "number" for i in range(9)}, "y", "auto", 2) == []


def test_preflight_refuses_before_anything_is_kept(
    store: Store, base: S3Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kfp_tfjob.components.preflight.parameters import defaults

    monkeypatch.setenv(CHOICE, "local")
    monkeypatch.setattr(
        "kfp_tfjob.components.preflight.rehearsal._SECONDS", 600
    )  # on a busy machine
    (tmp_path / "model.py").write_text(
        # The environment is that of the chief of the job.
        "import json, os\n"
        "assert json.loads(os.environ['HYPERPARAMETERS']) == {'units': 8}\n"
        "assert len(json.loads(os.environ['TF_CONFIG'])['cluster']['worker']) == 1\n"
        "assert os.environ['MINE'] == '1' and os.path.isdir(os.environ['OUTPUT_DIR'])\n"
        + model("x = layers.Dens(units)(x)")
    )
    (tmp_path / "data.csv").write_text("a,b,y\n" + "1,2,yes\n2,3,no\n" * 20)
    values = defaults() | {
        "data_uri": str(tmp_path / "data.csv"),
        "data_label": "y",
        "model_name": "m",
        "output_uri": str(base),
        "model_code": f"{tmp_path}/model.py:build_model",
        "model_hyperparameters": {"units": 8},
        "pod": {"all": {"env": {"MINE": "1"}}},
    }
    with pytest.raises(ConfigurationError, match=r"has no attribute 'Dens' \(.*model.py, line"):
        preflight.run(FailureReport(), "run-1", values)
    assert list(store.list(base)) == []


def test_on_a_cluster_it_is_said_when_the_model_is_built(
    store: Store, base: S3Address, caplog: pytest.LogCaptureFixture
) -> None:
    from kfp_tfjob.components.preflight.parameters import defaults

    caplog.set_level(logging.INFO)
    step = Step("preflight", "r", Layout(base), store)
    with preflight._rehearsing(step, defaults()) as rehearsal:
        assert rehearsal is None
    assert "built for the first time when training starts" in caplog.text


def test_a_process_that_dies_refuses_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from kfp_tfjob.components.preflight.parameters import defaults

    caplog.set_level(logging.INFO)
    values = defaults() | {"pod": {"all": {"env": {"PYTHONHOME": "/nowhere"}}}}
    with beside(job_spec(values), "r") as rehearsal:
        rehearsal.ask({}, "kfp_tfjob.trainer.models:mlp", {"a": "number"}, "y", "auto")
        assert rehearsal.problems() == []
    assert "the model could not be built before training" in caplog.text


MIXED = {"a": "number", "b": "category", "c": "date", "d": "text", "e": "boolean"}
OF_KINDS = {
    "columns by kind": (
        model("x = layers.Embedding(dataset.columns[1].size, units)(inputs[:, -2])"),
        "",
    ),
    "encode": (model("x = layers.Dense(units)(dataset.encode(inputs))"), ""),
    "the width of one table": (model("x = layers.Reshape((10,))(x)"), ""),
    "a mistake": (model("x = dataset.encode(inputs, 3)"), "takes 2 positional arguments"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("code", "words"), OF_KINDS.values(), ids=OF_KINDS)
def test_the_kinds_of_the_first_rows_are_no_certainty(
    rehearse: Callable[..., str], code: str, words: str
) -> None:
    said = rehearse(code, features=MIXED)
    assert words in said if words else not said
