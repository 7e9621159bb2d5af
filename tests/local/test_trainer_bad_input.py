"""What the user has to fix ends every replica of a job with the same code and message."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from kfp_tfjob.pipelines.local.s3_server import Server
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import ConfigurationError
from kfp_tfjob.storage.layout import MANIFEST
from kfp_tfjob.storage.manifest import Manifest
from kfp_tfjob.storage.store import Store
from tests.local import tiny_dataset
from tests.local.trainer_jobs import Start

# The four parts of a message: what is wrong is another one for each case.
PARTS = r".* Received: .+ Expected: .+ Fix: .+"


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


@dataclass(frozen=True)
class Case:
    """One thing that is wrong."""

    exit_code: int
    words: str
    data: str = "classification"
    code: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    output_is_a_file: bool = False


CASES = {
    "an output that cannot be written to": Case(
        2, "the output cannot be written to", output_is_a_file=True
    ),
    # It stops one replica only, which counts its labels. test_trainer_process.py reads such a row.
    "a label outside the classes that are weighted": Case(
        3,
        "a label in the dataset is not one of its classes",
        data="wrong",
        environment={"TRAIN_OPTIONS": '{"class_weight": "balanced"}'},
    ),
    "a batch that cannot be divided": Case(
        2, "the batch cannot be divided over the replicas", environment={"BATCH_SIZE": "3"}
    ),
    "a manifest without a shard": Case(3, "the split train is not complete", data="bad/incomplete"),
    "a shard that changed": Case(3, "does not match its manifest", data="bad/changed"),
    "a disk that is too small": Case(2, "there is no space for", data="bad/huge"),
    "a loss that ends the process": Case(2, "the model code ended the process", code=EXITS),
}


@pytest.fixture(scope="module")
def damaged(s3: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Datasets with something wrong below s3://test/bad."""
    store, bad = s3.store(), S3Address("test", "bad")
    folder = tiny_dataset.write(tmp_path_factory.mktemp("data"))

    tiny_dataset.send(store, folder, bad / "changed")
    store.write(bad / "changed" / "train-00001.tfrecord", b"something else")

    tiny_dataset.send(store, folder, bad / "huge")
    _rewrite_manifest(
        store,
        bad / "huge",
        lambda old: [
            replace(item, size=10**15) if item.key == "train-00001.tfrecord" else item
            for item in old.objects
        ],
    )

    (folder / "train-00001.tfrecord").unlink()
    tiny_dataset.send(store, folder, bad / "incomplete")
    yield


def _rewrite_manifest(store: Store, address: S3Address, change: Callable) -> None:
    old = store.read_manifest(address / MANIFEST)
    new = Manifest.of(old.kind, change(old), details=old.details)
    store.write(address / MANIFEST, new.to_bytes())


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_replica_ends_with_the_same_error(
    jobs: Start, damaged: None, tmp_path: Path, name: str
) -> None:
    case = CASES[name]
    if case.output_is_a_file:
        (tmp_path / "0").mkdir()
        (tmp_path / "0" / "output").touch()
    job = jobs("bad", 2, case.data, case.code, tmp_path, START_DEADLINE="120", **case.environment)
    assert job.end() == [case.exit_code] * 2, job.log() + job.log(1)
    for replica in range(2):
        words = job.words(replica)
        assert re.search(case.words + PARTS, " ".join(words.split())), words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "TF_CONFIG is not valid: .*Received: {. Expected: a JSON object"),
        ('{"cluster": {"worker": 3}, "task": {}}', "TF_CONFIG is not valid: .*Received: "),
        (
            '{"cluster": {"master": ["a:1"], "worker": ["b:1"]},'
            ' "task": {"type": "worker", "index": 0}}',
            "TF_CONFIG has a replica of the type Master.* Fix: call it Chief",
        ),
        (
            '{"cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1"]},'
            ' "task": {"type": "worker", "index": 0}}',
            "TF_CONFIG names 1 chief and 2 workers. Expected: 2 replicas",
        ),
    ],
)
def test_a_wrong_tf_config_ends_a_replica_before_it_trains(
    jobs: Start, text: str, words: str
) -> None:
    replicas = [jobs("cluster", TF_CONFIG=text, EXPECTED_REPLICAS="2") for _ in range(2)]
    assert [job.end() for job in replicas] == [[2], [2]]
    for job in replicas:
        assert re.search(words, job.words()), job.words()
        assert "loading TensorFlow" not in job.log()


def test_processes_that_build_different_models_are_refused(tmp_path: Path) -> None:
    import keras
    import numpy as np

    from kfp_tfjob.trainer import self_test
    from kfp_tfjob.trainer.dataset import Dataset

    dataset = Dataset.load(tiny_dataset.write(tmp_path))
    model = keras.Sequential([keras.Input((dataset.num_features,)), keras.layers.Dense(3)])

    def check(change: float) -> None:
        def gather(data: bytes) -> list[bytes]:
            return [data, (np.frombuffer(data, np.float32) * change).tobytes()]

        self_test.check_model(model, dataset, SimpleNamespace(count=2, gather=gather))

    check(1.0001)
    with pytest.raises(ConfigurationError, match="different models"):
        check(1.1)
