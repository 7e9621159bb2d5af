"""What a replica is told by its environment, checked: all problems at once."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.errors import ConfigurationError, Problem
from kfp_tfjob.storage.words import did_you_mean, nearest
from kfp_tfjob.supervisor import environment as contract
from kfp_tfjob.supervisor.environment import Refused
from kfp_tfjob.supervisor.tf_config import Topology

# The variables that the trainer reads, and what --help says of them.
VARIABLES = {
    name: contract.VARIABLES[name]
    for name in (
        *("RUN_ID", "ATTEMPT", "RESTARTS", "DATASET_URI", "MODEL_CODE", "HYPERPARAMETERS"),
        *("EPOCHS", "BATCH_SIZE", "TRAIN_OPTIONS", "JOB_DIR", "OUTPUT_DIR", "EXPECTED_GPUS"),
    )
} | {
    "TRAIN_OPTIONS": "JSON object: seed, class_weight, early_stopping,"
    " reduce_lr_on_plateau, mixed_precision, checkpoint_seconds, checkpoint_keep,"
    " checkpoint_best, micro_batches, sync_batch_norm, jit_compile, tf32,"
    " deterministic_ops",
}
# Options for which null says something; for the others it is as if they were not there.
_NULL_IS_NONE = ("checkpoint_best",)
_PRECISIONS = ("mixed_bfloat16", "mixed_float16")


@dataclass(frozen=True)
class Options:
    """TRAIN_OPTIONS.

    Attributes:
        seed: Of the weights, the order of the rows and dropout.
        class_weight: Weight of a class by its name, `balanced`, or None.
        early_stopping: The arguments of keras.callbacks.EarlyStopping, or None.
        reduce_lr_on_plateau: Those of keras.callbacks.ReduceLROnPlateau, or None.
        mixed_precision: The policy of Keras, or empty for float32.
        checkpoint_seconds: The longest time between two checkpoints.
        checkpoint_keep: How many of the newest checkpoints stay.
        checkpoint_best: The metric by which one more stays, the best; None for none.
        micro_batches: In how many parts, one after the other, a replica takes its rows of a step.
        sync_batch_norm: Whether every BatchNormalization is made a synchronized one.
        jit_compile: Whether XLA compiles the forward and the backward pass on GPUs.
        tf32: Whether GPUs may round factors of float32 products to 10 bits, which is much faster.
        deterministic_ops: Whether to use only operations that give the same bits every time;
            GPUs need it for that, and are slower.
    """

    seed: int = 0
    class_weight: Mapping[str, float] | str | None = None
    early_stopping: Mapping[str, Any] | None = None
    reduce_lr_on_plateau: Mapping[str, Any] | None = None
    mixed_precision: str = ""
    checkpoint_seconds: float = 60.0
    checkpoint_keep: int = 3
    checkpoint_best: str | None = "val_loss"
    micro_batches: int = 1
    sync_batch_norm: bool = False
    jit_compile: bool = False
    tf32: bool = True
    deterministic_ops: bool = False


@dataclass(frozen=True)
class Config:
    """Everything a replica is told; the attributes are the variables of the same names."""

    dataset_uri: S3Address
    model_code: str
    epochs: int
    batch_size: int
    job_dir: Path
    output_dir: Path
    run_id: str = ""
    attempt: int = 1
    restarts: int = 0
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    options: Options = field(default_factory=Options)
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
            "model_code": reader.model_code("MODEL_CODE"),
            "epochs": reader.number("EPOCHS"),
            "batch_size": reader.number("BATCH_SIZE"),
            "job_dir": Path(reader.text("JOB_DIR")),
            "output_dir": Path(reader.text("OUTPUT_DIR")),
            "run_id": environment.get("RUN_ID", ""),
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
    """Reads variables one by one and collects what is wrong with them."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment
        self.problems: list[Problem | str] = []

    def text(self, name: str) -> str:
        value = self.environment.get(name, "").strip()
        if not value:
            self._wrong(name, "is not set", None, VARIABLES[name], f"set {name}")
        return value

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
        given = self.environment.get(name, "").strip()
        return self.number(name, least=0) if given else None

    def address(self, name: str) -> S3Address:
        try:
            return S3Address.parse(self.environment.get(name, ""), name)
        except ConfigurationError as error:
            self.problems += error.problems
            return S3Address("")

    def model_code(self, name: str) -> str:
        value = self.text(name)
        module, colon, function = value.partition(":")
        parts = [*module.split("."), function]
        if value and not (colon and all(part.isidentifier() for part in parts)):
            self._wrong(
                name,
                "does not name a function",
                repr(value),
                "MODULE:FUNCTION, for instance kfp_tfjob.trainer.models:mlp",
                f"correct {name}",
            )
        return value

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
            cluster = Topology.read(self.environment)
        except Refused as error:
            self.problems.append(problem_of(error))
            return Topology()
        if other := sorted({*cluster.members, cluster.kind} - {"chief", "worker"}):
            # A parameter server in the cluster makes TensorFlow wait without end.
            self._wrong(
                "TF_CONFIG",
                "has replicas this trainer does not train with",
                ", ".join(other),
                "chief and worker",
                "use only Chief and Worker, or give train_options a command of your own",
            )
        return cluster

    def options(self, name: str) -> Options:
        value = self.object(name)
        known = Options.__dataclass_fields__
        values = {}
        for key, item in value.items():
            if key not in known:
                self._unknown(name, key, known)
            elif item is not None:
                checked = getattr(self, f"_{key}")(f"{name}.{key}", item)
                values |= {} if checked is None else {key: checked}
            elif key in _NULL_IS_NONE:
                values[key] = None
        return Options(**values)

    def _seed(self, name: str, value: Any) -> int | None:
        return self._valid(
            name,
            value,
            _is_whole(value) and 0 <= value < 2**31,
            "a whole number from 0 to 2147483647",
            int,
        )

    def _class_weight(self, name: str, value: Any) -> Any:
        fine = value == "balanced" or (
            isinstance(value, dict)
            and all(_is_number(item) and item >= 0 for item in value.values())
        )
        expected = '"balanced", or a weight of 0 or more for each class by its name'
        return self._valid(name, value, fine, expected, lambda found: found)

    def _early_stopping(self, name: str, value: Any) -> dict[str, Any] | None:
        return self._arguments(name, value, _EARLY_STOPPING)

    def _reduce_lr_on_plateau(self, name: str, value: Any) -> dict[str, Any] | None:
        return self._arguments(name, value, _REDUCE_LR_ON_PLATEAU)

    def _arguments(self, name: str, value: Any, known: _Arguments) -> dict[str, Any] | None:
        if not isinstance(value, dict):
            return self._valid(name, value, False, 'an object, for instance {"patience": 3}', dict)
        found = {}
        for key, item in value.items():
            if key in known:
                expected, fits, cast = known[key]
                found[key] = self._valid(f"{name}.{key}", item, fits(item), expected, cast)
            else:
                self._unknown(name, key, known)
        return found

    def _mixed_precision(self, name: str, value: Any) -> str | None:
        if isinstance(value, bool):
            return _PRECISIONS[0] if value else ""
        expected = f"true, false, {' or '.join(_PRECISIONS)}"
        return self._valid(name, value, value in (*_PRECISIONS, ""), expected, str)

    def _checkpoint_seconds(self, name: str, value: Any) -> float | None:
        fine = _is_number(value) and value > 0
        return self._valid(name, value, fine, "seconds, more than 0", float)

    def _checkpoint_keep(self, name: str, value: Any) -> int | None:
        fine = _is_whole(value) and value >= 1
        return self._valid(name, value, fine, "a whole number, 1 or more", int)

    _micro_batches = _checkpoint_keep

    def _checkpoint_best(self, name: str, value: Any) -> str | None:
        expected = "the name of a metric, or null for none"
        return self._valid(name, value, isinstance(value, str) and bool(value), expected, str)

    def _sync_batch_norm(self, name: str, value: Any) -> bool | None:
        return self._valid(name, value, isinstance(value, bool), "true or false", bool)

    _jit_compile = _sync_batch_norm
    _tf32 = _deterministic_ops = _sync_batch_norm

    def _valid(
        self, name: str, value: Any, fine: bool, expected: str, cast: Callable[[Any], Any]
    ) -> Any:
        if fine:
            return cast(value)
        self._wrong(name, "is not valid", repr(value), expected, f"correct {name}")
        return None

    def _unknown(self, name: str, key: str, known: Mapping[str, Any]) -> None:
        meant = nearest(key, known)
        self.problems.append(
            Problem(
                f"{name} has no key {key!r}",
                received=key,
                expected=f"one of {', '.join(sorted(known))}",
                fix=did_you_mean(meant, f"remove {key!r}"),
                path=f"{name}.{key}",
                suggestion=meant,
            )
        )

    def _wrong(self, name: str, wrong: str, received: object, expected: object, fix: str) -> None:
        self.problems.append(Problem(f"{name} {wrong}", received, expected, fix, name))


def problem_of(refused: Refused) -> Problem:
    """Return what the supervisor refuses as a problem among others."""
    received, expected = refused.received or None, refused.expected or None
    return Problem(refused.what, received, expected, refused.fix, refused.variable)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_whole(value: Any) -> bool:
    return _is_number(value) and float(value).is_integer()


def _is_count(value: Any) -> bool:
    return _is_whole(value) and value >= 0


# The arguments of callbacks of Keras: what is expected, how it is checked and cast.
_Arguments = Mapping[str, tuple[str, Callable[[Any], bool], Callable[[Any], Any]]]
_MONITOR: _Arguments = {
    "monitor": ("the name of a metric", lambda value: isinstance(value, str), str),
    "patience": ("a whole number of epochs", _is_count, int),
    "min_delta": ("a number", _is_number, float),
    "mode": ("auto, min or max", lambda value: value in ("auto", "min", "max"), str),
}
_EARLY_STOPPING: _Arguments = {
    **_MONITOR,
    "baseline": ("a number", _is_number, float),
    "restore_best_weights": ("true or false", lambda value: isinstance(value, bool), bool),
    "start_from_epoch": ("a whole number of epochs", _is_count, int),
}
_REDUCE_LR_ON_PLATEAU: _Arguments = {
    **_MONITOR,
    "factor": (
        "a number between 0 and 1",
        lambda value: _is_number(value) and 0 < value < 1,
        float,
    ),
    "cooldown": ("a whole number of epochs", _is_count, int),
    "min_lr": ("a number, 0 or more", lambda value: _is_number(value) and value >= 0, float),
}
