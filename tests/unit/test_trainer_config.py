"""The environment of a replica is checked whole, before anything heavy is imported."""

import json
from pathlib import Path

import numpy as np
import pytest

from kfp_tfjob.common.errors import ConfigurationError
from kfp_tfjob.options.train import TrainerOptions
from kfp_tfjob.trainer.config import Config
from kfp_tfjob.trainer.dataset import Dataset
from tests.problems import problem_of

RIGHT = {
    "DATASET_URI": "s3://bucket/datasets/abc",
    "MODEL_CODE": "kfp_tfjob.trainer.models:mlp",
    "EPOCHS": "3",
    "BATCH_SIZE": "32",
    "JOB_DIR": "/job",
    "OUTPUT_DIR": "/output",
}


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
    found = cluster.size, cluster.name, cluster.rank, cluster.chief_address
    assert found == (3, "worker 1", 2, ("a", 1))
    assert (config.attempt, config.expected_gpus) == (2, 0)
    assert config.hyperparameters == {"hidden": [8]}


def test_options_that_are_null_or_false_are_not_set() -> None:
    options = {"class_weight": None, "early_stopping": None, "mixed_precision": False}
    config = Config.from_environment(RIGHT | {"TRAIN_OPTIONS": json.dumps(options)})
    assert config.options == TrainerOptions()
    assert config.options.precision == ""


@pytest.mark.parametrize(
    ("path", "value", "suggestion"),
    [
        ("EPOCHS", "0", ""),
        ("EPOCHS", "", ""),
        ("BATCH_SIZE", "3.5", ""),
        ("DATASET_URI", "/data", ""),
        ("MODEL_CODE", "", ""),
        ("OUTPUT_DIR", "", ""),
        ("HYPERPARAMETERS", "[1]", ""),
        ("TRAIN_OPTIONS.sed", '{"sed": 1}', "seed"),
        ("TRAIN_OPTIONS.seed", '{"seed": -1}', ""),
        ("TRAIN_OPTIONS.mixed_precision", '{"mixed_precision": "half"}', ""),
        ("TRAIN_OPTIONS.tf32", '{"tf32": 2}', ""),
        ("TRAIN_OPTIONS.checkpoint_keep", '{"checkpoint_keep": 0}', ""),
        ("TF_CONFIG", '{"cluster": 1}', ""),
        ("TF_CONFIG", '{"cluster": {"chief": ["a"]}, "task": {"type": "chief", "index": 0}}', ""),
    ],
)
def test_a_wrong_variable_is_named(path: str, value: str, suggestion: str) -> None:
    problem = problem_of(Config.from_environment, RIGHT | {path.partition(".")[0]: value})
    assert (problem.path, problem.suggestion) == (path, suggestion)


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
    with pytest.raises(ConfigurationError, match="'d'"):
        _dataset().class_weights({"d": 3}, np.array([]))
    with pytest.raises(ConfigurationError, match="needs classes"):
        _dataset("regression").class_weights("balanced", np.array([]))
