"""User code and models: what is refused with which words, and what an exported model answers."""

import dataclasses
import functools
import json
import logging
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.layers import BatchNormalization, Dense
from tensorflow.python.framework import config

from kfp_tfjob.common.errors import ConfigurationError, DataError
from kfp_tfjob.features.signature_columns import argument_names
from kfp_tfjob.options.train import TrainerOptions
from kfp_tfjob.trainer import batch_norm, label_test, models, probabilities, self_test, user_model
from kfp_tfjob.trainer.dataset import Dataset
from kfp_tfjob.trainer.export import export
from kfp_tfjob.trainer.progress import to_json
from kfp_tfjob.trainer.replicas import Replicas
from kfp_tfjob.trainer.train_step import TrainSteps
from tests.environments import run_python
from tests.local import tiny_dataset
from tests.parquet_split import write_split
from tests.problems import problem_of

FEATURES = len(tiny_dataset.FEATURES)


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return Dataset.load(tiny_dataset.write(tmp_path_factory.mktemp("classes")))


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return Dataset.load(tiny_dataset.write(tmp_path_factory.mktemp("values"), "regression"))


def test_a_dataset_is_utf_8_in_every_locale(classes: Dataset, tmp_path: Path) -> None:
    """A vocabulary in another encoding would make every such value unknown to the model."""
    schema = json.loads((classes.folder / "schema.json").read_bytes())
    schema["label"]["classes"] = ["São", "Zürich", "職業"]
    schema["splits"] = {}
    (tmp_path / "schema.json").write_text(json.dumps(schema, ensure_ascii=False), "utf-8")
    shutil.copy(classes.folder / "statistics.json", tmp_path)
    code = "import pathlib, sys; from kfp_tfjob.trainer.dataset import Dataset;"
    code += "print(ascii(Dataset.load(pathlib.Path(sys.argv[1])).class_names))"
    other = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    found = run_python("-c", code, tmp_path, **other)
    assert found.stdout.strip() == ascii(("São", "Zürich", "職業")), found.stderr


def test_a_split_that_lacks_a_shard_is_refused(tmp_path: Path) -> None:
    folder = tiny_dataset.write(tmp_path / "dataset")
    first, second = (folder / f"train/{number:05d}.parquet" for number in (0, 1))
    first.write_bytes(second.read_bytes())  # of other rows
    with pytest.raises(DataError, match=f"{tiny_dataset.ROWS['train']} rows"):
        Dataset.load(folder)


@pytest.mark.parametrize("scale", [1e-36, 1.0, 1e36])
def test_a_column_counts_in_any_unit(classes: Dataset, scale: float, tmp_path: Path) -> None:
    """A capacity in farads and a density per cubic metre are no constant columns."""
    rows = (scale * np.random.default_rng(0).normal(5, 1, (1000, 6))).astype(np.float32)
    rows[:, -1] = scale  # constant
    folder = tmp_path / "dataset"
    columns = dict(zip(classes.feature_names, rows.T, strict=True))
    labels = np.zeros(1000, int)
    split = write_split(folder, "train", columns, labels, "label", classes.class_names)
    schema = classes.schema | {"splits": {"train": split}}
    (folder / "schema.json").write_text(json.dumps(schema))
    (folder / "statistics.json").write_bytes((classes.folder / "statistics.json").read_bytes())
    dataset = Dataset.load(folder)
    assert dataset.std[-1] == 1
    inputs = keras.Input((6,))
    keras.Model(inputs, dataset.encode(inputs)).save(tmp_path / "m.keras")
    found = keras.models.load_model(tmp_path / "m.keras").predict(rows, verbose=0)
    assert found.std(0) == pytest.approx([1, 1, 1, 1, 1, 0], abs=1e-4)
    assert found.mean(0) == pytest.approx([0, 0, 0, 0, 0, 0], abs=1e-4)


def test_a_schema_of_another_format_is_refused(classes: Dataset, tmp_path: Path) -> None:
    schema = json.loads((classes.folder / "schema.json").read_bytes())
    (tmp_path / "schema.json").write_text(json.dumps(schema | {"format": "other/1"}))
    (tmp_path / "statistics.json").write_text("{}")
    with pytest.raises(DataError, match="other/1"):
        Dataset.load(tmp_path)
    (tmp_path / "schema.json").unlink()
    with pytest.raises(DataError, match="FileNotFoundError"):
        Dataset.load(tmp_path)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Writes a module of the user into tmp_path; a module is found once, so each has its name."""

    def write(code: str) -> str:
        name = f"own_{abs(hash(code))}"
        (tmp_path / f"{name}.py").write_text(code)
        return name

    monkeypatch.setattr(sys, "path", list(sys.path))
    return write


@pytest.mark.parametrize(
    ("code", "function", "words"),
    [
        ("x = 1\n", "build_model", "'build_model'"),
        ("def build_modle(dataset): ...\n", "build_model", "'build_modle'"),
        ("def f(:\n", "f", r"SyntaxError: .*own.*\.py, line 1\)"),
        ("\nraise KeyError('k')\n", "f", r"KeyError: 'k' \(.*own.*\.py, line 2\)"),
        ("import sys\nsys.exit()\n", "f", r"SystemExit: .*\(.*own.*\.py, line 2\).*argparse"),
    ],
)
def test_code_that_cannot_be_found_is_refused(
    module: Callable[..., str], tmp_path: Path, code: str, function: str, words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        user_model.find(f"{module(code)}:{function}", tmp_path)


def _sequential(
    *layers: Any,
    loss: Any = "sparse_categorical_crossentropy",
    kind: type[keras.Sequential] = keras.Sequential,
    **more: Any,
) -> Any:
    model = kind(list(layers))
    model.compile("adam", loss=loss, **more)
    return model


def _normalised(**arguments: Any) -> Any:
    return _sequential(BatchNormalization(**arguments), Dense(3, "softmax"))


class OwnStep(keras.Sequential):
    def train_step(self, data: Any) -> Any:
        return {}


class Unsaved(keras.layers.Layer):
    def __init__(self, kept: Any) -> None:
        super().__init__()

    def call(self, x: Any) -> Any:
        return x


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "nothing": (lambda: None, "did not return a compiled model.*NoneType: None"),
    "uncompiled": (lambda: keras.Sequential([Dense(3)]), "a keras.Model that is not compiled"),
    "two outputs": (lambda: _sequential(Dense(2)), r"\(None, 2\).*\(batch, 3\), one column"),
    "image": (
        lambda: _sequential(keras.Input((8, 8, 1)), keras.layers.Flatten(), Dense(3)),
        "does not take the rows of the dataset.*\\(batch, 6\\)",
    ),
    "one-hot loss": (
        lambda: _sequential(Dense(3, "softmax"), loss="categorical_crossentropy"),
        "do not match the labels.*sparse_categorical_crossentropy",
    ),
    "no config": (
        lambda: _sequential(Unsaved(object()), Dense(3, "softmax")),
        r"cannot be saved.*Object Unsaved.*give the class .* a get_config\(\)",
    ),
    "own step": (
        lambda: _sequential(Dense(3), kind=OwnStep),
        "the model has its own train_step",
    ),
}


def _with_outputs(outputs: Callable[[Any], Any]) -> Any:
    inputs = keras.Input((FEATURES,))
    model = keras.Model([inputs], outputs(Dense(3, "softmax")(inputs)))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


class ListOfOne(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.out = Dense(3, "softmax")

    def call(self, x: Any) -> Any:
        return [self.out(x)]


def _list_of_a_subclass() -> Any:
    model = ListOfOne()
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


# Keras warns of the list of one input, in model.fit too.
@pytest.mark.filterwarnings("ignore:The structure of .inputs:UserWarning")
def test_a_list_of_one_output_is_that_output(classes: Dataset, tmp_path: Path) -> None:
    alone = Replicas(tf.distribute.get_strategy())
    model = _with_outputs(lambda x: [x])
    outputs = _serve(model, classes, tmp_path, ROWS)
    np.testing.assert_allclose(outputs["probabilities"], model.predict(ROWS, verbose=0), rtol=1e-5)
    label_test.check_values(model, classes, alone, TrainerOptions())
    self_test.check_step(model, classes, alone, TrainerOptions())


@pytest.mark.parametrize(
    ("make", "received", "fix"),
    [
        (lambda: _with_outputs(lambda x: {"y": x}), "a dict of (None, 3)", "the tensor itself"),
        (_list_of_a_subclass, "a list of (None, 3)", "the tensor itself"),
        (lambda: _with_outputs(lambda x: [x, x]), "a list of (None, 3), (None, 3)", "one of them"),
    ],
)
def test_other_structures_of_outputs_are_refused(
    classes: Dataset, make: Callable[[], Any], received: str, fix: str
) -> None:
    problem = problem_of(user_model.check, make(), make, classes, 1)
    assert problem.received == received and fix in problem.fix


@pytest.mark.slow
def test_a_model_of_keras_2_is_refused(classes: Dataset) -> None:
    import tf_keras

    model = tf_keras.Sequential([tf_keras.layers.Dense(3, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy")
    problem = problem_of(user_model.check, model, lambda: None, classes, 1)
    assert "tf_keras" in problem.received and "TF_USE_LEGACY_KERAS" in problem.fix


def test_tensorflow_1_is_refused(classes: Dataset) -> None:
    with tf.Graph().as_default():
        problem = problem_of(user_model.build, lambda _: None, classes, {})
    assert "disable_v2_behavior" in problem.received


def test_functions_are_compiled_whatever_the_code_says(
    module: Callable[..., str], tmp_path: Path
) -> None:
    code = "import tensorflow as tf\ntf.config.run_functions_eagerly(True)\ndef f(dataset): ..."
    user_model.find(f"{module(code)}:f", tmp_path)
    assert not tf.config.functions_run_eagerly()


def test_deterministic_operations_have_no_clock(classes: Dataset) -> None:
    """A user's code may ask for them too."""
    alone = Replicas(tf.distribute.get_strategy())
    config.enable_op_determinism()
    try:
        steps = TrainSteps(models.mlp(classes), alone, 10)
    finally:
        config.disable_op_determinism()
    assert float(steps._now()) == 0 < float(TrainSteps(models.mlp(classes), alone, 10)._now())


def _of_dataset(dataset: Dataset) -> Any:
    return _sequential(keras.layers.Lambda(lambda x: x - dataset.mean), Dense(3, "softmax"))


def _of_partial(_: Dataset) -> Any:
    loss = functools.partial(keras.losses.sparse_categorical_crossentropy, from_logits=True)
    return _sequential(Dense(3), loss=loss)


@pytest.mark.parametrize(
    ("make", "fix"),
    [
        (_of_dataset, "mean = dataset.mean"),
        (_of_partial, "def"),
        (lambda dataset: _sequential(Unsaved(dataset), Dense(3, "softmax")), "dataset.num_classes"),
    ],
)
def test_what_to_do_when_a_model_cannot_be_saved(
    classes: Dataset, make: Callable[[Dataset], Any], fix: str
) -> None:
    problem = problem_of(user_model.check, make(classes), make, classes, 1)
    assert fix in problem.fix


def _rounded(y: Any, predicted: Any) -> Any:
    right = keras.ops.one_hot(keras.ops.cast(y, "int32"), 3)
    return keras.ops.mean(keras.ops.abs(right - keras.ops.round(predicted)), axis=-1)


def test_a_loss_without_a_gradient_is_refused(classes: Dataset) -> None:
    alone = Replicas(tf.distribute.get_strategy())
    frozen = Dense(3, "softmax", trainable=False)
    for layer in (Dense(3, "softmax"), frozen):
        model = _sequential(keras.Input((FEATURES,)), layer, loss=_rounded)
        user_model.check(model, _sequential, classes, 1)
        arguments = (model, classes, alone, TrainerOptions())
        if layer is frozen:  # model.fit evaluates it
            self_test.check_step(*arguments)
        else:
            problem = problem_of(self_test.check_step, *arguments)
            assert "2 weights" in problem.received


@pytest.mark.parametrize("case", REFUSED)
def test_a_model_that_cannot_be_trained_is_refused(classes: Dataset, case: str) -> None:
    make, words = REFUSED[case]

    def build_model(dataset: Dataset) -> Any:
        return make()

    model = user_model.build(build_model, classes, {})
    with pytest.raises(ConfigurationError, match=words):
        user_model.check(model, build_model, classes, 2)


@pytest.mark.parametrize("is_stateful", [True, False])
def test_state_that_goes_from_batch_to_batch_is_refused(
    classes: Dataset, is_stateful: bool
) -> None:
    """Such a model failed in the first evaluation, or in evaluate: batches differ in their rows."""
    layer = keras.layers.LSTM(4, stateful=is_stateful, name="memory")
    inputs = keras.Input((FEATURES,), batch_size=8 if is_stateful else None)
    parts = (keras.layers.Reshape((FEATURES, 1)), keras.layers.Bidirectional(layer))
    model = _sequential(inputs, *parts, Dense(3, "softmax"))
    if is_stateful:
        problem = problem_of(user_model.check, model, _sequential, classes, 1)
        assert "memory" in problem.received and "stateful" in problem.fix
    else:
        user_model.check(model, _sequential, classes, 1)


def test_a_model_that_was_made_too_early_is_refused(classes: Dataset) -> None:
    """At the top of a module there are no replicas yet."""

    def compiled(**arguments: Any) -> Any:
        model = _sequential(keras.Input((FEATURES,)), Dense(3, "softmax"))
        model.compile(loss="sparse_categorical_crossentropy", **arguments)
        return model

    whole, optimizer = compiled(), keras.optimizers.Adam()
    metric = keras.metrics.SparseCategoricalAccuracy(name="early")
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        user_model.check(compiled(metrics=["accuracy"]), compiled, classes, 2)
        for model, part in [
            (whole, "kernel"),
            (compiled(optimizer=optimizer), "adam"),
            (compiled(metrics=[metric]), "early"),
        ]:
            words = (
                f"already existed before the call.*variables, for example .*{part}.*into compiled"
            )
            with pytest.raises(ConfigurationError, match=words):
                user_model.check(model, compiled, classes, 2)
    user_model.check(whole, compiled, classes, 1)


@pytest.mark.parametrize(
    ("options", "replicas", "what"),
    [
        ({"micro_batches": 2}, 1, "micro_batches"),
        ({"micro_batches": 2}, 2, "micro_batches"),
        ({"sync_batch_norm": False}, 2, "synchronized=False"),
        ({"jit_compile": True}, 2, "jit_compile"),
    ],
)
def test_what_no_batch_normalization_can_do_is_refused(
    classes: Dataset, options: dict[str, Any], replicas: int, what: str
) -> None:
    arguments = _normalised, classes, replicas, TrainerOptions(**options)
    problem = problem_of(user_model.check, _normalised(), *arguments)
    assert what in problem.received
    deep = _sequential(*(BatchNormalization(name=f"n{i}") for i in range(52)))
    assert "n0, n1, n2 and 49 more" in problem_of(user_model.check, deep, *arguments).received


def test_batch_normalization_is_synchronized_where_there_are_several_replicas(
    classes: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, batch_norm.__name__)
    for replicas, options in ((1, {}), (2, {}), (2, {"sync_batch_norm": True})):
        model = _normalised()
        user_model.check(model, _normalised, classes, replicas, TrainerOptions(**options))
        assert model.layers[0].synchronized == (replicas > 1)
        assert (model.layers[0].name in caplog.text) == (replicas > 1)
        caplog.clear()
    own = _normalised(synchronized=True)
    user_model.check(own, _normalised, classes, 2, TrainerOptions(sync_batch_norm=False))


def test_micro_batches_divide_the_rows_of_a_replica(classes: Dataset) -> None:
    alone = Replicas(tf.distribute.get_strategy())
    with pytest.raises(ConfigurationError, match="micro_batches 3"):
        TrainSteps(models.mlp(classes), alone, 10, micro_batches=3)


def _measured(result: Any) -> Any:
    """A model with a metric that returns what this makes of a mean."""

    class Own(keras.metrics.Mean):
        def update_state(self, y: Any, predicted: Any, sample_weight: Any = None) -> None:
            super().update_state(predicted)

        def result(self) -> Any:
            return result(super().result())

    return _sequential(Dense(3, "softmax"), metrics=[Own("own")])


class WithoutLoss(keras.Sequential):
    @property
    def metrics(self) -> list[Any]:
        return []


def test_a_metric_must_not_hide_the_loss(classes: Dataset) -> None:
    """Early stopping would make it as small as possible."""
    hides = keras.metrics.SparseCategoricalAccuracy(name="loss")
    model = _sequential(Dense(3, "softmax"), metrics=[hides])
    problem = problem_of(user_model.check, model, lambda: None, classes, 1)
    assert problem.received == "loss"


def test_metrics_are_numbers_by_name(classes: Dataset) -> None:
    def results(model: Any) -> dict[str, float]:
        user_model.check(model, _measured, classes, 1)
        return TrainSteps(model, Replicas(tf.distribute.get_strategy()), 10).results()

    named = lambda value: {"low": value, "high": value + 1}  # noqa: E731
    assert results(_measured(named)) == {"loss": 0.0, "low": 0.0, "high": 1.0}
    assert results(_measured(lambda value: keras.ops.reshape(value, (1,))))["own"] == 0.0
    with pytest.raises(ConfigurationError, match=r"own .*\(2,\)"):
        results(_measured(lambda value: keras.ops.stack([value, value])))
    with pytest.raises(ConfigurationError, match="a loss"):
        results(_sequential(Dense(3, "softmax"), kind=WithoutLoss))


def test_a_metric_that_is_no_number_is_null_in_a_line() -> None:
    metrics = {"loss": 0.5, "auc": float("nan"), "val_loss": float("inf")}
    line = to_json({"step": 3, "metrics": metrics, "gpus": [{"percent": float("-inf")}]})
    assert line == (
        '{"step": 3, "metrics": {"loss": 0.5, "auc": null, "val_loss": null},'
        ' "gpus": [{"percent": null}]}'
    )


def test_a_whole_number_is_a_float_where_the_function_expects_one(classes: Dataset) -> None:
    def build_model(
        dataset: Dataset,
        units: int,
        rate: float,
        decay: float | None = None,
        momentum: Any = 0.9,
        free: Any = None,
        **more: Any,
    ) -> Any:
        return units, rate, decay, momentum, free, more

    given = {"units": 1, "rate": 1, "decay": 1, "momentum": 0, "free": 1, "other": 1}
    found: Any = user_model.build(build_model, classes, given)
    assert repr(found) == "(1, 1.0, 1.0, 0.0, 1, {'other': 1})"


def test_a_string_for_a_boolean_is_refused_in_code_of_any_image(classes: Dataset) -> None:
    """Preflight cannot parse a module that only train_image has, and "no" was true."""

    def build_model(dataset: Dataset, wide: bool = False) -> Any:
        return wide

    problem = problem_of(user_model.build, build_model, classes, {"wide": "no"})
    assert (problem.path, problem.suggestion) == ("model_hyperparameters.wide", "false")
    assert user_model.build(build_model, classes, {"wide": False}) is False


def test_what_python_says_of_hyperparameters_is_shown(classes: Dataset) -> None:
    def needs(dataset: Dataset, depth: int) -> None:
        raise ValueError(f"depth {depth}\nand more")

    refused: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
        (models.mlp, {"hiden": [3]}, r"'hiden'.*from mlp\(.*hidden: "),
        (needs, {}, "'depth'"),
        (needs, {"depth": 2}, r"ValueError: depth 2 and more \(.*, line \d+\)"),
        (lambda: None, {}, "takes 0 positional arguments"),
        (lambda dataset: sys.exit(0), {}, "SystemExit: 0"),
    ]
    for function, given, words in refused:
        with pytest.raises(ConfigurationError, match=words):
            user_model.build(function, classes, given)
    small = functools.partial(models.mlp, hidden=[2])
    user_model.check(user_model.build(small, classes, {}), small, classes, 1)


def test_messages_of_keras_have_no_colors(classes: Dataset) -> None:
    class Broken(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            raise ValueError("no such image")

    def build_model(dataset: Dataset) -> Any:
        return Broken()(keras.Input((4,)))

    with pytest.raises(ValueError, match="\x1b") as caught:
        build_model(classes)
    problem = problem_of(user_model.build, build_model, classes, {})
    assert "no such image" in problem.received and "no such image" in str(caught.value)
    assert not any(part in str(problem) for part in ("\x1b", "[1m", "[0m", "x1b"))


def test_processes_that_build_different_models_are_refused(classes: Dataset) -> None:
    model = _sequential(keras.Input((FEATURES,)), Dense(3))

    def check(change: float) -> None:
        def gather(data: bytes) -> list[bytes]:
            return [data, (np.frombuffer(data, np.float32) * change).tobytes()]

        strategy = tf.distribute.get_strategy()
        replicas: Any = SimpleNamespace(count=2, gather=gather, strategy=strategy)
        self_test.check_model(model, classes, replicas)

    check(1.0001)
    with pytest.raises(ConfigurationError, match="different models"):
        check(1.1)


def test_images_are_square_unless_their_size_is_given(classes: Dataset) -> None:
    with pytest.raises(ConfigurationError, match="2 x 2"):
        user_model.build(models.cnn, classes, {})
    with pytest.raises(ConfigurationError, match="image"):
        user_model.build(models.cnn, classes, {"channels": 0})
    for size in ({"height": 2, "width": 3}, {"height": 2}, {"height": 1, "channels": 3}):
        model = user_model.build(models.cnn, classes, size | {"filters": [4], "dropout": 0.1})
        user_model.check(model, models.cnn, classes, 2)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("callbacks = [1]\n", r"not return a list of callbacks.*callbacks = \[1\]"),
        ("def callbacks(dataset):\n    1 / 0\n", r"ZeroDivisionError.*own.*\.py, line 2\)"),
        ("def callbacks(): return []\n", "takes 0 positional arguments but 1 was given"),
    ],
)
def test_what_is_no_list_of_callbacks_is_refused(
    module: Callable[..., str], classes: Dataset, tmp_path: Path, code: str, words: str
) -> None:
    name = module(f"{code}def build_model(dataset): ...\n")
    user_model.find(f"{name}:build_model", tmp_path)
    with pytest.raises(ConfigurationError, match=words):
        user_model.callbacks(f"{name}:build_model", classes)


def test_a_module_called_callbacks_is_no_list_of_them(
    module: Callable[..., str], classes: Dataset, tmp_path: Path
) -> None:
    name = module("from keras import callbacks\ndef build_model(dataset): ...\n")
    user_model.find(f"{name}:build_model", tmp_path)
    assert user_model.callbacks(f"{name}:build_model", classes) == []


def _serve(model: Any, dataset: Dataset, folder: Path, rows: np.ndarray) -> dict[str, np.ndarray]:
    user_model.check(model, lambda: None, dataset, 1)
    logits = probabilities.check(model, dataset, Replicas(tf.distribute.get_strategy()))
    export(model, dataset, folder, logits)
    loaded = tf.saved_model.load(str(folder / "model"))
    outputs = loaded.signatures["serve_packed"](features=tf.constant(rows))
    return {name: value.numpy() for name, value in outputs.items()}


ROWS = np.random.default_rng(3).normal(size=(7, FEATURES)).astype(np.float32)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_a_regression_answers_in_the_units_of_the_label(
    values: Dataset, tmp_path: Path, name: str
) -> None:
    arguments = {} if name == "mlp" else {"height": 2, "width": 3}
    model = getattr(models, name)(values, **arguments)
    outputs = _serve(model, values, tmp_path, ROWS)
    assert set(outputs) == {"prediction"}
    assert outputs["prediction"].shape == (7,)
    unit = 1e-5 * values.label_std
    np.testing.assert_allclose(outputs["prediction"], model(ROWS)[:, 0], rtol=1e-5, atol=unit)
    middle = model(np.tile(values.mean, (1, 1)))
    assert float(middle[0, 0]) == pytest.approx(values.label_mean, abs=3 * values.label_std)


@pytest.mark.parametrize("scale", [1e-9, 1e6])
def test_a_regression_learns_a_label_in_any_unit(values: Dataset, scale: float) -> None:
    rows = np.random.default_rng(3).normal(size=(64, FEATURES)).astype(np.float32)
    labels = (scale * (3 + rows[:, 0])).astype(np.float32)
    own = {"label_mean": float(labels.mean()), "label_std": float(labels.std())}
    ones = {"mean": np.zeros(FEATURES, np.float32), "std": np.ones(FEATURES, np.float32)}
    model = models.mlp(dataclasses.replace(values, **own, **ones), hidden=[], learning_rate=0.05)
    steps = 300  # in one epoch: each has all rows
    many, of_many = np.tile(rows, (steps, 1)), np.tile(labels, steps)
    model.fit(many, of_many, batch_size=len(rows), shuffle=False, verbose=0)
    errors = (model(rows)[:, 0].numpy() - labels) / scale
    assert np.sqrt((errors**2).mean()) < 0.1


@pytest.mark.parametrize("build", [models.mlp, functools.partial(models.cnn, height=2, width=3)])
@pytest.mark.parametrize("std", [5e-20, 9e-17, 1.1e16, 1e19])
def test_a_label_whose_squared_errors_exceed_float32_is_refused(
    values: Dataset, build: Callable[[Dataset], keras.Model], std: float
) -> None:
    """Its loss was NaN in the first step."""
    problem = problem_of(build, dataclasses.replace(values, label_std=std))
    assert problem.received == f"a standard deviation of {std:.3g}"
    assert problem.name == "loss-not-finite"


@pytest.mark.parametrize("std", [1e-16, 1e16])
def test_the_loss_of_errors_of_a_thousand_deviations_is_finite(values: Dataset, std: float) -> None:
    model = models.mlp(dataclasses.replace(values, label_mean=0.0, label_std=std))
    for error in (1e-2, 1.0, 1e3):
        labels = tf.constant([[error * std]], tf.float32)
        assert float(model.compute_loss(y=labels, y_pred=tf.zeros((1, 1)))) == pytest.approx(
            error**2, rel=1e-4
        )


def test_who_serves_gets_no_state_of_the_optimizer(values: Dataset, tmp_path: Path) -> None:
    model = models.mlp(values, dropout=0.1)
    model.fit(ROWS, ROWS[:, 0], verbose=0)
    _serve(model, values, tmp_path, ROWS)
    stored = dict(tf.train.list_variables(str(tmp_path / "model" / "variables" / "variables")))
    del stored["_CHECKPOINTABLE_OBJECT_GRAPH"]
    assert sorted(map(tuple, stored.values())) == sorted(tuple(v.shape) for v in model.variables)
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    named, default = (loaded.signatures[name] for name in ("serve", "serving_default"))
    names = argument_names(values.feature_names)
    columns = {name: tf.constant(ROWS[:, i]) for i, name in enumerate(names)}
    assert (named(**columns)["prediction"] == default(**columns)["prediction"]).numpy().all()


# Keras warns of such a class; people write them all the same.
@pytest.mark.filterwarnings("ignore:.build... was called on layer:UserWarning")
def test_what_belongs_to_tensorflow_is_exported_too(classes: Dataset, tmp_path: Path) -> None:
    """Keras exports such models; ours ended with "untracked resource" after the whole training."""

    class Counted(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.largest = keras.metrics.Mean()

        def call(self, x: Any) -> Any:
            self.largest.update_state(keras.ops.max(x))
            return x

    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            keys, values = tf.range(10, dtype=tf.int64), tf.range(10, dtype=tf.float32)
            initial = tf.lookup.KeyValueTensorInitializer(keys, values)
            self.table = tf.lookup.StaticHashTable(initial, -1.0)
            self.scale = tf.Variable(np.full(FEATURES, 2, np.float32), trainable=False)
            self.counted, self.out = Counted(), Dense(3, "softmax")
            self.normal = keras.layers.Normalization(mean=classes.mean, variance=classes.std**2)
            self.unused = keras.layers.Normalization()

        def call(self, x: Any) -> Any:
            x = self.normal(x)
            found = self.table.lookup(tf.cast(x[:, :1], tf.int64))
            return self.out(tf.concat([self.counted(x) / self.scale, found], 1))

    own = Own()
    own.compile("adam", loss="sparse_categorical_crossentropy")
    outputs = _serve(own, classes, tmp_path, ROWS)
    np.testing.assert_allclose(outputs["probabilities"], own(ROWS), rtol=1e-5)


def test_probabilities_are_not_softened_twice(classes: Dataset, tmp_path: Path) -> None:
    plain = _sequential(keras.Input((FEATURES,)), Dense(3, "softmax"))
    outputs = _serve(plain, classes, tmp_path, ROWS)
    np.testing.assert_allclose(outputs["probabilities"], plain(ROWS), rtol=1e-5)

    def own_loss(y: Any, predicted: Any) -> Any:
        return keras.losses.sparse_categorical_crossentropy(y, predicted)

    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.out = Dense(3)

        def call(self, x: Any) -> Any:
            return keras.ops.softmax(self.out(x))

    own = Own()
    own.compile("adam", loss=own_loss)
    inputs = keras.Input((FEATURES,))
    functional = keras.Model(inputs, keras.ops.softmax(Dense(3)(inputs)))
    functional.compile("adam", loss=own_loss)
    for number, model in enumerate(
        (
            _sequential(Dense(3), keras.layers.Softmax(), loss=own_loss),
            _sequential(  # the last layer casts, as in the guide of Keras to mixed precision
                keras.Input((FEATURES,)),
                Dense(3, "softmax"),
                keras.layers.Activation("linear", dtype="float32"),
                loss=own_loss,
            ),
            functional,
            own,
        )
    ):
        outputs = _serve(model, classes, tmp_path / str(number), ROWS)
        np.testing.assert_allclose(outputs["probabilities"], model(ROWS), rtol=1e-5)

    def of_logits(y: Any, predicted: Any) -> Any:
        return own_loss(y, keras.ops.softmax(predicted))

    linear = _sequential(keras.Input((FEATURES,)), Dense(3), loss=of_logits)
    outputs = _serve(linear, classes, tmp_path / "linear", ROWS)
    np.testing.assert_allclose(outputs["probabilities"].sum(1), 1, rtol=1e-5)


@pytest.mark.parametrize("logits", [False, True])
def test_one_sigmoid_becomes_two_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logits: bool
) -> None:
    monkeypatch.setattr(tiny_dataset, "CLASSES", ("no", "yes"))
    two = Dataset.load(tiny_dataset.write(tmp_path / "dataset"))
    loss = keras.losses.BinaryCrossentropy(from_logits=logits)
    model = _sequential(
        keras.Input((FEATURES,)),
        Dense(1, None if logits else "sigmoid"),
        loss=loss,
        metrics=["accuracy"],
    )
    outputs = _serve(model, two, tmp_path, ROWS)
    scores = np.asarray(model(ROWS))[:, 0]
    yes = 1 / (1 + np.exp(-scores)) if logits else scores
    np.testing.assert_allclose(outputs["probabilities"][:, 1], yes, rtol=1e-5)
    np.testing.assert_allclose(outputs["probabilities"].sum(1), 1, rtol=1e-6)
    assert [item.decode() for item in outputs["class"]] == [
        "yes" if item > 0.5 else "no" for item in yes
    ]
