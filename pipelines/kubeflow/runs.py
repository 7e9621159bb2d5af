"""The runs of a back end, in this project's form.

The API describes a run by tasks of Argo, with a driver and several tries for each step; after
2.17, by one record for each step (`task_records`). A user thinks in steps, so `steps_of` reduces
both to one state for each step. Called wherever a run of the back end is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kfp_tfjob.common.errors import StepError
from kfp_tfjob.common.formatting import counted
from kfp_tfjob.components import STEPS
from kfp_tfjob.options.parameter_masking import masked
from kfp_tfjob.options.parse import whole_numbers
from kfp_tfjob.storage.layout import Layout

from ..local.home import Home
from .connection import BackEnd, equals
from .errors import UnknownRunError
from .task_records import read_tasks

WAITING, RUNNING = ("pending",), ("running", "paused", "canceling")
OVER = ("succeeded", "failed", "canceled", "skipped")

_ARCHIVED = "ARCHIVED"
_DRIVER = "-driver"
_TRY = re.compile(r"\(\d+\)$")


@dataclass(frozen=True)
class StepState:
    """A step of a run.

    Attributes:
        name: For example, `launch_tfjob`.
        state: `pending`, `running`, `succeeded`, `failed` or `canceled`.
        seconds: How long it ran, or has been running, in seconds; None before it starts.
        error: The back end's message for a failed step.
    """

    name: str
    state: str
    seconds: float | None = None
    error: str = ""


@dataclass(frozen=True)
class Run:
    """A run.

    Attributes:
        run_id: Its id.
        name: Its name in the UI.
        state: `pending`, `running`, `succeeded`, `failed`, `canceling`, `canceled`.
        model: The run parameter model_name.
        created: The time of its submission, as RFC 3339.
        finished: The time of its end; empty before.
        seconds: The seconds from its submission to its end, or until now.
        page: Its address in the UI; for a local run, its folder on this machine.
        folder: The folder of its output in the store; empty if output_uri shapes it, so that only a
            record in the store contains it.
        steps: The steps that have started, in order.
        verdict: `published`, `blessed`, `lost the race`, `not blessed`, `unchanged` (it had nothing
            to train), `not evaluated` (train_options.evaluate is false), or the verdict on its
            failure; empty if unknown.
        error: The back end's message for a failed run.
        parameters: The run parameters with the defaults of its pipeline, as far as the back end
            shows them; secret-looking values are masked.
        schedule: The id of the schedule that started it; empty for other runs.
        is_archived: Whether a user has archived it; `runs` and `last` omit it then.
        was_cancelled: Whether a user has ended it, in its newest try; its state is `failed` then.
        root_driver: A clause with the number of failures to start its first step, and the reasons;
            empty without any.
        is_local: Whether `kfp-tfjob run` ran it on this machine. Its name is its id, and its times
            describe its newest start.
    """

    run_id: str
    name: str
    state: str
    model: str
    created: str
    finished: str
    seconds: float
    page: str
    folder: str
    steps: tuple[StepState, ...] = ()
    verdict: str = ""
    error: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    schedule: str = ""
    is_archived: bool = False
    was_cancelled: bool = False
    root_driver: str = ""
    is_local: bool = False

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self.state in OVER

    @property
    def current(self) -> StepState | None:
        """The step that runs or waits; None between two steps and after the end."""
        return next((step for step in self.steps if step.state in (*WAITING, *RUNNING)), None)

    @property
    def short_id(self) -> str:
        """The beginning of the id that a command accepts; a local id begins with the date."""
        return self.run_id if self.is_local else self.run_id[:8]

    @property
    def to_continue(self) -> str:
        """The command that continues the run after a failure or a stop."""
        if self.is_local:
            return Home(Path(self.page).parents[1]).to_continue(self.run_id)
        return f"kfp-tfjob retry {self.short_id}"


def list_runs(back_end: BackEnd, model: str = "") -> Iterator[Run]:
    """Yield the runs of this pipeline, or of one model, that are not archived, the newest first."""
    for raw in raw_runs(back_end):
        if raw.storage_state == _ARCHIVED or not is_ours(raw):
            continue
        if not model or parameters_of(raw).get("model_name") == model:
            yield run_of(back_end, raw)


def raw_runs(back_end: BackEnd) -> Iterator[Any]:
    """Yield the API's objects for the runs of every pipeline, the newest first."""
    yield from back_end.pages(
        "list the runs",
        back_end.sdk.runs.run_service_list_runs,
        "runs",
        sort_by="created_at desc",
        namespace=back_end.namespace,
    )


def named(back_end: BackEnd, name: str) -> list[Run]:
    """Return the runs with this name, of any pipeline, the oldest first."""
    raw_matches = back_end.pages(
        "list the runs",
        back_end.sdk.runs.run_service_list_runs,
        "runs",
        sort_by="created_at asc",
        namespace=back_end.namespace,
        filter=equals("name", name),
    )
    return [run_of(back_end, raw) for raw in raw_matches if raw.display_name == name]


def read_run(back_end: BackEnd, run_id: str) -> Run:
    """Return the current state of a run."""
    method = back_end.sdk.runs.run_service_get_run
    raw, body = back_end.call_with_body(f"read the run {run_id}", method, run_id=run_id)
    return run_of(back_end, raw, read_tasks(back_end, raw, body))


def with_steps(back_end: BackEnd, run: Run) -> Run:
    """Return a run of a list with the steps that have started, if it has not ended.

    After 2.17, Kubeflow Pipelines lists runs without their tasks.
    """
    if run.steps or run.is_over:
        return run
    try:
        return read_run(back_end, run.run_id)
    except UnknownRunError:
        return run  # it was deleted since


def all_parameters(back_end: BackEnd, run_id: str) -> dict[str, Any]:
    """Return the parameters of a run with all defaults of its pipeline, which may be another one.

    Raises:
        StepError: The back end does not return the run or its pipeline.
    """
    sdk = back_end.sdk
    raw = back_end.call("read the run", sdk.runs.run_service_get_run, run_id=run_id)
    spec = raw.pipeline_spec
    if not spec:  # the run names an uploaded pipeline
        version = raw.pipeline_version_reference
        spec = back_end.call(
            "read the pipeline of the run",
            sdk.pipelines.pipeline_service_get_pipeline_version,
            pipeline_id=version.pipeline_id,
            pipeline_version_id=version.pipeline_version_id,
        ).pipeline_spec
    return defaults_of(spec) | parameters_of(raw)


def run_of(back_end: BackEnd, raw: Any, tasks: list[Any] | None = None) -> Run:
    """Return the Run for an object of the API.

    Args:
        back_end: The back end.
        raw: The object.
        tasks: The run's tasks; None for those in the object, which has some up to 2.17.
    """
    parameters = parameters_of(raw)
    state = _state(raw.state)
    ended = raw.finished_at if state in OVER and raw.finished_at else None
    if ended and ended.year < 2000:  # the zero time of the back end
        ended = None
    details = raw.run_details
    run_tasks: list[Any] = (details.task_details if details else None) or []
    if tasks is not None:
        run_tasks = tasks
    return Run(
        run_id=raw.run_id,
        name=raw.display_name or "",
        state=state,
        model=str(parameters.get("model_name", "")),
        created=in_utc(raw.created_at),
        finished=in_utc(ended),
        seconds=_seconds(raw.created_at, ended),
        page=back_end.page(raw.run_id),
        folder=folder_of(str(parameters.get("output_uri", "")), raw.run_id),
        steps=steps_of(run_tasks),
        error=_message(raw.error),
        parameters=masked(defaults_of(raw.pipeline_spec) | parameters),
        schedule=raw.recurring_run_id or "",
        is_archived=raw.storage_state == _ARCHIVED,
        was_cancelled=_was_cancelled(raw, state),
        root_driver=_root_driver(run_tasks),
    )


def _was_cancelled(raw: Any, state: str) -> bool:
    """Return whether the last state of a run before its end was `canceling`."""
    earlier = [_state(entry.state) for entry in raw.state_history or ()]
    while earlier and earlier[-1] == state:
        earlier.pop()
    return state in ("failed", "canceled") and earlier[-1:] == ["canceling"]


def _root_driver(tasks: list[Any]) -> str:
    """Return a clause with the number of failures of the whole run's driver; empty without any.

    The back end repeats the driver, so the run is not failed by it.
    """
    tries = [task for task in tasks if str(task.display_name).startswith("root-driver(")]
    failed = [task for task in tries if _state(task.state) in ("failed", "error")]
    if not failed:
        return ""
    messages = "; ".join(dict.fromkeys(filter(None, (_message(task.error) for task in failed))))
    reasons = f": {messages}" if messages else ""
    return f"its root driver failed {counted(len(failed), 'time')}{reasons}"


def defaults_of(spec: Any) -> dict[str, Any]:
    """Return the defaults of a pipeline's inputs, by name.

    Args:
        spec: The pipeline's spec, alone or in a dict with the platform's spec; may be None.
    """
    pipeline_spec = (spec or {}).get("pipeline_spec", spec) or {}
    inputs = pipeline_spec.get("root", {}).get("inputDefinitions", {}).get("parameters", {})
    return {
        name: whole_numbers(definition["defaultValue"])
        for name, definition in inputs.items()
        if "defaultValue" in definition
    }


def steps_of(tasks: list[Any]) -> tuple[StepState, ...]:
    """Return the steps among a run's tasks, in the order of the pipeline.

    A step has several tasks: its driver, its container, and with a retry strategy one of each for
    every try. The newest task with the step's name represents it; until that exists, its driver
    does. Tasks of a skipped step lack a state, and the step is omitted.
    """
    # The rank, the task, and whether it is a driver.
    representatives: dict[str, tuple[tuple[bool, datetime], Any, bool]] = {}
    for task in tasks:
        plain = _TRY.sub("", str(task.display_name))
        name, driver = plain.removesuffix(_DRIVER).replace("-", "_"), plain.endswith(_DRIVER)
        if name not in STEPS or not task.state or (driver and _state(task.state) == "succeeded"):
            continue
        rank = (not driver, _began(task))
        if name not in representatives or representatives[name][0] <= rank:
            representatives[name] = (rank, task, driver)
    return tuple(
        _step_state(name, *representatives[name][1:]) for name in STEPS if name in representatives
    )


def _step_state(name: str, task: Any, driver: bool) -> StepState:
    """Return a step's state from the task that represents it, which may be its driver."""
    state = _state(task.state)
    if driver and state in RUNNING:
        state = "pending"  # its own pod does not exist yet
    began, ended = task.start_time or task.create_time, task.end_time
    ended = ended if state in OVER and ended and ended.year > 2000 else None
    seconds = None if state in WAITING or began is None else _seconds(began, ended)
    return StepState(name, state, seconds, _message(task.error))


def _began(task: Any) -> datetime:
    return task.start_time or task.create_time or datetime.min.replace(tzinfo=UTC)


def is_ours(raw: Any) -> bool:
    """Return whether a run or a schedule has the required parameters of this pipeline."""
    return {"model_name", "output_uri"} <= set(parameters_of(raw))


def parameters_of(raw: Any) -> dict[str, Any]:
    """Return the run parameters that the API shows for a run or a schedule."""
    return dict((raw.runtime_config.parameters if raw.runtime_config else None) or {})


def folder_of(output_uri: str, run_id: str) -> str:
    """Return a run's folder in the store; empty if output_uri shapes it or is not an address."""
    try:
        layout = Layout.parse(output_uri)
    except StepError:
        return ""  # a run of another pipeline, or one that preflight rejects
    return "" if layout.template else str(layout.run(run_id).base)


def _state(state: Any) -> str:
    name = str(state or "").removeprefix("RUNTIME_STATE_").lower()
    return "pending" if name in ("", "unspecified") else name


def _message(error: Any) -> str:
    return str(error.message or "") if error else ""


def in_utc(moment: datetime | None) -> str:
    """Return a time of the API as RFC 3339; empty if it is not set, which protobuf sends as 0."""
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}" if moment and moment.year > 1970 else ""


def _seconds(began: datetime | None, ended: datetime | None) -> float:
    if began is None:
        return 0.0
    return round(max(((ended or datetime.now(UTC)) - began).total_seconds(), 0.0), 1)
