"""The environment of a replica is checked whole, before anything heavy is imported."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kfp_tfjob.options.train import TrainerOptions
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import ConfigurationError
from kfp_tfjob.trainer.config import Config
from kfp_tfjob.trainer.dataset import Dataset

RIGHT = {
    "DATASET_URI": "s3://bucket/datasets/abc",
    "MODEL_CODE": "kfp_tfjob.trainer.models:mlp",
    "EPOCHS": "3",
    "BATCH_SIZE": "32",
    "JOB_DIR": "/job",
    "OUTPUT_DIR": "/output",
}


def test_what_is_not_said_has_a_default() -> None:
    assert Config.from_environment(RIGHT) == Config(
        dataset_uri=S3Address("bucket", "datasets/abc"),
        model_code="kfp_tfjob.trainer.models:mlp",
        epochs=3,
        batch_size=32,
        job_dir=Path("/job"),
        output_dir=Path("/output"),
    )


def test_everything_can_be_said() -> None:
    options = {
        "seed": 3,
        "class_weight": {"a": 2},
        "early_stopping": {"patience": 2, "restore_best_weights": True},
        "reduce_lr_on_plateau": {"factor": 0.5, "min_lr": 0},
        "mixed_precision": True,
        "checkpoint_seconds": 5,
        "checkpoint_keep": 2,
        "micro_batches": 4,
        "sync_batch_norm": True,
        "jit_compile": True,
        "tf32": False,
        "deterministic_ops": True,
    }
    through_kfp = options | {"seed": 3.0, "checkpoint_keep": 2.0, "micro_batches": 4.0}
    cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"]}
    more = {
        "ATTEMPT": "2",
        "EXPECTED_GPUS": "0",
        "HYPERPARAMETERS": '{"hidden": [8]}',
        "TRAIN_OPTIONS": json.dumps(through_kfp),
        "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}}),
    }
    config = Config.from_environment(RIGHT | more)
    assert config.options == TrainerOptions(**options)
    assert config.options.precision == "mixed_bfloat16"
    assert config.options.early_stopping.given == {"patience": 2, "restore_best_weights": True}
    cluster = config.cluster
    found = cluster.size, cluster.name, cluster.place, cluster.chief_address
    assert found == (3, "worker 1", 2, ("a", 1))
    assert (config.attempt, config.expected_gpus) == (2, 0)
    assert config.hyperparameters == {"hidden": [8]}


def test_options_that_are_null_or_false_are_not_set() -> None:
    options = {"class_weight": None, "early_stopping": None, "mixed_precision": False}
    config = Config.from_environment(RIGHT | {"TRAIN_OPTIONS": json.dumps(options)})
    assert config.options == TrainerOptions()
    assert config.options.precision == ""


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("EPOCHS", "0", "EPOCHS is not valid.*1 or more"),
        ("EPOCHS", "", "EPOCHS is not valid"),
        ("BATCH_SIZE", "3.5", "BATCH_SIZE is not valid"),
        ("DATASET_URI", "/data", "DATASET_URI is not an address in S3"),
        ("MODEL_CODE", "model.py", "MODEL_CODE does not name a function"),
        ("OUTPUT_DIR", "", "OUTPUT_DIR is not set"),
        ("HYPERPARAMETERS", "[1]", "HYPERPARAMETERS is not a JSON object"),
        ("TRAIN_OPTIONS", '{"sed": 1}', "no key 'sed'.*did you mean 'seed'"),
        ("TRAIN_OPTIONS", '{"seed": -1}', "TRAIN_OPTIONS.seed is not valid"),
        ("TRAIN_OPTIONS", '{"early_stopping": {"patients": 1}}', "did you mean 'patience'"),
        (
            "TRAIN_OPTIONS",
            '{"reduce_lr_on_plateau": {"factor": 1}}',
            "factor is not valid.*between",
        ),
        ("TRAIN_OPTIONS", '{"mixed_precision": "half"}', "mixed_precision is not valid"),
        ("TRAIN_OPTIONS", '{"tf32": 1}', "tf32 is not valid.*true or false"),
        ("TRAIN_OPTIONS", '{"checkpoint_keep": 0}', "checkpoint_keep is not valid.*1 or more"),
        ("TF_CONFIG", '{"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": 0}}', "ps"),
        ("TF_CONFIG", '{"cluster": 1}', "TF_CONFIG is not valid"),
        (
            "TF_CONFIG",
            '{"cluster": {"chief": ["a"]}, "task": {"type": "chief", "index": 0}}',
            "TF_CONFIG is not valid",
        ),
    ],
)
def test_a_wrong_variable_is_named(variable: str, value: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Config.from_environment(RIGHT | {variable: value})


@pytest.mark.parametrize(
    ("cluster", "address"),
    [
        ({"worker": ["b:2222", "c:2222"]}, ("b", 2222)),
        ({"chief": ["[fd00::1]:2222"], "worker": ["[fd00::2]:2222"]}, ("fd00::1", 2222)),
    ],
)
def test_the_address_of_the_first_replica(
    cluster: dict[str, list[str]], address: tuple[str, int]
) -> None:
    text = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})
    config = Config.from_environment(RIGHT | {"TF_CONFIG": text})
    assert config.cluster.chief_address == address


def _dataset(task: str = "classification") -> Dataset:
    return Dataset(
        Path(), task, ("x",), np.zeros(1), np.ones(1), ("a", "b", "c"), "y", 0, 1, {}, {}, {}
    )


def test_balanced_weights_give_every_class_the_same_sum() -> None:
    labels = np.array([0] * 6 + [1] * 2)
    weights = _dataset().class_weights("balanced", labels)
    assert weights.dtype == np.float32
    assert weights.tolist() == pytest.approx([8 / 18, 8 / 6, 0])


def test_weights_go_by_the_name_of_the_class() -> None:
    assert _dataset().class_weights({"c": 3}, np.array([])).tolist() == [1, 1, 3]
    with pytest.raises(ConfigurationError, match="does not exist: 'd'"):
        _dataset().class_weights({"d": 3}, np.array([]))
    with pytest.raises(ConfigurationError, match="needs classes"):
        _dataset("regression").class_weights("balanced", np.array([]))
