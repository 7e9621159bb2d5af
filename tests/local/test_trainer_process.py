"""The trainer as processes under the supervisor: equal results, recovery, ends that say why."""

import json
import re
import time
from pathlib import Path

import keras
import numpy as np
import psutil
import pytest
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from kfp_tfjob.common.docs_page import split_address
from kfp_tfjob.options.train import Profile
from kfp_tfjob.trainer.profiler import Profiler
from tests.local import tiny_dataset
from tests.local.replica import tf_config
from tests.local.trainer_jobs import BATCH, ROOT, SECONDS, STEPS, Job, Start
from tests.ports import free_port
from tests.problems import problem_of

# Callbacks of every kind: one sets the learning rate, one writes, one changes the weights.
CODE = """
import os
from pathlib import Path
import keras
from kfp_tfjob.trainer.models import mlp

def build_model(dataset):
    Path("built").write_text(os.getcwd())
    return mlp(dataset)

class Shrink(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        Path("notes").mkdir(exist_ok=True)
        Path(f"notes/{epoch}.txt").write_text("shrunk")
        self.model.set_weights([weight * 0.99 for weight in self.model.get_weights()])

def callbacks(dataset):
    return [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        keras.callbacks.CSVLogger("logs/log.csv"),
        Shrink(),
    ]
"""


@pytest.fixture(scope="module")
def alone(jobs: Start) -> Job:
    """One process without TF_CONFIG, to its end."""
    profile = json.dumps({"profile": {"start": STEPS - 1, "steps": 3}})  # in both epochs
    job = jobs(
        "alone",
        code=CODE,
        EPOCHS="2",
        TRAIN_OPTIONS=profile,
        KERAS_BACKEND="jax",  # of the user's shell
    )
    assert job.end() == [0], job.log()
    return job


def test_two_processes_compute_what_one_computes(jobs: Start, alone: Job) -> None:
    proxy = "http://127.0.0.1:9"  # nobody answers there: replicas must not ask it
    pair = jobs("pair", 2, code=CODE, late=[0], grpc_proxy=proxy)
    pair.until(lambda: "waiting for 1 other replica" in pair.log(1))
    pair.start(0)  # a chief that is late is waited for
    assert pair.end() == [0, 0], pair.log()
    hashes = [re.findall("weights sha256 ([0-9a-f]{64})", pair.log(at)) for at in range(2)]
    assert hashes == [[pair.final["trained_weights_sha256"]]] * 2
    assert (pair.final["replicas"], alone.final["replicas"]) == (2, 1)
    assert pair.final["step"] == alone.final["step"] == 2 * STEPS
    for mine, other in zip(pair.events("epoch"), alone.events("epoch"), strict=True):
        assert set(mine["metrics"]) == {"loss", "accuracy", "val_loss", "val_accuracy"}
        assert mine["metrics"] == pytest.approx(other["metrics"], rel=1e-6)
    assert alone.final["metrics"]["val_accuracy"] > 0.6
    # Every replica works in its own OUTPUT_DIR; only the chief's is stored.
    worker = pair.folder / "1" / "output"
    assert [item.name for item in worker.iterdir()] == ["built"]
    assert (worker / "built").read_text() == str(worker)
    rates = [line.split(",")[2] for line in _csv(pair)]
    assert rates == [line.split(",")[2] for line in _csv(alone)]
    assert rates[0] == "learning_rate" and float(rates[2]) == pytest.approx(float(rates[1]) * 0.9)
    assert "Shrink" in pair.log()
    figures = pair.events("epoch")[-1]
    speed, each = "examples_per_second", "examples_per_second_per_replica"
    assert figures[speed] == pytest.approx(2 * figures[each], rel=0.01)
    assert (pair.final["attempt"], pair.final["restarts"]) == (1, 0)
    spent = pair.final["seconds"]
    names = {"start", "data", "compute", "checkpoint", "callbacks", "export"}
    assert set(spent) == names and spent["compute"] > 0 and spent["start"] > 0


def test_what_the_chief_leaves(alone: Job) -> None:
    assert alone.checkpoint() == 2 * STEPS
    assert json.loads((alone.output / "completion.json").read_text())["run_id"] == "alone"
    assert list((alone.output / "logs" / "train").iterdir())
    assert {item.name for item in (alone.output / "notes").iterdir()} == {"0.txt", "1.txt"}
    assert re.search(
        r"epoch 2/2 step \d+/\d+ loss [\d.]+ accuracy [\d.]+ .*\| \d+ examples/s .*\| ETA \d+ s",
        alone.log(),
    )
    assert not [item for item in alone.output.rglob("*") if item.name.endswith((".tmp", ".part"))]


def test_the_profile_has_the_steps_that_were_asked_for(alone: Job) -> None:
    (path,) = alone.output.glob("logs/train/plugins/profile/*/*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    steps = [
        stat.int64_value
        for plane in space.planes
        for line in plane.lines
        for event in line.events
        if plane.event_metadata[event.metadata_id].name == "train"
        for stat in event.stats
        if plane.stat_metadata[stat.metadata_id].name == "step_num"
    ]
    assert sorted(steps) == [STEPS - 1, STEPS, STEPS + 1]


def test_a_profile_beyond_the_training_is_refused(tmp_path: Path) -> None:
    for start, steps in ((13, 1), (10, 4), (1, 13)):
        arguments = Profile(start=start, steps=steps), 12, tmp_path, True
        assert problem_of(Profiler, *arguments).path == "train_options.profile"
    within = Profiler(Profile(start=10, steps=3), 12, tmp_path, True)
    groups = [within.at_most(done) for done in (0, 8, 9, 11, 12)]
    assert groups == [9, 1, 1, 1, None]


def test_the_saved_model_takes_raw_columns_and_packed_rows_alike(alone: Job) -> None:
    loaded = tf.saved_model.load(str(alone.output / "model"))
    columns = json.loads((alone.output / "model" / "assets.extra" / "columns.json").read_text())
    assert [item["column"] for item in columns] == list(tiny_dataset.FEATURES)
    rows = np.random.default_rng(1).normal(size=(9, len(columns))).astype(np.float32) * 5
    packed = loaded.signatures["serve_packed"](features=tf.constant(rows))
    named = loaded.signatures["serve"](
        **{item["argument"]: tf.constant(rows[:, at]) for at, item in enumerate(columns)}
    )
    again = keras.models.load_model(alone.output / "model.keras")
    expected = tf.nn.softmax(again(rows)).numpy()
    for outputs in (packed, named):
        assert set(outputs) == {"probabilities", "class"}
        np.testing.assert_allclose(outputs["probabilities"], expected, rtol=1e-5)
        names = [name.decode() for name in outputs["class"].numpy()]
        assert names == [tiny_dataset.CLASSES[at] for at in expected.argmax(1)]


@pytest.mark.slow
def test_deterministic_ops_compute_the_same(jobs: Start, alone: Job) -> None:
    job = jobs("same", code=CODE, TRAIN_OPTIONS='{"deterministic_ops": true}')
    assert job.end() == [0], job.log()
    assert job.final["metrics"] == pytest.approx(alone.final["metrics"], rel=1e-4)
    assert job.final["seconds"]["data"] == 0  # nothing may read a clock


@pytest.mark.slow
def test_a_loss_that_is_not_finite_ends_every_replica_with_4(jobs: Start) -> None:
    job = jobs("nan", 2, data="regression", HYPERPARAMETERS='{"learning_rate": 1e30}')
    assert job.end() == [4, 4], job.log()
    assert all("epoch 1, step " in job.words(at) for at in range(2))
    assert not (job.output / "model").exists()


@pytest.mark.slow
def test_a_replica_that_waits_for_its_peers_ends_when_told(jobs: Start) -> None:
    config = tf_config(["127.0.0.1:1", f"127.0.0.1:{free_port()}"], 1)
    told = jobs("told", START_DEADLINE="600", EXPECTED_REPLICAS="2", TF_CONFIG=config)
    told.until(lambda: "waiting for 1 other replica" in told.log())
    time.sleep(1)  # long enough for TensorFlow to have taken the signal; earlier it is easy
    told.processes[0].terminate()
    assert told.end() == [143], told.log()


def test_a_row_of_no_class_ends_the_training_with_3(jobs: Start) -> None:
    job = jobs("wrong", data="wrong")
    assert job.end() == [3], job.log()
    assert " label " in job.words()
    assert not (job.output / "completion.json").exists()


EXITS = """
import sys

import keras

def build_model(dataset):
    model = keras.Sequential([keras.Input((dataset.num_features,)), keras.layers.Dense(3)])
    model.compile("adam", loss)
    return model

def loss(classes, predicted):
    sys.exit(0)
"""


HIDDEN_TABLE = """
import keras
import tensorflow as tf

def build_model(dataset):
    keys, values = tf.range(10, dtype=tf.int64), tf.range(10, dtype=tf.float32)
    initial = tf.lookup.KeyValueTensorInitializer(keys, values)
    table = tf.lookup.StaticHashTable(initial, -1.0)

    class Find(keras.layers.Layer):
        def call(self, x):
            return table.lookup(tf.cast(x, tf.int64))

    inputs = keras.Input((dataset.num_features,))
    model = keras.Model(inputs, keras.layers.Dense(3, "softmax")(Find()(inputs)))
    model.compile("adam", "sparse_categorical_crossentropy")
    return model
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "data", "options", "exit_code"),
    [
        (EXITS, "classification", "{}", 2),
        (HIDDEN_TABLE, "classification", "{}", 2),
        # It stops one replica only, which counts the labels.
        ("", "wrong", '{"class_weight": "balanced"}', 3),
        ("an output that is a file", "classification", "{}", 2),
    ],
    ids=[
        "a loss that ends the process",
        "a model that cannot be exported",
        "a label outside of the classes",
        "the chief's output",
    ],
)
def test_every_replica_ends_with_the_same_error(
    jobs: Start, tmp_path: Path, code: str, data: str, options: str, exit_code: int
) -> None:
    if code.startswith("an output"):
        (tmp_path / "0").mkdir()
        (tmp_path / "0" / "output").touch()
        code = ""
    job = jobs("bad", 2, data, code, tmp_path, START_DEADLINE="120", TRAIN_OPTIONS=options)
    assert job.end() == [exit_code] * 2, job.log() + job.log(1)
    words = [job.words(replica).partition(" Received: ") for replica in range(2)]
    assert all(" Fix: " in rest for _, _, rest in words)
    assert not (job.output / "progress.jsonl").exists() or data == "wrong"
    # One may have heard of it from the other, whose name comes first.
    whats = sorted((what for what, _, _ in words), key=len)
    assert whats[1].endswith(whats[0].rpartition(": ")[2])


ON_READ = """
import keras
import tensorflow as tf

class Counted(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.largest = keras.metrics.Mean()
        self.rows = tf.Variable(
            0.0,
            trainable=False,
            name="rows",
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )

    def call(self, x, training=False):
        self.largest.update_state(keras.ops.max(x))
        if training:
            self.rows.assign_add(tf.cast(tf.shape(x)[0], tf.float32))
        return x

def build_model(dataset):
    layers = [keras.Input((dataset.num_features,)), Counted(), keras.layers.Dense(3, "softmax")]
    model = keras.Sequential(layers)
    model.compile("adam", "sparse_categorical_crossentropy")
    return model
"""


@pytest.mark.slow
def test_what_each_replica_has_for_itself_is_exported_in_sum(jobs: Start) -> None:
    """The chief, which exports alone, waited for the other replicas."""
    job = jobs("on-read", 2, code=ON_READ)
    assert job.end() == [0, 0], job.log()
    stored = str(job.output / "model" / "variables" / "variables")
    (rows,) = [name for name, shape in tf.train.list_variables(stored) if "rows" in name]
    assert tf.train.load_variable(stored, rows) == 2 * STEPS * BATCH


@pytest.mark.slow
def test_a_callback_that_waits_for_the_others_ends_every_replica_with_2(jobs: Start) -> None:
    """Without the guard the chief would wait for a sum that no other replica takes part in."""
    reads = "def on_epoch_begin(self, epoch, logs=None): self.model.metrics[0].result()"
    code = CODE.replace(
        "def on_epoch_end(self, epoch, logs=None):", f"{reads}\n    def unused(self):"
    )
    job = jobs("collective", 2, code=code)
    assert job.end() == [2, 2], job.log()
    for replica in range(2):
        words = "the callback Shrink calls a collective operation in on_epoch_begin"
        message, name = split_address(job.words(replica))
        assert words in message and name == "callback-not-supported"


@pytest.mark.slow
def test_a_replica_without_its_gpus_trains_nothing(jobs: Start) -> None:
    job = jobs("gpus", EXPECTED_GPUS="1")
    assert job.end() == [2], job.log()
    message, name = split_address(job.words())
    assert "Received: 0 GPUs; " in message and name == "gpu-not-usable"
    assert not (job.output / "progress.jsonl").exists()


def _csv(job: Job) -> list[str]:
    return (job.output / "logs" / "log.csv").read_text().splitlines()


EPOCHS, FIRST = 20, 3
GROWTH = 1.02


@pytest.mark.slow
def test_the_memory_of_a_replica_does_not_grow(jobs: Start) -> None:
    """With evaluation, checkpoints all the time, the best of them, and early stopping's copy."""
    options = {
        "checkpoint_seconds": 0.5,
        "early_stopping": {"patience": EPOCHS, "restore_best_weights": True},
    }
    hyperparameters = {"hidden": [512, 512], "dropout": 0.1, "learning_rate": 1e-5}
    job = jobs(
        "memory",
        2,
        EPOCHS=str(EPOCHS),
        TRAIN_OPTIONS=json.dumps(options),
        HYPERPARAMETERS=json.dumps(hyperparameters),
    )
    progress = job.output / "progress.jsonl"
    job.until(lambda: progress.exists() and len(job.events("epoch")) >= FIRST)
    trainers = [psutil.Process(job.trainer(replica)) for replica in range(2)]
    first = [process.memory_info().rss for process in trainers]
    last, seen, deadline = first, first, time.monotonic() + 3 * SECONDS
    # The export that follows the last epoch needs memory of its own: only what was read before the
    # last epoch was over counts.
    while len(job.events("epoch")) < EPOCHS and time.monotonic() < deadline:
        last, seen = seen, [process.memory_info().rss for process in trainers]
        time.sleep(0.05)
    assert job.end() == [0, 0], job.log()
    growth = [after / before for before, after in zip(first, last, strict=True)]
    assert max(growth) <= GROWTH, (first, last)


@pytest.mark.parametrize("lost", [pytest.param("chief", marks=pytest.mark.slow), "worker"])
def test_a_replica_that_is_lost_while_the_model_is_built_is_started_again(
    jobs: Start, lost: str
) -> None:
    """The others fail in the user's code then, which creates the variables."""
    code = f"""
import json, os, pathlib, signal
from kfp_tfjob.trainer.models import mlp

def build_model(dataset):
    killed = pathlib.Path("killed")
    if json.loads(os.environ["TF_CONFIG"])["task"]["type"] == {lost!r} and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return mlp(dataset)
"""
    job = jobs(f"lost-{lost}", 2, code=code, MAX_RESTARTS="3")
    assert job.end() == [0, 0], job.log(0) + job.log(1)
    assert 1 <= job.final["restarts"] <= 3


def test_sockets_between_nodes_are_a_warning_in_the_log(jobs: Start) -> None:
    """The model's code writes what NCCL writes into the same file with GPUs on two nodes."""
    log = json.dumps((ROOT / "tests/data/nccl/sockets.log").read_text())
    code = f"""
import os
from pathlib import Path
from kfp_tfjob.trainer.models import mlp

def build_model(dataset):
    Path(os.environ["JOB_DIR"], f"nccl.{{os.getpid()}}.log").write_text({log})
    return mlp(dataset)
"""
    job = jobs("nccl", code=code, EPOCHS="1")
    assert job.end() == [0], job.log()
    assert "between nodes NET/Socket\n" in job.log()
    assert "Received: NET/Socket, eth0:10.244.1.17, net1:192.168.7.4" in job.log()
