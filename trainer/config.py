"""Reads and checks the environment of a replica, and reports all problems at once.

Nothing else in the trainer reads the environment of the job, so each value is typed and checked
once. Called by `__main__.py` before TensorFlow is configured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.options.parse import parse
from kfp_tfjob.options.train import TrainerOptions
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.supervisor import environment as contract
from kfp_tfjob.supervisor.environment import Refused
from kfp_tfjob.supervisor.tf_config import Topology

# The variables that the trainer reads, and their help texts.
VARIABLES = {
    name: contract.VARIABLES[name]
    for name in (
        *("RUN_ID", "RUN_URI", "TASK_KEY", "ATTEMPT", "RESTARTS", "DATASET_URI", "MODEL_CODE"),
        "HYPERPARAMETERS",
        *("EPOCHS", "BATCH_SIZE", "TRAIN_OPTIONS", "JOB_DIR", "OUTPUT_DIR", "EXPECTED_GPUS"),
    )
} | {
    "TRAIN_OPTIONS": f"JSON object: {', '.join(TrainerOptions.model_fields)}",
}


@dataclass(frozen=True)
class Config:
    """A replica's configuration; each attribute is the variable of the same name."""

    dataset_uri: S3Address
    model_code: str
    epochs: int
    batch_size: int
    job_dir: Path
    output_dir: Path
    run_id: str = ""
    run_uri: str = ""
    task_key: str = ""
    attempt: int = 1
    restarts: int = 0
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    options: TrainerOptions = field(default_factory=TrainerOptions)
    cluster: Topology = field(default_factory=Topology)
    expected_gpus: int | None = None
    replicas_on_this_machine: int = 1

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Config:
        """Read the environment.

        Raises:
            ConfigurationError: Variables are missing or wrong; one problem for each.
        """
        reader = _Reader(environment)
        values = {
            "dataset_uri": reader.address("DATASET_URI"),
            "model_code": reader.text("MODEL_CODE"),
            "epochs": reader.number("EPOCHS"),
            "batch_size": reader.number("BATCH_SIZE"),
            # The working folder changes.
            "job_dir": Path(reader.text("JOB_DIR")).absolute(),
            "output_dir": Path(reader.text("OUTPUT_DIR")).absolute(),
            "run_id": environment.get("RUN_ID", ""),
            "run_uri": environment.get("RUN_URI", ""),
            "task_key": environment.get("TASK_KEY", ""),
            "attempt": reader.number("ATTEMPT", 1),
            "restarts": reader.number("RESTARTS", 0, least=0),
            "hyperparameters": reader.object("HYPERPARAMETERS"),
            "options": reader.options("TRAIN_OPTIONS"),
            "cluster": reader.cluster(),
            "expected_gpus": reader.optional_number("EXPECTED_GPUS"),
            "replicas_on_this_machine": reader.number("REPLICAS_ON_THIS_MACHINE", 1),
        }
        ConfigurationError.raise_if(reader.problems)
        return cls(**values)


class _Reader:
    """Reads variables one by one and collects their problems."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment
        self.problems: list[Problem | str] = []

    def text(self, name: str) -> str:
        text = self.environment.get(name, "").strip()
        if not text:
            self._wrong(name, "is not set", None, VARIABLES[name], f"set {name}")
        return text

    def number(self, name: str, default: int | None = None, least: int = 1) -> int:
        value = self.environment.get(name, "").strip()
        if not value and default is not None:
            return default
        if not value.isdecimal() or int(value) < least:
            kind = f"a whole number, {least} or more"
            self._wrong(name, "is not valid", repr(value), kind, f"correct {name}")
            return least
        return int(value)

    def optional_number(self, name: str) -> int | None:
        text = self.environment.get(name, "").strip()
        return self.number(name, least=0) if text else None

    def address(self, name: str) -> S3Address:
        try:
            return S3Address.parse(self.environment.get(name, ""), name)
        except ConfigurationError as error:
            self.problems += error.problems
            return S3Address("")

    def object(self, name: str) -> dict[str, Any]:
        value = self.environment.get(name, "").strip() or "{}"
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = None
        if not isinstance(parsed, dict):
            self._wrong(name, "is not a JSON object", value, '{"key": value}', f"correct {name}")
            return {}
        return parsed

    def cluster(self) -> Topology:
        try:
            return Topology.read(self.environment)
        except Refused as error:
            self.problems.append(problem_of(error))
            return Topology()

    def options(self, name: str) -> TrainerOptions:
        try:
            return parse(TrainerOptions, name, self.object(name))
        except ConfigurationError as error:
            self.problems += error.problems
            return TrainerOptions()

    def _wrong(self, name: str, fault: str, received: object, expected: object, fix: str) -> None:
        self.problems.append(Problem(f"{name} {fault}", received, expected, fix, name))


def problem_of(refused: Refused) -> Problem:
    """Convert a refusal of the supervisor to a Problem."""
    received, expected = refused.received or None, refused.expected or None
    return Problem(refused.what, received, expected, refused.fix, refused.variable)
