"""Jobs that `kfp-tfjob import` has read train as processes, on each kind of job."""

from collections.abc import Iterator

import pytest

from kfp_tfjob.components.preflight.parameters import defaults
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.options.images import TRAINER
from tests import imported_jobs
from tests.imported_jobs import CLAIMS, NAMES, REPLICAS, SECRET
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
