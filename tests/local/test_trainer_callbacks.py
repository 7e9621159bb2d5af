"""Keras' callbacks in the trainer's loop: the same as in model.fit, whatever interrupts it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers

from kfp_tfjob.common.errors import ConfigurationError, StepError
from kfp_tfjob.features.records import evaluation_slices, train_slices
from kfp_tfjob.options.train import TrainerOptions
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.trainer import checkpoint_folder, loop, models, user_model
from kfp_tfjob.trainer.callback_choice import choose
from kfp_tfjob.trainer.callback_runner import Callbacks
from kfp_tfjob.trainer.checkpoint_format import Position
from kfp_tfjob.trainer.config import Config
from kfp_tfjob.trainer.dataset import Dataset
from kfp_tfjob.trainer.errors import NotFiniteError, StoppedError
from kfp_tfjob.trainer.inputs import distribute, open_rows
from kfp_tfjob.trainer.loop import Training
from kfp_tfjob.trainer.replicas import Replicas
from tests.local import tiny_dataset
from tests.problems import problem_of, problems_of

BATCH = 100
STEPS = tiny_dataset.ROWS["train"] // BATCH
EPOCHS = 9
Make = Callable[[], Sequence[Any]]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return Dataset.load(tiny_dataset.write(tmp_path_factory.mktemp("dataset")))


@pytest.fixture(scope="module")
def untrained(dataset: Dataset) -> Any:
    """A model that no test trains."""
    return build_model(dataset)


@pytest.fixture
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the replicas agree after every step, so that every step may be the last one."""
    monkeypatch.setattr(loop, "_RUN_SECONDS", 0.0)


def build_model(dataset: Dataset, rate: float = 0.05) -> Any:
    keras.utils.clear_session()  # or the names of the layers differ from those of the last model
    keras.utils.set_random_seed(4)
    return models.mlp(dataset, hidden=[8], learning_rate=rate, dropout=0.2)


def train(
    dataset: Dataset,
    output: Path,
    callbacks: Make = list,
    stop: Callable[[], bool] = lambda: False,
    steps: int = 1,
    rate: float = 0.05,
    layer: Callable[[], Any] | None = None,
    **options: Any,
) -> Any:
    config = Config(
        S3Address("bucket", "dataset"),
        "own:build_model",
        EPOCHS,
        BATCH,
        output.parent,
        output,
        options=TrainerOptions(**options),
    )
    model = build_model(dataset, rate)
    if layer:
        optimizer, loss = model.optimizer, model.loss
        model = keras.Sequential([layer(), model])
        model.compile(optimizer, loss, metrics=["accuracy"])
    model.steps_per_execution = steps
    user_model.check(model, build_model, dataset, 1)
    replicas = Replicas(tf.distribute.get_strategy())
    return Training(config, dataset, model, replicas, stop, callbacks).run(), model


def test_a_long_evaluation_is_not_silent(
    dataset: Dataset,
    tmp_path: Path,
    short_runs: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The launcher ends a training whose chief logs nothing for stall_timeout_seconds."""
    monkeypatch.setattr(loop, "_SILENCE", 0.0)
    with caplog.at_level("INFO"):
        train(dataset, tmp_path / "output")
    assert "evaluated 1 of 1 steps" in caplog.text


def fit(dataset: Dataset, callbacks: Sequence[Any]) -> tuple[Any, Any]:
    """Train on the same batches with model.fit; return the history and the model."""

    def batches(split: str, slices: Callable[[], Any], steps: int) -> tf.data.Dataset:
        found = distribute(
            tf.distribute.get_strategy(), dataset, open_rows(dataset, split), slices, None
        )
        pairs = [next(found)[:2] for _ in range(steps)]
        types = tuple(tf.TensorSpec([None, *x.shape[1:]], x.dtype) for x in pairs[0])
        return tf.data.Dataset.from_generator(lambda: iter(pairs), output_signature=types).repeat()

    rows = dataset.rows
    training = batches(
        "train", lambda: train_slices(rows["train"], BATCH, 0, (0, 0), range(1), 1), EPOCHS * STEPS
    )
    parts = [step[0] for step in evaluation_slices(rows["validation"], BATCH, 1)]
    validation = batches("validation", lambda: parts, len(parts))
    model = build_model(dataset)
    history = model.fit(
        training,
        shuffle=False,  # the dataset has its order
        epochs=EPOCHS,
        steps_per_epoch=STEPS,
        validation_data=validation,
        validation_steps=len(parts),
        callbacks=list(callbacks),
        verbose=0,
    )
    return history.history, model


def of_keras(folder: str) -> list[Any]:
    """All callbacks of Keras that people use; training stops early and lowers the rate."""
    return [
        keras.callbacks.EarlyStopping(
            "val_loss", patience=3, min_delta=0.04, restore_best_weights=True
        ),
        keras.callbacks.ReduceLROnPlateau("val_loss", patience=1, min_delta=0.05, factor=0.3),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.98),
        keras.callbacks.CSVLogger(f"{folder}log.csv"),
        keras.callbacks.ModelCheckpoint(
            f"{folder}best.weights.h5", save_best_only=True, save_weights_only=True
        ),
        keras.callbacks.ModelCheckpoint(f"{folder}{{epoch}}-{{batch}}.keras", save_freq=47),
        keras.callbacks.TensorBoard(f"{folder}board"),
    ]


def files(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("*") if not p.name.startswith("events"))


def test_stopped_while_a_callback_evaluates_other_weights(
    dataset: Dataset, tmp_path: Path, short_runs: None
) -> None:
    """The weights of the evaluation were saved, and training went on from them."""
    evaluations: list[bool] = []

    class Halved(keras.callbacks.Callback):
        def on_test_begin(self, logs: Any = None) -> None:
            evaluations.append(True)
            self.kept = self.model.get_weights()
            self.model.set_weights([value / 2 for value in self.kept])

        def on_test_end(self, logs: Any = None) -> None:
            self.model.set_weights(self.kept)

    _, whole = train(dataset, tmp_path / "whole", lambda: [Halved()])
    evaluations.clear()
    with pytest.raises(StoppedError):
        train(dataset, tmp_path / "cut", lambda: [Halved()], lambda: len(evaluations) == 2)
    found, resumed = train(dataset, tmp_path / "cut", lambda: [Halved()])
    # An attempt after the last step evaluates once more, and trains no further.
    evaluations.clear()
    again, after = train(dataset, tmp_path / "cut", lambda: [Halved()])
    assert again.position == found.position and evaluations == [True]
    for one, *others in zip(*(it.get_weights() for it in (whole, resumed, after)), strict=True):
        assert all((one == other).all() for other in others)


def test_stopped_while_a_layer_counts_its_evaluations(
    dataset: Dataset, tmp_path: Path, short_runs: None
) -> None:
    """The counts of a part of the evaluation were saved, and added to those of the whole one."""

    class Counting(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.calls = self.add_weight(initializer="zeros", trainable=False, name="calls")

        def call(self, x: Any) -> Any:
            self.calls.assign_add(1.0)
            return x + 0.01 * self.calls

    agreements = iter(range(10**6))
    told = lambda: next(agreements) == STEPS  # in the evaluation of the first epoch  # noqa: E731
    more = {"layer": Counting, "checkpoint_seconds": 3600}
    _, whole = train(dataset, tmp_path / "whole", **more)
    with pytest.raises(StoppedError):
        train(dataset, tmp_path / "cut", stop=told, **more)
    assert checkpoint_folder.stored_steps(tmp_path / "cut" / "checkpoints") == [STEPS]
    _, resumed = train(dataset, tmp_path / "cut", **more)
    for one, other in zip(whole.get_weights(), resumed.get_weights(), strict=True):
        assert (one == other).all()


def test_callbacks_do_what_they_do_in_model_fit(dataset: Dataset, tmp_path: Path) -> None:
    logs, expected = fit(dataset, of_keras(f"{tmp_path}/fit/"))
    result, model = train(dataset, tmp_path / "trainer", lambda: of_keras("own/"))
    assert len(logs["loss"]) == result.position.epoch + 1 < EPOCHS
    assert model.history.history == {
        name: pytest.approx(values, rel=1e-6) for name, values in logs.items()
    }
    assert len(set(logs["learning_rate"])) > len(logs["loss"]) / 2
    for mine, other in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-6)
    assert files(tmp_path / "trainer" / "own") == files(tmp_path / "fit")
    keras.models.load_model(tmp_path / "trainer" / "own" / "3-7.keras")


def test_variables_of_several_replicas_are_numbers_too() -> None:
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        optimizer = optimizers.SGD(0.5)
        optimizer.iterations.assign(7)
    assert type(optimizer.iterations.value).__name__ == "MirroredVariable"
    assert (float(optimizer.learning_rate), int(optimizer.iterations)) == (0.5, 7)


def remembering() -> Any:
    """A callback of one's own, which every three steps does what depends on all it saw before."""

    class Remembering(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.seen, self.losses = [], np.zeros(0, np.float32)

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.first = batch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.seen.append([self.first, batch])
            self.losses = np.append(self.losses, np.float32(logs["loss"]))
            if len(self.seen) % 10 == 0:
                rate = self.model.optimizer.learning_rate
                self.model.optimizer.learning_rate = float(rate) * float(1 - self.losses.mean() / 5)

        def get_state(self) -> Any:
            return {"seen": self.seen, "losses": self.losses}

        def set_state(self, state: Any) -> None:
            self.seen, self.losses = state["seen"], state["losses"]

    return Remembering()


@pytest.mark.slow
def test_stopped_at_any_step_the_end_is_the_same(
    dataset: Dataset, tmp_path: Path, short_runs: None, caplog: Any, capsys: Any
) -> None:
    caplog.set_level("INFO")

    def run(name: str, stops: Sequence[int]) -> dict[str, Any]:
        output = tmp_path / name
        for stop in [*stops, 0]:
            own, agreements = remembering(), iter(range(1, 10**6))
            options = {
                "early_stopping": {"patience": 3, "min_delta": 0.04, "restore_best_weights": True},
                "reduce_lr_on_plateau": {"patience": 1, "min_delta": 0.05, "factor": 0.3},
            }

            def told(numbers: Any = agreements, at: int = stop) -> bool:
                return next(numbers) == at

            def make(own: Any = own) -> list[Any]:
                return [*of_keras("own/")[2:], own]

            try:
                result, model = train(dataset, output, make, told, steps=3, **options)
            except StoppedError:
                assert stop
        return {
            "result": result,
            "history": model.history.history,
            "rate": float(model.optimizer.learning_rate),
            "log": (output / "own" / "log.csv").read_bytes(),
            "files": files(output / "own"),
            "own": own.get_state() | {"losses": own.losses.tolist()},
        }

    undisturbed = run("undisturbed", [])
    last = undisturbed["result"].position.epoch + 1
    assert f"epoch {last}" in caplog.text
    assert f"Epoch {last}: early stopping" in capsys.readouterr().out
    # Within an epoch, in the evaluation at its end, two epochs later.
    assert run("stopped", [10, STEPS - 10 + 1, 2 * STEPS]) == undisturbed
    assert undisturbed["own"]["seen"][:7] == [[at, min(at + 2, 19)] for at in range(0, STEPS, 3)]
    assert len(undisturbed["log"].splitlines()) == undisturbed["result"].position.epoch + 2


def test_a_loss_that_is_not_finite_ends_the_training(dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(NotFiniteError, match="epoch 1") as ended:
        train(dataset, tmp_path / "output", rate=1e30)
    assert ended.value.code == 4


def of_one_hook(**hooks: Callable[..., Any]) -> Any:
    return type("Own", (keras.callbacks.Callback,), hooks)()


def in_the_loop(
    dataset: Dataset, output: Path, callback: Any, model: Any = None, **compiled: Any
) -> Any:
    model = model or build_model(dataset)
    if compiled:
        model.compile(loss="sparse_categorical_crossentropy", **compiled)
    user_model.check(model, build_model, dataset, 1)

    def chosen() -> Any:
        return choose(TrainerOptions(), lambda: [callback], model, ["loss", "val_loss"], output)

    return Callbacks(chosen, model, Replicas(tf.distribute.get_strategy()), EPOCHS, STEPS)


@pytest.mark.parametrize(
    ("callback", "words"),
    [
        (keras.callbacks.BackupAndRestore("b"), "BackupAndRestore is not supported.*newest"),
        (keras.callbacks.SwapEMAWeights(), "SwapEMAWeights is not supported.*use_ema"),
        ("x", "something that is not a callback.*str: 'x'"),
        (keras.callbacks.CSVLogger("progress.jsonl"), "CSVLogger must not write to this path"),
        (keras.callbacks.TensorBoard("../x"), "TensorBoard must not write to this path"),
    ],
)
def test_what_cannot_work_is_refused(
    dataset: Dataset, untrained: Any, tmp_path: Path, callback: Any, words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        in_the_loop(dataset, tmp_path, callback, untrained)


kinds = keras.callbacks


@pytest.mark.parametrize(
    "callback",
    [
        kinds.EarlyStopping("val_acc"),
        kinds.EarlyStopping("val_acc", mode="max"),
        kinds.ReduceLROnPlateau("val_acc", mode="max"),
        kinds.ModelCheckpoint("best.keras", "val_acc", mode="max", save_best_only=True),
    ],
)
def test_a_callback_of_a_metric_that_does_not_exist_is_refused(
    dataset: Dataset, untrained: Any, tmp_path: Path, callback: Any
) -> None:
    """It would never act, and only warn in every epoch."""
    problem = problem_of(in_the_loop, dataset, tmp_path, callback, untrained)
    assert (problem.received, problem.path) == ("val_acc", "")
    assert "loss, val_loss" in problem.expected


def test_a_callback_of_a_metric_without_a_direction_is_refused(
    dataset: Dataset, untrained: Any, tmp_path: Path
) -> None:
    def chosen(callback: Any) -> Any:
        own = lambda: [kinds.CSVLogger("log.csv"), callback]  # noqa: E731
        return choose(TrainerOptions(), own, untrained, ["val_gain"], tmp_path)

    problem = problem_of(chosen, kinds.EarlyStopping("val_gain"))
    assert problem.received == "mode auto"
    callback = kinds.EarlyStopping("val_gain", mode="max", min_delta=0.5)
    assert chosen(callback)[1].min_delta == 0.5


def test_a_callback_of_validation_rows_needs_some(untrained: Any, tmp_path: Path) -> None:
    def chosen() -> Any:
        return choose(
            TrainerOptions(), lambda: [kinds.EarlyStopping()], untrained, ["loss"], tmp_path
        )

    problem = problem_of(chosen)
    assert problem.received == "val_loss" and "data_options.split" not in problem.fix


def test_a_callback_may_add_metrics_for_the_next_ones(
    dataset: Dataset, untrained: Any, tmp_path: Path
) -> None:
    def gains(self: Any, epoch: int, logs: dict[str, float]) -> None:
        logs["val_gain"] = float(epoch)

    for own in (of_one_hook(on_epoch_end=gains), kinds.LambdaCallback(on_epoch_end=print)):
        next_one = kinds.EarlyStopping("val_gain", mode="max")
        choose(TrainerOptions(), lambda: [own, next_one], untrained, ["loss"], tmp_path)  # noqa: B023
    in_the_loop(dataset, tmp_path, kinds.ModelCheckpoint("all.keras", "val_acc"), untrained)


def _compiles(self: Any, epoch: int, logs: Any = None) -> None:
    self.model.compile("sgd", "sparse_categorical_crossentropy")


def _freezes(self: Any, epoch: int, logs: Any = None) -> None:
    self.model.layers[-1].trainable = False


def _replaces(self: Any, epoch: int, logs: Any = None) -> None:
    self.model.optimizer = optimizers.SGD(0.1)


@pytest.mark.parametrize(
    ("hook", "received"),
    [(_compiles, "line"), (_freezes, "/kernel"), (_replaces, "SGD")],
)
def test_what_is_compiled_cannot_change(
    dataset: Dataset, tmp_path: Path, hook: Any, received: str
) -> None:
    """The steps would go on as before, and the metrics would be those of nothing."""
    callbacks = in_the_loop(dataset, tmp_path, of_one_hook(on_epoch_begin=hook), metrics=["acc"])
    problem = problem_of(callbacks.call, "on_epoch_begin", 1)
    assert received in problem.received and "build_model" in problem.fix


def test_layers_may_be_unfrozen_at_the_end(dataset: Dataset, tmp_path: Path) -> None:
    callbacks = in_the_loop(dataset, tmp_path, of_one_hook(on_train_end=_freezes))
    callbacks.begin(Position())
    callbacks.call("on_train_end", {"loss": 1.0})


def test_a_callback_cannot_set_the_rate_of_a_schedule(dataset: Dataset, tmp_path: Path) -> None:
    schedule = optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    words = "cannot set the learning rate of this optimizer.*ExponentialDecay"
    with pytest.raises(ConfigurationError, match=words):
        in_the_loop(
            dataset,
            tmp_path,
            keras.callbacks.ReduceLROnPlateau(),
            optimizer=optimizers.SGD(schedule),
        )


def _evaluates(self: Any, epoch: int, logs: Any) -> None:
    self.model.evaluate(np.zeros((1, 6)), np.zeros(1))


def _fails(self: Any, epoch: int, logs: Any) -> None:
    raise KeyError(f"epoch {epoch}")


def _exits(self: Any, epoch: int, logs: Any) -> None:
    raise SystemExit(0)


def _writes(self: Any, epoch: int, logs: Any) -> None:
    Path("/nowhere/at/all").write_text("x")


@pytest.mark.parametrize(
    ("hook", "code", "words"),
    [
        (_evaluates, 2, r"model.evaluate in on_epoch_end.*line \d+\).*read the logs"),
        (_fails, 2, "Own failed in on_epoch_end.*KeyError: 'epoch 3'.*correct Own"),
        (_exits, 2, "Own failed in on_epoch_end.*SystemExit: 0"),
        (_writes, 1, "Own failed in on_epoch_end.*FileNotFoundError"),
    ],
)
def test_a_callback_that_fails_is_named(
    dataset: Dataset, untrained: Any, tmp_path: Path, hook: Any, code: int, words: str
) -> None:
    callbacks = in_the_loop(dataset, tmp_path, of_one_hook(on_epoch_end=hook), untrained)
    with pytest.raises(StepError, match=words) as found:
        callbacks.call("on_epoch_end", 3, {"loss": 1.0})
    assert found.value.code == code
    callbacks.call("on_test_begin")  # no callback has it
    assert "evaluate" not in vars(untrained)


def test_files_in_the_place_of_a_checkpoint_are_refused(dataset: Dataset, tmp_path: Path) -> None:
    """The checkpoint of their step was not written; later, they were removed as an old one."""
    output = tmp_path / "output"

    def write(self: Any, epoch: int, logs: Any = None) -> None:
        (output / "checkpoints" / "1").mkdir(parents=True, exist_ok=True)
        (output / "checkpoints" / "weights.txt").write_text("a file is no checkpoint")

    own = of_one_hook(on_epoch_begin=write)
    problem = problem_of(train, dataset, output, lambda: [own])
    assert str(output / "checkpoints" / "1") in problem.received


def test_an_optimizer_of_several_has_a_rate_for_each(dataset: Dataset, tmp_path: Path) -> None:
    both = (optimizers.SGD(0.5), optimizers.Adam(0.1))
    several = optimizers.MultiOptimizer(lambda item: both["kernel" in item.path])
    stops = of_one_hook(on_epoch_end=lambda self, *_: setattr(self.model, "stop_training", True))
    callbacks = in_the_loop(dataset, tmp_path, stops, optimizer=several)
    callbacks.begin(Position())
    assert not callbacks.call("on_epoch_end", 0, {"loss": 1.0})
    assert [float(item.learning_rate) for item in both] == pytest.approx([0.5, 0.1])


@pytest.mark.parametrize(
    ("state", "said"), [({"seen": {1, 2}}, "a set"), ({"best": [{3: 0.5}]}, "the key 3")]
)
def test_what_a_checkpoint_cannot_keep_is_refused_at_the_start(
    dataset: Dataset, tmp_path: Path, state: object, said: str
) -> None:
    own = of_one_hook(get_state=lambda self: state, set_state=lambda self, state: None)
    callbacks = in_the_loop(dataset, tmp_path, own)
    with pytest.raises(ConfigurationError, match=f"Own.*{said}"):
        callbacks.begin(Position())


def test_options_watch_a_metric_that_exists(dataset: Dataset, tmp_path: Path) -> None:
    model = build_model(dataset)
    options = TrainerOptions(
        early_stopping={"monitor": "val_auc"}, reduce_lr_on_plateau={"monitor": "speed"}
    )
    first, second = problems_of(choose, options, list, model, ["loss", "speed"], tmp_path)
    assert "early_stopping.monitor" in first.what and first.received == "val_auc"
    assert "speed" in second.what
    (stopping,) = choose(TrainerOptions(early_stopping={}), list, model, ["loss"], tmp_path)
    assert stopping.monitor == "loss"


def test_a_callback_without_state_is_named_and_batch_hooks_cost_only_who_has_them(
    dataset: Dataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    often = in_the_loop(dataset, tmp_path, of_one_hook(on_batch_end=lambda *_: None))
    often.begin(Position())
    assert (often.train_steps, often.test_steps) == (1, 0)
    assert "callback Own " in caplog.text
    caplog.clear()
    seldom = in_the_loop(dataset, tmp_path, keras.callbacks.TensorBoard(str(tmp_path / "board")))
    seldom.begin(Position())
    assert (seldom.train_steps, seldom.test_steps, caplog.text) == (0, 0, "")
