"""Jobs that `kfp-tfjob import` has read train as processes, on each kind of job."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from kfp_tfjob.components.preflight.parameters import defaults
from kfp_tfjob.components.summary import WHY_NO_DATA
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.options.container_images import TRAINER
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests import imported_jobs
from tests.imported_jobs import CLAIMS, NAMES, REPLICAS, SECRET
from tests.local.local_run import Run, end_run, stored
from tests.local.test_launch_jobs import Launcher, launcher, program

__all__ = ["launcher", "program"]  # fixtures
KINDS = [(name, kind) for name in NAMES for kind in ("tfjob", "jobset")]


def spec_of(launcher: Launcher, name: str, kind: str) -> JobSpec:
    found = imported_jobs.imported(name, TRAINER).parameters
    options = found["train_options"] | {"job": kind, "backoff_seconds": 0}
    values = {**defaults(), **found, "train_options": options}
    values |= {"output_uri": str(launcher.step.layout.root), "storage_secret": "objstore-cred"}
    fields = {"model_name", "model_hyperparameters", "output_uri", "pod"}
    given = {key: it for key, it in values.items() if key in fields}
    given |= {key: it for key, it in values.items() if key.startswith(("train_", "storage_"))}
    return JobSpec.parse(**given)


@pytest.fixture
def surroundings(launcher: Launcher) -> Iterator[None]:
    """The claims and the Secret that the jobs name."""
    folder = launcher.program.folder
    for name in CLAIMS.values():
        (folder / "jobs/claims" / name).mkdir(parents=True)
    (folder / "jobs/claims/features/rows").write_text("rows")
    name, values = SECRET
    (folder / "secrets" / name).mkdir()
    for key, value in values.items():
        (folder / "secrets" / name / key).write_text(value)
    yield


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_an_imported_job_trains(launcher, surroundings, capsys, name: str, kind: str) -> None:
    launched = launcher.train(spec_of(launcher, name, kind))
    assert launched.attempts == 1
    assert f"[chief-0] {imported_jobs.first_line(name)}" in capsys.readouterr().out
    (end,) = launcher.ends().values()
    replicas = {f"{role}-{at}" for role, count in REPLICAS[name].items() for at in range(count)}
    assert {it.replica for it in end.pods} == replicas
    assert launcher.store.read(launcher.run.base / "output/answer") == b"42"
    claims = launcher.program.folder / "jobs/claims"
    if name == "sidecar-upload":  # in the folder of the attempt
        (answer,) = (claims / "vision-results").glob("*/answer")
        assert answer.read_text() == "42"
    if name == "pytorch-gpus":
        assert sorted(it.name for it in (claims / "checkpoints").iterdir()) == ["0", "1", "2", "3"]


# Without a dataset, DATA_DIR and DATASET_URI are not set.
_WITHOUT_DATA = (
    imported_jobs.PROGRAM
    + """
assert not {"DATA_DIR", "DATASET_URI"} & os.environ.keys()
assert sys.argv[1:] == ["--steps", "20", "--no-cache"], sys.argv
if me == ("worker", 0):
    pathlib.Path(os.environ["OUTPUT_DIR"], "answer").write_text("42")
"""
)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "home"
    end_run(tmp_path / "home")


def test_an_imported_job_runs_as_a_whole_pipeline_without_data(home: Path, tmp_path: Path) -> None:
    values = imported_jobs.imported("workers-only", TRAINER).parameters
    values["train_options"]["command"] = [
        *("python3", "-c", _WITHOUT_DATA, "$(HYPERPARAMETER_FLAGS)", "--no-cache")
    ]
    values["model_hyperparameters"] = {"steps": 20}
    del values["train_options"]["evaluate"]  # the default without data
    file = tmp_path / "params.yaml"
    file.write_text(yaml.safe_dump(values))
    run = Run(home, "--params", str(file))
    assert run.wait() == 0, run.text
    assert not {line.split(" ")[0] for line in run.lines} & {"evaluate", "publish"}

    def check(layout: Layout, store: Store) -> None:
        at = layout.run(run.run_id)
        assert store.read(at.output / "answer") == b"42"
        assert json.loads(store.read(at.attempt(1)))["inputs"]["data"] == ""
        assert json.loads(store.read(at.not_evaluated))["why"] == WHY_NO_DATA
        assert not list(store.list(layout.root / "datasets"))

    stored(home, check)
    assert WHY_NO_DATA in (home / "runs" / run.run_id / "finish.md").read_text()
