"""Wraps the engine of every step: opens the store, and writes a record if the step fails.

KFP reduces a step's exit code to "failed" and drops the outputs of a failed step. So the cause is
stored as `runs/<run_id>/failure.json` (`jobs/failure_record.py`), where the exit task, the
notification and `kfp-tfjob` commands read it. A local run also writes it to the file that the
environment names, because the store itself may have failed. The body of each component.py runs
inside `step`; preflight uses `reported`, because it first checks the parameters of the store.
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
from kfp_tfjob.common import progress
from kfp_tfjob.common.errors import (
    ConfigurationError,
    ObjectNotFoundError,
    Problems,
    StepError,
)
from kfp_tfjob.common.escaping import lines
from kfp_tfjob.common.log_format import log_to
from kfp_tfjob.common.names import check_task_key
from kfp_tfjob.jobs.failure_record import Failure
from kfp_tfjob.jobs.verdict import JobFailedError, Verdict
from kfp_tfjob.options.parse import parse
from kfp_tfjob.options.pod import PodOptions
from kfp_tfjob.registry.outcome import outcome_of
from kfp_tfjob.registry.run_folder import find
from kfp_tfjob.storage.documents import InvalidDocumentError
from kfp_tfjob.storage.layout import Layout, RunLayout
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.storage.store import Store

# Set by the local run, which does not get a step's exit code either.
FAILURE_FILE = "KFP_TFJOB_FAILURE_FILE"
# Set by the local run: kfp.local generates an id that is not known in advance.
RUN_ID = "KFP_TFJOB_RUN_ID"

# The step's name in the record of a run that was ended from outside and not by a step.
WHOLE_RUN = "run"
# The steps that check a run's inputs. The others check what the run itself has stored.
_READS_INPUTS = ("preflight", "prepare_data", "launch_tfjob")
# The logger that a step prints.
LOGGER = "kfp_tfjob"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Step:
    """The run and the store that a step's engine works with.

    Attributes:
        name: The step, for example `prepare_data`.
        run_id: The run; also the name of its folder in S3.
        layout: Everything below output_uri.
        store: The store that holds it.
        task_key: Keeps one step's tasks apart in a run; usually empty.
        folder: The run's folder; None to look it up when it is needed.
    """

    name: str
    run_id: str
    layout: Layout
    store: Store
    task_key: str = ""
    folder: RunLayout | None = None

    @cached_property
    def run(self) -> RunLayout:
        """The folder of this run, or of this task in it if it has a key."""
        return self.whole_run.task(self.task_key)

    @cached_property
    def whole_run(self) -> RunLayout:
        """This run's folder; if output_uri shapes it, the first use reads its record."""
        if self.folder or not self.layout.template:
            return self.folder or self.layout.run(self.run_id)
        return find(self.store, self.layout, self.run_id)


class OutOfMemoryError(StepError):
    """The step needs more memory than its pod has.

    Often, the kernel kills the process before Python can raise a MemoryError; then no step records
    the failure, and the exit task reads the cause from the pod.
    """

    verdict = str(Verdict.OUT_OF_MEMORY)


@dataclass
class FailureReport:
    """The step whose run a failure is recorded in; without one, a failure is only logged."""

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
    """Return the run and its store for a step's engine, without a request to the store.

    Raises:
        ConfigurationError: output_uri or storage_endpoint is not an address, or task_key is
            invalid.
    """
    problems = Problems(check_task_key(task_key))
    layout = problems.of(lambda: Layout.parse(output_uri))
    store = problems.of(lambda: Store(storage_endpoint, storage_region, patience=patience))
    if problems or not (layout and store):
        raise ConfigurationError(*problems)
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
        The run and its store, for the step's engine.

    Raises:
        SystemExit: The body failed; failure.json is written, and the exit code is the error's.
    """
    with reported(name) as report:
        storage = (storage_endpoint, storage_region)
        report.step = open_step(name, run_id, output_uri, *storage, task_key)
        if not is_retry():
            # A person's retry may be killed before it can write a record. The earlier record would
            # then give a wrong cause.
            _remove_failure_record(
                name, replace(report.step, store=report.step.store.with_patience(0))
            )
        yield report.step


@contextmanager
def reported(name: str) -> Iterator[FailureReport]:
    """Turn an error of the body into failure.json and an exit code.

    Yields:
        The report, whose `step` the body sets as soon as it knows the store.

    Raises:
        SystemExit: As for `step`.
    """
    log_to_stdout()
    report = FailureReport()
    try:
        _exit_if_final(name)
        yield report
        if local_failure(name):  # of an earlier attempt; the run has not failed
            Path(os.environ[FAILURE_FILE]).unlink()
        _remove_failure_record(name, report.step)
    except Exception as error:
        _fail(failure_of(name, error), report.step)


def is_retry() -> bool:
    """Return whether KFP retries this step by itself; a user's retry starts at index 0 again."""
    record = os.environ.get(FAILURE_FILE)  # of the local run, which sets no index
    return int(os.environ.get("KFP_RETRY_INDEX") or 0) > 0 or bool(record and Path(record).exists())


def failure_of(name: str, error: Exception) -> Failure:
    """Return the record of a step's error, and print the traceback if it is a bug.

    A StepError has a fix for the user; every other exception is a bug. So code that turns an
    exception into a StepError must catch it around the one call that the user's input can fail.
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
    """Print the project's log lines, separately from KFP's executor, which uses the root logger."""
    logger = logging.getLogger(LOGGER)
    logger.handlers, logger.propagate = [log_to(sys.stdout)], False
    if os.environ.get(progress.FILE):
        logger.addHandler(progress.WarningHandler())
    logger.setLevel(logging.INFO)


def _exit_if_final(name: str) -> None:
    """Exit if this step's failure is final, because kfp.local retries a step after any error."""
    failure = local_failure(name)
    if failure and failure.final:
        raise SystemExit(failure.code)


def local_failure(name: str) -> Failure | None:
    """Return a step's failure in a local run, or None; on KFP, FAILURE_FILE is not set."""
    path = Path(os.environ.get(FAILURE_FILE) or os.devnull)
    failure = Failure.from_bytes(path.read_bytes()) if path.is_file() else None
    return failure if failure and failure.step == name else None


def _remove_failure_record(name: str, context: Step | None) -> None:
    """Remove the record of an earlier failure when a person retries, or a retry has succeeded.

    The record is from this step, or from a run that was ended and now resumes.
    """
    if not context:
        return
    try:
        # If output_uri shapes the run's folder, preflight may have failed before that folder
        # was known.
        unshaped = context.layout.run(context.run_id)
        task_folders = dict.fromkeys((context.run, unshaped.task(context.task_key)))
        for folder in task_folders:
            _remove_record_in(folder, (name, WHOLE_RUN), context.store)
        # A record of another task's step stays, because that task has not been retried.
        for folder in dict.fromkeys((context.whole_run, unshaped)):
            if folder not in task_folders:
                _remove_record_in(folder, (WHOLE_RUN,), context.store)
    except (StepError, InvalidDocumentError) as error:
        log.warning("cannot remove the record of an earlier failure: %s", error)


def _remove_record_in(folder: RunLayout, steps: Collection[str], store: Store) -> None:
    """Remove a folder's failure record if it is from one of `steps`."""
    address = folder.failure("json")
    try:
        failure = Failure.from_bytes(store.read(address))
    except ObjectNotFoundError:
        return  # no earlier failure
    if failure.step in steps:
        store.delete(folder.failure("md"))
        store.delete(address)


def keeps_result(failure: Failure, context: Step) -> bool:
    """Return whether a run was complete before this failure, so that its records must stay.

    `kfp-tfjob run --run-id` can continue a complete run with other parameters or data. If they are
    rejected, the run's model is still published.
    """
    if not (failure.final and failure.step in _READS_INPUTS):
        return False
    trained_by = (context.run_id, context.task_key)
    try:
        return outcome_of(context.store, context.layout, context.run, trained_by).is_final
    except (StepError, ValueError, KeyError, TypeError):
        return False  # the failure is then recorded, which is right for most runs


def _fail(failure: Failure, context: Step | None) -> None:
    """Store a failure's record if possible, log it, notify of it, and end the process."""
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
    if not path:
        log.error("docs: %s", failure.docs_address)
    _notify(failure, context, stored)
    raise SystemExit(failure.code)


def _notify(failure: Failure, context: Step | None, stored: bool) -> None:
    """Send the notification of a failure unless KFP retries the step; never raises.

    A local run sends it when its process ends. After a failure that could not be stored, the store
    is not asked for addresses and GPU hours.
    """
    from . import notify

    if not is_local() and not notify.will_be_retried():
        run_id = context.run_id if context else ""
        notice = notify.failure(run_id, failure)
        store, run = (context.store, context.whole_run) if context and stored else (None, None)
        notify.notify(notice, store, run)


def gpus_of(pod: Mapping[str, Any]) -> int:
    """Return the number of GPUs of evaluate's and publish's pods; 0 in a local run."""
    return 0 if is_local() else parse(PodOptions, "pod", pod).evaluate.gpus


def cores_of(pod: Mapping[str, Any]) -> int:
    """Return the cores that `pod.prepare` requests, rounded up; 0 if it does not set them."""
    from kubernetes.utils.quantity import parse_quantity

    cpu = parse(PodOptions, "pod", pod).prepare.cpu
    return math.ceil(parse_quantity(cpu)) if cpu else 0
