"""What the steps of a run have stored: progress, attempts, the verdict, the failure.

A back end keeps little of a run. The rest is in the store, and a user may not have its keys. So
everything here can be missing, with a sentence that says why.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

from kfp_tfjob.jobs.attempt_record import AttemptEnd, read_ends
from kfp_tfjob.pipelines.kubeflow.runs import Run
from kfp_tfjob.registry.outcome import Outcome, outcome_of
from kfp_tfjob.storage.documents import InvalidDocumentError
from kfp_tfjob.storage.errors import ObjectNotFoundError, Problem, StepError
from kfp_tfjob.storage.failure_record import Failure
from kfp_tfjob.storage.layout import Layout, RunLayout
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.storage.run_folder import find, newest_checkpoint
from kfp_tfjob.storage.store import Store

T = TypeVar("T")
_TAIL = 64 << 10  # bytes of progress.jsonl
# A store that this machine cannot reach must not hold up a command.
REACHABLE = Patience(seconds=3, first=0.5, silence=10)


@dataclass(frozen=True)
class Progress:
    """The newest report of the chief.

    Attributes:
        time: When it was written, in seconds since 1970, by the clock of the chief.
        epoch: From 1.
        step: Training steps so far.
        steps: Training steps in all.
        eta_seconds: Until the training ends; None if unknown.
        examples_per_second: Over all replicas; None if unknown.
        metrics: For example, `loss`.
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
        trouble: Why the records cannot be read; empty if they can, or nothing was read yet.
        run_id: The run.
    """

    def __init__(
        self, run: Run, endpoint: str = "", open_store: Callable[[], Store] | None = None
    ) -> None:
        self.trouble = ""
        self.run_id = run.run_id
        self._run = run
        output = str(run.parameters.get("output_uri", ""))
        self._layout = self._open(lambda: Layout.parse(output)) if output else None
        if not output:
            self.trouble = "it has no parameter output_uri, so they cannot be found"
        url = endpoint_of(str(run.parameters.get("storage_endpoint") or ""), endpoint)
        region = str(run.parameters.get("storage_region", ""))
        self._store = self._open(open_store or (lambda: Store(url, region, patience=REACHABLE)))

    @cached_property
    def folder(self) -> RunLayout | None:
        """The run's folder; None if output_uri is not an address."""
        layout, store = self._layout, self._store
        if not layout or not layout.template:
            return layout.run(self._run.run_id) if layout else None
        if not store or self.trouble:
            return None
        return self._open(lambda: find(store, layout, self._run.run_id))

    def failure(self) -> Failure | None:
        """Return what ended the run, as the failed step wrote it; tasks with a key come last.

        A person may end a retry before it replaces the record of the first try.
        """

        def read(store: Store, at: RunLayout) -> Failure | None:
            found = Failure.from_bytes(store.read(at.failure("json")))
            return None if self._run.was_cancelled and found.verdict != "cancelled" else found

        if failure := self._read(read):
            return failure
        keys = self._read(lambda store, at: store.folders(at.tasks)) or []
        found = (self._read(lambda store, at, key=key: read(store, at.task(key))) for key in keys)
        return next(filter(None, found), None)

    @cached_property
    def outcome(self) -> Outcome:
        """How the run came to its end without a failure; read once, because it does not change."""

        def read(store: Store, at: RunLayout) -> Outcome:
            assert self._layout  # or there is no store to read
            return outcome_of(store, self._layout, at, (self._run.run_id, ""))

        return self._read(read) or Outcome()

    def ends(self) -> dict[int, AttemptEnd | None]:
        """Return every attempt's end; None for one that is running."""
        return self._read(lambda store, at: read_ends(store, at)) or {}

    def checkpoint(self) -> int | None:
        """Return the step of the newest stored checkpoint."""
        return self._read(newest_checkpoint) or None

    def progress(self) -> Progress | None:
        """Return the newest report of the chief."""

        def read(store: Store, at: RunLayout) -> Progress | None:
            size = store.head(at.progress)["ContentLength"]
            with store.open(at.progress, max(size - _TAIL, 0)) as stream:
                return newest(stream.read().decode(errors="replace"))

        return self._read(read)

    def judged(self) -> Run:
        """Return the run with its verdict."""
        return replace(self._run, verdict=self._word()) if self._run.is_over else self._run

    def _word(self) -> str:
        failure = self.failure() if self._run.state != "succeeded" else None
        if failure:
            return failure.verdict
        if self._run.was_cancelled:
            return "cancelled"
        return self.outcome.word

    def _open(self, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except StepError as error:
            self.trouble = self.trouble or _first(error)
            return None

    def _read(self, read: Callable[[Store, RunLayout], T]) -> T | None:
        if self.trouble or not (self._store and self.folder):
            return None
        try:
            return read(self._store, self.folder)
        except ObjectNotFoundError:
            return None
        except StepError as error:
            self.trouble = _first(error)
        except InvalidDocumentError as error:
            self.trouble = f"one of the run's records is damaged: {error}"
        return None


def endpoint_of(parameter: str, endpoint: str = "") -> str:
    """Return the URL of a run's store as this machine reaches it.

    `storage_endpoint` is the address inside the cluster, so the environment of this machine
    precedes it.
    """
    here = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    return endpoint or here or parameter


def newest(text: str) -> Progress | None:
    """Return the newest report among lines of progress.jsonl; cut and foreign lines are skipped."""
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
            continue
    return None


def _first(error: StepError) -> str:
    problem = error.problems[0]
    if isinstance(problem, Problem):
        return f"{problem.what} ({problem.received})" if problem.received else problem.what
    return str(problem)


def quiet() -> None:
    """Keep the store from logging each repeated call."""
    logging.getLogger("kfp_tfjob.storage").setLevel(logging.ERROR)
