"""`python -m kfp_tfjob.trainer.mlflow_run FILE`: copies the chief's epochs to an MLflow run.

progress.jsonl is the queue: it contains every epoch, also of earlier processes and pods, so epochs
that a server missed while it was away are logged when it is back. MLflow cannot replace a value. So
the steps that it already has are read before the first epoch is sent, and after a failed request.
An epoch that is trained again after a restart keeps the values that were logged first.

The process reads the end from its standard input: a line with the final status and the seconds it
may take, or nothing if the trainer was killed.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import logging
import math
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from kfp_tfjob.common.escaping import host_of, line, without_secrets
from kfp_tfjob.common.formatting import counted
from kfp_tfjob.common.log_format import log_to
from kfp_tfjob.registry import tracking
from kfp_tfjob.storage.credentials import SecretVolume
from kfp_tfjob.storage.secret_keys import MLFLOW_KEY
from kfp_tfjob.supervisor.kernel import die_with_parent

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run

log = logging.getLogger("kfp_tfjob.trainer.mlflow")
_POLL_SECONDS = 1.0  # between two looks at progress.jsonl, a local file
_FIRST_PAUSE, _LONGEST_PAUSE = 2.0, 60.0  # seconds between two tries, while a server is away
_MOST_METRICS, _MOST_PARAMETERS = 1000, 100  # of one request; MLflow rejects more
_LONGEST_VALUE = 6000  # characters of a parameter
_EVENT = 20  # characters, within which a line of progress.jsonl names its event
_NICENESS = 10  # the trainer's threads come first
_SETTINGS = (
    *(MLFLOW_KEY, *tracking.CREDENTIALS),
    *(tracking.EXPERIMENT_ID, tracking.EXPERIMENT_NAME),
)


@dataclass
class Follower:
    """Reads the epochs that are added to a progress.jsonl.

    A restarted trainer replaces the file by one that ends at its checkpoint. Then it is read from
    the start again.
    """

    path: Path
    _file: TextIO | None = None
    _partial: str = ""

    def epochs(self) -> Iterator[Mapping[str, Any]]:
        """Yield the complete lines about epochs since the last call."""
        if not self._is_open():
            return
        assert self._file
        *complete, self._partial = (self._partial + self._file.read()).split("\n")
        for text in complete:
            if '"epoch"' not in text[:_EVENT]:  # most lines are about a part of an epoch
                continue
            try:
                event = json.loads(text)
            except ValueError:  # a kill may leave half of a line
                continue
            if event["event"] == "epoch":
                yield event

    def _is_open(self) -> bool:
        try:
            newest = self.path.stat().st_ino
            if self._file and os.fstat(self._file.fileno()).st_ino != newest:
                self._file.close()
                self._file, self._partial = None, ""
            self._file = self._file or open(self.path, encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return False
        return True


@dataclass
class RunLog:
    """The MLflow run of a training.

    Attributes:
        client: A client of the server.
        parameters: The parameters to log.
        tags: The tags to set; they include the run's id.
        environment: The variables that name the experiment, or a run to continue.
        run_id: MLflow's id of the run; empty before it was opened.
    """

    client: MlflowClient
    parameters: Mapping[str, str]
    tags: Mapping[str, str]
    environment: Mapping[str, str]
    run_id: str = ""
    _steps: dict[str, set[int]] = field(default_factory=dict)

    def open(self) -> None:
        """Continue the run that a plugin or an earlier process has created, or create one."""
        if self.run_id:
            return
        run = self._injected_run() or self._own_run()
        run_id = run.info.run_id
        if run.info.status != "RUNNING":
            self.client.update_run(run_id, status="RUNNING")
        self._describe(run)
        self.run_id = run_id

    def log_epochs(self, epochs: Sequence[Mapping[str, Any]]) -> None:
        """Log the epochs that the run does not have.

        Raises:
            MlflowException: The server does not answer, or rejects them. Call it again with the
                same epochs.
        """
        self.open()
        batch: list[Metric] = []
        try:
            for epoch in epochs:
                metrics = _metrics(epoch)
                if not metrics:
                    continue
                name, step = metrics[0].key, metrics[0].step
                if step in self._logged(name):
                    continue
                if len(batch) + len(metrics) > _MOST_METRICS:
                    self._send(batch)
                    batch = []
                batch += metrics
                self._logged(name).add(step)
            self._send(batch)
        except Exception:
            self._steps.clear()  # a request that failed may have been processed
            raise

    def end(self, status: str) -> None:
        """Set the final status."""
        self.open()
        self.client.set_terminated(self.run_id, status)

    def _send(self, metrics: list[Metric]) -> None:
        for start in range(0, len(metrics), _MOST_METRICS):
            part = metrics[start : start + _MOST_METRICS]
            self.client.log_batch(self.run_id, metrics=part, synchronous=True)

    def _logged(self, name: str) -> set[int]:
        """Return the epochs whose value of a metric is logged in the run."""
        if name not in self._steps:
            history = self.client.get_metric_history(self.run_id, name)
            self._steps[name] = {metric.step for metric in history}
        return self._steps[name]

    def _injected_run(self) -> Run | None:
        from mlflow.exceptions import MlflowException

        run_id = self.environment.get(tracking.RUN_ID)
        if not run_id:
            return None
        try:
            run = self.client.get_run(run_id)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            log.warning("MLflow has no run %s; a new one is created", line(run_id))
            return None
        if run.info.lifecycle_stage != "active":
            log.warning("the MLflow run %s was deleted; a new one is created", line(run_id))
            return None
        return run

    def _own_run(self) -> Run:
        experiment = self._experiment()
        run_id = self.tags[tracking.RUN_TAG]
        task_key = self.tags.get(tracking.TASK_TAG, "")
        if run := tracking.find_run(self.client, [experiment], run_id, task_key):
            return run
        name = f"{run_id} {task_key}".strip()
        # With its tags in one request, so that a process killed just now leaves no unknown run.
        return self.client.create_run(experiment, tags=dict(self.tags), run_name=name)

    def _experiment(self) -> str:
        """Return the id of the experiment that the environment names; MLflow's default is 0."""
        if experiment := self.environment.get(tracking.EXPERIMENT_ID):
            return experiment
        name = self.environment.get(tracking.EXPERIMENT_NAME)
        if not name:
            return "0"
        if existing := self.client.get_experiment_by_name(name):
            return existing.experiment_id
        return self.client.create_experiment(name)

    def _describe(self, run: Run) -> None:
        """Log the parameters and tags that a run lacks; MLflow rejects another value for one."""
        from mlflow.entities import Param, RunTag

        named = {tracking.key(name): value for name, value in self.parameters.items()}
        parameters = [
            Param(name, value[:_LONGEST_VALUE])
            for name, value in named.items()
            if name not in run.data.params
        ]
        tags = [
            RunTag(name, value) for name, value in self.tags.items() if name not in run.data.tags
        ]
        for start in range(0, max(len(parameters), 1), _MOST_PARAMETERS):
            part = parameters[start : start + _MOST_PARAMETERS]
            if part or tags:
                self.client.log_batch(run.info.run_id, params=part, tags=tags, synchronous=True)
            tags = []


def _metrics(epoch: Mapping[str, Any]) -> list[Metric]:
    """Return the finite metrics of a line of progress.jsonl; the step is the epoch, from 1.

    The time is the line's own, so a request that is repeated adds nothing.
    """
    from mlflow.entities import Metric

    milliseconds = int(epoch["time"] * 1000)
    values = {
        tracking.key(name): float(value)
        for name, value in epoch["metrics"].items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
    return [Metric(name, value, milliseconds, epoch["epoch"]) for name, value in values.items()]


@dataclass
class Session:
    """Copies epochs to MLflow as long as the trainer runs; a server that is away is tried again.

    Attributes:
        follower: Where the epochs come from.
        connect: Returns the run's log; it may fail while the server is away.
        hide: Makes a message of the client safe for the log.
        server: The server's host, for messages.
    """

    follower: Follower
    connect: Callable[[], RunLog]
    hide: Callable[[str], str]
    server: str
    pending: list[Mapping[str, Any]] = field(default_factory=list)
    _run: RunLog | None = None
    _away: bool = False
    _pause: float = _FIRST_PAUSE
    _next_try: float = -math.inf

    def follow(self, wait: Callable[[float], str | None]) -> None:
        """Log epochs until the trainer ends.

        Args:
            wait: Waits for a line of the trainer for some seconds; None without one, empty if the
                trainer is gone.

        Raises:
            ImportError: MLflow's client is not installed.
        """
        while (word := wait(_POLL_SECONDS)) is None:
            self.pending += self.follower.epochs()
            if (self.pending or not self._run) and time.monotonic() >= self._next_try:
                self._try(lambda run: None)
        if not word:  # the trainer was killed; the next one continues
            return
        status, seconds = word.split()
        deadline = time.monotonic() + float(seconds)
        self.pending += self.follower.epochs()
        while not self._try(lambda run: run.end(status)):
            if time.monotonic() + _POLL_SECONDS >= deadline:
                # The server may have some of them, from before a restart.
                epochs = f" and up to {counted(len(self.pending), 'epoch')}" * bool(self.pending)
                log.info("MLflow at %s lacks the end of the run%s", self.server, epochs)
                return
            time.sleep(_POLL_SECONDS)

    def _try(self, end: Callable[[RunLog], None]) -> bool:
        """Log the pending epochs, then call `end`; return whether the server accepted all."""
        try:
            if not self._run:
                run = self.connect()
                run.open()
                self._run = run
                log.info("MLflow at %s: logging to run %s", self.server, run.run_id)
            self._run.log_epochs(self.pending)
            self.pending.clear()
            end(self._run)
        except ImportError:
            raise
        except Exception as error:  # the client raises errors of requests and urllib3, too
            if not self._away:
                log.warning(
                    "MLflow at %s: %s; training continues, and epochs are logged once it answers",
                    self.server,
                    line(self.hide(f"{type(error).__name__}: {error}"), 300),
                )
            self._away = True
            self._next_try = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            return False
        if self._away:
            log.info("MLflow at %s answers again", self.server)
        self._away, self._pause = False, _FIRST_PAUSE
        return True


def main(path: str) -> None:
    """Copy the epochs of the run that a file describes."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # the trainer decides when this process ends
    die_with_parent()
    os.nice(_NICENESS)
    logging.basicConfig(level=logging.WARNING, handlers=[log_to(sys.stdout)])
    log.setLevel(logging.INFO)
    description = json.loads(Path(path).read_text(encoding="utf-8"))
    settings = _Settings(dict(os.environ))
    settings.update()
    server = os.environ.get(MLFLOW_KEY, "")

    def connect() -> RunLog:
        from mlflow import MlflowClient

        client = MlflowClient()
        return RunLog(client, description["parameters"], description["tags"], os.environ)

    def wait(seconds: float) -> str | None:
        if not select.select([sys.stdin], [], [], seconds)[0]:
            settings.update()
            return None
        return sys.stdin.readline()

    host = host_of(server)
    session = Session(
        Follower(Path(description["progress"])),
        connect,
        lambda message: settings.hide(message.replace(server, host)),
        host,
    )
    try:
        session.follow(wait)
    except ImportError as error:
        log.warning(
            "nothing is logged to MLflow, because its client is not installed (%s). Fix: install"
            " mlflow-skinny in the image of the chief, or remove %s",
            error,
            MLFLOW_KEY,
        )


class _Settings:
    """The settings of MLflow's client: the environment, or else the Secret, which may change."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._secret = SecretVolume.from_environment()

    def update(self) -> None:
        """Read the Secret again; the client reads its variables before each request."""
        for name in _SETTINGS:
            if not self._environment.get(name) and (value := self._secret.get(name)):
                os.environ[name] = value

    def hide(self, message: str) -> str:
        """Return a message without the credentials."""
        return without_secrets(message, [os.environ.get(name, "") for name in tracking.CREDENTIALS])


if __name__ == "__main__":
    main(sys.argv[1])
