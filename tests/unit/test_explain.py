"""What `kfp-tfjob explain` says of the keys of a dict parameter."""

import pytest
from click.testing import CliRunner, Result

from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.gate import GateOptions
from kfp_tfjob.options.pod import PodOptions
from kfp_tfjob.options.train import TrainOptions
from kfp_tfjob.pipelines.cli import main
from kfp_tfjob.pipelines.explanation import explain
from kfp_tfjob.storage.errors import ConfigurationError


def test_a_key_has_its_meaning_its_choices_and_its_default() -> None:
    keys = explain("data_options", DataOptions)
    assert keys["data_options.on_bad_row"].endswith('Value: "fail" or "drop". Default: `"fail"`.')
    assert keys["data_options.split.train"].endswith(
        "to train on. Value: a number between 0 and 1. Default: `0.7`."
    )
    assert "data_options.split" not in keys


def test_a_dict_without_documented_keys_names_them() -> None:
    keys = explain("train_options", TrainOptions)
    text = keys["train_options.early_stopping"]
    assert "keras.callbacks.EarlyStopping" in text and "patience" in text
    assert "`balanced`" in keys["train_options.class_weight"]
    assert keys["train_options.tf32"].endswith("much faster. Default: `true`.")


def test_a_dict_by_names_says_what_each_has() -> None:
    keys = explain("gate", GateOptions)
    assert (
        keys["gate.thresholds"].startswith("Metric to")
        and "Keys: `min`, `max`." in (keys["gate.thresholds"])
    )
    assert keys["gate.confidence"].endswith("Default: `0.95`.")


def test_every_key_of_a_pod_is_there_once() -> None:
    keys = explain("pod", PodOptions)
    for name in ("all.cpu", "all.memory", "all.tolerations", "all.env", "all.queue"):
        assert f"pod.{name}" in keys
    assert "pod.chief.output_claim" in keys and "pod.ps.replicas" in keys
    assert "pod.chief.cpu" not in keys and "Keys as in `pod.all`" in keys["pod.chief"]
    assert all(keys.values())


@pytest.mark.parametrize("group", [DataOptions, TrainOptions, GateOptions, PodOptions])
def test_every_key_is_explained(group: type) -> None:
    keys = explain("x", group)
    for name in group.model_fields:
        assert any(key == f"x.{name}" or key.startswith(f"x.{name}.") for key in keys)


def test_the_command_explains_one_key_and_tells_where_another_is() -> None:
    def command(name: str) -> Result:
        return CliRunner().invoke(main, ["explain", name])

    one = command("train_options.seed")
    assert one.exit_code == 0 and one.stdout.startswith("train_options.seed")
    assert len(one.stdout.splitlines()) < 5
    wrong = command("seed")
    assert wrong.exit_code == ConfigurationError.code
    assert "kfp-tfjob explain train_options.seed" in wrong.stderr and "--set" not in wrong.stderr
