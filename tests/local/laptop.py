"""What a person does on a laptop: types a command, and starts a run in the UI."""

import kfp_server_api as api
from click.testing import CliRunner, Result

from kfp_tfjob.pipelines.cli import main
from kfp_tfjob.pipelines.compilation import FOLDER
from kfp_tfjob.storage.address import S3Address
from tests.local.fake_pipelines import FakePipelines

COMPILED = FOLDER / "tfjob_training.yaml"  # the pipeline as it is committed


def kfp_tfjob(*arguments: object, code: int | None = None) -> Result:
    """Type a command, which must end with this exit code, if one is given."""
    found = CliRunner().invoke(main, [str(it) for it in arguments])
    assert not found.exception or isinstance(found.exception, SystemExit), found.exception
    assert code in (None, found.exit_code), found.output
    return found


def add(fake: FakePipelines, base: S3Address, name: str = "one", state: str = "RUNNING", **more):
    values = {"model_name": "m", "output_uri": str(base), "data_uri": f"{base}/rows.csv"} | more
    return fake.add(name, state, runtime_config=api.V2beta1RuntimeConfig(parameters=values))
