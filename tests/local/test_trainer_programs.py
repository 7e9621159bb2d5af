"""Programs of a user's own, those of examples/, through the whole pipeline."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pyarrow import parquet

from examples import people
from kfp_tfjob.common.errors import ObjectNotFoundError
from kfp_tfjob.components.summary import WHY_NOT_EVALUATED
from kfp_tfjob.features.schema import Schema
from kfp_tfjob.jobs.attempt_record import read_ends
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.local import tiny_dataset
from tests.local.local_run import Run, end_run, stored
from tests.ports import free_ports

ROOT = Path(__file__).parents[2]
SECONDS = 240.0


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "home"
    end_run(tmp_path / "home")


def start(home: Path, digits_csv: Path, example: str | Path, *settings: str) -> Run:
    program = example if isinstance(example, Path) else ROOT / "examples" / f"{example}.py"
    command = json.dumps(["python3", f"$(JOB_DIR)/code/{program.name}"])
    words = ["--data", str(digits_csv), "--label", "digit", "--model", str(program)]
    for setting in (f"train_options.command={command}", *settings):
        words += ["--set", setting]
    return Run(home, *words)


def accuracy(run: Run) -> float:
    return float(run.text.split("test       accuracy ")[1].split(",")[0])


@pytest.mark.slow
def test_a_plain_program_trains_in_the_same_job(home: Path, digits_csv: Path) -> None:
    run = start(home, digits_csv, "own_train", "train_epochs=6", "model_hyperparameters.units=32")
    assert run.wait() == 0, run.text
    # Both replicas computed the same sums.
    for name in ("chief-0", "worker-0"):
        assert f"[{name}] epoch 6/6 loss " in run.text
    losses = {line.split("loss ")[1] for line in run.lines if "epoch 6/6 loss " in line}
    assert len(losses) == 1
    assert accuracy(run) > 0.7
    assert "champion   s3://kfp-tfjob/models/digits/versions/1" in run.text


KERAS_2 = "so the program gets Keras 2"
# In the shape of the training operator's own example: the strategy here, the model in a module.
PARAMETER_SERVERS = """
import os
import tensorflow as tf
import helper

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    tf.distribute.Server(resolver.cluster_spec(), resolver.task_type, resolver.task_id).join()
strategy = tf.distribute.ParameterServerStrategy(resolver)
with strategy.scope():
    model = helper.build_model()
history = model.fit(helper.rows(), epochs=2, steps_per_epoch=20, verbose=2)
with open(os.environ["OUTPUT_DIR"] + "/accuracy.txt", "w") as file:
    file.write(str(history.history["accuracy"][-1]))
"""
HELPER = """
import tensorflow as tf

def build_model():
    model = tf.keras.Sequential([tf.keras.layers.Dense(2, activation="softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model

def rows():
    x = tf.random.normal((600, 4))
    labels = tf.cast(x[:, 0] > 0, tf.int64)
    return tf.data.Dataset.from_tensor_slices((x, labels)).shuffle(600).repeat().batch(20)
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_tutorial_becomes_the_champion(home: Path, digits_csv: Path, workers: int) -> None:
    run = start(home, digits_csv, "tutorial_train", f"train_workers={workers}", "train_epochs=4")
    assert run.wait() == 0, run.text
    assert sum(KERAS_2 in line for line in run.lines) == 1 + workers
    assert accuracy(run) > 0.7
    assert "champion   s3://kfp-tfjob/models/digits/versions/1" in run.text
    run.assert_nothing_left()


@pytest.mark.slow
def test_a_program_without_pyarrow_becomes_the_champion(home: Path, digits_csv: Path) -> None:
    program = ROOT / "tests" / "data" / "programs" / "npy_columns.py"
    options = ("train_workers=1", "train_epochs=4", "train_options.stage_data=npy")
    run = start(home, digits_csv, program, *options)
    assert run.wait() == 0, run.text
    assert sum(KERAS_2 in line for line in run.lines) == 2
    for replica in ("chief-0", "worker-0"):  # each converts the dataset for itself
        assert any(replica in line and ".npy files: " in line for line in run.lines)
    assert accuracy(run) > 0.7
    assert "champion   s3://kfp-tfjob/models/digits/versions/1" in run.text
    run.assert_nothing_left()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_program_that_stores_no_model_ends_with_its_output_proven(
    home: Path, digits_csv: Path, workers: int
) -> None:
    program = ROOT / "tests" / "data" / "programs" / "tutorial.py"
    options = ("train_options.evaluate=false", "train_options.stage_data=false")
    run = start(home, digits_csv, program, f"train_workers={workers}", *options)
    assert run.wait() == 0, run.text
    assert sum(KERAS_2 in line for line in run.lines) == 1 + workers
    assert "train_options.evaluate" in run.text
    assert not {line.split(" ")[0] for line in run.lines} & {"evaluate", "publish"}

    def look(layout: Layout, store: Store) -> None:
        at = layout.run(run.run_id)
        assert store.read(at.code / program.name) == program.read_bytes()
        (end,) = read_ends(store, at).values()
        codes = {pod.replica: pod.containers[-1].exit_code for pod in end.pods}
        assert set(codes) == {"chief-0", *(f"worker-{i}" for i in range(workers))}
        # The job has succeeded with its chief; a worker may still be about to end.
        assert codes.pop("chief-0") == 0 and set(codes.values()) <= {0, None}
        assert {it.key for it in store.read_manifest(at.manifest).objects} == {
            "output/completion.json"
        }
        assert json.loads(store.read(at.not_evaluated))["why"] == WHY_NOT_EVALUATED
        for absent in (at.verdict, at.failure("json")):
            with pytest.raises(ObjectNotFoundError):
                store.head(absent)

    stored(home, look)
    finish = (home / "runs" / run.run_id / "finish.md").read_text()
    assert finish.startswith(f"# Run {run.run_id} is complete")
    assert WHY_NOT_EVALUATED in finish.replace("`", "")


def test_model_fit_reads_the_parquet_files_on_two_replicas(home: Path, tmp_path: Path) -> None:
    program, table = ROOT / "tests" / "data" / "programs" / "people_fit.py", tmp_path / "people.csv"
    people.write(table, 900)
    command = json.dumps(["python3", f"$(JOB_DIR)/code/{program.name}"])
    words = ["--data", str(table), "--label", people.LABEL, "--model", str(program)]
    settings = ("train_workers=1", "train_epochs=3", "train_options.evaluate=false")
    for setting in (f"train_options.command={command}", *settings):
        words += ["--set", setting]
    run = Run(home, *words)
    assert run.wait() == 0, run.text
    assert sum(KERAS_2 in line for line in run.lines) == 2
    # Both replicas computed the same losses, each from its share of the rows.
    losses = [line.split("] losses ")[1] for line in run.lines if "] losses " in line]
    assert len(losses) == 2 and len({*losses}) == 1

    def read(layout: Layout, store: Store) -> None:
        result = json.loads(store.read(layout.run(run.run_id).output / "result.json"))
        address = S3Address.parse(result["dataset"])
        schema = Schema.from_bytes(store.read(address / "schema.json"))
        train = parquet.read_table(io.BytesIO(store.read(address / "train/00000.parquet")))
        assert result["columns"] == train.column_names == [*people.HEADER]
        assert result["rows"] == len(train) == schema.rows["train"]
        assert result["positive"] == train["income"].to_pylist().count(">50K")
        assert result["losses"] == json.loads(losses[0])
        assert result["losses"][-1] < result["losses"][0]
        documents = ["distributions.json", "schema.json", "statistics.json"]
        assert result["files"] == [*documents, "train", "validation"]

    stored(home, read)


def is_chief(process: psutil.Process) -> bool:
    task = json.loads(process.environ().get("TF_CONFIG", "{}")).get("task", {})
    return task.get("type") == "chief" and process.cmdline()[-1].endswith("code/own_train.py")


@pytest.mark.slow
def test_a_plain_program_goes_on_after_its_chief_was_killed(home: Path, digits_csv: Path) -> None:
    options = ("train_options.checkpoint_seconds=1", "train_options.backoff_seconds=0")
    run = start(home, digits_csv, "own_train", "train_epochs=400", *options)
    run.read_until("stored checkpoint")
    run.find(is_chief).kill()
    assert run.wait() == 0, run.text
    assert "attempt 2" in run.text
    second = run.text.partition("attempt 2")[2]
    assert "[chief-0] epoch 1/400 " not in second  # it went on from a checkpoint
    assert "[worker-0] epoch 400/400 " in second
    assert accuracy(run) > 0.9


@pytest.mark.slow
def test_the_loss_of_a_parameter_server_is_another_attempt(tmp_path: Path) -> None:
    kinds = ("chief", "worker", "ps")
    ports = free_ports(len(kinds))
    cluster = {kind: [f"127.0.0.1:{port}"] for kind, port in zip(kinds, ports, strict=True)}
    given = {"DATA_DIR": str(tiny_dataset.write(tmp_path / "data")), "HYPERPARAMETERS": "{}"}
    given |= {"EPOCHS": "100000", "BATCH_SIZE": "64"}
    processes = {}
    try:
        for kind in kinds:
            config = {"cluster": cluster, "task": {"type": kind, "index": 0}}
            own = {"OUTPUT_DIR": str(tmp_path / kind), "TF_CONFIG": json.dumps(config)}
            processes[kind] = subprocess.Popen(
                [sys.executable, "-u", str(ROOT / "examples" / "parameter_server.py")],
                env=os.environ | given | own,
                stdout=subprocess.PIPE if kind == "chief" else subprocess.DEVNULL,
                text=True,
            )
        lines = processes["chief"].stdout
        assert any(line.startswith("epoch 2/") for line in lines)
        processes["ps"].kill()
        assert any("parameter server" in line for line in lines)
        assert processes["chief"].wait(SECONDS) == 138
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


@pytest.mark.slow
def test_parameter_servers_and_an_evaluator(home: Path, digits_csv: Path) -> None:
    run = start(
        home,
        digits_csv,
        "parameter_server",
        "train_epochs=8",
        "pod.ps.replicas=1",
        "pod.evaluator.replicas=1",
    )
    assert run.wait() == 0, run.text
    assert "[chief-0] epoch 8/8 loss " in run.text
    assert accuracy(run) > 0.7
    run.assert_nothing_left()


@pytest.mark.slow
def test_fit_with_parameter_servers(home: Path, digits_csv: Path, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    program = tmp_path / "code" / "train.py"
    program.write_text(PARAMETER_SERVERS)
    program.with_name("helper.py").write_text(HELPER)
    (tmp_path / "code" / "model.py").write_text("def main(): ...\n")
    words = ["--data", str(digits_csv), "--label", "digit", "--model", f"{tmp_path}/code:main"]
    for setting in (
        'train_options.command=["python3", "$(JOB_DIR)/code/train.py"]',
        "pod.ps.replicas=1",
        "train_options.evaluate=false",
    ):
        words += ["--set", setting]
    run = Run(home, *words)
    assert run.wait() == 0, run.text
    assert KERAS_2 in run.text
    (stored_file,) = home.glob("runs/*/output/accuracy.txt")
    assert 0 < float(stored_file.read_text()) <= 1
