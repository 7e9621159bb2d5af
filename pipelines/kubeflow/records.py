"""The stored records of a run: progress, attempts, the verdict, the failure.

A back end stores little of a run. The records are in the store, whose keys a user may not have. So
each of them can be missing, and `Records.trouble` is the reason. Called by the commands that show,
follow or explain a run.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self, TypeVar

from kfp_tfjob.common.errors import ObjectNotFoundError, Problem, StepError
from kfp_tfjob.jobs.attempt_record import AttemptEnd, read_ends
from kfp_tfjob.jobs.failure_record import Failure
from kfp_tfjob.registry.outcome import Outcome, outcome_of
from kfp_tfjob.registry.run_folder import find, newest_checkpoint
from kfp_tfjob.storage.documents import InvalidDocumentError
from kfp_tfjob.storage.layout import Layout, RunLayout
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.storage.store import Store

from .runs import Run

T = TypeVar("T")
_TAIL = 64 << 10  # bytes at the end of progress.jsonl: enough for the newest reports
# A store that this machine cannot reach must not hold up a command.
REACHABLE = Patience(seconds=3, first=0.5, silence=10)


@dataclass(frozen=True)
class Progress:
    """The newest report of the chief.

    Attributes:
        time: The time of writing, in seconds since 1970, by the chief's clock.
        epoch: The epoch, from 1.
        step: The number of completed training steps.
        steps: The number of all training steps.
        eta_seconds: The expected seconds until training ends; None if unknown.
        examples_per_second: The rate of all replicas together; None if unknown.
        metrics: The metrics by name, for example `loss`.
    """

    time: float
    epoch: int
    step: int
    steps: int
    eta_seconds: float | None = None
    examples_per_second: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


class Records:
    """One run's records.

    Args:
        run: The run.
        endpoint: URL of the store as this machine reaches it; empty for the AWS environment, else
            the run parameter.
        open_store: Opens another store instead, as a local run has.

    Attributes:
        trouble: The reason why the records cannot be read; empty if they can, or before the first
            read.
        run_id: The run.
    """

    def __init__(
        self, run: Run, endpoint: str = "", open_store: Callable[[], Store] | None = None
    ) -> None:
        self.trouble = ""
        self.run_id = run.run_id
        self._run = run
        output = str(run.parameters.get("output_uri", ""))
        # `_open` sets `trouble` instead of raising, because a run without records is shown as well.
        self._layout = self._open(lambda: Layout.parse(output)) if output else None
        if not output:
            self.trouble = "it has no parameter output_uri, so they cannot be found"
        url = endpoint_of(str(run.parameters.get("storage_endpoint") or ""), endpoint)
        region = str(run.parameters.get("storage_region", ""))
        self._store = self._open(open_store or (lambda: Store(url, region, patience=REACHABLE)))

    @property
    def bucket(self) -> tuple[str, str]:
        """The store's URL and the bucket; empty strings if they are unknown."""
        endpoint = self._store.endpoint if self._store else ""
        return endpoint, self._layout.root.bucket if self._layout else ""

    def about(self, run: Run) -> Self:
        """Return the records of the same run in another state; its store is not opened again."""
        records = copy(self)
        records._run = run
        return records

    @cached_property
    def folder(self) -> RunLayout | None:
        """The run's folder; None if output_uri is not an address, or the store cannot be read."""
        layout, store = self._layout, self._store
        if not layout or not layout.template:
            return layout.run(self._run.run_id) if layout else None
        if not store or self.trouble:
            return None
        return self._open(lambda: find(store, layout, self._run.run_id))

    def failure(self) -> Failure | None:
        """Return the record of the failed step; None if there is none.

        The run's own record comes first, then the records of tasks with a key.
        """

        def read(store: Store, run: RunLayout) -> Failure | None:
            failure = Failure.from_bytes(store.read(run.failure("json")))
            # A user may end a retry before it replaces the record of the first try.
            is_older = self._run.was_cancelled and failure.verdict != "cancelled"
            return None if is_older else failure

        if failure := self._read(read):
            return failure
        keys = self._read(lambda store, run: store.folders(run.tasks)) or []
        task_failures = (
            self._read(lambda store, run, key=key: read(store, run.task(key))) for key in keys
        )
        return next(filter(None, task_failures), None)

    @cached_property
    def outcome(self) -> Outcome:
        """The outcome of a run that did not fail; empty if its records cannot be read."""

        def read(store: Store, run: RunLayout) -> Outcome:
            assert self._layout  # or there is no store to read
            return outcome_of(store, self._layout, run, (self._run.run_id, ""))

        return self._read(read) or Outcome()

    def ends(self) -> dict[int, AttemptEnd | None]:
        """Return every attempt's end by its number; None for an attempt without a recorded end."""
        return self._read(lambda store, run: read_ends(store, run)) or {}

    def checkpoint(self) -> int | None:
        """Return the step of the newest stored checkpoint; None without one."""
        return self._read(newest_checkpoint) or None

    def progress(self) -> Progress | None:
        """Return the newest report of the chief; None before the first."""

        def read(store: Store, run: RunLayout) -> Progress | None:
            size = store.head(run.progress)["ContentLength"]
            with store.open(run.progress, max(size - _TAIL, 0)) as stream:
                return newest(stream.read().decode(errors="replace"))

        return self._read(read)

    def with_verdict(self) -> Run:
        """Return the run with its verdict, if it is over."""
        return replace(self._run, verdict=self._verdict()) if self._run.is_over else self._run

    def _verdict(self) -> str:
        failure = self.failure() if self._run.state != "succeeded" else None
        if failure:
            return failure.verdict
        if self._run.was_cancelled:
            return "cancelled"
        return self.outcome.word

    def _open(self, call: Callable[[], T]) -> T | None:
        """Return the result of a call; its error becomes the trouble, unless there is one."""
        try:
            return call()
        except StepError as error:
            self.trouble = self.trouble or _first_problem(error)
            return None

    def _read(self, read: Callable[[Store, RunLayout], T]) -> T | None:
        """Return the result of a read; None for a missing record, or if it cannot be read."""
        if self.trouble or not (self._store and self.folder):
            return None
        try:
            return read(self._store, self.folder)
        except ObjectNotFoundError:
            return None  # the run has not written this record
        except StepError as error:
            self.trouble = _first_problem(error)  # what else is known of the run is still shown
        except InvalidDocumentError as error:
            self.trouble = f"one of the run's records is damaged: {error}"
        return None


def endpoint_of(parameter: str, endpoint: str = "") -> str:
    """Return the URL of a run's store as this machine reaches it.

    Args:
        parameter: `storage_endpoint`, the address inside the cluster, so this machine's environment
            takes precedence.
        endpoint: The URL that a person has named; empty for none.
    """
    in_environment = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    return endpoint or in_environment or parameter


def newest(text: str) -> Progress | None:
    """Return the newest report in lines of progress.jsonl; truncated or other lines are skipped."""
    for line in reversed(text.splitlines()):
        try:
            event = json.loads(line)
            if event["event"] not in ("progress", "epoch", "final"):
                continue
            numbers = {
                name: float(value)
                for name, value in (event.get("metrics") or {}).items()
                if isinstance(value, int | float) and not isinstance(value, bool)
            }
            return Progress(
                time=float(event["time"]),
                epoch=int(event["epoch"]),
                step=int(event["step"]),
                steps=int(event["steps"]),
                eta_seconds=0.0 if event["event"] == "final" else event.get("eta_seconds"),
                examples_per_second=event.get("examples_per_second"),
                metrics=numbers,
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue  # the tail may begin within a line, and a user's program may write others
    return None


def _first_problem(error: StepError) -> str:
    """Return the first problem of an error in words, without its fix."""
    problem = error.problems[0]
    if isinstance(problem, Problem):
        return f"{problem.what} ({problem.received})" if problem.received else problem.what
    return str(problem)


def quiet() -> None:
    """Keep the store from logging each repeated call."""
    logging.getLogger("kfp_tfjob.storage").setLevel(logging.ERROR)
