"""`python -m kfp_tfjob.trainer check [OUTPUT]`: check an image and its program.

It checks this Python, the environment (docs/architecture.md), the folders, the dataset and GPUs.
Then it checks the files that a finished program left in OUTPUT. It reports all problems at once,
and does the checks that need TensorFlow last.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import ConfigurationError, Problem, StepError
from kfp_tfjob.storage.layout import COMPLETION, LONGEST_SCHEMA, MANIFEST, MODEL, SCHEMA
from kfp_tfjob.storage.manifest import Manifest
from kfp_tfjob.supervisor.environment import Environment, Refused
from kfp_tfjob.supervisor.tf_config import READERS, Topology
from kfp_tfjob.trainer.config import VARIABLES, Config, problem_of
from kfp_tfjob.trainer.exits import leave_last_words
from kfp_tfjob.trainer.nvidia import ask_driver, device_nodes

OK, NOTE, WRONG = "ok", "note", "wrong"
_PROJECT = "kfp-tfjob"
_SUPERVISOR_PYTHON = (3, 8)
_PACKAGES = {"tensorflow": ("tensorflow", "tensorflow-cpu"), "keras": ("keras",)}
# Variables that only the supervisor or a user's own program reads.
_OTHERS = ("RUN_URI", "DATA_DIR", "EXPECTED_REPLICAS", *READERS)


@dataclass(frozen=True)
class Finding:
    """One line of the table.

    Attributes:
        subject: The checked item.
        state: `ok`, `note` or `wrong`.
        text: The result, in short.
        problem: The full description of the problem.
    """

    subject: str
    state: str
    text: str
    problem: Problem | str | None = None

    @classmethod
    def wrong(cls, subject: str, problem: Problem | str) -> Finding:
        """Return the finding of a problem."""
        text = problem.what if isinstance(problem, Problem) else problem.partition(". ")[0]
        return cls(subject, WRONG, text, problem)


def without_tensorflow(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the findings that do not need TensorFlow."""
    yield from _python()
    if not any(environment.get(name) for name in VARIABLES):
        yield Finding("environment", NOTE, "no variable of a job is set, so this is not a replica")
        return
    driver = ask_driver()
    names = ", ".join(gpu.name for gpu in driver.gpus)
    yield Finding("driver", OK if names else NOTE, names or driver.error or "it shows no GPU")
    yield from _variables(environment)
    for name in ("JOB_DIR", "OUTPUT_DIR"):
        if environment.get(name):
            yield _writable(name, Path(environment[name]))
    yield from _dataset(environment)


def with_tensorflow(environment: Mapping[str, str], output: Path | None) -> Iterator[Finding]:
    """Yield the findings that need TensorFlow: its GPUs and the program's model.

    Args:
        environment: The environment of the replica.
        output: The OUTPUT_DIR of a program that has ended; None to skip the model.
    """
    from kfp_tfjob.features.tensorflow_import import load

    expected = environment.get("EXPECTED_GPUS", "")
    gpus = int(expected) if expected.isdecimal() else None
    try:
        load(gpus)
    except Exception as error:
        yield Finding.wrong(
            "TensorFlow",
            Problem(
                "TensorFlow or Keras cannot be imported",
                received=f"{type(error).__name__}: {error}",
                expected="both packages in the python3 of the image",
                fix="install them in train_image",
            ),
        )
        return
    yield from _gpus(gpus)
    if output:
        yield _completion(output)
        yield _model(output / MODEL, environment)


def _python() -> Iterator[Finding]:
    # The supervisor runs as python3, which may differ from the Python that runs this.
    ask = "import sys; print(*sys.version_info[:3], sep='.')"
    try:
        version = subprocess.check_output(["python3", "-c", ask], text=True).strip()
        numbers = tuple(int(part) for part in version.split(".")[:2])
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        version, numbers = f"{type(error).__name__}: {error}", (0, 0)
    if numbers < _SUPERVISOR_PYTHON:
        expected = ".".join(map(str, _SUPERVISOR_PYTHON)) + " or later"
        problem = Problem("there is no python3 for the supervisor", version, expected)
        yield Finding.wrong("python3", problem)
    else:
        yield Finding("python3", OK, version)
    pins = _pins()
    for name, distributions in _PACKAGES.items():
        found = next(filter(None, map(_version, distributions)), "")
        if not found:
            problem = Problem(
                f"{name} is not installed",
                received="nothing",
                expected=f"{name} {pins.get(name, '')}".strip(),
                fix=f"install {name} in train_image",
            )
            yield Finding.wrong(name, problem)
        elif found == pins.get(name, found):
            yield Finding(name, OK, found)
        else:
            text = f"{found}; the project's own trainer and evaluate use {pins[name]}"
            yield Finding(name, NOTE, text)


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _pins() -> dict[str, str]:
    """Return the versions that this project pins, if it is installed as a package."""
    try:
        required = metadata.requires(_PROJECT) or []
    except metadata.PackageNotFoundError:
        return {}
    found = (re.match(r"(\w+)==([\w.]+)", line) for line in required)
    return {match[1]: match[2] for match in found if match and match[1] in _PACKAGES}


def _variables(environment: Mapping[str, str]) -> Iterator[Finding]:
    wrong: dict[str, list[Problem | str]] = {}
    try:
        # The program decides which roles it supports; our trainer supports fewer.
        of_cluster = (*READERS, "EXPECTED_REPLICAS")
        Config.from_environment({k: v for k, v in environment.items() if k not in of_cluster})
    except ConfigurationError as error:
        for problem in error.problems:
            name = problem.path if isinstance(problem, Problem) else ""
            wrong.setdefault(name.partition(".")[0], []).append(problem)
    try:
        cluster = Topology.read(environment)
        place = f"{cluster.kind} {cluster.index}"
    except Refused as error:
        wrong[error.variable] = [problem_of(error)]
    try:
        Environment.read(environment)
    except Refused as error:
        wrong.setdefault(error.variable, [problem_of(error)])
    for name in (*VARIABLES, *_OTHERS):
        value = environment.get(name, "")
        if name in wrong:
            yield from (Finding.wrong(name, problem) for problem in wrong.pop(name))
        elif name in READERS:
            yield Finding(name, OK, place if value else "not set: this replica is alone")
        elif not value:
            yield Finding(name, NOTE, "not set")
        else:
            yield Finding(name, OK, value)
    for name, problems in wrong.items():
        yield from (Finding.wrong(name, problem) for problem in problems)


def _writable(name: str, folder: Path) -> Finding:
    subject = f"${name}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".tmp") as file:
            file.write(b"0")
            file.flush()
    except OSError as error:
        problem = Problem(
            f"{name} cannot be written to",
            received=str(error),
            expected=f"a folder that the user {os.getuid()} may write to",
            fix="mount a volume there; the image must not need root",
        )
        return Finding.wrong(subject, problem)
    return Finding(subject, OK, "can be written to")


def _dataset(environment: Mapping[str, str]) -> Iterator[Finding]:
    from kfp_tfjob.storage.store import Store
    from kfp_tfjob.uploader import verify

    try:
        address = S3Address.parse(environment.get("DATASET_URI", ""), "DATASET_URI")
    except StepError:
        return  # reported with the variables
    manifest = None
    try:
        store = Store()
        manifest = store.read_manifest(address / MANIFEST)
        problems: Sequence[Problem | str] = verify(store, address, manifest)
    except StepError as error:
        problems = error.problems
    yield from (Finding.wrong("dataset", problem) for problem in problems)
    if manifest and not problems:
        text = f"{len(manifest.objects)} objects of {manifest.size} bytes match the manifest"
        yield Finding("dataset", OK, text)
    if folder := environment.get("DATA_DIR"):
        yield _staged(Path(folder), address, manifest)


def _staged(folder: Path, address: S3Address, manifest: Manifest | None) -> Finding:
    """Check that DATA_DIR has the dataset, and no training rows of a different one."""
    from kfp_tfjob.storage.layout import is_for_training
    from kfp_tfjob.uploader.folder import same_content
    from kfp_tfjob.uploader.inventory import scan

    rows = {path.name for path in folder.glob("train-*.tfrecord")}
    objects = manifest.objects if manifest else ()
    wanted = {item.key: item for item in objects if is_for_training(item.key)}
    right = {file.path for file in same_content(folder, scan(folder).files, wanted)}
    others = sorted((wanted.keys() | rows) - right) if manifest else []
    if rows and not others:
        return Finding("$DATA_DIR", OK, f"{len(rows)} shards of training rows")
    problem = Problem(
        "DATA_DIR is not the dataset" if rows else "DATA_DIR has no training rows",
        received=f"{folder}, where {', '.join(others[:5])} differ" if rows else folder,
        expected="the files of DATASET_URI, which `setup` fetches before the program starts",
        fix=f"for a trial, fetch them into an empty folder:"
        f" python -m kfp_tfjob.uploader pull {address} {folder}",
    )
    return Finding.wrong("$DATA_DIR", problem)


def _gpus(expected: int | None) -> Iterator[Finding]:
    import tensorflow as tf

    from kfp_tfjob.trainer.gpus import Build, share, unusable

    if expected == 0:
        yield Finding("GPUs", OK, "none are expected")
        return
    visible, driver, build = tf.config.list_physical_devices("GPU"), ask_driver(), Build.here()
    mine = share(range(len(visible)), expected, 0)
    problems = unusable(mine, len(visible), expected, driver, build, device_nodes())
    yield from (Finding.wrong("GPUs", problem) for problem in problems)
    if not problems:
        names = ", ".join(driver.gpus[at].name for at in mine)
        yield Finding("GPUs", OK, names or "none, so this trains on the CPU")


def _completion(output: Path) -> Finding:
    try:
        record = json.loads((output / COMPLETION).read_text())
        return Finding(COMPLETION, OK, f"run {record['run_id']}, {record['finished']}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = Problem(
            f"{COMPLETION} does not say that the program succeeded",
            received=f"{type(error).__name__}: {error}",
            expected="the record of the supervisor",
            fix="run the program under the supervisor: python3 -m kfp_tfjob.supervisor -- COMMAND",
        )
        return Finding.wrong(COMPLETION, problem)


def _model(folder: Path, environment: Mapping[str, str]) -> Finding:
    """Load the SavedModel and let it predict, as evaluate does."""
    import tensorflow as tf

    from kfp_tfjob.features.served_model import ServedModel, Task

    try:
        schema = _schema(environment)
        if schema is None:
            signatures = sorted(tf.saved_model.load(str(folder)).signatures)
            text = f"signatures: {', '.join(signatures) or 'none'}; set DATASET_URI to check more"
            return Finding("model", NOTE if signatures else WRONG, text, None)
        task = Task.of(schema)
        found = ServedModel(folder, task, "the model").predict(task.example(3))
    except StepError as error:
        return Finding.wrong("model", error.problems[0])
    except Exception as error:  # TensorFlow has many for a damaged model
        problem = Problem(
            "the model cannot be loaded",
            received=f"{type(error).__name__}: {error}".splitlines()[0],
            expected=f"a SavedModel in {folder}",
            fix="export the model there on the chief when the training ends",
        )
        return Finding.wrong("model", problem)
    return Finding("model", OK, f"its {task.name} output for 3 rows has the shape {found.shape}")


def _schema(environment: Mapping[str, str]) -> dict[str, Any] | None:
    from kfp_tfjob.storage.store import Store

    if folder := environment.get("DATA_DIR"):
        return json.loads((Path(folder) / SCHEMA).read_text())
    if uri := environment.get("DATASET_URI"):
        address = S3Address.parse(uri, "DATASET_URI")
        return json.loads(Store().read(address / SCHEMA, LONGEST_SCHEMA))
    return None


def _tell(findings: Iterator[Finding]) -> list[Problem | str]:
    """Print each finding at once and return the problems."""
    problems = []
    for item in findings:
        print(f"{item.state:<6} {item.subject:<18} {item.text}", flush=True)
        if item.state == WRONG:
            problems.append(item.problem or f"{item.subject}: {item.text}")
    return problems


def main(arguments: Sequence[str]) -> int:
    """Check this environment and return 0, or 2 if there is a problem."""
    parser = argparse.ArgumentParser(prog="python -m kfp_tfjob.trainer check", description=__doc__)
    parser.add_argument(
        "output",
        nargs="?",
        type=Path,
        metavar="OUTPUT",
        help="the OUTPUT_DIR of a program that has ended",
    )
    output = parser.parse_args(arguments).output
    problems = _tell(without_tensorflow(os.environ))
    if problems:
        print(f"\n{ConfigurationError(*problems)}\n", flush=True)
    later = _tell(with_tensorflow(os.environ, output))
    if later:
        print(f"\n{ConfigurationError(*later)}")
    if problems or later:
        leave_last_words(str(ConfigurationError(*problems, *later)))
        return ConfigurationError.code
    print("\nall checks passed")
    return 0
