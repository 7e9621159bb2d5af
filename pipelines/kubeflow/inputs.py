"""Looks from this machine at what a run will read, and at where it will write.

Preflight looks again in the cluster, with the keys of the pods. A store that this machine cannot
reach, or has no keys for, proves nothing. A store that answers that something is not there does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kfp_tfjob.components.preflight.gate import check_columns
from kfp_tfjob.components.prepare_data.source.resolve import check_header, list_source
from kfp_tfjob.options.data import DataOptions
from kfp_tfjob.options.fields import Tick, fill
from kfp_tfjob.options.parse import parse
from kfp_tfjob.pipelines.kubeflow.records import REACHABLE, endpoint_of
from kfp_tfjob.storage.errors import (
    ObjectNotFoundError,
    Problem,
    StepError,
    StoreUnavailableError,
)
from kfp_tfjob.storage.failures import code_of
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from kfp_tfjob.user_code.model_code import ModelCode

_ABSENT = ("NoSuchBucket", "InvalidBucketName")


@dataclass
class Inputs:
    """What this machine sees in the store of a run.

    Attributes:
        data: data_uri as the run will read it.
        files: Files of the data; None if they cannot be listed from here.
        bytes: Their bytes; None likewise.
        problems: What would fail the run.
        notes: What could not be found out, and why.
    """

    data: str = ""
    files: int | None = None
    bytes: int | None = None
    problems: list[Problem | str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def look(
    values: Mapping[str, Any],
    tick: Tick,
    endpoint: str = "",
    wrong: frozenset[str] = frozenset(),
    later: bool = False,
) -> Inputs:
    """Look at the data, the model code and the output folder, without writing anything.

    Args:
        values: Every run parameter.
        tick: The time for {date} and {hour}.
        endpoint: URL of the store as this machine reaches it.
        wrong: Parameters that have a problem already; nothing that needs them is looked at.
        later: Whether the run starts at a time to come, so that its data may not exist yet.
    """
    data = str(values["data_uri"])
    seen = Inputs(data if "data_uri" in wrong else fill(data, tick))
    if wrong & {"storage_endpoint", "storage_region"}:
        return seen
    try:
        look_at = _Look(values, endpoint, seen)
    except StepError as error:  # the environment of this machine, not that of the pods
        seen.notes.append(f"the store cannot be checked from here: {error.first}")
        return seen
    if "data_uri" not in wrong:
        look_at.data(later, with_header=not wrong & {"data_label", "data_options"})
    if "output_uri" not in wrong:
        look_at.output()
    if not wrong & {"model_code", "model_hyperparameters", "train_options"}:
        look_at.code()
    return seen


class _Look:
    """Looks at one thing after the other, until the store does not answer."""

    def __init__(self, values: Mapping[str, Any], endpoint: str, seen: Inputs) -> None:
        self._values, self._seen = values, seen
        self._is_away = False
        url = endpoint_of(values, endpoint)
        self._store = Store(url, str(values["storage_region"]), patience=REACHABLE)

    def data(self, later: bool, with_header: bool) -> None:
        """Count the files, and read the first block of the first one."""

        def ask() -> None:
            given = self._values["data_options"] if with_header else {}
            options = parse(DataOptions, "data_options", given)
            try:
                source = list_source(self._store, self._seen.data, options)
            except StepError as error:
                if not (later and error.__cause__ is None):
                    raise
                self._seen.notes.append(f"there is no data yet: {self._seen.data}")
                return
            self._seen.files = len(source.files)
            self._seen.bytes = sum(file.size for file in source.files)
            if with_header:
                label = str(self._values["data_label"])
                self._seen.problems += check_header(source, label, options)
                gate = self._values["gate"]
                self._seen.problems += check_columns(source, label, options, gate)

        self._ask("the data", "data_uri", ask)

    def output(self) -> None:
        """List the place of the output: only its bucket must exist."""
        root = Layout.parse(str(self._values["output_uri"])).root
        self._ask(
            "the place of the output",
            "output_uri",
            lambda: next(iter(self._store.list(root)), None),
        )

    def code(self) -> None:
        """Read the model code, if it is in the store."""
        code = ModelCode.parse(str(self._values["model_code"]))
        if not code.source.startswith("s3://"):
            return
        own_command = self._values["train_options"].get("command")

        def ask() -> None:
            found = code.read(self._store)
            if not own_command:
                given = self._values["model_hyperparameters"]
                self._seen.problems += found.problems(code.function, given)

        self._ask("the model code", "model_code", ask)

    def _ask(self, what: str, parameter: str, ask: Callable[[], object]) -> None:
        if self._is_away:
            return
        try:
            ask()
        except StepError as error:
            self._is_away = isinstance(error, StoreUnavailableError)
            if _is_certain(error):
                self._seen.problems += [
                    found
                    for found in (self._placed(it, parameter) for it in error.problems)
                    if found not in self._seen.problems
                ]
                return
            subject = "the store" if self._is_away else what
            self._seen.notes.append(
                f"{subject} cannot be checked from here, so preflight checks it in the run:"
                f" {error.first}"
            )

    def _placed(self, problem: Problem | str, parameter: str) -> Problem | str:
        """Return a problem with the store that was asked, which may not be that of the pods."""
        if isinstance(problem, str):
            return problem
        other = "if the pods use a different store, set AWS_ENDPOINT_URL to its address"
        received = problem.received or self._values[parameter]
        return replace(
            problem,
            received=f"{received}, at {self._store.endpoint or 'AWS'}",
            fix=f"{problem.fix or f'correct {parameter}'}; {other}",
            path=problem.path or parameter,
        )


def _is_certain(error: StepError) -> bool:
    """Tell whether the run would fail for the same reason: something is wrong or does not exist."""
    if isinstance(error, StoreUnavailableError):
        return False
    cause = error.__cause__
    return cause is None or isinstance(error, ObjectNotFoundError) or _names_nothing(cause)


def _names_nothing(cause: BaseException) -> bool:
    return isinstance(cause, Exception) and code_of(cause) in _ABSENT
