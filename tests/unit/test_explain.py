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
