"""The names of all stored objects; no other module contains them (docs/architecture.md).

Steps, servers and people of different versions read the same folders for years, so a name that one
module invents is one that all others must guess. The files in OUTPUT_DIR have the same names as
their copies below `output/`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime

from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.supervisor import barrier, termination_message

from .address import S3Address
from .manifest import Manifest

# Below output_uri.
DATASETS, RUNS, MODELS = "datasets", "runs", "models"
_INDEX = "index"  # below RUNS: where the folders of runs are, if output_uri shapes them
_SHAPED = re.compile(rf"([^{{}}]*)/{RUNS}/([^{{}}]*\{{.*)")  # an output_uri with fields

# In every complete folder; the last object written.
MANIFEST = "manifest.json"

# In a dataset's folder.
SCHEMA, STATISTICS = "schema.json", "statistics.json"
DISTRIBUTIONS = "distributions.json"  # rows by split and bin of each column
SUSPICIOUS = "suspicious.txt"  # columns that reveal the label, if any; not in the manifest
WORK = "work"  # intermediate results below it; deleted when the dataset is finished
LONGEST_SCHEMA = 128 << 20  # bytes; a schema contains the strings of all categories
SCHEMA_FORMAT = "kfp-tfjob/schema/1"
CODEC_VERSION = 7  # of the shards, and part of dataset_digest: raise it if their bytes change
CODEC_LAYOUT = "parquet"  # of the shards; until codec 6, those of images had another

# In a run's folder. Names in ATTEMPTS begin with the number of the attempt.
ATTEMPTS, CODE, OUTPUT, EVALUATION = "attempts", "code", "output", "evaluation"
TASKS = "tasks"  # the same folders again, below the key of each task that has one
_FAILURE = "failure"
FAILURE_JSON, FAILURE_PAGE = f"{_FAILURE}.json", f"{_FAILURE}.md"  # for programs, for people
VERDICT, REPORT = "verdict.json", "report.html"  # in EVALUATION
# In EVALUATION, after a lost race: the verdict against the new champion, and the second loss.
SECOND_VERDICT, LOST_RACE = "verdict-2.json", "lost-race.json"
# The log lines of the replicas; not in ATTEMPTS, which every launcher and uploader lists.
REPLICA_LOGS = "replica-logs"
NOTICES = "notices"
PRUNED = "pruned.json"  # while a prune deletes the folder
_REQUESTS = ".parquet"
_UNCHANGED, _NOT_EVALUATED = "unchanged.json", "not_evaluated.json"
_DATA_REPORT = "data_report.html"
_PREPARED = re.compile(rf"(?:.*/)?{DATASETS}/([0-9a-f]{{32}})")  # where prepare_data writes
_ATTEMPT_RECORD = re.compile(r"([0-9]+)(?:-uploader-([0-9]+))?\.json")

# In DATA_DIR of a program that gets `.npy` files.
NPY_COLUMNS = "columns.json"  # the columns and their files
NPY_STRINGS = "strings"  # a folder with a list for each column of strings

# In JOB_DIR: the folder with the rows as the model gets them, and the document in it.
ENCODED_ROWS, ENCODED_DOCUMENT = "encoded", "encoded.json"

# In OUTPUT_DIR.
MODEL, KERAS_MODEL, CHECKPOINTS, LOGS = "model", "model.keras", "checkpoints", "logs"
PROGRESS = "progress.jsonl"
COMPLETION = barrier.COMPLETION  # named there because the supervisor imports no other package
SAVED_MODEL = "saved_model.pb"  # in MODEL
# The same, below a run's folder.
RUN_MODEL, RUN_KERAS_MODEL = f"{OUTPUT}/{MODEL}", f"{OUTPUT}/{KERAS_MODEL}"
RUN_COMPLETION = f"{OUTPUT}/{COMPLETION}"
CHECKPOINT_STATE, CHECKPOINT_VARIABLES = "checkpoint.json", "variables.bin"  # in CHECKPOINTS/<step>

# Objects by their key below a run's folder: checkpoints, everything that training wrote, the
# records that show the run's end, and everything that a run stores.
_TASK = f"(?:{TASKS}/[^/]+/)?"
RUN_CHECKPOINTS = re.compile(f"{_TASK}{OUTPUT}/{CHECKPOINTS}/.*")
RUN_TRAINING = re.compile(f"{_TASK}(?:{OUTPUT}/.*|{CODE}/.*|{MANIFEST})")
RUN_END = re.compile(
    f"{_TASK}(?:{MANIFEST}|{FAILURE_JSON}|{_UNCHANGED}|{_DATA_REPORT}|{EVALUATION}/{VERDICT})"
)
RUN_OBJECT = re.compile(
    f"(?:{ATTEMPTS}|{CODE}|{OUTPUT}|{EVALUATION}|{TASKS}|{REPLICA_LOGS}|{NOTICES})/.*"
    f"|{MANIFEST}|{FAILURE_JSON}|{FAILURE_PAGE}|{_UNCHANGED}|{_NOT_EVALUATED}|{_DATA_REPORT}"
    f"|{PRUNED}"
)

# In OUTPUT_DIR, between the supervisor and the sidecar; never in the store.
UPLOADER = barrier.FOLDER
FLUSH_REQUEST, FLUSH_REPLY = barrier.REQUEST, barrier.REPLY
CHIEF_END = termination_message.END
UPLOADER_IDENTITY = "identity.json"

# In the folder of a published version, next to MODEL, SCHEMA, STATISTICS and VERDICT.
VERSION_CLAIM, MODEL_CARD = "claim.json", "README.md"
VERSIONS, SERVING = "versions", "serving"  # in a model's folder
REQUEST = "request.json"  # an example of a request; also next to SAVED_MODEL in a servable folder


def dataset_digest(dataset: S3Address, manifest: Manifest) -> str:
    """Return a dataset's digest: its folder's name if prepare_data chose it, else the manifest's.

    Only prepare_data derives the name from the content. A user's folder may contain other rows
    tomorrow, and another day's folder may have the same name.
    """
    prepared = _PREPARED.fullmatch(dataset.key)
    return prepared[1] if prepared else manifest.digest[:32]


def attempt_record(name: str) -> tuple[int, int] | None:
    """Return the attempt and uploader of a claim in ATTEMPTS by its name; None for other names.

    The launcher's claim has uploader 0.
    """
    match = _ATTEMPT_RECORD.fullmatch(name)
    return (int(match[1]), int(match[2] or 0)) if match else None


@dataclass(frozen=True)
class RunLayout:
    """The objects of one run, below `runs/<run_id>`, or of one task with a key in that run."""

    base: S3Address

    @property
    def manifest(self) -> S3Address:
        """The manifest of the whole output, written once, after completion."""
        return self.base / MANIFEST

    @property
    def tasks(self) -> S3Address:
        """The prefix of the tasks with a key."""
        return self.base / TASKS

    def task(self, key: str) -> RunLayout:
        """The objects of the task with this key; the run's own objects for an empty key."""
        return RunLayout(self.tasks / key) if key else self

    @property
    def attempts(self) -> S3Address:
        """The prefix of the attempt records."""
        return self.base / ATTEMPTS

    def attempt(self, number: int) -> S3Address:
        """The launcher's claim of an attempt."""
        return self.attempts / f"{number:04d}.json"

    def task_claim(self, step: str) -> S3Address:
        """The record of the only task that may use this folder for a step."""
        return self.attempts / f"{step}.task.json"

    def attempt_end(self, number: int) -> S3Address:
        """The record of how an attempt ended."""
        return self.attempts / f"{number:04d}.end.json"

    def chief_end(self, number: int) -> S3Address:
        """How the chief of an attempt ended, as its own pod recorded it."""
        return self.attempts / f"{number:04d}.chief.json"

    def uploader(self, attempt: int, number: int) -> S3Address:
        """The claim of an uploader in an attempt."""
        return self.attempts / f"{attempt:04d}-uploader-{number:02d}.json"

    @property
    def replica_logs(self) -> S3Address:
        """The prefix of the log lines of all attempts."""
        return self.base / REPLICA_LOGS

    def attempt_logs(self, attempt: int) -> S3Address:
        """The prefix of an attempt's log lines."""
        return self.replica_logs / f"{attempt:04d}"

    def replica_log(self, attempt: int, replica: str, launcher: str) -> S3Address:
        """The log lines of a replica in an attempt, as one of its launchers read them."""
        return self.attempt_logs(attempt) / replica / f"{launcher}.gz"

    @property
    def code(self) -> S3Address:
        """The user's model code as it was at the start, with its manifest."""
        return self.base / CODE

    @property
    def output(self) -> S3Address:
        """The files that the chief wrote."""
        return self.base / OUTPUT

    @property
    def model(self) -> S3Address:
        """The SavedModel."""
        return self.output / MODEL

    @property
    def logs(self) -> S3Address:
        """The files for TensorBoard."""
        return self.output / LOGS

    @property
    def checkpoints(self) -> S3Address:
        """The step directories, each with its own manifest."""
        return self.output / CHECKPOINTS

    @property
    def progress(self) -> S3Address:
        """The progress lines of the chief."""
        return self.output / PROGRESS

    @property
    def completion(self) -> S3Address:
        """The record that the trainer of an attempt succeeded."""
        return self.output / COMPLETION

    @property
    def evaluation(self) -> S3Address:
        """The prefix of the verdict and the report."""
        return self.base / EVALUATION

    @property
    def verdict(self) -> S3Address:
        """The verdict of the gate."""
        return self.evaluation / VERDICT

    @property
    def second_verdict(self) -> S3Address:
        """The verdict of publish, if another run was promoted after the verdict of evaluate."""
        return self.evaluation / SECOND_VERDICT

    @property
    def lost_race(self) -> S3Address:
        """The record that another run was promoted after the second verdict, too."""
        return self.evaluation / LOST_RACE

    @property
    def report(self) -> S3Address:
        """The evaluation for people."""
        return self.evaluation / REPORT

    @property
    def unchanged(self) -> S3Address:
        """The record that the run did not train, because an earlier one had the same inputs."""
        return self.base / _UNCHANGED

    @property
    def not_evaluated(self) -> S3Address:
        """The record that the run ended with its verified output, because it evaluates no model."""
        return self.base / _NOT_EVALUATED

    @property
    def data_report(self) -> S3Address:
        """The page about data that the contract with the champion's data rejects."""
        return self.base / _DATA_REPORT

    def failure(self, suffix: str) -> S3Address:
        """The record of the run's failure: suffix `json` for programs, `md` for people."""
        return self.base / f"{_FAILURE}.{suffix}"


@dataclass(frozen=True)
class ModelLayout:
    """The versions and champions of one model, below `models/<model_name>`."""

    base: S3Address

    def version(self, number: int) -> S3Address:
        """The directory of one published version."""
        return self.versions / str(number)

    @property
    def versions(self) -> S3Address:
        """The prefix of all published versions."""
        return self.base / VERSIONS

    def first_try(self, claim_digest: str) -> S3Address:
        """The record of the lowest number that the version with this claim may have."""
        return self.base / "claims" / f"{claim_digest}.json"

    def tombstone(self, number: int) -> S3Address:
        """The record that a version was pruned, and by whom."""
        return self.tombstones / f"{number}.json"

    @property
    def tombstones(self) -> S3Address:
        """The prefix of the records of pruned versions."""
        return self.base / "pruned"

    def hold(self, number: int) -> S3Address:
        """A note that a version is about to become the champion, so that no prune deletes it."""
        return self.base / "held" / f"{number}.json"

    def servable(self, number: int) -> S3Address:
        """The SavedModel of a champion as servers read it."""
        return self.serving / str(number)

    @property
    def serving(self) -> S3Address:
        """The base path of a model server: one folder per champion; the highest number counts."""
        return self.base / SERVING

    def champion(self, number: int) -> S3Address:
        """One champion record; the highest number is the champion."""
        return self.champions / f"{number}.json"

    @property
    def champions(self) -> S3Address:
        """The prefix of the champion records."""
        return self.base / "champions"

    @property
    def requests(self) -> S3Address:
        """The prefix of the request samples of this model's servers."""
        return self.base / "requests"

    def requests_of(self, version: int) -> S3Address:
        """The prefix of the request samples of one version."""
        return self.requests / str(version)

    def requests_of_day(self, version: int, day: date) -> S3Address:
        """The prefix of one version's request samples of one day, UTC."""
        return self.requests_of(version) / day.isoformat()

    def request_sample(self, version: int, began: datetime, digest: str) -> S3Address:
        """One sample of requests.

        Args:
            version: The version that answered them.
            began: The time of the first one, UTC.
            digest: The file's digest.
        """
        day = self.requests_of_day(version, began.date())
        return day / f"{began:%H%M%S}-{digest}{_REQUESTS}"

    def trained_with(self, digest: str) -> S3Address:
        """The prefix of the records of evaluated runs with these inputs."""
        return self.trained / digest

    @property
    def trained(self) -> S3Address:
        """The prefix of the records of all evaluated runs."""
        return self.base / "trained"

    def trained_record(self, digest: str, number: int) -> S3Address:
        """One record of an evaluated run; the highest number is the newest."""
        return self.trained_with(digest) / f"{number}.json"

    @property
    def champion_copy(self) -> S3Address:
        """A copy of the newest champion record, for people; no program reads it."""
        return self.base / "champion.json"


@dataclass(frozen=True)
class Layout:
    """Everything below `output_uri`.

    Attributes:
        root: Where datasets, runs and models are.
        template: The folders between `runs/` and a run's folder, with fields in braces; empty
            for none. Datasets and models are shared by runs, so no field shapes their addresses.
    """

    root: S3Address
    template: str = ""

    @classmethod
    def parse(cls, output_uri: str) -> Layout:
        """Parse `output_uri`: `s3://BUCKET/PREFIX`, or `s3://BUCKET/PREFIX/runs/{FIELD}/...`.

        Raises:
            ConfigurationError: It is not an address in S3, or has fields in the wrong place.
        """
        uri = output_uri.strip().rstrip("/")
        shaped = _SHAPED.fullmatch(uri)
        if not shaped:
            if "{" in uri or "}" in uri:
                raise ConfigurationError(_misplaced(output_uri))
            return cls(S3Address.parse(uri, "output_uri"))
        if any(part in ("", ".", "..") for part in shaped[2].split("/")):
            raise ConfigurationError(_misplaced(output_uri))
        return cls(S3Address.parse(shaped[1], "output_uri"), shaped[2])

    def own_code(self, digest: str) -> S3Address:
        """The copy of model code that `kfp-tfjob submit` made of a path on a user's machine."""
        return self.root / CODE / digest

    def dataset(self, digest: str) -> S3Address:
        """The directory of a prepared dataset."""
        return self.root / DATASETS / digest

    def dataset_in_use(self, digest: str) -> S3Address:
        """A note that each run renews before it uses a dataset, so that no prune deletes it."""
        return self.root / DATASETS / "used" / f"{digest}.json"

    def dataset_tombstone(self, digest: str) -> S3Address:
        """The record that a dataset is being pruned; deleted once the dataset is gone."""
        return self.root / DATASETS / "pruned" / f"{digest}.json"

    def run(self, run_id: str, folder: str = "") -> RunLayout:
        """The directory of a run.

        Args:
            run_id: The run.
            folder: The folders between `runs/` and the run, as `run_folder.py` finds them.
        """
        return RunLayout(
            self.root / RUNS / folder / run_id if folder else self.root / RUNS / run_id
        )

    def folder_record(self, run_id: str) -> S3Address:
        """The record of a run's folder, if `output_uri` shapes it."""
        return self.folder_records / f"{run_id}.json"

    @property
    def folder_records(self) -> S3Address:
        """The prefix of the records of runs' folders."""
        return self.root / RUNS / _INDEX

    def model(self, name: str) -> ModelLayout:
        """The directory of a model."""
        return ModelLayout(self.root / MODELS / name)


def _misplaced(output_uri: str) -> Problem:
    return Problem(
        "output_uri has fields where none are allowed",
        received=repr(output_uri),
        expected=f"fields below {RUNS}/ only: s3://BUCKET/PREFIX/{RUNS}/{{model_name}}/{{date}};"
        " all runs share the datasets and models below s3://BUCKET/PREFIX",
        fix="correct output_uri",
        path="output_uri",
    )


def is_for_training(key: str) -> bool:
    """Return whether a replica gets an object of a dataset, by its key below the dataset.

    It does not get the test rows: a program could train on the rows that evaluate it.
    """
    return not is_shard_of("test", key)


def is_shard_of(split: str, key: str) -> bool:
    """Return whether an object of a dataset has rows of a split, by its key below the dataset."""
    return key.startswith((f"{split}/", f"{split}-"))  # earlier versions had files such as test-0
