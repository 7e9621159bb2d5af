"""Wraps the engine of every step: opens the store, and writes a record if the step fails.

KFP reduces a step's exit code to "failed" and drops the outputs of a failed step. So the cause is
stored as `runs/<run_id>/failure.json` (`storage/failure_record.py`). A local run also writes it to
the file that the environment names, because the store itself may have failed.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import traceback
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from kfp_tfjob.checks.step_memory import out_of_memory
from kfp_tfjob.cluster.backend import is_local
from kfp_tfjob.jobs.verdict import JobFailedError, Verdict
from kfp_tfjob.options.parse import parse
from kfp_tfjob.options.pod import PodOptions
from kfp_tfjob.registry.outcome import outcome_of
from kfp_tfjob.storage.documents import InvalidDocumentError
from kfp_tfjob.storage.errors import (
    ConfigurationError,
    ObjectNotFoundError,
    Problems,
    StepError,
)
from kfp_tfjob.storage.escaping import lines, log_to
from kfp_tfjob.storage.failure_record import Failure
from kfp_tfjob.storage.layout import Layout, RunLayout
from kfp_tfjob.storage.names import check_task_key
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.storage.run_folder import find
from kfp_tfjob.storage.store import Store

# Set by the local run, which does not get a step's exit code either.
FAILURE_FILE = "KFP_TFJOB_FAILURE_FILE"
# Set by the local run: kfp.local generates an id that is not known in advance.
RUN_ID = "KFP_TFJOB_RUN_ID"

# The step in the record of a run that was ended from outside and not by a step.
WHOLE_RUN = "run"
# The steps that check a run's inputs. The others check what the run itself has stored.
_READS_INPUTS = ("preflight", "prepare_data", "launch_tfjob")
# The logger that a step prints.
LOGGER = "kfp_tfjob"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Step:
    """The context of an engine.

    Attributes:
        name: The step, for example `prepare_data`.
        run_id: The run; also the name of its folder in S3.
        layout: Everything below output_uri.
        store: The store that holds it.
        task_key: Keeps one step's tasks apart in a run; usually empty.
        place: The run's folder; None to find it when it is needed.
    """

    name: str
    run_id: str
    layout: Layout
    store: Store
    task_key: str = ""
    place: RunLayout | None = None

    @cached_property
    def run(self) -> RunLayout:
        """The folder of this run, or of this task in it if it has a key."""
        return self.whole_run.task(self.task_key)

    @cached_property
    def whole_run(self) -> RunLayout:
        """This run's folder; if output_uri shapes it, the first use reads its record."""
        if self.place or not self.layout.template:
            return self.place or self.layout.run(self.run_id)
        return find(self.store, self.layout, self.run_id)


class OutOfMemoryError(StepError):
    """The step needs more memory than its pod has; the kernel kills others without a word."""

    verdict = str(Verdict.OUT_OF_MEMORY)


@dataclass
class FailureReport:
    """Where a failure is recorded besides the log: in the store, once `step` is set."""

    step: Step | None = None


def open_step(
    name: str,
    run_id: str,
    output_uri: str,
    storage_endpoint: str = "",
    storage_region: str = "",
    task_key: str = "",
    patience: Patience | None = None,
) -> Step:
    """Return what the engine of a step needs, without a request to the store.

    Raises:
        ConfigurationError: output_uri or storage_endpoint is not an address, or the key is wrong.
    """
    wrong = Problems(check_task_key(task_key))
    layout = wrong.of(lambda: Layout.parse(output_uri))
    store = wrong.of(lambda: Store(storage_endpoint, storage_region, patience=patience))
    if wrong or not (layout and store):
        raise ConfigurationError(*wrong)
    return Step(name, os.environ.get(RUN_ID) or run_id, layout, store, task_key)


@contextmanager
def step(
    name: str,
    run_id: str,
    output_uri: str,
    storage_endpoint: str = "",
    storage_region: str = "",
    task_key: str = "",
) -> Iterator[Step]:
    """Run the body of a step.

    Yields:
        What the engine needs.

    Raises:
        SystemExit: The body failed; it has the exit code of the error, and failure.json is written.
    """
    with reported(name) as report:
        storage = (storage_endpoint, storage_region)
        report.step = open_step(name, run_id, output_uri, *storage, task_key)
        if not is_retry():
            # A person's retry may end without a record; then the earlier one must not explain it.
            _forget(name, replace(report.step, store=report.step.store.within(0)))
        yield report.step


@contextmanager
def reported(name: str) -> Iterator[FailureReport]:
    """Turn the errors of the body into failure.json and an exit code.

    Yields:
        The report, whose `step` the body sets as soon as it knows the store.

    Raises:
        SystemExit: As for `step`.
    """
    log_to_stdout()
    report = FailureReport()
    try:
        _not_again(name)
        yield report
        if local_failure(name):  # of an earlier try; the run has not failed
            Path(os.environ[FAILURE_FILE]).unlink()
        _forget(name, report.step)
    except Exception as error:
        _fail(failure_of(name, error), report.step)


def is_retry() -> bool:
    """Return whether KFP retries this step by itself; a user's retry starts at index 0 again."""
    record = os.environ.get(FAILURE_FILE)  # of the local run, which has no index
    return int(os.environ.get("KFP_RETRY_INDEX") or 0) > 0 or bool(record and Path(record).exists())


def failure_of(name: str, error: Exception) -> Failure:
    """Return the record of an error of a step; print the traceback of one that is a bug.

    A StepError names what the user can do. Code that raises one because of another exception
    catches only that of the call which can fail for the user's reason.
    """
    if isinstance(error, JobFailedError) and error.record:
        return error.record
    if isinstance(error, StepError):
        return Failure.of(name, error)
    if isinstance(error, MemoryError):
        error = OutOfMemoryError(out_of_memory(name, str(error) or "no more memory"))
        return Failure.of(name, error)
    print(lines(traceback.format_exc()), file=sys.stderr, flush=True)
    message = f"{type(error).__name__}: {error}. This is a bug in the step, not in the input."
    return Failure(name, 1, "failed", message)


def log_to_stdout() -> None:
    """Print the project's log lines; KFP's executor uses the root logger."""
    logger = logging.getLogger(LOGGER)
    logger.handlers, logger.propagate = [log_to(sys.stdout)], False
    logger.setLevel(logging.INFO)


def _not_again(name: str) -> None:
    """Exit at once if this step has failed for good: kfp.local retries a step on any error."""
    failure = local_failure(name)
    if failure and failure.final:
        raise SystemExit(failure.code)


def local_failure(name: str) -> Failure | None:
    """Return the failure of a step in a local run, or None; on KFP there is no such file."""
    path = Path(os.environ.get(FAILURE_FILE) or os.devnull)
    failure = Failure.from_bytes(path.read_bytes()) if path.is_file() else None
    return failure if failure and failure.step == name else None


def _forget(name: str, context: Step | None) -> None:
    """Remove the record of an earlier failure when a person retries, or a retry has succeeded.

    The record is from this step, or from a run that was ended and now resumes.
    """
    if not context:
        return
    try:
        # If output_uri shapes the run's folder, preflight may have failed before that folder
        # was known.
        unshaped = context.layout.run(context.run_id)
        own = dict.fromkeys((context.run, unshaped.task(context.task_key)))
        for place in own:
            _forget_in(place, (name, WHOLE_RUN), context.store)
        for place in dict.fromkeys((context.whole_run, unshaped)):
            if place not in own:
                _forget_in(place, (WHOLE_RUN,), context.store)
    except (StepError, InvalidDocumentError) as error:
        log.warning("cannot remove the record of an earlier failure: %s", error)


def _forget_in(place: RunLayout, steps: Collection[str], store: Store) -> None:
    address = place.failure("json")
    try:
        failure = Failure.from_bytes(store.read(address))
    except ObjectNotFoundError:
        return  # no earlier failure
    if failure.step in steps:
        store.delete(place.failure("md"))
        store.delete(address)


def keeps_result(failure: Failure, context: Step) -> bool:
    """Return whether a run has a result that this failure of a later try leaves as it is.

    `kfp-tfjob run --run-id` can continue a complete run with other parameters or data. Rejecting
    them does not make the run a failed one.
    """
    if not (failure.final and failure.step in _READS_INPUTS):
        return False
    trained_by = (context.run_id, context.task_key)
    try:
        return outcome_of(context.store, context.layout, context.run, trained_by).is_final
    except (StepError, ValueError, KeyError, TypeError):
        return False


def _fail(failure: Failure, context: Step | None) -> None:
    """Store the record of a failure if possible, notify of it, log it, and end the process."""
    stored = False
    if path := os.environ.get(FAILURE_FILE):
        Path(path).write_bytes(failure.to_bytes())
    if context:
        try:
            if keeps_result(failure, context):
                log.info("the run was complete before, so its records stay as they are")
            else:
                context.store.write(context.run.failure("json"), failure.to_bytes())
                stored = True
        except StepError as error:
            log.warning("the cause could not be stored: %s", error)
    # The local run shows the message itself, as its last output.
    message = "" if path else f": {failure.message}"
    if not path:
        print(failure.to_line(), flush=True)
    log.error("%s failed (%s)%s", failure.step, failure.verdict, message)
    _tell(failure, context, stored)
    raise SystemExit(failure.code)


def _tell(failure: Failure, context: Step | None, stored: bool) -> None:
    """Notify of a failure that is final; never raises. A local run notifies when it ends."""
    from kfp_tfjob.components import notify

    if not is_local() and not notify.will_be_retried():
        run_id = context.run_id if context else ""
        notice = notify.failure(run_id, failure)
        store, run = (context.store, context.whole_run) if context and stored else (None, None)
        notify.notify(notice, store, run)


def gpus_of(pod: Mapping[str, Any]) -> int:
    """Return the GPUs of the pod of evaluate or publish; none in a local run."""
    return 0 if is_local() else parse(PodOptions, "pod", pod).evaluate.gpus


def cores_of(pod: Mapping[str, Any]) -> int:
    """Return the cores that `pod.prepare` requests; 0 if it does not say."""
    from kubernetes.utils.quantity import parse_quantity

    asked = parse(PodOptions, "pod", pod).prepare.cpu
    return math.ceil(parse_quantity(asked)) if asked else 0
