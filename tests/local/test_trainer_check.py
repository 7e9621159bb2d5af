"""`python -m kfp_tfjob.trainer check`: everything of the contract that is missing or wrong."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.credentials import MOUNT_VARIABLE
from kfp_tfjob.storage.store import Store
from kfp_tfjob.trainer.check import NOTE, OK, WRONG, Finding, with_tensorflow, without_tensorflow
from tests.local import tiny_dataset

COLUMNS = len(tiny_dataset.FEATURES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_dataset.write(tmp_path_factory.mktemp("dataset") / "data")


@pytest.fixture
def environment(store: Store, base: S3Address, folder: Path, tmp_path: Path) -> dict[str, str]:
    """That of a replica of a run with a program of its own."""
    address = tiny_dataset.send(store, folder, base / "datasets" / "abc")
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "data").symlink_to(folder)
    return {
        "RUN_ID": "run",
        "ATTEMPT": "1",
        "DATASET_URI": str(address),
        "RUN_URI": str(base / "runs" / "run"),
        "MODEL_CODE": "train:main",
        "HYPERPARAMETERS": '{"units": 3}',
        "EPOCHS": "2",
        "BATCH_SIZE": "32",
        "JOB_DIR": str(tmp_path / "job"),
        "DATA_DIR": str(tmp_path / "job" / "data"),
        "OUTPUT_DIR": str(tmp_path / "output"),
        "EXPECTED_REPLICAS": "2",
        "EXPECTED_GPUS": "0",
        "TF_CONFIG": json.dumps(
            {
                "cluster": {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]},
                "task": {"type": "ps", "index": 0},
            }
        ),
    }


def by_subject(findings: Iterable[Finding]) -> dict[str, Finding]:
    return {item.subject: item for item in findings}


def test_what_fits_is_told(environment: dict[str, str]) -> None:
    found = by_subject(without_tensorflow(environment))
    assert not [item for item in found.values() if item.state == WRONG]
    assert {found[name].state for name in ("EPOCHS", "RUN_URI", "$OUTPUT_DIR", "python3")} == {OK}
    assert found["TRAIN_OPTIONS"].state == NOTE
    assert found["TF_CONFIG"].text == "ps 0"
    assert found["tensorflow"].text == "2.21.0"
    assert "objects" in found["dataset"].text and "3 shards" in found["$DATA_DIR"].text


def test_what_does_not_fit_is_told_at_once(
    environment: dict[str, str], store: Store, tmp_path: Path
) -> None:
    address = S3Address.parse(environment["DATASET_URI"], "DATASET_URI")
    store.write(address / "train-00001.tfrecord", b"another content")
    (tmp_path / "file").touch()
    wrong = environment | {
        "EPOCHS": "0",
        "HYPERPARAMETERS": "[]",
        "OUTPUT_DIR": str(tmp_path / "file"),
        "DATA_DIR": str(tmp_path),
        "EXPECTED_REPLICAS": "3",
        "REPLICAS_ON_THIS_MACHINE": "many",
        "START_DEADLINE": "soon",
    }
    problems = {
        item.subject: str(item.problem) for item in without_tensorflow(wrong) if item.state == WRONG
    }
    assert set(problems) == {
        "EPOCHS",
        "HYPERPARAMETERS",
        "TF_CONFIG",
        "REPLICAS_ON_THIS_MACHINE",
        "START_DEADLINE",
        "$OUTPUT_DIR",
        "dataset",
        "$DATA_DIR",
    }
    assert "train-00001.tfrecord" in problems["dataset"]
    assert "1 chief and 1 workers. Expected: 3 replicas" in problems["TF_CONFIG"]
    assert f"python -m kfp_tfjob.uploader pull {address} {tmp_path}" in problems["$DATA_DIR"]


def test_data_of_another_dataset_is_told(
    environment: dict[str, str], folder: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(folder, tmp_path / "other")
    (other / "train-00001.tfrecord").write_bytes((folder / "train-00000.tfrecord").read_bytes())
    (other / "validation-00000.tfrecord").unlink()
    (other / "train-00003.tfrecord").touch()  # a program that reads train-* would read it too
    found = by_subject(without_tensorflow(environment | {"DATA_DIR": str(other)}))["$DATA_DIR"]
    names = "train-00001.tfrecord, train-00003.tfrecord, validation-00000.tfrecord"
    assert f"DATA_DIR is not the dataset. Received: {other}, where {names}" in str(found.problem)


def test_gpus_that_are_wanted_have_to_be_there(environment: dict[str, str]) -> None:
    found = by_subject(with_tensorflow(environment | {"EXPECTED_GPUS": "1"}, None))
    problem = str(found["GPUs"].problem)
    assert "does not see its GPUs. Received: 0 GPUs; this container has no driver" in problem


def _finished(output: Path, columns: int = COLUMNS) -> Path:
    import keras

    layers = [keras.Input((columns,)), keras.layers.Dense(3, activation="softmax")]
    keras.Sequential(layers).export(output / "model", verbose=False)
    record = {"run_id": "run", "attempt": 1, "finished": "2026-01-01T00:00:00+00:00"}
    (output / "completion.json").write_text(json.dumps(record))
    return output


def test_the_model_of_a_program_is_asked_to_predict(
    environment: dict[str, str], tmp_path: Path
) -> None:
    fits = by_subject(with_tensorflow(environment, _finished(tmp_path / "fits")))
    assert [item.state for item in fits.values()] == [OK, OK, OK]
    assert fits["model"].text == "its classification output for 3 rows has the shape (3, 3)"

    other = by_subject(with_tensorflow(environment, _finished(tmp_path / "other", COLUMNS + 1)))
    assert "does not take the columns of the data" in str(other["model"].problem)

    nothing = by_subject(with_tensorflow(environment, tmp_path / "nothing"))
    assert nothing["completion.json"].state == nothing["model"].state == WRONG
    assert "cannot be loaded" in str(nothing["model"].problem)

    unknown = by_subject(with_tensorflow({"EXPECTED_GPUS": "0"}, tmp_path / "fits"))
    assert unknown["model"].state == NOTE and "serving_default" in unknown["model"].text


def test_what_the_model_check_stumbles_over_is_told(tmp_path: Path) -> None:
    output, nothing = _finished(tmp_path), {"EXPECTED_GPUS": "0"}
    (tmp_path / "schema.json").write_text("{}")
    other = by_subject(with_tensorflow(nothing | {"DATA_DIR": str(tmp_path)}, output))
    assert "KeyError: 'features'" in str(other["model"].problem)

    (output / "model" / "variables" / "variables.index").write_bytes(b"torn")
    torn = by_subject(with_tensorflow(nothing, output))
    assert "the model cannot be loaded" in str(torn["model"].problem)


def test_the_command_says_first_what_needs_no_tensorflow(
    environment: dict[str, str], s3: object, tmp_path: Path
) -> None:
    # An image without TensorFlow: it is found out last, and all the rest is told.
    (tmp_path / "tensorflow.py").write_text("raise ImportError('no TensorFlow in this image')")
    paths = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    done = subprocess.run(
        [sys.executable, "-m", "kfp_tfjob.trainer", "check"],
        env=environment
        | {"PYTHONPATH": paths, MOUNT_VARIABLE: os.environ[MOUNT_VARIABLE], "BATCH_SIZE": "x"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    problem = done.stdout.index("BATCH_SIZE is not valid. Received: 'x'")
    assert problem < done.stdout.index("TensorFlow or Keras cannot be imported")
    assert "no TensorFlow in this image" in done.stdout
