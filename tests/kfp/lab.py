"""What the scenarios share: the uploaded pipeline, an experiment, a prefix, and their removal."""

import contextlib
import json
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from secrets import token_hex
from typing import Any, Self, TypeVar

import kfp

from examples import digits
from kfp_tfjob.pipelines.kubeflow.client import Client
from tests.kfp import cluster
from tests.kfp.proof import Bucket
from tests.kfp.settings import Settings

T = TypeVar("T")
VARIABLE = "TEST_KFP_LAB"  # the file with the lab, for the processes of pytest
SECONDS = 1500  # the longest wait, which only what hangs reaches; a run alone takes 220
# What the scenarios share is small, so that all pods fit on a small node.
DATA, LABEL = "digits.csv", "digit"
# `cpu` is a limit too, so less would make the start of TensorFlow the longest part of a run.
POD = {"all": {"cpu": "400m", "memory": "1Gi", "ephemeral_storage": "1Gi"}}
# A training that is long enough to be disturbed, with checkpoints all the time.
LONG = {"train_epochs": 150, "train_options": {"checkpoint_seconds": 2}}
_PAGE = 100
_LABEL = "kfp-tfjob-test"

log = logging.getLogger(__name__)


def new_name() -> str:
    return f"test-kfp-{token_hex(3)}"


@dataclass(frozen=True)
class Lab:
    """The place of all scenarios; everything in it has its name."""

    name: str  # also the prefix in the bucket, and the name of the experiment
    settings: Settings
    package: str  # the compiled pipeline
    experiment_id: str = ""
    pipeline_id: str = ""  # as the SDK's client has uploaded it
    version_id: str = ""
    started: list[str] = field(default_factory=list)  # ids of runs

    @classmethod
    def attached(cls) -> Self:
        known = json.loads(Path(os.environ[VARIABLE]).read_text())
        return cls(**known | {"settings": Settings(**known["settings"])})

    @cached_property
    def sdk(self) -> kfp.Client:
        warnings.filterwarnings("ignore", "This client only works with")
        return kfp.Client(host=self.settings.endpoint)

    @cached_property
    def client(self) -> Client:
        return Client(self.settings.endpoint)

    @cached_property
    def bucket(self) -> Bucket:
        return Bucket(self.settings.bucket, self.name)

    def uri(self, key: str = "") -> str:
        """Return the address of an object below the prefix, or of the prefix."""
        return f"s3://{self.bucket.name}/{self.bucket.prefix}" + (f"/{key}" if key else "")

    def parameters(self, model: str, **other: Any) -> dict[str, Any]:
        """Return run parameters: one replica on the digits, unless told otherwise."""
        known = {"data_uri": self.uri(DATA), "data_label": LABEL, "output_uri": self.uri()}
        known |= {"train_workers": 0, "pod": POD, "storage_secret": self.settings.secret}
        return known | {"model_name": model} | other

    def start(self, name: str, **other: Any) -> str:
        """Start a run of the uploaded pipeline as any client does, and return its id."""
        run = self.sdk.run_pipeline(
            self.experiment_id,
            f"{self.name}-{name}",
            params=self.parameters(name, **other),
            pipeline_id=self.pipeline_id,
            version_id=self.version_id,
        )
        self.started.append(run.run_id)
        return run.run_id

    def start_file(self, name: str, file: Path, arguments: Mapping[str, Any]) -> str:
        """Start a run of a compiled pipeline that was not uploaded, and return its id."""
        run = self.sdk.create_run_from_pipeline_package(
            str(file),
            dict(arguments),
            run_name=f"{self.name}-{name}",
            experiment_id=self.experiment_id,
        )
        self.started.append(run.run_id)
        return run.run_id

    def state(self, run_id: str) -> str:
        return str(self.sdk.get_run(run_id).state)

    def finished(self, run_id: str) -> str:
        over = ("SUCCEEDED", "FAILED", "CANCELED", "SKIPPED")
        return until(
            f"the end of run {run_id}",
            lambda: state if (state := self.state(run_id)) in over else "",
        )

    def trains(self, run_id: str) -> int:
        """Wait for the first checkpoint of a run, and return its step; it must not end before."""

        def look() -> int:
            assert self.state(run_id) not in ("SUCCEEDED", "FAILED"), "it ended before"
            return self.bucket.checkpoint(run_id)

        return until(f"the first checkpoint of run {run_id}", look)

    def retry(self, run_id: str) -> float:
        """Retry a run as the UI does, and return when."""
        began = time.time()
        self.sdk._run_api.run_service_retry_run(run_id=run_id)  # the SDK has no method
        until("the retry", lambda: self.state(run_id) not in ("FAILED", "CANCELED"))
        return began

    def ends(self, run_id: str) -> list[str]:
        """Return the verdicts of the attempts of a run, in their order."""
        keys = self.bucket.keys(f"runs/{run_id}/attempts")
        return [self.bucket.document(key)["verdict"] for key in keys if key.endswith(".end.json")]

    def copy_secret(self, name: str = "") -> str:
        """Create a Secret of this lab with the keys of the store, and return its name.

        Args:
            name: What follows the lab's name; empty for that of `other_secret`.
        """
        copy = f"{self.name}-{name}" if name else self.other_secret
        cluster.copy_secret(self.settings.secret, copy, (_LABEL, self.name))
        return copy

    @property
    def other_secret(self) -> str:
        """The name of a Secret that does not exist at first."""
        return f"{self.name}-secret"


def until(what: str, look: Callable[[], T], seconds: float = SECONDS) -> T:
    deadline = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come within {seconds:g} s")
        time.sleep(2)
    return found


@contextlib.contextmanager
def laboratory(name: str, settings: Settings, package: Path) -> Iterator[Path]:
    """Make a lab, yield the file that describes it, and remove everything of it in the end."""
    lab = Lab(name, settings, str(package))
    with tempfile.TemporaryDirectory() as folder:
        try:
            data = Path(folder, DATA)
            digits.write(data)
            lab.bucket.write(DATA, data.read_bytes())
            pipeline = lab.sdk.upload_pipeline(str(package), f"{name}-client")
            versions = lab.sdk.list_pipeline_versions(pipeline.pipeline_id).pipeline_versions
            made = {
                "experiment_id": lab.sdk.create_experiment(name).experiment_id,
                "pipeline_id": pipeline.pipeline_id,
                "version_id": versions[0].pipeline_version_id,
            }
            file = Path(folder, "lab.json")
            file.write_text(json.dumps(asdict(lab) | made))
            yield file
        finally:
            remove(lab)


def remove(lab: Lab) -> None:
    """Delete everything that has the name of a lab, however far it came; says what stays.

    Order matters: a chief in its grace period still writes to the store.
    """
    runs: list[str] = []
    for what, delete in (
        ("runs", lambda: runs.extend(_delete_runs(lab.sdk, lab.name))),
        ("pods", lambda: until("the end of pods", lambda: not _alive(runs), 120)),
        ("pipelines", lambda: _delete_pipelines(lab.sdk, lab.name)),
        ("Secrets", lambda: cluster.delete_secrets((_LABEL, lab.name))),
        ("objects in the store", lab.bucket.delete_all),
    ):
        try:
            delete()
        except Exception as error:
            log.error("some %s of %s are left: %s", what, lab.name, error)


def _delete_runs(sdk: kfp.Client, name: str) -> list[str]:
    """Delete the experiment, its schedules and its runs, and return the ids of the runs."""
    try:
        experiment = sdk.get_experiment(experiment_name=name).experiment_id
    except ValueError:
        return []
    of = {"experiment_id": experiment, "page_size": _PAGE}
    for it in sdk.list_recurring_runs(**of).recurring_runs or []:
        sdk.delete_recurring_run(it.recurring_run_id)
    runs = [it.run_id for it in sdk.list_runs(**of).runs or []]
    for run_id in runs:
        sdk.delete_run(run_id)  # its Workflow and its jobs go with it
    sdk.delete_experiment(experiment)
    return runs


def _alive(runs: list[str]) -> list[str]:
    return [name for run_id in runs for name in cluster.alive(run_id)]


def _delete_pipelines(sdk: kfp.Client, name: str) -> None:
    listed = sdk.list_pipelines(page_size=_PAGE, sort_by="created_at desc").pipelines or []
    for it in (it for it in listed if it.display_name.startswith(name)):
        versions = sdk.list_pipeline_versions(it.pipeline_id).pipeline_versions or []
        for version in versions:
            sdk.delete_pipeline_version(it.pipeline_id, version.pipeline_version_id)
        sdk.delete_pipeline(it.pipeline_id)
