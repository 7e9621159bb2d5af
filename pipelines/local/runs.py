"""The runs of a home, for the commands that also show the runs of Kubeflow Pipelines.

A back end keeps the state of its runs. A local run leaves only its records, its log, and, while it
is in progress, its processes; the state is derived from these. Everything else is read and
explained by the same code as a run on a cluster. Called by the commands `runs`, `watch`, `why`,
`cancel` and `retry`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from kfp_tfjob.common.errors import ConfigurationError, Problem, StepError
from kfp_tfjob.components import STEPS
from kfp_tfjob.components.finish.workflow import FailedTask
from kfp_tfjob.components.step import RUN_ID, WHOLE_RUN
from kfp_tfjob.jobs.failure_record import Failure
from kfp_tfjob.storage.documents import InvalidDocumentError
from kfp_tfjob.storage.layout import FAILURE_JSON
from kfp_tfjob.storage.store import Store

from ..kubeflow import ending, following
from ..kubeflow.pods import ClusterSnapshot
from ..kubeflow.records import REACHABLE, Records
from ..kubeflow.runs import Run, StepState, folder_of, in_utc
from ..kubeflow.why import Why, explain, with_verdict
from ..stored_run import local_folder
from . import processes
from .embedded_store import embedded_store, is_held
from .home import LOG, PARAMETERS, TICK, Home
from .pipeline_log import PipelineLog

_DAY = 86400  # seconds; a longer run's times of day are ambiguous
_SECONDS = 0.2  # between two checks whether a stopped run has ended
_LINES = 12  # of a failed step's log; the end of a traceback
_KILLED = (
    "it left no record of its end: its processes were killed, its disk was full, or this machine"
    " stopped"
)
_NO_RECORD = "no record of its failure; for example, memory ran out"

OpenStore = Callable[[Mapping[str, Any]], Store]


class HomeRuns:
    """The runs of a home, with the methods of `Client` that the commands share.

    Args:
        home: The folder of local runs.
        endpoint: URL of the store; empty for each run's own.
    """

    def __init__(self, home: Home, endpoint: str = "") -> None:
        self._home = home
        self._endpoint = endpoint

    def runs(
        self, limit: int = 10, model: str = "", tell: Callable[[str], None] = lambda text: None
    ) -> list[Run]:
        """Return the newest runs with their verdicts; as `Client.runs`."""
        listed: list[Run] = []
        with self._stores() as open_store:
            for folder in self._home.runs():
                if model and _parameters(folder).get("model_name") != model:
                    continue
                run, records = self._read(folder, open_store)
                run = with_verdict(records, lambda folder=folder: RunOnMachine(folder))
                if records.trouble and run.is_over and not run.verdict:
                    tell(records.trouble)
                listed.append(run)
                if len(listed) == limit:
                    break
        return listed

    def watch(self, run: str, seconds: float = following.INTERVAL) -> Iterator[following.Moment]:
        """Yield the run's state whenever it changes, until the run ends; as `Client.watch`."""
        folder = self._folder(run)
        with self._stores() as open_store:
            yield from following.follow(
                lambda: self._read(folder, open_store)[0],
                self._read(folder, open_store)[1],
                RunOnMachine(folder),
                seconds,
            )

    def why(self, run: str) -> Why:
        """Return why a run failed or published nothing, and what to do; as `Client.why`."""
        folder = self._folder(run)
        with self._stores() as open_store:
            return explain(*self._read(folder, open_store), connect=lambda: RunOnMachine(folder))

    def cancel(
        self, run: str, limit: float = 300, tell: Callable[[str], None] = lambda text: None
    ) -> ending.Cancelled:
        """Stop a run as Ctrl-C does, and wait until its command ends; as `Client.cancel`."""
        folder = self._folder(run)
        with self._stores() as open_store:
            started = self._read(folder, open_store)[0]
        ending.check_not_over(started)
        lock = self._home.folder / "lock"
        command = _process_with(lock) if _active(self._home) == folder.name else None
        if command is None:
            raise ConfigurationError(
                Problem(
                    f"the run {started.name} has no processes to stop",
                    received="a run that is about to start, or has just ended",
                    expected="a run in progress",
                    fix="repeat the command in a few seconds",
                )
            )
        tell(f"stopping process {command.pid}; training saves its state")
        began = time.monotonic()
        command.terminate()
        while (is_running := is_held(lock)) and time.monotonic() - began < limit:
            time.sleep(_SECONDS)
        spent = time.monotonic() - began
        with self._stores() as open_store:
            stopped, records = self._read(folder, open_store)
            checkpoint = records.checkpoint()
        return ending.Cancelled(
            run=stopped,
            seconds=round(spent, 1),
            complete=not is_running,
            left=f"process {command.pid}" if is_running else "",
            checkpoint=checkpoint,
            checked=(ending.describe_checkpoint(records, checkpoint),),
        )

    def retry(self, run: str) -> Run:
        """Raise an error that names the command to continue a run, which runs in the foreground.

        Raises:
            ConfigurationError: Always.
        """
        with self._stores() as open_store:
            failed = self._read(self._folder(run), open_store)[0]
        ending.check_can_be_retried(failed)
        raise ConfigurationError(
            Problem(
                f"{failed.name} is a local run, which `retry` does not start",
                received=f"a run in {self._home.folder}",
                expected="a run on Kubeflow Pipelines",
                fix=f"continue it in this terminal: {failed.to_continue}",
            )
        )

    def _folder(self, run: str) -> Path:
        folder = local_folder(self._home, run, local=True)
        assert folder  # or it has raised
        return folder

    @contextmanager
    def _stores(self) -> Iterator[OpenStore]:
        """Yield a function that opens a run's store; each store is opened only once."""
        with ExitStack() as stack:

            @cache
            def embedded() -> Store | StepError:
                try:
                    return stack.enter_context(embedded_store(self._home, REACHABLE))
                except StepError as error:
                    return error  # not started again for each run

            @cache
            def at(endpoint: str, region: str) -> Store:
                return Store(endpoint, region, patience=REACHABLE)

            def open_store(values: Mapping[str, Any]) -> Store:
                endpoint = self._endpoint or str(values.get("storage_endpoint") or "")
                if endpoint:
                    return at(endpoint, str(values.get("storage_region", "")))
                store = embedded()
                if isinstance(store, StepError):
                    raise store
                return store

            yield open_store

    def _read(self, folder: Path, open_store: OpenStore) -> tuple[Run, _HomeRecords]:
        """Return a run as it is now, and its records."""
        values, log = _parameters(folder), PipelineLog.read(folder / LOG)
        output = str(values.get("output_uri", ""))
        began = _changed_at(folder / TICK) or _changed_at(folder / PARAMETERS)
        run = Run(
            run_id=folder.name,
            name=folder.name,
            state="running",
            model=str(values.get("model_name", "")),
            created=in_utc(datetime.fromtimestamp(began, UTC)),
            finished="",
            seconds=round(max(time.time() - began, 0.0), 1),
            page=str(folder),
            folder=folder_of(output, folder.name),
            parameters=values,
            is_local=True,
        )
        records = _HomeRecords(run, lambda: open_store(values))
        state = self._state(folder, log, records)
        ended = _changed_at(folder / LOG) or began
        if state != "running":
            run = replace(
                run,
                state=state,
                finished=in_utc(datetime.fromtimestamp(ended, UTC)),
                seconds=round(max(ended - began, 0.0), 1),
                error=_KILLED if state == "failed" else "",
                was_cancelled=state == "canceled",
            )
        run = replace(run, steps=_steps(run, log, ended if run.is_over else time.time()))
        return run, records.about(run)

    def _state(self, folder: Path, log: PipelineLog, records: _HomeRecords) -> str:
        """Return the state of a run; the store is read only if nothing on this machine tells it."""
        if _active(self._home) == folder.name:
            return "running"
        if records.local_failure:
            return "failed"
        if log.succeeded:
            return "succeeded"
        # A stopped run has only the exit task's record, and a complete run that was continued with
        # wrong input keeps its result.
        if failure := records.failure():
            is_stop = (failure.step, failure.verdict) == (WHOLE_RUN, "cancelled")
            return "canceled" if is_stop else "failed"
        if records.outcome.is_final:
            return "succeeded"
        is_newest = self._home.runs()[:1] == [folder]
        if is_newest and is_held(self._home.folder / "lock"):
            return "running"  # its pipeline is about to start, or has just ended
        return "failed"


class _HomeRecords(Records):
    """A local run's records: in its store, and the failure also in its folder."""

    def __init__(self, run: Run, open_store: Callable[[], Store]) -> None:
        super().__init__(run, open_store=open_store)
        self.local_failure = _failure(Path(run.page))

    def failure(self) -> Failure | None:
        """Return the failure that ended the run, also if it was the store that failed."""
        return self.local_failure or super().failure()


class RunOnMachine:
    """A local run's processes from its log, in place of a cluster's pods."""

    def __init__(self, folder: Path) -> None:
        self.trouble, self.namespace = "", ""
        self._log = PipelineLog.read(folder / LOG)

    def snapshot(self) -> ClusterSnapshot | None:
        """Return None: the processes of a local run wait for nothing."""
        return None

    def failed(self) -> list[FailedTask]:
        """Return the tasks that failed without a record, with the last lines of their logs."""
        return [
            FailedTask(
                step=name,
                driver=False,
                message=_NO_RECORD,
                ended="",
                lines=self._log.last_lines(name, _LINES),
            )
            for name, step in self._log.steps.items()
            if step.ended is not None and not step.succeeded
        ]


def _steps(run: Run, log: PipelineLog, until: float) -> tuple[StepState, ...]:
    """Return the steps that have started; `until` is now or the run's end."""
    clock = datetime.fromtimestamp(until)
    midnight = clock.replace(hour=0, minute=0, second=0, microsecond=0)
    seconds_of_day = (clock - midnight).total_seconds()
    states = []
    for name in (name for name in STEPS if name in log.steps):
        step = log.steps[name]
        state = run.state if run.state != "succeeded" else "failed"
        if step.ended is not None:
            state = "succeeded" if step.succeeded else "failed"
        # The log has times without dates.
        seconds = step.seconds(seconds_of_day) if run.seconds < _DAY else None
        states.append(StepState(name, state, seconds))
    return tuple(states)


def _active(home: Home) -> str:
    """Return the id of the run whose processes exist; empty for none."""
    with suppress(OSError):
        token, _, owner = (home.folder / "token").read_text().partition(" ")
        if token and owner == str(home.folder.stat().st_ino):  # else the home is a copy
            for process in processes.carriers(token):
                with suppress(psutil.Error):
                    if run_id := process.environ().get(RUN_ID):
                        return run_id
    return ""


def _process_with(lock: Path) -> psutil.Process | None:
    """Return the other process that has a lock's file open, which is the run's command."""
    path = str(lock.resolve())
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it ended, or it belongs to another user
            if process.pid != os.getpid() and path in (file.path for file in process.open_files()):
                return process
    return None


def _parameters(folder: Path) -> Mapping[str, Any]:
    try:
        values = json.loads((folder / PARAMETERS).read_bytes())
    except (OSError, ValueError):  # the disk was full
        return {}
    return values if isinstance(values, dict) else {}


def _failure(folder: Path) -> Failure | None:
    try:
        return Failure.from_bytes((folder / FAILURE_JSON).read_bytes())
    except (OSError, InvalidDocumentError):  # there is none, or the disk was full
        return None


def _changed_at(path: Path) -> float:
    """Return when a file was written last, in seconds since 1970; 0 if there is none."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
