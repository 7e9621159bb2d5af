"""What `kfp-tfjob explain` says of the keys of a dict parameter."""

from click.testing import CliRunner, Result

from kfp_tfjob.pipelines.cli import main
from kfp_tfjob.storage.errors import ConfigurationError


def test_the_command_explains_one_key_and_tells_where_another_is() -> None:
    def command(name: str) -> Result:
        return CliRunner().invoke(main, ["explain", name])

    one = command("train_options.seed")
    assert one.exit_code == 0 and one.stdout.startswith("train_options.seed")
    assert len(one.stdout.splitlines()) < 5
    wrong = command("seed")
    assert wrong.exit_code == ConfigurationError.code
    assert "kfp-tfjob explain train_options.seed" in wrong.stderr and "--set" not in wrong.stderr
