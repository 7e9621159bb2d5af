"""The runs of a back end: what they are, and how to find one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from kfp_tfjob.components import STEPS
from kfp_tfjob.options.parameter_masking import masked
from kfp_tfjob.options.parse import whole_numbers
from kfp_tfjob.pipelines.kubeflow.connection import BackEnd, equals
from kfp_tfjob.pipelines.kubeflow.errors import UnknownRunError
from kfp_tfjob.storage.errors import ConfigurationError, Problem, StepError
from kfp_tfjob.storage.formatting import counted, listed
from kfp_tfjob.storage.layout import Layout

LAST = "last"
WAITING, RUNNING = ("pending",), ("running", "paused", "canceling")
OVER = ("succeeded", "failed", "canceled", "skipped")

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_PREFIX = re.compile(r"[0-9a-f][0-9a-f-]{3,35}")
_ARCHIVED = "ARCHIVED"
_DRIVER = "-driver"
_TRY = re.compile(r"\(\d+\)$")
_SEARCHED = 1000  # runs, for a prefix or `last`


@dataclass(frozen=True)
class StepState:
    """A step of a run.

    Attributes:
        name: For example, `launch_tfjob`.
        state: `pending`, `running`, `succeeded`, `failed` or `canceled`.
        seconds: How long it ran, or has been running; None before it starts.
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
        created: When it was submitted, as RFC 3339.
        finished: When it ended; empty before.
        seconds: From submission to its end, or until now.
        page: Its address in the UI.
        folder: The folder of its output in the store; empty if output_uri shapes it and only its
            record knows it.
        steps: The steps that have started, in order.
        verdict: `published`, `blessed`, `lost the race`, `not blessed`, `unchanged` (it had nothing
            to train), `not evaluated` (train_options.evaluate is false), or the verdict on its
            failure; empty if unknown.
        error: The back end's message for a failed run.
        parameters: The run parameters with the defaults of its pipeline, as far as the back end
            shows them; secret-looking values are masked.
        schedule: The id of the schedule that started it; empty for none.
        is_archived: Whether a user has archived it; `runs` and `last` leave it out.
        was_cancelled: Whether a user has ended it, in its newest try; its state is `failed` then.
        root_driver: How often Kubeflow Pipelines failed to start its first step, and why; else
            empty.
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

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.state in OVER

    @property
    def current(self) -> StepState | None:
        """The step that runs or waits; None if none does."""
        return next((it for it in self.steps if it.state in (*WAITING, *RUNNING)), None)


def list_runs(back_end: BackEnd, model: str = "") -> Iterator[Run]:
    """Yield the runs of this pipeline, or of one model, that are not archived, the newest first."""
    for raw in raw_runs(back_end):
        if raw.storage_state == _ARCHIVED or not is_ours(raw):
            continue
        if not model or parameters_of(raw).get("model_name") == model:
            yield run_of(back_end, raw)


def raw_runs(back_end: BackEnd) -> Iterator[Any]:
    """Yield the runs of every pipeline as the API has them, the newest first."""
    yield from back_end.pages(
        "list the runs",
        back_end.sdk.runs.run_service_list_runs,
        "runs",
        sort_by="created_at desc",
        namespace=back_end.namespace,
    )


def find_run(back_end: BackEnd, given: str) -> Run:
    """Return a run by its id, a unique beginning of the id, its name, or `last`.

    `last` is the newest run of this pipeline. The others may be of any pipeline, for example one
    of a user's own with steps of this project.
    """
    given = given.strip()
    if _ID.fullmatch(given):
        try:
            return read_run(back_end, given)
        except UnknownRunError as error:
            raise _no_run(back_end, given) from error
    if given == LAST:
        found = list(islice(list_runs(back_end), 1))
    else:
        same = named(back_end, given)[::-1] if given else []
        found = [run for run in same if not run.is_archived] or same
    if not found and _PREFIX.fullmatch(given):
        newest = islice(raw_runs(back_end), _SEARCHED)
        found = [run_of(back_end, raw) for raw in newest if raw.run_id.startswith(given)]
    if len(found) == 1:
        return read_run(back_end, found[0].run_id)
    if found:
        fix = f"give the id, for example {found[0].run_id[:8]} for the newest"
        if all(run.run_id.startswith(given) for run in found):
            fix = "type more of the id"
        raise ConfigurationError(
            Problem(
                f"several runs are called {given}",
                received=counted(len(found), "run"),
                expected=f"one of {listed(map(_shown, found), 5)}",
                fix=fix,
            )
        )
    raise _no_run(back_end, given)


def _no_run(back_end: BackEnd, given: str) -> UnknownRunError:
    newest = ", ".join(map(_shown, islice(list_runs(back_end), 5)))
    return UnknownRunError(
        Problem(
            "there is no run of this pipeline yet" if given == LAST else "there is no such run",
            received=given or "nothing",
            expected=f"an id, a unique id prefix, a name or {LAST}; the newest: {newest or 'none'}",
            fix="list them with `kfp-tfjob runs`",
        )
    )


def _shown(run: Run) -> str:
    return f"{run.name} ({run.run_id[:8]}, {run.state})"


def named(back_end: BackEnd, name: str) -> list[Run]:
    """Return the runs with this name, of any pipeline, the oldest first."""
    found = back_end.pages(
        "list the runs",
        back_end.sdk.runs.run_service_list_runs,
        "runs",
        sort_by="created_at asc",
        namespace=back_end.namespace,
        filter=equals("name", name),
    )
    return [run_of(back_end, raw) for raw in found if raw.display_name == name]


def read_run(back_end: BackEnd, run_id: str) -> Run:
    """Return a run as it is now."""
    method = back_end.sdk.runs.run_service_get_run
    return run_of(back_end, back_end.call(f"read the run {run_id}", method, run_id=run_id))


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


def run_of(back_end: BackEnd, raw: Any) -> Run:
    """Return a run of the API as ours."""
    parameters = parameters_of(raw)
    state = _state(raw.state)
    ended = raw.finished_at if state in OVER and raw.finished_at else None
    if ended and ended.year < 2000:  # the zero time of the back end
        ended = None
    tasks = (raw.run_details.task_details if raw.run_details else None) or []
    return Run(
        run_id=raw.run_id,
        name=raw.display_name or "",
        state=state,
        model=str(parameters.get("model_name", "")),
        created=in_utc(raw.created_at),
        finished=in_utc(ended),
        seconds=_seconds(raw.created_at, ended),
        page=back_end.page(raw.run_id),
        folder=_folder(str(parameters.get("output_uri", "")), raw.run_id),
        steps=steps_of(tasks),
        error=_message(raw.error),
        parameters=masked(defaults_of(raw.pipeline_spec) | parameters),
        schedule=raw.recurring_run_id or "",
        is_archived=raw.storage_state == _ARCHIVED,
        was_cancelled=_was_cancelled(raw, state),
        root_driver=_root_driver(tasks),
    )


def _was_cancelled(raw: Any, state: str) -> bool:
    """Return whether a run was on its way to its end before it ended."""
    before = [_state(it.state) for it in raw.state_history or ()]
    while before and before[-1] == state:
        before.pop()
    return state in ("failed", "canceled") and before[-1:] == ["canceling"]


def _root_driver(tasks: list[Any]) -> str:
    """Return how often the driver of the whole run has failed; the back end tries it again."""
    tries = [task for task in tasks if str(task.display_name).startswith("root-driver(")]
    failed = [task for task in tries if _state(task.state) in ("failed", "error")]
    if not failed:
        return ""
    said = "; ".join(dict.fromkeys(filter(None, (_message(task.error) for task in failed))))
    return f"its root driver failed {counted(len(failed), 'time')}{f': {said}' if said else ''}"


def defaults_of(spec: Any) -> dict[str, Any]:
    """Return the defaults of a pipeline's parameters, whichever part of its spec is given."""
    inner = (spec or {}).get("pipeline_spec", spec) or {}
    inputs = inner.get("root", {}).get("inputDefinitions", {}).get("parameters", {})
    return {
        name: whole_numbers(it["defaultValue"])
        for name, it in inputs.items()
        if "defaultValue" in it
    }


def steps_of(tasks: list[Any]) -> tuple[StepState, ...]:
    """Return the steps among a run's tasks, in the order of the pipeline.

    A step has several tasks: its driver, its container, and with a retry strategy one of each for
    every try. The one with the step's name stands for it; before that, its driver. A step that
    was omitted has no state.
    """
    found: dict[str, tuple[tuple[bool, datetime], Any, bool]] = {}
    for task in tasks:
        plain = _TRY.sub("", str(task.display_name))
        name, driver = plain.removesuffix(_DRIVER).replace("-", "_"), plain.endswith(_DRIVER)
        if name not in STEPS or not task.state or (driver and _state(task.state) == "succeeded"):
            continue
        rank = (not driver, _began(task))
        if name not in found or found[name][0] <= rank:
            found[name] = (rank, task, driver)
    return tuple(_step(name, *found[name][1:]) for name in STEPS if name in found)


def _step(name: str, task: Any, driver: bool) -> StepState:
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
    """Return whether a run or a schedule has the parameters that every run of ours has."""
    return {"model_name", "output_uri"} <= set(parameters_of(raw))


def parameters_of(raw: Any) -> dict[str, Any]:
    """Return the run parameters that the API shows for a run or a schedule."""
    return dict((raw.runtime_config.parameters if raw.runtime_config else None) or {})


def _folder(output_uri: str, run_id: str) -> str:
    try:
        layout = Layout.parse(output_uri)
    except StepError:
        return ""
    return "" if layout.template else str(layout.run(run_id).base)


def _state(state: Any) -> str:
    said = str(state or "").removeprefix("RUNTIME_STATE_").lower()
    return "pending" if said in ("", "unspecified") else said


def _message(error: Any) -> str:
    return str(error.message or "") if error else ""


def in_utc(moment: datetime | None) -> str:
    """Return a time of the API as RFC 3339; empty for none, for which protobuf has its zero."""
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}" if moment and moment.year > 1970 else ""


def _seconds(began: datetime | None, ended: datetime | None) -> float:
    if began is None:
        return 0.0
    return round(max(((ended or datetime.now(UTC)) - began).total_seconds(), 0.0), 1)
